//! The operator dies while Jobs in Kueue's queues hold slots and wait for them.

use serde_json::json;

use crate::stage::{Stage, own_bed};

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
