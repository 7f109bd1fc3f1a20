//! What happens to a Job when it is created.

use std::fs;

use k8s_openapi::api::batch::v1 as batch;
use serde_json::{Value, json};
use testbed::{
    Bed,
    helpers::event_reasons,
    proof::{End, HOLD, PRIORITY, SEMAPHORE, nothing_is_left, pods_end, queue_is, runs_in_a_slot},
};

use crate::stage::{
    BOTH, FAILED, Person, REPORTS, bed, job, leave_out, metadata, people, stranger, suspend,
    unsuspended,
};

#[tokio::test]
async fn a_new_job_is_suspended_for_every_user_and_client() {
    let bed = bed().await;
    let team = bed.namespace("made").await;
    let people = people(&bed, &team).await;
    for (who, person) in &people {
        for (how, given) in [
            ("unset", None),
            ("running", Some(false)),
            ("suspended", Some(true)),
        ] {
            let name = format!("{}-{how}", who.replace(' ', "-"));
            let made = person.create(&job(&name, given)).await.expect(&name);
            assert_eq!(suspend(&made), Some(true), "{name}");
        }
        let mut nameless = job("", Some(false));
        nameless["metadata"] =
            json!({ "generateName": "made-", "annotations": { SEMAPHORE: "db" } });
        let made = person.create(&nameless).await.expect("a name is made");
        assert_eq!(suspend(&made), Some(true));
        // Invalid annotations are corrected while it is suspended.
        let mut malformed = job("", Some(false));
        malformed["metadata"] =
            json!({ "generateName": "malformed-", "annotations": { SEMAPHORE: "" } });
        let made = person.create(&malformed).await.expect("it is made");
        assert_eq!(suspend(&made), Some(true));

        let tried = person.would_create(&job("tried", Some(false))).await;
        assert_eq!(suspend(&tried.expect("it could be made")), Some(true));
        assert_eq!(team.job("tried").get().await, None);
    }
    for (name, how) in [
        ("created", "create"),
        ("applied", "apply"),
        ("on-the-server", "apply --server-side"),
    ] {
        let file = written(&bed, &job(name, Some(false)));
        let args = how.split(' ').chain(["-f", &file]);
        team.kubectl(args).await;
        let made = team.job(name).get().await.expect("it is made");
        assert_eq!(suspend(&made), Some(true), "{how}");
    }
    // The operator finds nothing to suspend, and the Job controller has never created a pod.
    let names = team.jobs().await;
    assert_eq!(names.len(), 13, "{names:?}");
    for name in names {
        let job = team.job(&name);
        let expected = if name.starts_with("malformed-") {
            "Malformed"
        } else {
            "NoSemaphore"
        };
        job.has_event(expected).await;
        assert_eq!(event_reasons(&job).await, [expected], "{name}");
        job.is_waiting().await;
        let events = job.events().await;
        let mut reasons = events.iter().filter_map(|event| event.reason.as_deref());
        assert!(
            !reasons.any(|reason| reason == "SuccessfulCreate"),
            "{name}"
        );
    }
}

fn written(bed: &Bed, job: &Value) -> String {
    let name = job["metadata"]["name"].as_str().expect("a name");
    let file = bed.folder().path().join(format!("{name}.json"));
    fs::write(&file, job.to_string()).expect("the manifest's file");
    file.display().to_string()
}

