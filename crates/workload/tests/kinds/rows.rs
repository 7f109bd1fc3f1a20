//! The kinds that are rows: those that come with the operator, and what of a user's row is refused.

use consul_client::clock::Moment;
use consul_semaphore::{
    Identity, Phase, SlotRequest,
    engine::Write,
    plan::{End, Ended, Fail, Failed, Suspend, Suspended, Target},
};
use consul_semaphore_workload::{
    Kind, Kinds, Obstacle, Request, TrackedWorkload,
    pods::{Belongs, OwnQuery},
    row::Row,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    HOLDER, SESSION, UID, applied, forgets_its_grant, granted, identity, name_its_slot, object,
    phase, reads_its_grant_back, sent, started, tracked, workload,
};

/// A kind, and what its controller does.
struct Listed {
    kind: Kind,
    /// The spec of a held one.
    spec: Value,
    /// The status of one whose controller has seen the hold.
    suspended: Value,
    /// Those of one that has ended.
    finished: Vec<Value>,
    /// Where its pods' metadata is.
    metadata: &'static [&'static str],
    hold: &'static str,
}

fn kind(plural: &str) -> Kind {
    let all = Kind::all();
    let mut all = all.into_iter();
    let kind = all.find(|kind| kind.resource().plural == plural);
    kind.unwrap_or_else(|| panic!("{plural} is a row"))
}

fn condition(type_: &str) -> Value {
    json!({ "conditions": [
        { "type": "Created", "status": "True" },
        { "type": type_, "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z" },
    ] })
}

fn rows() -> Vec<Listed> {
    let template = || json!({ "metadata": {}, "spec": { "terminationGracePeriodSeconds": 45 } });
    let bare = || json!({ "spec": {} });
    let labelled =
        || json!({ "metadata": { "labels": { "a/b": "c" }, "annotations": { "x": "y" } } });
    let deployment = |status: &str| json!({ "jobDeploymentStatus": status });
    let state = |state: &str| json!({ "applicationState": { "state": state } });
    vec![
        Listed {
            kind: kind("rayjobs"),
            spec: json!({
                "suspend": true, "shutdownAfterJobFinishes": true, "submissionMode": "K8sJobMode",
                "rayClusterSpec": {
                    "headGroupSpec": { "template": template() },
                    "workerGroupSpecs": [{ "template": bare() }, { "template": labelled() }],
                },
            }),
            suspended: deployment("Suspended"),
            finished: ["Complete", "Failed", "ValidationFailed"]
                .map(deployment)
                .into(),
            metadata: &[
                "/spec/rayClusterSpec/headGroupSpec/template/metadata",
                "/spec/rayClusterSpec/workerGroupSpecs/0/template/metadata",
                "/spec/rayClusterSpec/workerGroupSpecs/1/template/metadata",
            ],
            hold: "/spec/suspend",
        },
        Listed {
            kind: kind("mpijobs"),
            spec: json!({
                "runPolicy": { "suspend": true, "cleanPodPolicy": "Running" },
                "mpiReplicaSpecs": { "Launcher": { "template": template() }, "Worker": { "template": bare() } },
            }),
            suspended: condition("Suspended"),
            finished: ["Succeeded", "Failed"]
                .map(|type_| {
                    let mut finished = condition(type_);
                    finished["completionTime"] = "2026-01-01T00:00:20Z".into();
                    finished
                })
                .into(),
            metadata: &[
                "/spec/mpiReplicaSpecs/Launcher/template/metadata",
                "/spec/mpiReplicaSpecs/Worker/template/metadata",
            ],
            hold: "/spec/runPolicy/suspend",
        },
        Listed {
            kind: kind("trainjobs"),
            spec: json!({ "suspend": true, "managedBy": "trainer.kubeflow.org/trainjob-controller" }),
            suspended: condition("Suspended"),
            finished: ["Complete", "Failed"].map(condition).into(),
            metadata: &[],
            hold: "/spec/suspend",
        },
        Listed {
            kind: kind("sparkapplications"),
            spec: json!({
                "suspend": true,
                "driver": { "terminationGracePeriodSeconds": 45 },
                "executor": { "labels": { "a/b": "c" } },
            }),
            suspended: state("SUSPENDED"),
            finished: ["COMPLETED", "FAILED"].map(state).into(),
            metadata: &["/spec/driver", "/spec/executor"],
            hold: "/spec/suspend",
        },
    ]
}

