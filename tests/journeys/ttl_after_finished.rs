//! Jobs that Kubernetes deletes as soon as they are done.
use testbed::{Bed, proof::nothing_is_left};

#[tokio::test]
async fn jobs_deleted_at_their_end_release_their_slots() {
    let bed = Bed::shared().await;
    let team = bed.namespace("vanishing").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let mut jobs = Vec::new();
    for (name, fails) in [("a", false), ("b", true), ("c", false)] {
        let job = team.job(name).semaphore("db").runs("300ms");
        let job = job.ttl_after_finished(0).backoff_limit(0);
        let job = if fails { job.fails() } else { job };
        jobs.push(job.create().await);
    }
    for job in &jobs {
        job.is_gone().await;
        job.has_no_pods().await;
        job.has_event("SlotReleased").await;
    }
    db.shows(serde_json::json!({ "held": 0, "waiting": 0 }))
        .await;
    nothing_is_left(&bed, &team, &db).await;
    let seen = observer.seen();
    assert_eq!((seen.peak_jobs, seen.all_jobs.len()), (1, 3));
    // A short one may be missed.
    assert!(
        seen.peak_holders == 1 && seen.all_holders.len() <= 3,
        "{seen:?}"
    );
}
