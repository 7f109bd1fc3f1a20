use consul_semaphore::{
    Identity, Phase, SlotRequest,
    engine::Write,
    plan::{Fail, Failed, Stop, Suspend, Suspended},
};
use consul_semaphore_workload::{Kind, Obstacle, Request, Shape, TrackedWorkload, pods::Belongs};
use serde_json::{Value, json};

use super::{
    HOLDER, SESSION, UID, applied, forgets_its_grant, granted, identity, name_its_slot, object,
    phase, reads_its_grant_back, sent, tracked, workload,
};

const KIND: Kind = Kind::JobSet;

type Change = Box<dyn FnOnce(&mut Value)>;

/// One that waits, with these changes.
fn waiting(change: impl FnOnce(&mut Value)) -> Value {
    let pod = |metadata: Value| {
        let pod = json!({ "metadata": metadata, "spec": { "terminationGracePeriodSeconds": 45 } });
        json!({ "template": { "spec": { "template": pod } } })
    };
    let mut bare = pod(Value::Null);
    bare["template"]["spec"]["template"]
        .as_object_mut()
        .expect("a template")
        .remove("metadata");
    let mut job_set = object(&json!({
        "suspend": true,
        "replicatedJobs": [
            bare,
            pod(json!({})),
            pod(json!({ "labels": { "a/b": "c" }, "annotations": { "x": "y" } })),
        ],
    }));
    job_set["status"] = json!({
        "conditions": [{
            "type": "Suspended", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z",
        }],
        "replicatedJobsStatus": [{ "name": "w", "active": 0 }],
    });
    change(&mut job_set);
    job_set
}

#[test]
fn one_that_waits() {
    let read = tracked(&KIND, &waiting(|_| {}));
    assert_eq!(read.obstacle, None);
    assert!(read.workload.is_queued());
    assert_eq!(read.workload.kind.as_str(), "JobSet");
    assert_eq!(read.workload.requests, [SlotRequest::one("db", None)]);
    assert_eq!(read.workload.grace.as_secs(), 45);
    // 2026-01-01T00:00:10Z
    assert_eq!(read.workload.since, 1_767_225_610);
}

#[test]
fn what_it_is_doing() {
    let condition = |type_: &str| json!([{ "type": type_, "status": "True" }]);
    let runs = |conditions: Value| {
        move |job_set: &mut Value| {
            job_set["spec"]["suspend"] = json!(false);
            job_set["status"]["conditions"] = conditions;
        }
    };
    let has = |field: &'static str, value: Value| {
        move |job_set: &mut Value| job_set["status"][field] = value
    };
    let finished = Phase::Finished { at_rest: false };
    let cases: [(Change, Phase); 9] = [
        (Box::new(|_| {}), Phase::Idle),
        // Its controller has not seen it.
        (
            Box::new(|job_set| job_set["status"] = Value::Null),
            Phase::Stopping,
        ),
        (
            Box::new(has("replicatedJobsStatus", json!([{ "active": 1 }]))),
            Phase::Stopping,
        ),
        (Box::new(runs(condition("Other"))), Phase::Running),
        // Someone has unsuspended it, and its controller has not reacted.
        (Box::new(runs(condition("Suspended"))), Phase::Stopping),
        // While its Jobs are started in order, it still counts as suspended.
        (
            Box::new(runs(json!([
                { "type": "Suspended", "status": "True" },
                { "type": "StartupPolicyInProgress", "status": "True" },
            ]))),
            Phase::Running,
        ),
        // Pods may still terminate.
        (
            Box::new(has("conditions", condition("Completed"))),
            finished,
        ),
        (Box::new(has("conditions", condition("Failed"))), finished),
        (
            Box::new(|job_set| {
                job_set["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:10Z".into();
            }),
            Phase::Deleting,
        ),
    ];
    for (change, expected) in cases {
        let job_set = waiting(change);
        assert_eq!(phase(&KIND, &job_set), expected, "{job_set}");
    }
}