impl Listed {
    /// One that waits.
    fn waiting(&self) -> Value {
        let mut waiting = object(&self.spec);
        waiting["status"] = self.suspended.clone();
        waiting
    }

    /// One that runs in its slot.
    fn running(&self) -> Value {
        let mut running = granted(&self.kind, &self.waiting());
        running["status"] = json!({});
        running
    }

    fn fail(&self, object: &Value) -> Value {
        let fail = sent(&self.kind, object, |workload| {
            let why = Failed::Superseded { by: String::new() };
            Write::Fail(Fail { workload, why })
        });
        applied(object, &fail)
    }

    /// What its status says once its pods are gone, if it is to say something.
    fn failure(&self, object: &Value) -> Option<Request> {
        let tracked = tracked(&self.kind, object);
        let target = Target::from(&tracked.workload);
        let now = "2026-01-01T00:00:20.5Z".parse().expect("a time");
        self.kind.failure(&target, &tracked.shape, now)
    }
}

#[test]
fn the_rows_that_come_with_the_operator_can_be_read() {
    let rows = rows();
    assert_eq!(
        rows.iter()
            .filter(|row| matches!(row.kind, Kind::Listed(_)))
            .count(),
        4
    );
    let some: Kinds = "rayjobs,mpijobs".parse().expect("they are kinds");
    assert_eq!(some.to_string(), "jobs,mpijobs,rayjobs");
}

#[test]
fn one_that_waits() {
    for row in rows() {
        let read = tracked(&row.kind, &row.waiting());
        assert_eq!(read.obstacle, None);
        assert!(read.workload.is_queued(), "{read:?}");
        assert_eq!(read.workload.requests, [SlotRequest::one("db", None)]);
        let grace = if row.metadata.is_empty() { 30 } else { 45 };
        assert_eq!(read.workload.grace.as_secs(), grace);
    }
}

