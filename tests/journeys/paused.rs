//! A semaphore is paused: running Jobs continue, waiting Jobs keep waiting.

use serde_json::json;
use testbed::{Bed, eventually, same};

#[tokio::test]
async fn a_paused_semaphore_grants_nothing_and_takes_nothing_away() {
    let bed = Bed::shared().await;
    let team = bed.namespace("paused").await;
    let db = team.semaphore("db").limit(1).create().await;
    let running = team
        .job("running")
        .semaphore("db")
        .runs("1h")
        .create()
        .await;
    running.is_running().await;
    let next = team.job("next").semaphore("db").create().await;

    db.pause().await;
    db.has_condition("Ready", "True", "Paused").await;
    db.has_condition("SlotsAvailable", "False", "Paused").await;
    db.has_condition("ConsulReachable", "True", "Reachable")
        .await;
    running.is_running().await;
    running.finish().await;
    running.has_event("SlotReleased").await;
    db.shows(json!({ "held": 0, "waiting": 1 })).await;
    // A later Job of another semaphore has had its turn, and this one still has not.
    let other = team.semaphore("other").limit(1).create().await;
    let later = team.job("later").semaphore("other").create().await;
    later.is_complete().await;
    next.is_waiting().await;

    db.resume().await;
    next.is_complete().await;
    db.is_ready().await;
    other.is_ready().await;
}

#[tokio::test]
async fn a_semaphore_can_be_made_paused() {
    let bed = Bed::shared().await;
    let team = bed.namespace("made-paused").await;
    let db = team.semaphore("db").limit(2).paused(true).create().await;
    let job = team.job("a").semaphore("db").create().await;
    job.has_event("SlotWaiting").await;
    db.has_condition("Ready", "True", "Paused").await;
    db.shows(json!({ "held": 0, "waiting": 1 })).await;
    job.is_waiting().await;
    db.resume().await;
    job.is_complete().await;
}

#[tokio::test]
async fn the_status_reports_an_observed_generation_only_for_its_own_findings() {
    let bed = Bed::shared().await;
    let team = bed.namespace("paused-observed").await;
    let one = team.semaphore("one").create().await;
    let keyed = team.semaphore("keyed").spec(json!({ "keyed": true }));
    let keyed = keyed.create().await;
    for semaphore in [&one, &keyed] {
        let job = team.job(semaphore.name()).semaphore(semaphore.name());
        let job = job.annotation("consul-semaphore.io/key", "k").runs("1h");
        let job = job.create().await;
        job.is_running().await;
        semaphore.is_ready().await;
        for (paused, expected) in [(true, "Paused"), (false, "Reconciled"), (true, "Paused")] {
            semaphore
                .patch(json!({ "spec": { "paused": paused } }))
                .await;
            let observed = eventually("the change has been observed", || async {
                let object = semaphore.get().await.unwrap_or_default();
                let generation = &object["metadata"]["generation"];
                same(
                    object["status"]["observedGeneration"].clone(),
                    generation.clone(),
                )
                .map(|_| object)
            })
            .await;
            let conditions = observed["status"]["conditions"].as_array().cloned();
            let mut conditions = conditions.unwrap_or_default().into_iter();
            let ready = conditions.find(|condition| condition["type"] == "Ready");
            let ready = ready.expect("the condition Ready");
            assert_eq!(ready["reason"], expected, "{ready}");
            assert_eq!(
                ready["observedGeneration"],
                observed["metadata"]["generation"]
            );
        }
        job.finish().await;
    }
}
