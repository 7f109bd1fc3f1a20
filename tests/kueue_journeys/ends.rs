//! Waits that end, evictions, and Jobs that are deleted.

use crate::stage::{Stage, entry, is, is_stopping, set_active};

#[tokio::test]
async fn one_that_waits_too_long_is_rejected() {
    let stage = Stage::new("timeout").await;
    let holder = stage.is_held().await;
    let timeout = |job: testbed::Job| job.annotation("consul-semaphore.io/wait-timeout", "2s");
    let late = timeout(stage.job("late")).create().await;
    let note = late.has_event("WaitTimedOut").await;
    assert!(note.contains("has waited for 2s for db"), "{note}");
    let unknown = timeout(stage.job("unknown").semaphore("nowhere"))
        .create()
        .await;
    let note = unknown.has_event("WaitTimedOut").await;
    assert!(note.contains("has no ConsulSemaphore nowhere"), "{note}");
    for job in [&late, &unknown] {
        let workload = stage.workload_of(job).await;
        let rejected = workload
            .is("rejected", |it| is(it, "Evicted", "True"))
            .await;
        assert_eq!(rejected["spec"]["active"], false);
        job.has_no_pods().await;
    }
    holder.finish().await;
    let next = stage.job("next").create().await;
    stage.runs(&next).await;
    next.finish().await;
    stage.is_over(2).await;
}

/// Its user takes it out of the queue, and puts it back while its pods terminate.
#[tokio::test]
async fn an_evicted_one_gives_its_slot_back_when_its_pods_are_gone() {
    let stage = Stage::new("evicted").await;
    let a = stage.job("a").create().await;
    let first = stage.runs(&a).await;
    let next = stage.waits_beside("next").await;
    let workload = stage.workload_of(&a).await;
    set_active(&workload, false).await;
    is_stopping(&a).await;
    set_active(&workload, true).await;
    workload
        .is("in need of its check", |it| {
            is(it, "QuotaReserved", "True") && entry(it)["state"] == "Pending"
        })
        .await;
    assert_ne!(
        testbed::proof::running_pods(&a).await.len(),
        0,
        "its pods terminate for 20 s"
    );
    // It came to the queue after the other one.
    next.is_complete().await;
    let second = stage.runs(&a).await;
    assert_ne!(first, second);
    a.finish().await;
    stage.is_over(2).await;
}

#[tokio::test]
async fn deleted_and_made_again() {
    let stage = Stage::new("deleted").await;
    let first = stage.job("c").create().await;
    let session = stage.runs(&first).await;
    let second = stage.job("a").create().await;
    stage.waits(&second).await;
    second.delete().await;
    second.is_gone().await;
    first.delete().await;
    first.is_gone().await;
    let again = stage.job("c").create().await;
    assert_ne!(stage.runs(&again).await, session);
    again.delete().await;
    stage.is_over(2).await;
}
