//! Slots that running workloads lose.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testbed::{eventually, proof::all_is_decided, same};

use crate::{
    kinds::Kind,
    stage::{Described, SESSION, Stage, Workload, bed},
};

each_kind!(
    had_again,
    lost_where_it_must_not_run_on,
    lost_to_another_program,
    lost_where_it_may_run_on,
);

async fn stage(policy: &str) -> Stage {
    let spec = json!({ "onSlotLost": policy, "session": { "lockDelay": "0s" } });
    let name = format!("lost-{policy}").to_lowercase();
    Stage::with(bed().await, &name, spec).await
}

/// The session that a workload says that it has.
async fn session(workload: &Workload) -> Value {
    workload.object.get().await["metadata"]["annotations"][SESSION].clone()
}

/// Its pods never learn of it.
async fn had_again(kind: &'static Kind) {
    let stage = stage("Reacquire").await;
    let a = Described::new(kind, &stage.team, "a").create().await;
    let before = a.runs(&stage).await;
    let pods = a.running().await;
    stage.bed.consul().destroy_session(&before).await;
    eventually("it has its slot again", || async {
        let now = session(&a).await;
        let now = now.as_str().ok_or("none")?.to_owned();
        let holds = BTreeSet::from([now.clone()]);
        same((now != before, stage.holders().await), (true, holds))
    })
    .await;
    let uids = |pods: &[k8s_openapi::api::core::v1::Pod]| -> BTreeSet<_> {
        pods.iter().map(|pod| pod.metadata.uid.clone()).collect()
    };
    assert_eq!(uids(&a.running().await), uids(&pods));
    a.is_ended_by_its_user().await;
    stage.is_over(1).await;
}

/// What can be suspended waits for another slot, and all others fail. Both count until their pods are gone.
async fn lost_where_it_must_not_run_on(kind: &'static Kind) {
    let stage = stage("Suspend").await;
    let a = Described::new(kind, &stage.team, "a").create().await;
    let before = a.runs(&stage).await;
    let next = stage.job("next").priority(9).create().await;
    next.has_event("SlotWaiting").await;
    stage.bed.consul().destroy_session(&before).await;
    if kind.can_be_suspended {
        a.object.has_event("SlotLost").await;
        a.pods_are_gone().await;
        let after = a.runs(&stage).await;
        assert_ne!(before, after);
        a.is_ended_by_its_user().await;
        next.is_complete().await;
    } else {
        a.fails("SlotLost").await;
        next.is_complete().await;
    }
    stage.is_over(2).await;
}

async fn lost_to_another_program(kind: &'static Kind) {
    let stage = stage("Reacquire").await;
    let a = Described::new(kind, &stage.team, "a").create().await;
    let before = a.runs(&stage).await;
    let (consul, prefix) = (stage.bed.consul(), stage.db.lock_prefix());
    let other = consul.usurp(&prefix, 1, &before).await;
    a.object.has_event("SlotLost").await;
    let next = stage.job("next").create().await;
    next.has_event("SlotWaiting").await;
    // What it gives back does not go to the next one while pods of the first are left.
    consul.give_back(&prefix, &other).await;
    if kind.can_be_suspended {
        a.pods_are_gone().await;
        a.runs(&stage).await;
        a.is_ended_by_its_user().await;
    } else {
        a.fails("SlotLost").await;
    }
    next.is_complete().await;
    stage.is_over(2).await;
}

async fn lost_where_it_may_run_on(kind: &'static Kind) {
    let stage = stage("Continue").await;
    let a = Described::new(kind, &stage.team, "a").create().await;
    let before = a.runs(&stage).await;
    let (consul, prefix) = (stage.bed.consul(), stage.db.lock_prefix());
    let other = consul.usurp(&prefix, 1, &before).await;
    a.object.has_event("SlotLost").await;
    all_is_decided(&stage.team, &stage.db).await;
    assert_eq!(a.all_run().await.len(), kind.size);
    consul.give_back(&prefix, &other).await;
    eventually("it has a slot again", || async {
        same(stage.holders().await.len(), 1)
    })
    .await;
    a.is_ended_by_its_user().await;
    let next = stage.job("next").create().await;
    next.is_complete().await;
    stage.is_over(2).await;
}