#[test]
fn what_it_is_doing() {
    for row in rows() {
        let phase = |change: &dyn Fn(&mut Value)| {
            let mut it = row.waiting();
            change(&mut it);
            phase(&row.kind, &it)
        };
        assert_eq!(phase(&|_| {}), Phase::Idle);
        // Its controller has not seen it.
        assert_eq!(phase(&|it| it["status"] = Value::Null), Phase::Stopping);
        let unheld = |it: &mut Value| *it.pointer_mut(row.hold).expect("a field") = json!(false);
        // Someone has let it start, and its controller has not reacted.
        assert_eq!(phase(&unheld), Phase::Stopping);
        let runs = |it: &mut Value| {
            unheld(it);
            it["status"] = json!({});
        };
        assert_eq!(phase(&runs), Phase::Running);
        for finished in &row.finished {
            // Pods may still terminate.
            let finished = phase(&|it| it["status"] = finished.clone());
            assert_eq!(finished, Phase::Finished { at_rest: false });
        }
        let deleted = phase(&|it| {
            it["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:10Z".into();
        });
        assert_eq!(deleted, Phase::Deleting);
    }
}

#[test]
fn a_grant_reaches_all_its_pods() {
    for row in rows() {
        let waiting = row.waiting();
        reads_its_grant_back(&row.kind, &waiting);
        let granted = granted(&row.kind, &waiting);
        assert_eq!(granted.pointer(row.hold), Some(&json!(false)));
        assert_eq!(granted["metadata"]["resourceVersion"], "7", "409 if stale");
        for path in row.metadata {
            let metadata = granted.pointer(path).expect("metadata");
            assert_eq!(metadata["labels"][HOLDER], UID, "{granted}");
            let annotations = &metadata["annotations"];
            assert_eq!(annotations["consul-semaphore.io/session"], SESSION);
            assert_eq!(annotations["consul-semaphore.io/granted-to"], UID);
        }
        assert_eq!(
            granted.to_string().contains(r#""a/b":"c""#),
            waiting.to_string().contains(r#""a/b":"c""#),
            "what is there stays"
        );
        // The next start replaces what is left of this one.
        forgets_its_grant(&row.kind, &granted);
        let mut again = row.waiting();
        again["spec"] = granted["spec"].clone();
        *again.pointer_mut(row.hold).expect("a field") = json!(true);
        name_its_slot(&mut again);
        reads_its_grant_back(&row.kind, &again);
    }
}

/// The others are written to all the same.
#[test]
fn a_part_without_a_template_is_left_out() {
    let row = &rows()[1];
    let mut alone = row.waiting();
    alone["spec"]["mpiReplicaSpecs"] = json!({ "Launcher": { "template": {} } });
    let granted = granted(&row.kind, &alone);
    let specs = &granted["spec"]["mpiReplicaSpecs"];
    assert_eq!(
        specs["Launcher"]["template"]["metadata"]["labels"][HOLDER],
        UID
    );
    assert_eq!(specs["Worker"], Value::Null);
}

#[test]
fn one_that_lost_its_slot_is_held_again_and_may_have_pods() {
    for row in rows() {
        let running = row.running();
        assert_eq!(phase(&row.kind, &running), Phase::Running);
        let suspend = sent(&row.kind, &running, |workload| {
            Write::Suspend(Suspend {
                workload,
                why: Suspended::SlotLost,
                session: None,
                since: 0,
            })
        });
        let mut held = applied(&running, &suspend);
        assert_eq!(phase(&row.kind, &held), Phase::Stopping);
        held["status"] = row.suspended.clone();
        let read = tracked(&row.kind, &held);
        assert!(read.workload.lost() && read.workload.is_queued());
        assert!(read.may_have_pods());
    }
}

#[test]
fn one_that_has_waited_for_too_long_leaves_the_queue_and_its_status_says_so() {
    for row in rows() {
        let waiting = row.waiting();
        assert_eq!(row.failure(&waiting), None);
        let failing = row.fail(&waiting);
        assert_eq!(failing.pointer(row.hold), Some(&json!(true)));
        let read = tracked(&row.kind, &failing);
        assert!(!read.workload.is_queued() && read.workload.wait.failing.is_some());
        assert!(read.may_have_pods());
        let Some(Request::Status(failure)) = row.failure(&failing) else {
            panic!("it is to fail");
        };
        let failed = applied(&failing, &Request::Status(failure));
        assert_eq!(
            phase(&row.kind, &failed),
            Phase::Finished { at_rest: false },
            "{failed}"
        );
        assert_eq!(row.failure(&failed), None);
        // Its controller may not know better: then it is written again.
        assert!(row.failure(&failing).is_some());
    }
}

/// As `kubectl get -o yaml | kubectl apply -f -` makes it.
#[test]
fn a_copy_of_one_that_was_to_fail_waits() {
    for row in rows() {
        let mut copy = row.fail(&row.waiting());
        copy["metadata"]["uid"] = "another".into();
        let read = tracked(&row.kind, &copy);
        assert!(read.workload.is_queued(), "{copy}");
        assert!(read.workload.wait.failing.is_none() && !read.may_have_pods());
        assert_eq!(row.failure(&copy), None);
    }
}

#[test]
fn one_whose_status_can_t_say_that_it_failed_is_put_on_hold() {
    for row in rows() {
        let failing = row.fail(&row.waiting());
        let target = Target::from(&tracked(&row.kind, &failing).workload);
        let held = row.kind.hold(&target);
        let held = applied(&failing, &held);
        let read = tracked(&row.kind, &held);
        assert!(read.workload.is_held_back(), "{held}");
        assert!(read.workload.wait.failing.is_none() && !read.may_have_pods());
        assert_eq!(row.failure(&held), None);
    }
}

/// A `SparkApplication` runs again when its spec is changed.
#[test]
fn one_that_failed_without_a_grant_and_may_run_again_is_not_to_fail_then() {
    for row in rows() {
        let mut failed = row.fail(&row.waiting());
        failed["status"] = row.finished.last().expect("a status").clone();
        let read = tracked(&row.kind, &failed);
        let again = row.kind.name().as_str() == "SparkApplication";
        assert_eq!(read.may_have_pods(), again, "{failed}");
        let target = Target::from(&read.workload);
        let unmarked = row.kind.unmark(&target).expect("it has a mark");
        let mut unmarked = applied(&failed, &unmarked);
        assert!(!tracked(&row.kind, &unmarked).may_have_pods());
        unmarked["status"] = row.suspended.clone();
        assert!(workload(&row.kind, &unmarked).is_queued());
        // Those in whose annotations there is a grant are looked at by that.
        let mut granted = row.running();
        let mark = json!(format!("Replaced {UID}"));
        granted["metadata"]["annotations"]["consul-semaphore.io/failed"] = mark;
        granted["status"] = row.finished[0].clone();
        assert!(!tracked(&row.kind, &granted).may_have_pods());
    }
}

#[test]
fn a_running_one_that_ends_is_held_until_its_pods_are_gone() {
    for row in rows() {
        let running = row.running();
        let end = sent(&row.kind, &running, |workload| {
            let why = Ended::Replaced { by: String::new() };
            Write::End(End { workload, why })
        });
        let mut ending = applied(&running, &end);
        assert_eq!(ending.pointer(row.hold), Some(&json!(true)));
        // Its controller has not seen it, and may make pods.
        assert!(!tracked(&row.kind, &ending).may_have_pods());
        assert_eq!(row.failure(&ending), None);
        ending["status"] = row.suspended.clone();
        assert_eq!(phase(&row.kind, &ending), Phase::Stopping);
        assert!(tracked(&row.kind, &ending).may_have_pods());
        assert!(row.failure(&ending).is_some());
    }
}

#[test]
fn where_a_status_can_t_say_it_one_is_put_on_hold() {
    let text = "{ apiVersion: example.com/v1, kind: Run, plural: runs, pods: { labels: ['run={uid}'] }, life: {
        hold: { path: spec.paused, held: 'yes' },
        suspended: [{ path: status.phase, oneOf: [Paused] }], finished: [{ condition: Done }] } }";
    let row = Listed {
        kind: Row::parse(text).expect("a row").into(),
        spec: json!({ "paused": "yes" }),
        suspended: json!({ "phase": "Paused" }),
        finished: Vec::new(),
        metadata: &[],
        hold: "/spec/paused",
    };
    let waiting = row.waiting();
    let held = row.fail(&waiting);
    assert!(workload(&row.kind, &held).is_held_back(), "{held}");
    assert_eq!(row.failure(&held), None);
    let started = granted(&row.kind, &waiting);
    assert_eq!(started["spec"], json!({}), "the field is removed");
}

#[test]
fn its_pods_are_found_by_our_label_and_by_its_name() {
    let identity = identity("SparkApplication");
    let spark = kind("sparkapplications");
    let queries = spark.pods(&identity);
    let labels: Vec<&str> = queries.iter().map(|query| &*query.labels).collect();
    let own = format!("{HOLDER}={UID}");
    assert_eq!(labels, [&own, "sparkoperator.k8s.io/app-name=a"]);
    let pod = |holder: Option<&str>| {
        let labels = holder.map(|uid| json!({ HOLDER: uid }));
        serde_json::from_value(json!({ "labels": labels })).expect("metadata")
    };
    let finds = |query: &OwnQuery| {
        [None, Some(UID), Some("another")].map(|holder| query.finds(&pod(holder)))
    };
    assert_eq!(
        finds(&queries[1]),
        [Belongs::Yes, Belongs::Yes, Belongs::No],
        "a later application of that name has other pods"
    );
    let jobs = kind("rayjobs").parts(&identity);
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].0, Kind::Job);
    let long = Identity {
        workload: "a".repeat(64).as_str().into(),
        ..identity
    };
    assert_eq!(spark.pods(&long).len(), 1, "no label has so long a value");
}

