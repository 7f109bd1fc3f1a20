//! Programs with another limit, or with another use for the key.

use serde_json::{Value, json};
use testbed::{Bed, Semaphore};

#[tokio::test]
async fn another_limit_of_theirs_is_reported_and_not_touched() {
    let bed = Bed::shared().await;
    let team = bed.namespace("their-limit").await;
    let prefix = team.semaphore("db").lock_prefix();
    let go = bed.go_semaphore("go", &prefix, 5).start().await;
    go.holds().await;
    let db = team.semaphore("db").limit(3).create().await;
    let job = team.job("a").semaphore("db").create().await;
    job.has_event("SlotWaiting").await;
    let words = ["limit is 5", "spec.limit is 3"];
    db.has_condition_that_says("Ready", "False", "LimitConflict", &words)
        .await;
    db.shows(json!({ "limit": 5, "held": 1, "heldHere": 0, "waiting": 1 }))
        .await;
    job.is_waiting().await;

    // A contender with our limit is refused by theirs, as we are.
    let same_as_ours = bed.go_semaphore("other", &prefix, 3).start().await;
    same_as_ours
        .fails_with("semaphore limit conflict (lock: 5, local: 3)")
        .await;
    go.stop().await;
    assert_eq!(go.errors(), Vec::<String>::new());
    assert_eq!(bed.consul().limit(&prefix).await, Some(5));
    db.set_limit(5).await;
    job.is_complete().await;
}

/// Foreign contenders on a semaphore of limit 2 whose last free slot a Job takes, and how an event reports a change
/// of the limit.
async fn refused(semaphore: &Semaphore, change: Value) -> String {
    semaphore.patch(change).await;
    semaphore.has_event("OthersRefused").await
}

#[tokio::test]
async fn a_limit_that_moves_says_how_many_of_the_others_will_be_refused() {
    let bed = Bed::shared().await;
    let team = bed.namespace("moved-limit").await;
    let db = team.semaphore("db").limit(1).create().await;
    let prefix = db.lock_prefix();
    db.is_ready().await;
    let job = team.job("a").semaphore("db").runs("1h").create().await;
    job.is_running().await;
    let waiters = [
        bed.go_semaphore("first", &prefix, 1).start().await,
        bed.go_semaphore("second", &prefix, 1).start().await,
    ];
    testbed::eventually("both are contenders", || async {
        testbed::same(bed.consul().contenders(&prefix).await.len(), 3)
    })
    .await;

    let note = refused(&db, json!({ "spec": { "limit": 2 } })).await;
    assert!(note.contains("from 1 to 2"), "{note}");
    assert!(note.contains(" of other"), "{note}");
    for waiter in &waiters {
        waiter
            .fails_with("semaphore limit conflict (lock: 2, local: 1)")
            .await;
    }
    db.is_ready().await;
    job.is_running().await;
}

#[tokio::test]
async fn a_limit_that_is_enforced_says_how_many_of_the_others_will_be_refused() {
    let bed = Bed::shared().await;
    let team = bed.namespace("enforced-limit").await;
    let prefix = team.semaphore("db").lock_prefix();
    let go = bed.go_semaphore("go", &prefix, 5).start().await;
    go.holds().await;
    let db = team.semaphore("db").limit(3).create().await;
    db.has_condition("Ready", "False", "LimitConflict").await;

    let enforce = json!({ "spec": { "limitPolicy": "Enforce" } });
    let note = refused(&db, enforce).await;
    assert!(note.contains("from 5 to 3"), "{note}");
    assert!(note.contains("1 contender of other"), "{note}");
    db.is_ready().await;
    // An existing holder keeps its slot and gives it back.
    go.stop().await;
    assert_eq!(go.errors(), Vec::<String>::new());
    db.shows(json!({ "limit": 3, "held": 0 })).await;
}

#[tokio::test]
async fn a_mutex_of_theirs_is_in_the_way_until_it_is_free() {
    let bed = Bed::shared().await;
    let team = bed.namespace("their-mutex").await;
    let prefix = team.semaphore("db").lock_prefix();
    let mutex = bed.consul_lock("mutex", &prefix, 1).start().await;
    mutex.holds().await;
    let db = team.semaphore("db").limit(2).create().await;
    db.has_condition("Ready", "False", "LockConflict").await;
    let job = team.job("a").semaphore("db").create().await;
    job.has_event("SlotWaiting").await;
    let waiting = bed.go_semaphore("go", &prefix, 2).start().await;
    waiting
        .fails_with("Existing key does not match semaphore use")
        .await;
    job.is_waiting().await;
    mutex.stop().await;
    job.is_complete().await;
    db.is_ready().await;
}
