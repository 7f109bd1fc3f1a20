//! Jobs that ask for a semaphore that does not exist: they wait for it, and get an event that says so.

use testbed::{Bed, helpers::warning};

#[tokio::test]
async fn jobs_wait_for_a_semaphore_that_is_made_later() {
    let bed = Bed::shared().await;
    let team = bed.namespace("late-semaphore").await;
    let early = team.job("early").semaphore("db").create().await;
    let running = team
        .job("running")
        .semaphore("db")
        .unsuspended()
        .runs("1h")
        .create()
        .await;
    for job in [&early, &running] {
        let note = warning(job, "NoSemaphore").await;
        assert!(note.contains("no ConsulSemaphore db"), "{note}");
    }
    running.is_waiting().await;
    warning(&running, "RanWithoutSlot").await;

    team.semaphore("db").limit(2).create().await;
    early.is_complete().await;
    running.is_running().await;
    running.finish().await;
    running.has_event("SlotReleased").await;
}

#[tokio::test]
async fn a_semaphore_made_again_under_its_name_serves_the_jobs_that_wait() {
    let bed = Bed::shared().await;
    let team = bed.namespace("made-again").await;
    let db = team.semaphore("db").limit(1).create().await;
    let first = team.job("a").semaphore("db").runs("1h").create().await;
    first.is_running().await;
    let second = team.job("b").semaphore("db").create().await;
    second.has_event("SlotWaiting").await;

    db.delete().await;
    first.finish().await;
    db.is_gone().await;
    second.is_waiting().await;

    let again = team.semaphore("db").limit(1).create().await;
    assert_eq!(again.lock_prefix(), db.lock_prefix());
    second.is_complete().await;
    second.has_event("SlotReleased").await;
    again.is_ready().await;
}
