//! Which changes of a workload are open to its users, and which only to the operator.

use serde_json::{Value, json};

use crate::stage::{
    HOLD, HOLDER, Kind, Person, REPORTS, SEMAPHORE, annotation, bed, owned_by, people,
};

const STARTS: &str = "only the operator starts a";
const WRITES: &str = "only the operator changes consul-semaphore.io/";
const HOLDS: &str = "holds a slot until its pods are gone";
const WAITS: &str = "can only be Wait on an existing";
const GRANTED_TO: &str = "consul-semaphore.io/granted-to";
const SESSION: &str = "consul-semaphore.io/session";

const RAY_WORKER: &str = "/spec/rayClusterSpec/workerGroupSpecs/0/template/metadata";

fn annotated(name: &str, value: Option<&str>) -> Value {
    json!({ "metadata": { "annotations": { name: value } } })
}

/// The change that lets one start.
fn started(kind: Kind) -> Value {
    match kind {
        Kind::JobSet | Kind::Workflow => kind.suspend(&Value::Null),
        Kind::RayJob | Kind::TrainJob | Kind::MPIJob | Kind::SparkApplication => {
            kind.suspend(&false.into())
        }
        Kind::PipelineRun | Kind::TaskRun => json!({ "spec": { "status": null } }),
        Kind::Pod => json!([{ "op": "remove", "path": "/spec/schedulingGates" }]),
    }
}

#[track_caller]
fn is_refused(kind: Kind, answer: Result<Value, String>, because: &str) {
    let refusal = answer.expect_err(&format!("{kind:?}: {because}"));
    assert!(
        refusal.contains("'guard.") && refusal.contains(because),
        "{kind:?}: {refusal}"
    );
}

#[tokio::test]
async fn only_the_operator_starts_what_waits() {
    let bed = bed().await;
    let team = bed.namespace("starts").await;
    let (admin, operator) = people(&bed, &team).await;
    for kind in Kind::ALL {
        admin.create(kind, &kind.running("a")).await.unwrap();
        is_refused(
            kind,
            admin.would_change(kind, "a", &started(kind)).await,
            STARTS,
        );
        let free = operator.would_change(kind, "a", &started(kind)).await;
        assert!(!kind.is_held(&free.unwrap()), "{kind:?}");
        // Its user takes it out of the queue, or out of the operator's hands, or ends it.
        for change in [
            annotated(HOLD, Some("true")),
            annotated("consul-semaphore.io/priority", Some("2")),
            annotated(SEMAPHORE, Some("other")),
            json!({ "metadata": { "labels": { "a": "b" } } }),
        ] {
            let changed = admin.would_change(kind, "a", &change).await;
            changed.unwrap_or_else(|error| panic!("{kind:?} {change}: {error}"));
        }
        let unnamed = annotated(SEMAPHORE, None);
        admin.change(kind, "a", &unnamed).await.unwrap();
        let free = admin.would_change(kind, "a", &started(kind)).await;
        assert!(!kind.is_held(&free.unwrap()), "{kind:?}");
    }
    for (kind, end) in [
        (
            Kind::PipelineRun,
            json!({ "spec": { "status": "Cancelled" } }),
        ),
        (
            Kind::TaskRun,
            json!({ "spec": { "status": "TaskRunCancelled" } }),
        ),
        (
            Kind::Workflow,
            json!({ "spec": { "suspend": null, "shutdown": "Terminate" } }),
        ),
    ] {
        admin.create(kind, &kind.running("ends")).await.unwrap();
        admin.would_change(kind, "ends", &end).await.unwrap();
    }
    // These run the last tasks of a run that never started.
    for (kind, end) in [
        (
            Kind::PipelineRun,
            json!({ "spec": { "status": "StoppedRunFinally" } }),
        ),
        (
            Kind::Workflow,
            json!({ "spec": { "suspend": null, "shutdown": "Stop" } }),
        ),
    ] {
        is_refused(kind, admin.would_change(kind, "ends", &end).await, STARTS);
    }
}

/// `PipelinesAsCode` makes runs held, and starts them when it is their turn.
#[tokio::test]
async fn what_is_on_hold_and_started_stays_held_and_is_queued() {
    let bed = bed().await;
    let team = bed.namespace("freed").await;
    let admin = Person::admin(&bed, &team);
    for kind in Kind::ALL {
        let made = admin.create(kind, &kind.held("a")).await.unwrap();
        assert_eq!(annotation(&made, HOLD), Some("true"), "{kind:?}");
        let freed = admin.would_patch(kind, "a", "", &started(kind)).await;
        let freed = freed.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert!(kind.is_held(&freed), "{kind:?}");
        assert_eq!(annotation(&freed, HOLD), None, "{kind:?}");
    }
    // To stop one is not to start it.
    let stop = json!({ "spec": { "status": "StoppedRunFinally" } });
    let stopped = admin.would_change(Kind::PipelineRun, "a", &stop).await;
    is_refused(Kind::PipelineRun, stopped, STARTS);
}

