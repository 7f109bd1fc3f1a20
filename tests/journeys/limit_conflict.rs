//! A foreign limit in Consul.

use serde_json::json;
use testbed::{Bed, Consul, SEMAPHORE_FLAGS, Semaphore};

/// Writes a limit as another program would: the holders stay.
async fn overwrite(consul: &Consul, semaphore: &Semaphore, limit: u64) {
    let key = format!("{}/.lock", semaphore.lock_prefix());
    let there = consul.kv(&key).await.map(|entry| entry.json());
    let mut body = there.unwrap_or_else(|| json!({ "Holders": {} }));
    body["Limit"] = limit.into();
    consul.put(&key, SEMAPHORE_FLAGS, body.to_string()).await;
}

#[tokio::test]
async fn another_limit_is_refused_until_both_agree() {
    let bed = Bed::shared().await;
    let team = bed.namespace("limit-conflict").await;
    let consul = bed.consul();
    overwrite(consul, &team.semaphore("db"), 5).await;
    let db = team.semaphore("db").limit(2).create().await;
    let a = team.job("a").semaphore("db").create().await;
    a.has_event("SlotWaiting").await;
    for kind in ["Ready", "LimitAgreed"] {
        let words = ["limit is 5", "spec.limit is 2"];
        db.has_condition_that_says(kind, "False", "LimitConflict", &words)
            .await;
    }
    db.shows(json!({ "limit": 5, "held": 0, "waiting": 1 }))
        .await;
    a.is_waiting().await;
    assert_eq!(consul.limit(&db.lock_prefix()).await, Some(5));

    // The others change it back.
    overwrite(consul, &db, 2).await;
    a.is_complete().await;
    db.is_ready().await;
    // They change it again, and this time the spec follows.
    overwrite(consul, &db, 4).await;
    db.has_condition("Ready", "False", "LimitConflict").await;
    db.set_limit(4).await;
    db.is_ready().await;

    // Another semaphore on the prefix wants another limit.
    let twin = team.semaphore("twin").prefix(&db.lock_prefix()).limit(7);
    let twin = twin.create().await;
    twin.has_condition("Ready", "False", "LimitConflict").await;
    let words = ["ConsulSemaphore db has the same prefix"];
    twin.has_condition_that_says("LimitAgreed", "False", "LimitConflict", &words)
        .await;
    team.job("b").semaphore("db").create().await;
    team.job("b").is_complete().await;
    assert_eq!(consul.limit(&db.lock_prefix()).await, Some(4));
}

#[tokio::test]
async fn an_earlier_limit_of_the_spec_is_foreign_after_a_new_one_was_agreed() {
    let bed = Bed::shared().await;
    let team = bed.namespace("limit-followed").await;
    let consul = bed.consul();
    let db = team.semaphore("db").limit(3).create().await;
    db.shows(json!({ "limit": 3, "appliedLimits": [3] })).await;
    overwrite(consul, &db, 5).await;
    db.has_condition("Ready", "False", "LimitConflict").await;
    db.set_limit(5).await;
    db.shows(json!({ "limit": 5, "appliedLimits": [] })).await;
    overwrite(consul, &db, 3).await;
    db.has_condition("Ready", "False", "LimitConflict").await;
    assert_eq!(consul.limit(&db.lock_prefix()).await, Some(3));
}

#[tokio::test]
async fn an_enforced_limit_is_written_but_not_in_turn_for_ever() {
    let bed = Bed::shared().await;
    let team = bed.namespace("enforced").await;
    let consul = bed.consul();
    overwrite(consul, &team.semaphore("db"), 5).await;
    let enforcing = json!({ "limitPolicy": "Enforce" });
    let db = team.semaphore("db").limit(2).spec(enforcing).create().await;
    db.shows(json!({ "limit": 2, "appliedLimits": [2] })).await;
    db.is_ready().await;
    assert_eq!(consul.limit(&db.lock_prefix()).await, Some(2));

    // Overwritten once, it is written again; overwritten twice, it is left as the others want it.
    let written = || async { consul.limit(&db.lock_prefix()).await == Some(2) };
    overwrite(consul, &db, 5).await;
    testbed::eventually("the limit is written again", written).await;
    overwrite(consul, &db, 5).await;
    db.has_condition_that_says("Ready", "False", "LimitConflict", &["limit is 5"])
        .await;
    let a = team.job("a").semaphore("db").create().await;
    a.has_event("SlotWaiting").await;
    db.shows(json!({ "limit": 5, "held": 0, "waiting": 1 }))
        .await;
    a.is_waiting().await;

    // A new spec is enforced again.
    db.set_limit(3).await;
    db.is_ready().await;
    a.is_complete().await;
    assert_eq!(consul.limit(&db.lock_prefix()).await, Some(3));
}

#[tokio::test]
async fn an_enforced_limit_that_was_there_first_is_written_again_once() {
    let bed = Bed::shared().await;
    let team = bed.namespace("enforced-first").await;
    let consul = bed.consul();
    let enforcing = json!({ "limitPolicy": "Enforce" });
    let db = team.semaphore("db").limit(2).spec(enforcing).create().await;
    db.shows(json!({ "limit": 2, "appliedLimits": [2] })).await;
    let written = || async { consul.limit(&db.lock_prefix()).await == Some(2) };
    overwrite(consul, &db, 5).await;
    testbed::eventually("the limit is written again", written).await;
    overwrite(consul, &db, 5).await;
    db.has_condition("Ready", "False", "LimitConflict").await;
    assert_eq!(consul.limit(&db.lock_prefix()).await, Some(5));
}
