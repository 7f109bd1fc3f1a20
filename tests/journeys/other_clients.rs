//! Other programs on the same prefix: their slots count, their keys are left alone.

use serde_json::{Value, json};
use testbed::{Bed, Consul, eventually};
use tokio::process::Command;

/// A session as any program creates one.
async fn session(consul: &Consul) -> String {
    consul
        .create_session(json!({ "Behavior": "delete", "TTL": "24h" }))
        .await
}

#[tokio::test]
async fn a_slot_of_another_program_counts_and_its_release_wakes_the_next() {
    let bed = Bed::shared().await;
    let team = bed.namespace("foreign-holder").await;
    let db = team.semaphore("db").limit(2).create().await;
    let prefix = db.lock_prefix();
    db.is_ready().await;
    let other = bed.consul().take_slot(&prefix, 2).await;
    db.shows(json!({ "held": 1, "heldHere": 0 })).await;

    let a = team.job("a").semaphore("db").runs("1h").create().await;
    a.is_running().await;
    let b = team.job("b").semaphore("db").create().await;
    b.has_event("SlotWaiting").await;
    db.shows(json!({ "held": 2, "heldHere": 1, "waiting": 1 }))
        .await;
    // Consul knows the node of its session.
    eventually("the holder is named", || async {
        let holder = db.status().await["holders"][0].clone();
        let named = holder["kind"] == "Program" && holder["node"].is_string();
        let known = named && holder["session"] == json!(other);
        known.then_some(()).ok_or(holder)
    })
    .await;
    b.is_waiting().await;

    bed.consul().give_back(&prefix, &other).await;
    b.is_complete().await;
    a.is_running().await;
}

#[tokio::test]
async fn a_command_outside_of_kubernetes_is_a_holder_that_says_who_it_is() {
    let bed = Bed::shared().await;
    let team = bed.namespace("command").await;
    let db = team.semaphore("db").limit(1).create().await;
    db.is_ready().await;
    let prefix = db.lock_prefix();
    let exec = format!("exec --prefix {prefix} --limit 1 --name ci-7 -- sleep 3600");
    let program = testbed::cli_program().expect("the program");
    let mut command = Command::new(program);
    command
        .args(exec.split(' '))
        .env("CONSUL_HTTP_ADDR", bed.consul().address())
        .kill_on_drop(true);
    if let Some(token) = bed.consul().token() {
        command.env("CONSUL_HTTP_TOKEN", token);
    }
    let mut command = command.spawn().expect("the command");
    db.shows(json!({ "held": 1, "heldHere": 0 })).await;
    let holder = db.status().await["holders"][0].take();
    let named = [&holder["kind"], &holder["host"], &holder["name"]];
    assert_eq!(named, ["Process", "ci-7", "sleep"], "{holder}");
    let job = team.job("a").semaphore("db").create().await;
    job.has_event("SlotWaiting").await;

    let id = command.id().expect("it runs").to_string();
    let asked = Command::new("kill").args(["-s", "TERM", &id]).status();
    assert!(asked.await.expect("kill").success());
    let ended = command.wait().await.expect("its end");
    assert_eq!(ended.code(), Some(143));
    job.is_complete().await;
}

#[tokio::test]
async fn the_shape_and_flags_of_another_program_are_kept() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("guide").await;
    let prefix = team.semaphore("db").lock_prefix();
    let key = format!("{prefix}/.lock");
    // As in HashiCorp's guide: a list, and no flags; and a field of its own.
    let other = session(consul).await;
    consul
        .put_json(&format!("kv/{prefix}/{other}?acquire={other}"), json!({}))
        .await;
    let body = json!({ "Limit": 2, "Holders": [other], "Owner": "guide" });
    consul.put(&key, 0, body.to_string()).await;

    let db = team.semaphore("db").limit(2).create().await;
    let observer = bed.watch_limit(&prefix).await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    a.is_running().await;
    let b = team.job("b").semaphore("db").create().await;
    b.has_event("SlotWaiting").await;
    db.shows(json!({ "held": 2, "heldHere": 1, "waiting": 1 }))
        .await;
    let lock = consul.kv(&key).await.expect("the lock");
    assert_eq!(lock.flags, 0);
    let ours = a.session().await.expect("its session");
    let expected = json!({ "Limit": 2, "Holders": [other, ours], "Owner": "guide" });
    assert_eq!(lock.json(), expected);

    // It gives the slot back in the same way.
    let body = json!({ "Limit": 2, "Holders": [ours], "Owner": "guide" });
    consul.put(&key, 0, body.to_string()).await;
    consul.destroy_session(&other).await;
    b.is_complete().await;
    b.has_event("SlotReleased").await;
    let lock = consul.kv(&key).await.expect("the lock");
    assert_eq!((lock.flags, lock.json()), (0, body));
    assert_eq!(observer.peak_holders(), 2);
}

