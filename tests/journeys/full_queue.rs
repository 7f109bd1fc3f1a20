//! Jobs that come into a queue in which as many wait as may.

use serde_json::json;
use testbed::{Bed, Job, Namespace, eventually, helpers::metric};

use crate::waits::fails;

/// Creates a Job, which waits.
async fn waits(team: &Namespace, name: &str) -> Job {
    let job = team.job(name).semaphore("db").create().await;
    job.has_event("SlotWaiting").await;
    job
}

/// Creates a Job, which fails because the queue is full, and returns the message of the event.
async fn is_turned_away(team: &Namespace, name: &str) -> String {
    let job = team.job(name).semaphore("db").create().await;
    let note = fails(&job, "QueueFull").await;
    let events = job.events().await;
    let mut reasons = events.iter().filter_map(|event| event.reason.as_deref());
    assert!(reasons.all(|reason| reason != "SlotWaiting"), "{events:?}");
    note
}

#[tokio::test]
async fn a_job_that_comes_into_a_full_queue_fails_and_what_waits_waits_on() {
    let bed = Bed::start().await;
    let team = bed.namespace("full").await;
    let bound = |most: i32| json!({ "maxWaiting": most });
    let db = team.semaphore("db").limit(1).spec(bound(2)).create().await;
    let holder = team.job("holder").semaphore("db").runs("1h").create().await;
    holder.is_running().await;
    let a = waits(&team, "a").await;
    let b = waits(&team, "b").await;
    let note = is_turned_away(&team, "c").await;
    assert!(note.contains("2 workloads of this cluster wait"), "{note}");
    assert!(note.contains("raise spec.maxWaiting"), "{note}");
    db.shows(json!({ "held": 1, "waiting": 2 })).await;
    eventually("it is counted", || async {
        let page = bed.operator().get("/metrics").await;
        let series = format!(
            r#"ended_jobs_total{{namespace="{}",semaphore="db",reason="QueueFull"}}"#,
            team.name()
        );
        metric(&page, &series) == Some(1.0)
    })
    .await;

    // One is started, so one more may wait, even if the queue may be shorter from now on.
    holder.finish().await;
    a.is_complete().await;
    b.is_complete().await;
    let holder = team.job("next").semaphore("db").runs("1h").create().await;
    holder.is_running().await;
    let d = waits(&team, "d").await;
    let e = waits(&team, "e").await;
    db.patch(json!({ "spec": bound(1) })).await;
    db.shows(json!({ "observedGeneration": 2 })).await;
    is_turned_away(&team, "f").await;

    bed.operator().kill().await;
    bed.operator().start().await;
    // The operator has seen all Jobs once it starts one.
    team.semaphore("other").limit(1).create().await;
    let probe = team.job("probe").semaphore("other").create().await;
    probe.is_complete().await;
    is_turned_away(&team, "g").await;
    d.is_waiting().await;
    e.is_waiting().await;
    holder.finish().await;
    d.is_complete().await;
    e.is_complete().await;
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
}
