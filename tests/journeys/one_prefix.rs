//! Two `ConsulSemaphores` of one namespace on one prefix: they behave like two clusters.

use serde_json::json;
use testbed::Bed;

#[tokio::test]
async fn two_semaphores_on_one_prefix_share_its_limit() {
    let bed = Bed::shared().await;
    let team = bed.namespace("one-prefix").await;
    let prefix = format!("shared/{}", team.name());
    let x = team.semaphore("x").prefix(&prefix).limit(2).create().await;
    let y = team.semaphore("y").prefix(&prefix).limit(2).create().await;
    let observer = bed.watch_limit(&prefix).await;
    let mut jobs = Vec::new();
    for (name, semaphore) in [
        ("a", "x"),
        ("b", "y"),
        ("c", "x"),
        ("d", "y"),
        ("e", "x"),
        ("f", "y"),
    ] {
        jobs.push(team.job(name).semaphore(semaphore).create().await);
    }
    for job in &jobs {
        job.is_complete().await;
        job.has_event("SlotReleased").await;
    }
    let seen = observer.seen();
    assert!(seen.peak_holders <= 2 && seen.peak_jobs <= 2, "{seen:?}");
    // A short one may be missed.
    assert!(seen.all_holders.len() <= 6, "one session a Job: {seen:?}");
    x.is_ready().await;
    y.is_ready().await;
}

#[tokio::test]
async fn neither_of_two_semaphores_on_one_prefix_touches_the_others_contenders() {
    let bed = Bed::shared().await;
    let team = bed.namespace("one-prefix-apart").await;
    let prefix = format!("shared/{}", team.name());
    let x = team.semaphore("x").prefix(&prefix).limit(2).create().await;
    x.is_ready().await;
    let y = team.semaphore("y").prefix(&prefix).limit(2).create().await;
    let of_x = team.job("of-x").semaphore("x").runs("1h").create().await;
    let of_y = team.job("of-y").semaphore("y").runs("1h").create().await;
    of_x.is_running().await;
    of_y.is_running().await;
    for semaphore in [&x, &y] {
        semaphore.shows(json!({ "held": 2, "heldHere": 2 })).await;
    }

    // The other's limit is foreign: no grants until both agree again.
    x.set_limit(3).await;
    x.shows(json!({ "limit": 3, "appliedLimits": [3] })).await;
    y.has_condition("Ready", "False", "LimitConflict").await;
    y.set_limit(3).await;
    y.is_ready().await;

    // One is deleted, and leaves the other's holder and the lock.
    of_y.finish().await;
    of_y.has_event("SlotReleased").await;
    y.delete().await;
    y.is_gone().await;
    of_x.is_running().await;
    let session = of_x.session().await.expect("its session");
    assert_eq!(bed.consul().holders(&prefix).await, [session].into());
    assert_eq!(bed.consul().contenders(&prefix).await.len(), 1);
    of_x.finish().await;
    x.delete().await;
    x.is_gone().await;
    assert_eq!(bed.consul().list(&format!("{prefix}/")).await, []);
}

/// Neither knows the other's spec, as in two clusters.
#[tokio::test]
async fn two_that_enforce_different_limits_do_not_fight() {
    let bed = Bed::shared().await;
    let team = bed.namespace("one-prefix-enforced").await;
    let prefix = format!("shared/{}", team.name());
    let enforcing = |name: &str, limit| {
        let semaphore = team.semaphore(name).prefix(&prefix).limit(limit);
        semaphore.spec(json!({ "limitPolicy": "Enforce" }))
    };
    let x = enforcing("x", 2).create().await;
    x.is_ready().await;
    // Each writes its own limit over the other's until one has been overwritten twice.
    let y = enforcing("y", 3).create().await;
    x.has_condition("Ready", "False", "LimitConflict").await;
    y.shows(json!({ "limit": 3, "appliedLimits": [3] })).await;
    y.is_ready().await;
    let a = team.job("a").semaphore("x").create().await;
    a.has_event("SlotWaiting").await;
    let b = team.job("b").semaphore("y").create().await;
    b.is_complete().await;
    b.has_event("SlotReleased").await;
    a.is_waiting().await;
    assert_eq!(bed.consul().limit(&prefix).await, Some(3));
    x.has_condition("Ready", "False", "LimitConflict").await;

    // It enforces its limit again when its spec changes.
    x.set_limit(3).await;
    a.is_complete().await;
}