#[tokio::test]
async fn a_dead_holder_is_pruned_and_a_live_one_is_not() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("dead-holder").await;
    let db = team.semaphore("db").limit(2).create().await;
    let prefix = db.lock_prefix();
    db.is_ready().await;
    let dead = consul.take_slot(&prefix, 2).await;
    let alive = consul.take_slot(&prefix, 2).await;
    let job = team.job("a").semaphore("db").runs("1h").create().await;
    job.has_event("SlotWaiting").await;
    db.shows(json!({ "held": 2, "waiting": 1 })).await;

    consul.destroy_session(&dead).await;
    job.is_running().await;
    let ours = job.session().await.expect("its session");
    assert_eq!(consul.holders(&prefix).await, [ours, alive].into());
}

#[tokio::test]
async fn keys_that_are_no_contenders_are_left_alone() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("neighbours").await;
    let outer = format!("nested/{}", team.name());
    let inner = format!("{outer}/deeper");
    // A note, a note with a semaphore's flags, and a key that another program's session has locked.
    let other = session(consul).await;
    consul.put(&format!("{outer}/note"), 0, "keep me").await;
    consul
        .put(&format!("{outer}/marked"), testbed::SEMAPHORE_FLAGS, "{}")
        .await;
    consul
        .put_json(&format!("kv/{outer}/theirs?acquire={other}"), json!({}))
        .await;
    // A neighbour whose name starts with the same text.
    consul.put(&format!("{outer}-too/.lock"), 0, "mine").await;
    let left_alone = || async {
        let mut keys = consul.list(&outer).await;
        keys.retain(|entry| !entry.key.contains("/deeper/") && !entry.key.ends_with("/.lock"));
        keys.extend(consul.kv(&format!("{outer}-too/.lock")).await);
        keys
    };
    let before = left_alone().await;
    assert_eq!(before.len(), 4);

    let a = team
        .semaphore("outer")
        .prefix(&outer)
        .limit(1)
        .create()
        .await;
    let b = team
        .semaphore("inner")
        .prefix(&inner)
        .limit(2)
        .create()
        .await;
    let observer = bed.watch_limit(&outer).await;
    for (name, semaphore) in [
        ("a", "outer"),
        ("b", "inner"),
        ("c", "outer"),
        ("d", "inner"),
    ] {
        team.job(name).semaphore(semaphore).create().await;
    }
    for name in ["a", "b", "c", "d"] {
        team.job(name).is_complete().await;
        team.job(name).has_event("SlotReleased").await;
    }
    assert_eq!(observer.peak_holders(), 1);
    for (semaphore, limit) in [(&a, 1), (&b, 2)] {
        semaphore.is_ready().await;
        let prefix = semaphore.lock_prefix();
        assert_eq!(consul.limit(&prefix).await, Some(limit));
    }
    // The remaining contenders of the Jobs are deleted with their sessions.
    eventually("no contender is left", || async {
        testbed::same(left_alone().await, before.clone())
    })
    .await;

    // Deleted, the outer one removes its lock and nothing else.
    a.delete().await;
    a.is_gone().await;
    assert_eq!(left_alone().await, before);
    assert_eq!(consul.limit(&inner).await, Some(2));
    let lock: Option<Value> = consul
        .kv(&format!("{outer}/.lock"))
        .await
        .map(|entry| entry.json());
    assert_eq!(lock, None);
    consul.destroy_session(&other).await;
}