/// What a user may do to a waiting one is no way to have it run without a slot.
#[tokio::test]
async fn what_is_to_end_without_a_slot_does_not_start_after_all() {
    let bed = bed().await;
    let team = bed.namespace("ends").await;
    let admin = Person::admin(&bed, &team);
    for (kind, end, resume) in [
        (
            Kind::PipelineRun,
            json!({ "spec": { "status": "Cancelled" } }),
            json!({ "spec": { "status": null } }),
        ),
        (
            Kind::TaskRun,
            json!({ "spec": { "status": "TaskRunCancelled" } }),
            json!({ "spec": { "status": null } }),
        ),
        (
            Kind::Workflow,
            json!({ "spec": { "suspend": null, "shutdown": "Terminate" } }),
            json!({ "spec": { "shutdown": null } }),
        ),
    ] {
        admin.create(kind, &kind.running("a")).await.unwrap();
        admin.change(kind, "a", &end).await.unwrap();
        let resumed = admin.would_change(kind, "a", &resume).await;
        is_refused(kind, resumed, "so it can't go on");
        let unnamed = annotated(SEMAPHORE, None);
        admin.change(kind, "a", &unnamed).await.unwrap();
        let free = admin.would_change(kind, "a", &resume).await;
        free.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    }
}

/// The guard leaves parts of another workload to its controller.
#[tokio::test]
async fn what_waits_gets_no_owner_that_it_had_not() {
    let bed = bed().await;
    let team = bed.namespace("adopted").await;
    let admin = Person::admin(&bed, &team);
    for kind in Kind::ALL {
        admin.create(kind, &kind.running("a")).await.unwrap();
        let metadata = &owned_by(json!({}), "Whole")["metadata"];
        let mut owned = json!({ "metadata": metadata });
        let adopted = admin.would_change(kind, "a", &owned).await;
        is_refused(kind, adopted, "no other controller can own it now");
        let makes_many = owned_by(json!({}), "CronWorkflow");
        let adopted = admin.would_change(kind, "a", &makes_many).await;
        adopted.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        owned["metadata"]["annotations"][SEMAPHORE] = Value::Null;
        let adopted = admin.would_change(kind, "a", &owned).await;
        adopted.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    }
}

#[tokio::test]
async fn only_the_operator_changes_its_annotations() {
    let bed = bed().await;
    let team = bed.namespace("reports").await;
    let admin = Person::admin(&bed, &team);
    for kind in Kind::ALL {
        admin.create(kind, &kind.running("a")).await.unwrap();
        for name in REPORTS {
            let forged = annotated(name, Some("forged"));
            is_refused(kind, admin.would_change(kind, "a", &forged).await, WRITES);
        }
        let forged = json!({ "metadata": { "labels": { HOLDER: "forged" } } });
        is_refused(kind, admin.would_change(kind, "a", &forged).await, WRITES);
        for policy in ["Skip", "Fail", "ReplaceWaiting", "ReplaceRunning"] {
            let set = annotated("consul-semaphore.io/on-contention", Some(policy));
            is_refused(kind, admin.would_change(kind, "a", &set).await, WAITS);
        }
    }
    let metadata = json!({ "annotations": { SESSION: "forged" } });
    let path = "/spec/replicatedJobs/0/template/spec/template/metadata";
    for (kind, forged) in [
        (
            Kind::JobSet,
            json!([{ "op": "add", "path": path, "value": metadata }]),
        ),
        (
            Kind::Workflow,
            json!({ "spec": { "podMetadata": metadata } }),
        ),
        (
            Kind::RayJob,
            json!([{ "op": "add", "path": RAY_WORKER, "value": metadata }]),
        ),
        (
            Kind::MPIJob,
            json!({ "spec": { "mpiReplicaSpecs": { "Worker": { "template": { "metadata": metadata } } } } }),
        ),
        (
            Kind::SparkApplication,
            json!({ "spec": { "driver": metadata } }),
        ),
    ] {
        is_refused(kind, admin.would_change(kind, "a", &forged).await, WRITES);
    }
}

#[tokio::test]
async fn what_holds_a_slot_asks_for_no_other() {
    let bed = bed().await;
    let team = bed.namespace("holds").await;
    let (admin, operator) = people(&bed, &team).await;
    for kind in Kind::ALL {
        let made = admin.create(kind, &kind.running("a")).await.unwrap();
        let granted = annotated(SESSION, Some("s"));
        operator.change(kind, "a", &granted).await.unwrap();
        let granted = annotated(GRANTED_TO, made["metadata"]["uid"].as_str());
        operator.change(kind, "a", &granted).await.unwrap();
        for change in [
            annotated(SEMAPHORE, Some("other")),
            annotated(SEMAPHORE, None),
            annotated("consul-semaphore.io/key", Some("other")),
        ] {
            is_refused(kind, admin.would_change(kind, "a", &change).await, HOLDS);
        }
        // What can't be held again goes on when its user lets it.
        let resumed = admin.would_change(kind, "a", &started(kind)).await;
        assert_eq!(
            resumed.is_ok(),
            !kind.can_be_suspended(),
            "{kind:?}: {resumed:?}"
        );
    }
}

/// Their controllers write there what they like: Tekton, and `JobSet` for others.
#[tokio::test]
async fn a_part_of_another_workload_is_its_owners() {
    let bed = bed().await;
    let team = bed.namespace("parts").await;
    let admin = Person::admin(&bed, &team);
    for kind in Kind::ALL {
        let part = owned_by(kind.held("a"), "Whole");
        let part = admin.create(kind, &part).await.unwrap();
        for change in [
            annotated(SESSION, Some("s")),
            annotated(GRANTED_TO, Some("of the owner")),
            started(kind),
        ] {
            let changed = admin.would_change(kind, "a", &change).await;
            changed.unwrap_or_else(|error| panic!("{kind:?} {change}: {error}"));
        }
        // Without its owner it would have been granted a slot.
        let forged = annotated(GRANTED_TO, part["metadata"]["uid"].as_str());
        is_refused(kind, admin.would_change(kind, "a", &forged).await, WRITES);
    }
}
