//! The limit is raised while Jobs wait and lowered while they run.

use serde_json::json;
use testbed::Bed;

#[tokio::test]
async fn a_limit_is_raised_and_lowered_under_way() {
    let bed = Bed::shared().await;
    let team = bed.namespace("limit-changes").await;
    let db = team.semaphore("db").limit(1).create().await;
    let prefix = db.lock_prefix();
    let mut jobs = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        let job = team.job(name).semaphore("db").runs("1h").create().await;
        if jobs.is_empty() {
            job.is_running().await;
        }
        jobs.push(job);
    }
    let [a, b, c, d, e, f] = &jobs[..] else {
        unreachable!("six Jobs were made")
    };
    db.shows(json!({ "limit": 1, "appliedLimits": [1], "held": 1, "waiting": 5 }))
        .await;

    db.set_limit(3).await;
    b.is_running().await;
    c.is_running().await;
    db.shows(json!({ "limit": 3, "appliedLimits": [3], "held": 3, "waiting": 3 }))
        .await;
    assert_eq!(bed.consul().limit(&prefix).await, Some(3));

    // Lowered below the number of holders: no Job loses its slot, and a released slot is not granted again before
    // there are fewer holders than the limit.
    let holders = bed.consul().holders(&prefix).await;
    db.set_limit(2).await;
    db.shows(json!({ "limit": 2, "appliedLimits": [2], "held": 3, "waiting": 3 }))
        .await;
    assert_eq!(bed.consul().limit(&prefix).await, Some(2));
    assert_eq!(bed.consul().holders(&prefix).await, holders);
    a.delete().await;
    a.has_event("SlotReleased").await;
    db.shows(json!({ "held": 2, "waiting": 3 })).await;
    assert!(bed.consul().holders(&prefix).await.is_subset(&holders));
    b.delete().await;
    d.is_running().await;
    c.is_running().await;
    db.shows(json!({ "held": 2, "waiting": 2 })).await;

    // Two changes in a row: the last one counts, and no other limit is left as ours.
    db.set_limit(4).await;
    db.set_limit(1).await;
    db.shows(json!({ "limit": 1, "appliedLimits": [1] })).await;
    assert_eq!(bed.consul().limit(&prefix).await, Some(1));
    for job in [c, d, e, f] {
        job.delete().await;
    }
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
    db.has_condition("LimitAgreed", "True", "LimitsMatch").await;
}
