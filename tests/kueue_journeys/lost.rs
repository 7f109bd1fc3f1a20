//! Slots that running Jobs lose.

use serde_json::json;
use testbed::{eventually, same};

use crate::stage::{Stage, entry, is, is_stopping};

/// Kueue evicts it, and it waits for another slot. Nobody else gets that before its pods are gone.
#[tokio::test]
async fn one_that_lost_its_slot_is_retried_once() {
    let spec = json!({ "onSlotLost": "Suspend", "session": { "lockDelay": "0s" } });
    let stage = Stage::with_spec("lost", spec).await;
    let a = stage.job("a").create().await;
    let before = stage.runs(&a).await;
    let next = stage.waits_beside("next").await;
    stage.bed.consul().destroy_session(&before).await;
    a.has_event("SlotLost").await;
    let workload = stage.workload_of(&a).await;
    workload.is("evicted", |it| is(it, "Evicted", "True")).await;
    is_stopping(&a).await;
    next.is_complete().await;
    let after = stage.runs(&a).await;
    assert_ne!(before, after);
    let retried = workload.get().await;
    let evictions = &retried["status"]["schedulingStats"]["evictions"];
    assert_eq!(evictions[0]["count"], 1, "{evictions}");
    a.finish().await;
    stage.is_over(2).await;
}

/// Its pods never learn of it.
#[tokio::test]
async fn one_that_has_its_slot_again_goes_on() {
    let spec = json!({ "onSlotLost": "Reacquire", "session": { "lockDelay": "0s" } });
    let stage = Stage::with_spec("regained", spec).await;
    let a = stage.job("a").create().await;
    let before = stage.runs(&a).await;
    stage.bed.consul().destroy_session(&before).await;
    let workload = stage.workload_of(&a).await;
    eventually("its Workload names the new session", || async {
        let message = entry(&workload.get().await)["message"].to_string();
        let holders = stage.bed.consul().holders(&stage.db.lock_prefix()).await;
        let named = holders.iter().any(|holder| message.contains(holder));
        same((named, message.contains(&before)), (true, false))
    })
    .await;
    testbed::proof::pods_run(&a, 1).await;
    a.finish().await;
    stage.is_over(1).await;
}
