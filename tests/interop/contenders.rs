//! Foreign programs as contenders and holders: they are seen, waited for, woken and outlived.

use serde_json::{Value, json};
use testbed::{Bed, Entry, SEMAPHORE_FLAGS, eventually, same};

#[tokio::test]
async fn holders_of_others_are_shown_as_far_as_they_are_known() {
    let bed = Bed::shared().await;
    let team = bed.namespace("others-shown").await;
    let prefix = team.semaphore("db").lock_prefix();
    let before = bed.go_semaphore("web", &prefix, 3).start().await;
    before.holds().await;
    let db = team.semaphore("db").limit(3).create().await;
    db.is_ready().await;
    let since = bed.consul_lock("backup", &prefix, 3).start().await;
    since.holds().await;
    let job = team.job("a").semaphore("db").runs("1h").create().await;
    job.is_running().await;
    db.shows(json!({ "held": 3, "heldHere": 1 })).await;
    let named = |holder: &Value, name: &str| {
        [&holder["kind"], &holder["name"], &holder["node"]] == ["Program", name, "bed"]
    };
    eventually("Consul has said who they are", || async {
        let holders = db.status().await["holders"].clone();
        let met = named(&holders[0], "web") && named(&holders[1], "backup");
        met.then_some(()).ok_or(holders.to_string())
    })
    .await;
    let holders = db.status().await["holders"].clone();
    assert_eq!(
        holders[0]["since"],
        Value::Null,
        "it held before: {holders}"
    );
    assert!(holders[1]["since"].is_string(), "{holders}");
    let ours = job.session().await.expect("its session");
    assert_eq!(holders[2]["session"], ours);
    before.stop().await;
    since.stop().await;
    db.shows(json!({ "held": 1, "heldHere": 1 })).await;
}

#[tokio::test]
async fn a_release_of_others_wakes_the_next_job() {
    let bed = Bed::shared().await;
    let team = bed.namespace("others-release").await;
    let db = team.semaphore("db").limit(2).create().await;
    let prefix = db.lock_prefix();
    db.is_ready().await;
    let go = bed.go_semaphore("go", &prefix, 2).start().await;
    let cli = bed.consul_lock("cli", &prefix, 2).start().await;
    go.holds().await;
    cli.holds().await;
    db.shows(json!({ "held": 2, "heldHere": 0 })).await;
    let [a, b] = ["a", "b"].map(|name| team.job(name).semaphore("db").runs("1h"));
    let a = a.create().await;
    a.has_event("SlotWaiting").await;
    let b = b.create().await;
    b.has_event("SlotWaiting").await;

    go.stop().await;
    a.is_running().await;
    b.is_waiting().await;
    cli.stop().await;
    b.is_running().await;
    assert_eq!(go.errors(), Vec::<String>::new());
}

#[tokio::test]
async fn a_holder_of_others_that_dies_gives_its_slot_to_the_next_job() {
    let bed = Bed::shared().await;
    let team = bed.namespace("others-die").await;
    let db = team.semaphore("db").limit(2);
    let short = json!({ "session": { "lockDelay": "1s" } });
    let db = db.spec(short).create().await;
    let prefix = db.lock_prefix();
    db.is_ready().await;
    let dies = bed.go_semaphore("dies", &prefix, 2).start().await;
    dies.holds().await;
    let lives = bed.go_semaphore("lives", &prefix, 2).start().await;
    lives.holds().await;
    let job = team.job("a").semaphore("db").runs("1h").create().await;
    job.has_event("SlotWaiting").await;

    dies.kill().await;
    job.is_running().await;
    db.shows(json!({ "held": 2, "heldHere": 1 })).await;
    let ours = job.session().await.expect("its session");
    let holders = bed.consul().holders(&prefix).await;
    assert!(holders.contains(&ours), "{holders:?}");
    // The other one has not noticed anything.
    lives.stop().await;
    assert_eq!(lives.errors(), Vec::<String>::new());
}

#[tokio::test]
async fn contenders_of_others_are_never_written_to() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("others-keys").await;
    let db = team.semaphore("db").limit(1).create().await;
    let prefix = db.lock_prefix();
    db.is_ready().await;
    let holder = bed.go_semaphore("holder", &prefix, 1).start().await;
    holder.holds().await;
    // A contender that waits, as from a script: with its own flags and body.
    let session = consul
        .create_session(json!({ "Behavior": "delete", "TTL": "24h" }))
        .await;
    let key = format!("kv/{prefix}/{session}?acquire={session}&flags=42");
    consul.put_json(&key, json!({ "mine": [1, 2] })).await;
    // And a key that is not a contender.
    consul
        .put(&format!("{prefix}/note"), SEMAPHORE_FLAGS, "keep me")
        .await;
    consul
        .put(&format!("{prefix}/deeper/.lock"), 7, "not yours")
        .await;
    let theirs = || async {
        let mut entries = consul.list(&format!("{prefix}/")).await;
        entries.retain(|entry| entry.key != format!("{prefix}/.lock"));
        entries
    };
    let before = theirs().await;
    assert_eq!(before.len(), 4);

    let job = team.job("a").semaphore("db").create().await;
    job.has_event("SlotWaiting").await;
    holder.stop().await;
    job.is_complete().await;
    job.has_event("SlotReleased").await;
    let stays = |entry: &Entry| entry.session.as_ref().is_none_or(|id| *id == session);
    let left: Vec<_> = before.into_iter().filter(stays).collect();
    assert_eq!(left.len(), 3);
    eventually("only theirs are left, as they were", || async {
        same(theirs().await, left.clone())
    })
    .await;
    consul.destroy_session(&session).await;
}
