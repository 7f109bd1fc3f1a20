//! Five Jobs pass through a semaphore of two slots, in order.

use testbed::Bed;

#[tokio::test]
async fn five_jobs_pass_through_two_slots() {
    let bed = Bed::shared().await;
    let team = bed.namespace("hand-over").await;
    let db = team.semaphore("db").limit(2).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    db.is_ready().await;
    let mut jobs = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        jobs.push(team.job(name).semaphore("db").runs("1s").create().await);
    }
    for job in &jobs {
        job.is_complete().await;
        job.has_event("SlotReleased").await;
    }
    assert_eq!(observer.peak_holders(), 2);
}
