//! Keyed semaphores of other kinds: mutexes, and slots with a cooldown.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use testbed::{Bed, Job, Namespace, Semaphore, eventually, same};

/// A keyed semaphore with these additions to its spec.
async fn keyed(team: &Namespace, more: Value) -> Semaphore {
    let tasks = team.semaphore("tasks").spec(json!({ "keyed": true }));
    tasks.spec(more).create().await
}

/// A Job for the slot of this key; it runs until it is ended.
fn job(team: &Namespace, name: &str, key: &str) -> Job {
    let job = team.job(name).semaphore("tasks").runs("1h");
    job.annotation("consul-semaphore.io/key", key)
}

/// Waits until exactly these keys are below the semaphore's prefix.
async fn keys_are(bed: &Bed, tasks: &Semaphore, expected: &[&str]) {
    let prefix = tasks.lock_prefix();
    eventually("nothing but what is used is in Consul", || async {
        let found = bed.consul().list(&format!("{prefix}/")).await;
        let found: BTreeSet<_> = found.into_iter().map(|entry| entry.key).collect();
        let expected = expected.iter().map(|key| format!("{prefix}/{key}"));
        same(found, expected.collect())
    })
    .await;
}

#[tokio::test]
async fn each_key_can_be_a_mutex_that_api_lock_takes_too() {
    let bed = Bed::shared().await;
    let team = bed.namespace("keyed-mutex").await;
    let tasks = keyed(&team, json!({ "mode": "Mutex" })).await;
    let key = |name: &str| format!("{}/{name}/.lock", tasks.lock_prefix());
    tasks.is_ready().await;
    let go = bed.go_lock("go", &key("one")).start().await;
    go.holds().await;
    tasks
        .shows(json!({ "held": 1, "heldHere": 0, "keysInUse": 1 }))
        .await;

    // One key is taken, another one is not.
    let a = job(&team, "a", "one").create().await;
    a.has_event("SlotWaiting").await;
    let b = job(&team, "b", "other").create().await;
    b.is_running().await;
    a.is_waiting().await;
    go.stop().await;
    assert_eq!(go.errors(), Vec::<String>::new());
    a.is_running().await;
    let locked = bed.consul().kv(&key("one")).await.expect("the key");
    assert_eq!(locked.session, a.session().await);
    tasks
        .shows(json!({ "held": 2, "heldHere": 2, "keysInUse": 2 }))
        .await;
    for job in [&a, &b] {
        job.finish().await;
    }
    keys_are(&bed, &tasks, &[]).await;

    // What `api.Lock` leaves behind is deleted when nobody uses it.
    let last = bed
        .go_lock("last", &key("one"))
        .times(3)
        .hold(Duration::from_millis(10));
    last.start().await.is_done().await;
    keys_are(&bed, &tasks, &[]).await;
    tasks
        .shows(json!({ "held": 0, "waiting": 0, "keysInUse": 0 }))
        .await;
    tasks.is_ready().await;
}

#[tokio::test]
async fn the_slot_of_each_key_cools_by_itself() {
    let bed = Bed::shared().await;
    let team = bed.namespace("keyed-cooldown").await;
    let tasks = keyed(&team, json!({ "cooldown": "5s" })).await;
    let a = job(&team, "a", "one").create().await;
    let b = job(&team, "b", "other").create().await;
    let next = job(&team, "next", "one").create().await;
    b.is_running().await;
    a.finish().await;
    let note = a.has_event("SlotCooling").await;
    assert!(note.contains("stays held until"), "{note}");
    let until = note.split("stays held until ").nth(1);
    let until = until.and_then(|rest| rest.split([' ', ',', ';']).next());
    let until: jiff::Timestamp = until.and_then(|time| time.parse().ok()).expect(&note);

    next.is_running().await;
    let session = next.session().await.expect("its session");
    let contender = format!("{}/one/{session}", tasks.lock_prefix());
    let contender = bed.consul().kv(&contender).await.expect("its contender");
    let granted = contender.json()["time"].as_str().map(str::parse);
    let granted: jiff::Timestamp = granted.expect("a time").expect("a time");
    assert!(granted >= until, "{granted} is before {until}");
    b.is_running().await;
    for job in [&next, &b] {
        job.finish().await;
        job.has_event("SlotCooling").await;
    }
    // A key is left alone while its slot cools, but not longer.
    keys_are(&bed, &tasks, &[]).await;
    tasks.shows(json!({ "held": 0, "keysInUse": 0 })).await;
}
