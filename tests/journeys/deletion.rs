//! A `ConsulSemaphore` is deleted.

use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use serde_json::json;
use testbed::{Bed, Namespace, SEMAPHORE_FLAGS, Semaphore, eventually, helpers::warning};

#[tokio::test]
async fn a_deleted_semaphore_goes_when_its_last_job_is_done() {
    let bed = Bed::shared().await;
    let team = bed.namespace("deletion").await;
    let db = team.semaphore("db").limit(2).create().await;
    let prefix = db.lock_prefix();
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    let b = team.job("b").semaphore("db").runs("1h").create().await;
    a.is_running().await;
    b.is_running().await;
    let waiting = team.job("c").semaphore("db").create().await;
    waiting.has_event("SlotWaiting").await;
    let holders = bed.consul().holders(&prefix).await;

    db.delete().await;
    db.has_condition("Ready", "False", "Terminating").await;
    let note = warning(&waiting, "NoSemaphore").await;
    assert!(note.contains("db") && note.contains("deleted"), "{note}");
    assert_eq!(bed.consul().holders(&prefix).await, holders);

    // A slot is free, but is not granted; a new Job gets the event as well.
    a.finish().await;
    a.has_event("SlotReleased").await;
    let late = team.job("d").semaphore("db").create().await;
    let note = warning(&late, "NoSemaphore").await;
    assert!(note.contains("db"), "{note}");
    b.is_running().await;
    assert_eq!(bed.consul().holders(&prefix).await.len(), 1);

    b.finish().await;
    db.is_gone().await;
    assert_eq!(bed.consul().list(&format!("{prefix}/")).await, []);
    waiting.is_waiting().await;
    late.is_waiting().await;
}

#[tokio::test]
async fn a_deleted_semaphore_leaves_the_lock_to_those_who_use_it() {
    let bed = Bed::shared().await;
    let team = bed.namespace("deletion-shared").await;
    let consul = bed.consul();

    let held = team.semaphore("held").limit(2).create().await;
    held.is_ready().await;
    let holder = consul.take_slot(&held.lock_prefix(), 2).await;
    team.job("a").semaphore("held").create().await;
    team.job("a").is_complete().await;

    let wanted = team.semaphore("wanted").limit(2).create().await;
    wanted.is_ready().await;
    let contender = consul
        .create_session(json!({ "Behavior": "delete", "TTL": "24h" }))
        .await;
    let key = format!("{}/{contender}", wanted.lock_prefix());
    consul
        .put_json(
            &format!("kv/{key}?acquire={contender}&flags={SEMAPHORE_FLAGS}"),
            json!({}),
        )
        .await;

    for semaphore in [&held, &wanted] {
        semaphore.delete().await;
        semaphore.is_gone().await;
        let left = left_behind(&team, semaphore).await;
        assert!(
            left.contains(&semaphore.lock_prefix()) && left.contains("other clients use it"),
            "{left}"
        );
        assert_eq!(consul.limit(&semaphore.lock_prefix()).await, Some(2));
        assert_eq!(consul.contenders(&semaphore.lock_prefix()).await.len(), 1);
    }
    assert_eq!(
        consul.holders(&held.lock_prefix()).await,
        [holder.clone()].into()
    );
    consul.give_back(&held.lock_prefix(), &holder).await;
    consul.destroy_session(&contender).await;
}

/// The message of a semaphore's `LeftBehind` event.
async fn left_behind(team: &Namespace, semaphore: &Semaphore) -> String {
    let events = team.api::<Event>();
    eventually("an event says what is left", || async {
        let all = events.list(&ListParams::default()).await;
        let all = all.map_err(|error| error.to_string())?.items;
        let event = all.into_iter().find(|event| {
            event.reason.as_deref() == Some("LeftBehind")
                && event.involved_object.name.as_deref() == Some(semaphore.name())
        });
        event
            .and_then(|event| event.message)
            .ok_or("no event".to_owned())
    })
    .await
}