#[test]
fn a_grant_reaches_the_templates_of_all_its_jobs() {
    let job_set = waiting(|_| {});
    reads_its_grant_back(&KIND, &job_set);
    let granted = granted(&KIND, &job_set);
    assert_eq!(granted["spec"]["suspend"], false);
    assert_eq!(
        granted["metadata"]["resourceVersion"], "7",
        "409 if it is stale"
    );
    for place in 0..3 {
        let path = format!("/spec/replicatedJobs/{place}/template/spec/template/metadata");
        let metadata = granted.pointer(&path).expect("metadata");
        assert_eq!(metadata["labels"]["consul-semaphore.io/holder"], UID);
        let annotations = &metadata["annotations"];
        assert_eq!(annotations["consul-semaphore.io/session"], SESSION);
        assert_eq!(annotations["consul-semaphore.io/fencing-token"], "71");
        assert_eq!(annotations["consul-semaphore.io/granted-to"], UID);
    }
    let last = &granted["spec"]["replicatedJobs"][2]["template"]["spec"]["template"]["metadata"];
    assert_eq!(
        (&last["labels"]["a/b"], &last["annotations"]["x"]),
        (&json!("c"), &json!("y"))
    );
    // The next start replaces what is left of this one.
    forgets_its_grant(&KIND, &granted);
    let mut again = waiting(|_| {});
    again["spec"]["replicatedJobs"] = granted["spec"]["replicatedJobs"].clone();
    name_its_slot(&mut again);
    reads_its_grant_back(&KIND, &again);
}

#[test]
fn one_that_lost_its_slot_is_suspended_and_first_in_the_queue() {
    let granted = granted(&KIND, &waiting(|_| {}));
    let suspend = sent(&KIND, &granted, |workload| {
        Write::Suspend(Suspend {
            workload,
            why: Suspended::SlotLost,
            session: None,
            since: 0,
        })
    });
    let read = workload(&KIND, &applied(&granted, &suspend));
    assert!(read.lost() && read.is_queued());
    // 2026-01-01T00:00:10Z: it keeps its age.
    assert_eq!(read.since, 1_767_225_610);
}

/// Its controller says so at once, whatever its pods do.
#[test]
fn one_that_is_suspended_after_a_grant_may_have_pods() {
    let held = waiting(|_| {});
    assert!(!tracked(&KIND, &held).may_have_pods());
    let mut stopped = granted(&KIND, &held);
    stopped["spec"]["suspend"] = true.into();
    assert_eq!(phase(&KIND, &stopped), Phase::Idle);
    assert!(tracked(&KIND, &stopped).may_have_pods());
}

#[test]
fn one_that_someone_starts_is_suspended() {
    let running = waiting(|job_set| {
        job_set["spec"]["suspend"] = json!(false);
        job_set["status"] = json!({});
    });
    let order = Stop::of(&workload(&KIND, &running)).expect("it has no slot");
    let request = KIND
        .stop(&order, &Shape::Plain, jiff::Timestamp::UNIX_EPOCH)
        .expect("a known kind");
    assert_eq!(applied(&running, &request)["spec"]["suspend"], true);
}

/// Its controller then deletes the Jobs that are active.
#[test]
fn one_that_has_waited_for_too_long_fails() {
    let job_set = waiting(|_| {});
    let request = sent(&KIND, &job_set, |workload| {
        let why = Failed::Superseded { by: String::new() };
        Write::Fail(Fail { workload, why })
    });
    assert!(matches!(request, Request::Status(_)));
    let failed = applied(&job_set, &request);
    assert_eq!(failed["status"]["terminalState"], "Failed");
    let condition = &failed["status"]["conditions"][1];
    assert_eq!(condition["reason"], "Superseded");
    assert_eq!(condition["lastTransitionTime"], "2026-01-01T00:00:20Z");
    assert_eq!(phase(&KIND, &failed), Phase::Finished { at_rest: false });
}