/// Its controller says that it is Failed, and lets its launcher go on, which may make more pods.
#[test]
fn an_mpi_job_with_an_evicted_worker_goes_on() {
    let rows = rows();
    let mpi = rows.iter().find(|row| row.kind == kind("mpijobs"));
    let mut running = mpi.expect("a row").running();
    running["status"] = json!({
        "conditions": [{ "type": "Failed", "status": "True", "reason": "MPIJobEvicted" }],
    });
    let of = |running: &Value| phase(&kind("mpijobs"), running);
    assert_eq!(of(&running), Phase::Running);
    running["status"]["completionTime"] = Value::Null;
    assert_eq!(of(&running), Phase::Running);
    running["status"]["completionTime"] = "2026-01-01T00:00:20Z".into();
    assert_eq!(of(&running), Phase::Finished { at_rest: false });
}

/// As Trainer makes them: a `TrainJob` makes a `JobSet` of its name, which makes Jobs, and nothing of the `TrainJob`'s own
/// metadata reaches any of them.
#[test]
fn what_a_later_one_of_its_name_made_is_not_its_own() {
    let owned = |kind: &str, version: &str, uid: &str| {
        let owner = json!({
            "apiVersion": version, "kind": kind, "name": "a", "uid": uid, "controller": true
        });
        let metadata: ObjectMeta = serde_json::from_value(json!({
            "name": "a",
            "labels": { "jobset.sigs.k8s.io/jobset-name": "a" },
            "ownerReferences": [owner],
        }))
        .expect("metadata");
        metadata
    };
    let train_job = kind("trainjobs");
    let identity = identity("TrainJob");
    let queries = train_job.pods(&identity);
    let by_name = &queries[1];
    let pod = owned("Job", "batch/v1", "job");
    let Belongs::AsItsController {
        controller: job,
        otherwise: true,
    } = by_name.finds(&pod)
    else {
        panic!("its Job knows more than it does");
    };
    assert!(by_name.may_ask(&Kind::Job, &job));
    let job_set = owned("JobSet", "jobset.x-k8s.io/v1alpha2", "job-set");
    let Belongs::AsItsController {
        controller: job_set,
        ..
    } = by_name.finds_by(&job, &job_set)
    else {
        panic!("its JobSet knows more than its Job does");
    };
    assert!(by_name.may_ask(&Kind::JobSet, &job_set));
    let of = |uid: &str| owned("TrainJob", "trainer.kubeflow.org/v1alpha1", uid);
    assert_eq!(by_name.finds_by(&job_set, &of(UID)), Belongs::Yes);
    let Belongs::AsItsController {
        controller: later, ..
    } = by_name.finds_by(&job_set, &of("later"))
    else {
        panic!("one of its own kind may be between them");
    };
    assert!(by_name.may_ask(&train_job, &later));
    let itself = ObjectMeta::default();
    assert_eq!(by_name.finds_by(&later, &itself), Belongs::No);
    // A kind of the same name in another group is not the same kind.
    let foreign = OwnerReference {
        api_version: "example.com/v1".to_owned(),
        ..later
    };
    assert!(!by_name.may_ask(&train_job, &foreign));
    let (part, jobs) = &train_job.parts(&identity)[0];
    assert_eq!((part, jobs), (&Kind::Job, by_name));
}

