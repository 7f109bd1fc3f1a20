//! A Job holds a slot, and no pod of it runs: whoever waits sees why.

use serde_json::{Value, json};
use testbed::{Bed, Semaphore, eventually, same};

/// Waits until the only holder of the semaphore has no pod that runs for this reason, and returns what is said of it.
async fn is_not_started(semaphore: &Semaphore, reason: &str) -> Value {
    let what = format!("the holder has no pod that runs: {reason}");
    eventually(&what, async || {
        let status = semaphore.status().await;
        let start = status["holders"][0]["notStarted"].clone();
        if start["reason"] == reason {
            Ok(start)
        } else {
            Err(format!("{status}"))
        }
    })
    .await
}

#[tokio::test]
async fn who_waits_sees_that_the_pod_of_the_holder_has_no_node() {
    let bed = Bed::shared().await;
    let team = bed.namespace("not-started").await;
    let db = team.semaphore("db").limit(1).create().await;
    let nowhere =
        json!({ "spec": { "template": { "spec": { "nodeSelector": { "disk": "huge" } } } } });
    let stuck = team
        .job("stuck")
        .semaphore("db")
        .with(nowhere)
        .create()
        .await;
    let start = is_not_started(&db, "Unschedulable").await;
    let message = start["message"].as_str().unwrap_or_default();
    assert!(message.contains("node"), "{start}");
    let next = team.job("next").semaphore("db").runs("1h").create().await;
    next.has_event("SlotWaiting").await;

    stuck.delete().await;
    next.is_running().await;
    eventually("the next holder has started", async || {
        let holder = db.status().await["holders"][0].clone();
        let (name, start) = (holder["name"].clone(), holder["notStarted"].clone());
        same((name, start), (json!("next"), Value::Null))
    })
    .await;
}

/// The Job asks for no pod, as one whose pods a quota refuses has none.
#[tokio::test]
async fn a_job_without_a_pod_is_seen_also_after_a_restart() {
    let bed = Bed::start().await;
    let team = bed.namespace("no-pod").await;
    let db = team.semaphore("db").limit(1).create().await;
    let without_pods = json!({ "spec": { "parallelism": 0 } });
    let job = team.job("a").semaphore("db").with(without_pods);
    let job = job.create().await;
    job.has_event("SlotGranted").await;
    is_not_started(&db, "NoPod").await;
    let operator = bed.operator();
    operator.stop().await;
    db.patch_status(&json!({ "holders": [] })).await;
    operator.start().await;
    is_not_started(&db, "NoPod").await;
}