/// Its status may not be written.
#[test]
fn one_that_cannot_fail_is_put_on_hold() {
    let job_set = waiting(|_| {});
    let target = (&*workload(&KIND, &job_set)).into();
    let held = applied(&job_set, &KIND.hold(&target));
    assert!(KIND.fails_by_status() && workload(&KIND, &held).is_held_back());
}

#[test]
fn one_of_another_manager_is_left_alone() {
    let managed = |by: &str| {
        let job_set = waiting(|job_set| job_set["spec"]["managedBy"] = by.into());
        tracked(&KIND, &job_set).obstacle
    };
    assert_eq!(managed("jobset.sigs.k8s.io/jobset-controller"), None);
    let kueue = managed("kueue.x-k8s.io/multikueue");
    assert!(matches!(kueue, Some(Obstacle::Managed(_))));
}

#[test]
fn one_with_more_jobs_than_a_patch_can_change_is_told_so() {
    let large = waiting(|job_set| {
        let jobs = &mut job_set["spec"]["replicatedJobs"];
        *jobs = vec![jobs[0].clone(); 501].into();
    });
    let read = tracked(&KIND, &large);
    assert!(matches!(read.obstacle, Some(Obstacle::TooLarge(_))));
}

#[test]
fn one_that_cannot_be_read_is_an_error_and_one_of_others_is_not_read() {
    let read = |job_set: &Value| {
        let text = job_set.to_string();
        TrackedWorkload::parse(&KIND, &text, consul_client::clock::Moment::default())
    };
    let mut strange = waiting(|job_set| job_set["spec"]["suspend"] = "yes".into());
    assert!(read(&strange).is_err());
    strange["metadata"]["annotations"] = json!({});
    assert!(read(&strange).is_ok_and(|read| read.is_none()));
}

/// Before v0.9, its controller writes no label with the uid of the owner.
#[test]
fn its_pods_and_jobs_are_found_whatever_the_version_of_its_controller() {
    let identity = identity("JobSet");
    let queries = KIND.pods(&identity);
    let labels: Vec<&str> = queries.iter().map(|query| &*query.labels).collect();
    let held = format!("{HOLDER}={UID}");
    assert_eq!(labels, [&held, "jobset.sigs.k8s.io/jobset-name=a"]);
    let jobs = KIND.parts(&identity);
    assert_eq!(jobs, [(Kind::Job, queries[1].clone())]);

    let object = |labels: Value, owner: Value| {
        let metadata = json!({ "labels": labels, "ownerReferences": [owner] });
        serde_json::from_value(metadata).expect("metadata")
    };
    let job_set = |uid: &str| {
        json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "a", "uid": uid,
            "controller": true,
        })
    };
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "name": "a-w-0", "uid": "job", "controller": true,
    });
    let (of_uid, of_holder) = (
        |uid: &str| json!({ "jobset.sigs.k8s.io/jobset-uid": uid }),
        |uid: &str| json!({ HOLDER: uid }),
    );
    for query in &queries {
        let finds = |labels, owner| query.finds(&object(labels, owner));
        assert_eq!(finds(json!({}), job_set(UID)), Belongs::Yes);
        assert_eq!(finds(of_uid(UID), job.clone()), Belongs::Yes);
        assert_eq!(finds(of_uid("copy"), job.clone()), Belongs::No);
        assert_eq!(finds(of_holder(UID), job.clone()), Belongs::Yes, "v0.8");
        for (labels, counts) in [(of_holder("other"), false), (json!({}), true)] {
            let said = finds(labels, job.clone());
            let otherwise = matches!(said, Belongs::AsItsController { otherwise, .. } if otherwise);
            assert_eq!(otherwise, counts, "{said:?}");
        }
        let orphan = serde_json::from_value(json!({ "labels": {} })).expect("metadata");
        assert_eq!(query.finds(&orphan), Belongs::Yes);
    }
    let long = Identity {
        workload: "a".repeat(64).as_str().into(),
        ..identity
    };
    assert_eq!(KIND.pods(&long).len(), 1, "no label has so long a value");
}
