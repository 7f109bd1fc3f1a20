//! Waits that end, and running workloads that newer ones replace.

use kube::ResourceExt;
use serde_json::json;
use testbed::eventually;

use crate::{
    kinds::{Ending, Kind, PIPELINE_RUN, WORKFLOW},
    stage::{ASKS, Described, Stage, Workload},
};

each_kind!(
    too_long_a_wait,
    not_to_wait,
    replaced_while_it_waits,
    replaced_while_it_runs
);

const ON_CONTENTION: &str = "consul-semaphore.io/on-contention";

async fn too_long_a_wait(kind: &'static Kind) {
    let stage = Stage::new("timeout").await;
    let holder = stage.job("holder").runs("1h").create().await;
    holder.is_running().await;
    let new = |name| {
        let new = Described::new(kind, &stage.team, name);
        new.annotated("consul-semaphore.io/wait-timeout", "2s")
    };
    let late = new("late").create().await;
    let unknown = new("unknown").annotated(ASKS, "nowhere").create().await;
    let note = late.fails("WaitTimedOut").await;
    assert!(note.contains("has waited for 2s for db"), "{note}");
    assert!(note.contains("/holder (session "), "{note}");
    let note = unknown.fails("WaitTimedOut").await;
    assert!(note.contains("has no ConsulSemaphore nowhere"), "{note}");
    holder.finish().await;
    // It is granted nothing any more, and what comes later is.
    let next = Described::new(kind, &stage.team, "next").create().await;
    next.runs(&stage).await;
    next.is_ended_by_its_user().await;
    stage.is_over(2).await;
    for failed in [late, unknown] {
        assert_eq!(failed.pods().await.len(), 0);
    }
}

async fn not_to_wait(kind: &'static Kind) {
    let stage = Stage::new("contention").await;
    let holder = stage.job("holder").runs("1h").create().await;
    holder.is_running().await;
    let new = |policy: &str| {
        let new = Described::new(kind, &stage.team, &policy.to_lowercase());
        new.annotated(ON_CONTENTION, policy)
    };
    let skip = new("Skip").create().await;
    skip.object.is_gone().await;
    skip.object.has_event("Skipped").await;
    let fail = new("Fail").create().await;
    let note = fail.fails("Contended").await;
    assert!(note.contains("/holder (session "), "{note}");
    holder.finish().await;
    let skip = new("Skip").create().await;
    skip.runs(&stage).await;
    skip.is_ended_by_its_user().await;
    stage.is_over(2).await;
}

async fn replaced_while_it_waits(kind: &'static Kind) {
    let stage = Stage::new("superseded").await;
    let holder = stage.job("holder").runs("1h").create().await;
    holder.is_running().await;
    let new = |name| {
        let new = Described::new(kind, &stage.team, name);
        new.annotated(ON_CONTENTION, "ReplaceWaiting")
    };
    // Who comes in the same second waits in the order of the names.
    let plain = Described::new(kind, &stage.team, "a").waits().await;
    let older = new("b").waits().await;
    let newer = new("c").waits().await;
    let note = older.fails("Superseded").await;
    assert!(note.contains("/c"), "{note}");
    holder.finish().await;
    plain.runs(&stage).await;
    plain.is_ended_by_its_user().await;
    newer.runs(&stage).await;
    newer.is_ended_by_its_user().await;
    stage.is_over(3).await;
}

/// The one that is replaced holds its slot until its pods are gone.
async fn replaced_while_it_runs(kind: &'static Kind) {
    let spec = json!({ "session": { "lockDelay": "0s" } });
    let stage = Stage::with(crate::stage::bed().await, "replaced", spec).await;
    let new = |name| {
        let new = Described::new(kind, &stage.team, name);
        new.annotated(ON_CONTENTION, "ReplaceRunning")
    };
    let a = new("a").create().await;
    a.runs(&stage).await;
    let b = new("b").create().await;
    let note = a.fails("Replaced").await;
    assert!(note.contains("/b"), "{note}");
    b.runs(&stage).await;
    b.is_ended_by_its_user().await;
    stage.is_over(2).await;
}

