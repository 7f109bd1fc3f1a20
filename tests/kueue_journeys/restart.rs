//! The operator dies while Jobs in Kueue's queues hold slots and wait for them.

use serde_json::json;

use crate::stage::{Stage, is_stopping, own_bed, set_active};

#[tokio::test]
async fn the_operator_is_killed() {
    let bed = own_bed().await;
    let stage = Stage::with(bed.clone(), "restart", json!({})).await;
    let holds = stage.job("holds").create().await;
    let session = stage.runs(&holds).await;
    let waits = stage.job("waits").create().await;
    stage.waits(&waits).await;
    bed.operator().kill().await;
    bed.operator().start().await;
    assert_eq!(stage.runs(&holds).await, session);
    stage.waits(&waits).await;

    bed.operator().kill().await;
    holds.delete().await;
    bed.operator().start().await;
    assert_ne!(stage.runs(&waits).await, session);
    waits.finish().await;
    waits.has_event("SlotReleased").await;
    stage.ran_one_by_one(2);
}

/// Its slot is still held in Consul, by a session that an earlier run of it had.
#[tokio::test]
async fn one_that_was_evicted_while_the_operator_was_dead_runs_in_a_new_slot() {
    let bed = own_bed().await;
    let stage = Stage::with(bed.clone(), "reused", json!({})).await;
    let a = stage.job("a").create().await;
    let session = stage.runs(&a).await;
    let workload = stage.workload_of(&a).await;
    bed.operator().kill().await;
    set_active(&workload, false).await;
    a.has_no_pods().await;
    set_active(&workload, true).await;
    bed.operator().start().await;
    assert_ne!(stage.runs(&a).await, session);
    a.finish().await;
    stage.is_over(1).await;
}

/// Nothing in Consul or in its Workload says any more that it had a slot: only its pods do.
#[tokio::test]
async fn one_that_was_evicted_while_the_operator_was_dead_counts_until_its_pods_are_gone() {
    let bed = own_bed().await;
    let spec = json!({ "session": { "lockDelay": "0s" } });
    let stage = Stage::with(bed.clone(), "forgotten", spec).await;
    let a = stage.job("a").create().await;
    let session = stage.runs(&a).await;
    let next = stage.waits_beside("next").await;
    bed.operator().kill().await;
    bed.consul().destroy_session(&session).await;
    set_active(&stage.workload_of(&a).await, false).await;
    is_stopping(&a).await;
    bed.operator().start().await;
    next.is_complete().await;
    stage.ran_one_by_one(2);
}