#[tokio::test]
async fn a_copy_brings_nothing_of_the_operators_with_it() {
    let bed = bed().await;
    let team = bed.namespace("copied").await;
    let db = team.semaphore("db").limit(1).create().await;
    let user = Person::user(&bed, &team).await;
    let original = team
        .job("original")
        .semaphore("db")
        .runs("1h")
        .create()
        .await;
    let of_original = runs_in_a_slot(&bed, &db, &original).await;
    let [of_job, of_template] = metadata(&original.get().await.expect("the original"));
    let mut names: Vec<_> = of_template
        .labels
        .iter()
        .flatten()
        .map(|(name, _)| name)
        .collect();
    names.extend(
        of_job
            .annotations
            .iter()
            .chain(&of_template.annotations)
            .flatten()
            .map(|(name, _)| name),
    );
    for name in REPORTS.into_iter().filter(|name| *name != FAILED) {
        assert!(
            names.iter().any(|found| *found == name),
            "no {name} in {names:?}"
        );
    }

    let mut labels = of_template.labels.expect("labels");
    // These belong to the original Job, and the API server refuses them on another.
    labels.retain(|label, _| !label.contains("controller-uid") && !label.contains("job-name"));
    let mut copy = job("copy", Some(false));
    copy["metadata"]["annotations"] = json!(of_job.annotations);
    copy["metadata"]["annotations"][FAILED] = "Contended".into();
    copy["spec"]["template"]["metadata"] =
        json!({ "annotations": of_template.annotations, "labels": labels });
    let made = user.create(&copy).await.expect("a copy");
    assert_eq!(suspend(&made), Some(true));
    bears_no_report(&made);
    let [job, template] = metadata(&made);
    assert_eq!(job.annotations.unwrap_or_default()[SEMAPHORE], "db");
    assert_eq!(
        template.annotations.unwrap_or_default()["bed.consul-semaphore.io/runs"],
        "1h"
    );
    assert_eq!(
        template.labels.unwrap_or_default()["bed.consul-semaphore.io/semaphore"],
        "db"
    );

    // A copy that no longer names a semaphore does not keep them either.
    copy["metadata"]["name"] = "stranger".into();
    let annotations = copy["metadata"]["annotations"].as_object_mut();
    annotations.expect("annotations").remove(SEMAPHORE);
    let made = user.create(&copy).await.expect("a copy");
    assert_eq!(suspend(&made), Some(false));
    bears_no_report(&made);

    let copy = team.job("copy");
    queue_is(&db, [&copy]).await;
    pods_end(&team, &original, End::Succeeded).await;
    let of_copy = runs_in_a_slot(&bed, &db, &copy).await;
    assert_ne!(of_copy.session, of_original.session);
    pods_end(&team, &copy, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
}

#[track_caller]
fn bears_no_report(job: &batch::Job) {
    let [job, template] = metadata(job);
    for place in [job.annotations, template.annotations, template.labels] {
        for name in place.unwrap_or_default().keys() {
            assert!(!REPORTS.contains(&name.as_str()), "{name}");
        }
    }
}

/// The policies change nothing about them, as in a namespace that is left out.
#[tokio::test]
async fn jobs_that_name_no_semaphore_are_not_touched() {
    let bed = bed().await;
    let (team, without) = (
        bed.namespace("untouched").await,
        bed.namespace("without").await,
    );
    leave_out(&bed, &without, &BOTH, true).await;
    let [(_, user), (_, admin)] = people(&bed, &team).await;
    let elsewhere = Person::admin(&bed, &without);
    for given in [None, Some(false), Some(true)] {
        for annotations in [
            json!(null),
            json!({ "team": "a" }),
            json!({ PRIORITY: "1", HOLD: "true" }),
        ] {
            let mut job = stranger("stranger", given);
            job["metadata"]["annotations"] = annotations;
            let expected = elsewhere.would_create(&job).await.expect("it can be made");
            for person in [&user, &admin] {
                let made = person.would_create(&job).await.expect("it can be made");
                assert_eq!(in_common(&made), in_common(&expected));
            }
        }
    }
    user.create(&stranger("stranger", Some(false)))
        .await
        .expect("a Job");
    team.job("stranger").is_running().await;
    for change in [
        json!({ "spec": { "suspend": true } }),
        unsuspended(),
        json!({ "metadata": { "annotations": { PRIORITY: "1", HOLD: "true" }, "labels": { "a": "b" } } }),
        json!({ "spec": { "parallelism": 2 } }),
    ] {
        user.change("stranger", change)
            .await
            .expect("it is its user's");
    }
    team.job("stranger").is_running().await;
}

/// The parts of a Job that do not depend on its identity.
fn in_common(job: &batch::Job) -> String {
    let mut job = serde_json::to_value(job).expect("a Job");
    let metadata = job["metadata"].as_object_mut().expect("metadata");
    let uid = metadata.remove("uid").expect("a uid");
    metadata.retain(|name, _| {
        !["creationTimestamp", "managedFields", "namespace"].contains(&name.as_str())
    });
    job.to_string().replace(uid.as_str().expect("a uid"), "uid")
}

#[tokio::test]
async fn an_excluded_namespace_has_no_policies() {
    let bed = bed().await;
    let without = bed.namespace("left-out").await;
    leave_out(&bed, &without, &BOTH, true).await;
    let user = Person::user(&bed, &without).await;
    for given in [Some(false), Some(true)] {
        let mut job = job("job", given);
        for name in REPORTS {
            job["metadata"]["annotations"][name] = "brought".into();
        }
        let made = user.would_create(&job).await.expect("it can be made");
        assert_eq!(suspend(&made), given);
        let [job, _] = metadata(&made);
        assert_eq!(job.annotations.unwrap_or_default().len(), 1 + REPORTS.len());
    }
    user.create(&job("job", Some(true))).await.expect("a Job");
    without.job("job").has_event("NoSemaphore").await;
    user.would_change("job", unsuspended())
        .await
        .expect("nobody keeps its user from it");
    let report = json!({ "metadata": { "annotations": { REPORTS[0]: "mine" } } });
    user.would_change("job", report)
        .await
        .expect("nobody keeps its user from it");
}

#[tokio::test]
async fn a_new_job_of_another_controller_is_left_alone() {
    let bed = bed().await;
    let team = bed.namespace("managed").await;
    let [(_, user), (_, admin)] = people(&bed, &team).await;
    let managed = [
        json!({ "spec": { "managedBy": "example.com/multikueue" } }),
        json!({ "metadata": { "labels": { "kueue.x-k8s.io/queue-name": "batch" } } }),
    ];
    for (name, more) in ["by-another", "by-kueue"].into_iter().zip(managed) {
        let mut job = job(name, Some(false));
        for part in ["metadata", "spec"] {
            for (field, value) in more[part].as_object().into_iter().flatten() {
                job[part][field] = value.clone();
            }
        }
        job["metadata"]["annotations"][REPORTS[0]] = "brought".into();
        let made = user.create(&job).await.expect("a Job");
        assert_eq!(suspend(&made), Some(false), "{name}");
        bears_no_report(&made);
        // Its manager suspends and starts it, and its user may make it wait for another semaphore.
        for person in [&user, &admin] {
            for change in [
                json!({ "metadata": { "annotations": { SEMAPHORE: "other" } } }),
                json!({ "spec": { "suspend": true } }),
                unsuspended(),
            ] {
                let changed = person.change(name, change).await;
                changed.expect("it is no business of the policy's");
            }
        }
    }
    // Naming the built-in controller is the same as naming none.
    let mut built_in = job("built-in", Some(false));
    built_in["spec"]["managedBy"] = "kubernetes.io/job-controller".into();
    let made = user.create(&built_in).await.expect("a Job");
    assert_eq!(suspend(&made), Some(true));
}