#[test]
fn one_that_its_controller_can_t_hold_is_told_so() {
    let ray = &rows()[0];
    let why = |path: &str, value: Value| {
        let mut it = ray.waiting();
        it["spec"][path] = value;
        match tracked(&ray.kind, &it).obstacle {
            Some(Obstacle::Unfit(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let why_not = why("shutdownAfterJobFinishes", json!(false));
    assert!(
        why_not.contains("set spec.shutdownAfterJobFinishes to true"),
        "{why_not}"
    );
    let why_not = why("clusterSelector", json!({ "a": "b" }));
    assert!(why_not.contains("remove spec.clusterSelector"), "{why_not}");
    let why_not = why("submissionMode", json!("InteractiveMode"));
    assert!(why_not.contains("spec.submissionMode"), "{why_not}");
    let mpi = &rows()[1];
    let mut none = mpi.waiting();
    none["spec"]["runPolicy"]["cleanPodPolicy"] = Value::Null;
    let read = tracked(&mpi.kind, &none);
    assert!(matches!(read.obstacle, Some(Obstacle::Unfit(_))));
}

/// The pods of such a workload would not be found by its Jobs, and its slot would be free while they run.
#[test]
fn one_whose_name_fits_no_label_of_its_jobs_is_told_so() {
    let row = include_str!("../../src/kind/rows/mpijobs.yaml")
        .replace("training.kubeflow.org/job-name={name}", "uid={uid}");
    let kind = Kind::from(Row::parse(&row).expect("a row"));
    let mut long = rows()[1].waiting();
    assert_eq!(tracked(&kind, &long).obstacle, None);
    long["metadata"]["name"] = "a".repeat(64).into();
    let obstacle = tracked(&kind, &long).obstacle;
    assert!(matches!(obstacle, Some(Obstacle::Unfit(_))), "{obstacle:?}");
}

#[test]
fn one_of_another_manager_is_left_alone() {
    for row in rows() {
        let mut managed = row.waiting();
        for path in ["/spec", "/spec/runPolicy"] {
            if let Some(at) = managed.pointer_mut(path) {
                at["managedBy"] = "kueue.x-k8s.io/multikueue".into();
            }
        }
        let obstacle = tracked(&row.kind, &managed).obstacle;
        let has_field = row.kind.name().as_str() != "SparkApplication";
        assert_eq!(matches!(obstacle, Some(Obstacle::Managed(_))), has_field);
    }
}

#[test]
fn one_with_more_templates_than_a_patch_can_change_is_told_so() {
    let ray = &rows()[0];
    let mut large = ray.waiting();
    let workers = &mut large["spec"]["rayClusterSpec"]["workerGroupSpecs"];
    *workers = vec![workers[0].clone(); 900].into();
    let read = tracked(&ray.kind, &large);
    assert!(matches!(read.obstacle, Some(Obstacle::TooLarge(_))));
}

/// What a user may write there can't stop the operator.
#[test]
fn fields_of_other_types_are_other_values() {
    for row in rows() {
        for strange in [json!([]), json!({}), json!(7), json!("x".repeat(1 << 20))] {
            let mut it = row.waiting();
            *it.pointer_mut(row.hold).expect("a field") = strange.clone();
            assert_eq!(phase(&row.kind, &it), Phase::Stopping);
            it["status"] = json!({ "jobDeploymentStatus": strange, "applicationState": strange });
            assert_eq!(phase(&row.kind, &it), Phase::Running);
        }
    }
}

proptest! {
    /// Whatever is where a row looks, something is read of the object, or nothing.
    #[test]
    fn any_object_is_read(values in prop::collection::vec(hostile::json(), 4), row in 0..4_usize) {
        let row = &rows()[row];
        let mut strange = row.waiting();
        let mut values = values.iter().map(|text| serde_json::from_str(text).unwrap_or(Value::Null));
        let paths = ["/status/conditions", "/status", "/spec", row.hold];
        let at = row.metadata.first().copied().unwrap_or("/spec/trainer");
        for path in [at].iter().chain(&paths[..2]) {
            if let Some(place) = strange.pointer_mut(path) {
                *place = values.next().unwrap_or_default();
            }
        }
        let text = strange.to_string();
        let _ = TrackedWorkload::parse(&row.kind, &text, Moment::default());
        *strange.pointer_mut("/spec").expect("a spec") = values.next().unwrap_or_default();
        let _ = TrackedWorkload::parse(&row.kind, &strange.to_string(), Moment::default());
    }

    /// What is no row says so in few words.
    #[test]
    fn any_text_is_a_row_or_is_refused(text in prop_oneof![hostile::text(), hostile::json()], field in 0..9_usize) {
        prop_assert!(Row::parse(&text).is_err());
        let right = include_str!("../../src/kind/rows/mpijobs.yaml");
        let line = right.lines().nth(field + 1).expect("a line");
        let name = line.split(':').next().expect("a field");
        let strange = right.replace(line, &format!("{name}: {}", Value::from(text)));
        if let Err(error) = Row::parse(&strange) {
            prop_assert!(error.to_string().len() < 2_000, "{error}");
        }
    }
}

#[test]
fn a_mistake_in_a_row_is_named_with_what_is_allowed() {
    let right = "apiVersion: example.com/v1
kind: Run
plural: runs
life:
  hold: { path: spec.suspend, held: true, started: false }
  suspended: [{ condition: Suspended }]
  finished: [{ path: status.phase, oneOf: [Done] }]
pods:
  metadata: [spec.template.metadata]
";
    Row::parse(right).expect("a row");
    for (part, wrong, named) in [
        ("plural: runs\n", "", "missing field `plural`"),
        ("kind: Run", "kinds: Run", "unknown field `kinds`"),
        ("kind: Run", "kind: 'Run:a'", "kind: write letters"),
        ("plural: runs", "plural: runs/status", "plural: write"),
        ("example.com/v1", "v1", "apiVersion: write group/version"),
        ("spec.suspend", "spec..suspend", "is not a path"),
        (
            "path: spec.suspend",
            "path: 'spec.a[*].b'",
            "life.hold.path: name one",
        ),
        ("spec.suspend", "status.a", "life.hold.path"),
        ("held: true", "held: [true]", "can't be a value"),
        ("held: true", "held: \"a'b\"", "can't be written"),
        ("started: false", "started: true", "life.hold.started"),
        ("[{ condition: Suspended }]", "[]", "life.suspended: say"),
        (
            "{ condition: Suspended }",
            "{ condition: S, path: status.a }",
            "set either condition",
        ),
        ("oneOf: [Done]", "oneOf: []", "at least one value"),
        (
            "oneOf: [Done]",
            "oneOf: [Done], present: true",
            "with present: true",
        ),
        ("pods:\n", "needs: a/b\npods:\n", "needs: write a version"),
        (
            "[spec.template.metadata]",
            "[]",
            "pods: name its metadata or labels",
        ),
        (
            "metadata: [spec.template.metadata]",
            "labels: ['a={name}']\n  jobsWithHolder: ['a={name}']",
            "pods.jobsWithHolder: name pods.metadata",
        ),
        (
            "pods:\n",
            "pods:\n  labels: ['a=b']\n",
            "with the workload's {name} or {uid}",
        ),
        (
            "pods:\n",
            "pods:\n  labels: ['a in ({name})']\n",
            "is not a selector",
        ),
        (
            "pods:\n",
            "requires: [{ path: 'spec.a[*]', oneOf: [1] }]\npods:\n",
            "requires",
        ),
    ] {
        assert!(right.contains(part), "{part}");
        let error = Row::parse(&right.replace(part, wrong)).expect_err(wrong);
        assert!(error.to_string().contains(named), "{wrong}: {error}");
    }
    let large = format!("{right}# {}", "x".repeat(20_000));
    let error = Row::parse(&large).expect_err("too large");
    assert!(error.to_string().contains("at most 16384"), "{error}");
}

#[test]
fn one_with_strange_conditions_counts_as_one_that_runs() {
    let row = &rows()[1];
    let mut strange = row.waiting();
    strange["status"]["conditions"] = "none".into();
    let text = strange.to_string();
    let read = TrackedWorkload::parse(&row.kind, &text, Moment::default());
    let tracked = read.expect("it can be read").expect("it asks for a slot");
    assert_eq!(tracked.workload.phase, Phase::Stopping);
    assert!(
        started(&workload(&row.kind, &row.waiting()))
            .others
            .is_empty()
    );
}