/// As `argo terminate` and `argo stop` shut it down: Argo does nothing about that while a Workflow is suspended.
#[tokio::test]
async fn a_workflow_that_is_shut_down_while_it_waits_ends_at_once() {
    let stage = Stage::new("shutdown").await;
    let holder = stage.job("holder").runs("1h").create().await;
    holder.is_running().await;
    for strategy in ["Terminate", "Stop"] {
        let name = strategy.to_lowercase();
        let waits = Described::new(&WORKFLOW, &stage.team, &name).with("onExit", "work".into());
        let waits = waits.waits().await;
        let shut_down = json!([{ "op": "add", "path": "/spec/shutdown", "value": strategy }]);
        waits.object.change(shut_down).await.expect("a shutdown");
        waits.fails("ShutDown").await;
        assert_eq!(waits.pods().await.len(), 0, "nor its exit handler");
    }
    holder.finish().await;
    stage.is_over(1).await;
}

#[tokio::test]
async fn the_owner_of_a_waiting_workflow_is_warned_that_its_deadline_runs() {
    let stage = Stage::new("deadline").await;
    let holder = stage.job("holder").runs("1h").create().await;
    holder.is_running().await;
    let waits = Described::new(&WORKFLOW, &stage.team, "waits");
    let waits = waits
        .with("activeDeadlineSeconds", 3600.into())
        .waits()
        .await;
    let note = waits.object.has_event("CountsAsRunning").await;
    assert!(note.contains("spec.activeDeadlineSeconds"), "{note}");
    holder.finish().await;
    waits.runs(&stage).await;
}

#[tokio::test]
async fn a_replaced_workflow_runs_its_exit_handler_in_its_slot() {
    replaced_gracefully(&WORKFLOW).await;
}

#[tokio::test]
async fn a_replaced_pipeline_run_runs_its_finally_tasks_in_its_slot() {
    replaced_gracefully(&PIPELINE_RUN).await;
}

/// What a workload runs at its end runs in its slot, or does not run.
async fn replaced_gracefully(kind: &'static Kind) {
    // By default it would have the slot again, which is free.
    let spec = json!({ "session": { "lockDelay": "0s" }, "onSlotLost": "Suspend" });
    let stage = Stage::with(crate::stage::bed().await, "graceful", spec).await;
    let new = |name| {
        let new = Described::new(kind, &stage.team, name).with_a_last_pod();
        new.annotated(ON_CONTENTION, "ReplaceRunning")
            .terminates_in("1s")
    };
    let a = new("a").create().await;
    let session = a.runs(&stage).await;
    let first = a.running().await[0].name_any();
    let b = new("b").create().await;
    a.object.has_event("Replaced").await;
    pod_after(&a, &first).await;
    assert!(
        stage.holders().await.contains(&session),
        "it is in its slot"
    );
    assert_eq!(b.pods().await.len(), 0);
    let Ending::Change(field, value) = &kind.ending else {
        panic!("{} is not ended by a change", kind.name)
    };
    let change = json!([{ "op": "add", "path": field, "value": value }]);
    a.object.change(change).await.expect("its user ends it");
    a.object.is("failed", kind.has_failed).await;

    let session = b.runs(&stage).await;
    let first = b.running().await[0].name_any();
    let c = new("c").create().await;
    b.object.has_event("Replaced").await;
    pod_after(&b, &first).await;
    stage.bed.consul().destroy_session(&session).await;
    b.object.has_event("SlotLost").await;
    b.pods_are_gone().await;
    b.object.is("failed", kind.has_failed).await;
    c.all_run().await;
}

/// Waits until another pod of a workload runs than its first one, and no other, and its controller knows it.
async fn pod_after(of: &Workload, first: &str) {
    eventually("its last pod runs", || async {
        let pods = of.all_run().await;
        let name = pods[0].name_any();
        (name != first).then_some(()).ok_or(name)
    })
    .await;
}
