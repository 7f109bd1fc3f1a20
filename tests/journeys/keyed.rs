//! A keyed semaphore: a separate one for each value of the Jobs' annotation `key`.

use std::collections::BTreeSet;

use serde_json::json;
use testbed::{Bed, Consul, Job, Namespace, Semaphore, eventually, helpers::warning, same};

const KEY: &str = "consul-semaphore.io/key";

fn keyed(team: &Namespace) -> Semaphore {
    team.semaphore("tasks").spec(json!({ "keyed": true }))
}

/// A Job for the slots of this key; it runs until it is ended.
fn job(team: &Namespace, name: &str, key: &str) -> Job {
    let job = team.job(name).semaphore("tasks").runs("1h");
    job.annotation(KEY, key)
}

/// Waits until exactly these keys are below a prefix.
async fn keys_are(consul: &Consul, prefix: &str, expected: &[&str]) {
    eventually("nothing but what is used is in Consul", || async {
        let found = consul.list(&format!("{prefix}/")).await;
        let found: BTreeSet<_> = found.into_iter().map(|entry| entry.key).collect();
        let expected = expected.iter().map(|key| format!("{prefix}/{key}"));
        same(found, expected.collect())
    })
    .await;
}

#[tokio::test]
async fn each_key_has_slots_of_its_own_and_leaves_nothing() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("keyed").await;
    let tasks = keyed(&team).limit(1).create().await;
    let prefix = tasks.lock_prefix();
    tasks.is_ready().await;
    tasks
        .has_condition("LimitAgreed", "True", "LimitsMatch")
        .await;
    tasks
        .shows(json!({ "held": 0, "waiting": 0, "keysInUse": 0 }))
        .await;
    keys_are(consul, &prefix, &[]).await;

    let observer = bed.watch_limit(&format!("{prefix}/one")).await;
    let a = job(&team, "a", "one").create().await;
    a.is_running().await;
    let b = job(&team, "b", "other").create().await;
    b.is_running().await;
    let c = job(&team, "c", "one").create().await;
    let note = c.has_event("SlotWaiting").await;
    assert!(note.contains("tasks (key one)"), "{note}");
    tasks
        .shows(json!({ "limit": 1, "held": 2, "heldHere": 2, "waiting": 1, "keysInUse": 2 }))
        .await;
    let status = tasks.status().await;
    let keys = ["/holders/0/key", "/holders/1/key", "/queue/0/key"];
    let keys = keys.map(|path| status.pointer(path).and_then(|key| key.as_str()));
    assert_eq!(keys, [Some("one"), Some("other"), Some("one")]);
    c.is_waiting().await;
    for key in ["one", "other"] {
        assert_eq!(consul.limit(&format!("{prefix}/{key}")).await, Some(1));
    }
    assert_eq!(consul.kv(&format!("{prefix}/.lock")).await, None);

    a.finish().await;
    c.is_running().await;
    b.is_running().await;
    b.finish().await;
    b.has_event("SlotReleased").await;
    tasks.shows(json!({ "held": 1, "keysInUse": 1 })).await;
    c.finish().await;
    tasks
        .shows(json!({ "held": 0, "waiting": 0, "keysInUse": 0 }))
        .await;
    keys_are(consul, &prefix, &[]).await;
    assert_eq!(observer.peak_holders(), 1);
    // A key that was used before is like a new one.
    let d = job(&team, "d", "one").create().await;
    d.is_running().await;
    d.finish().await;
    keys_are(consul, &prefix, &[]).await;
}

#[tokio::test]
async fn a_key_is_switched_while_its_job_waits_and_not_while_it_holds() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("keyed-switch").await;
    let tasks = keyed(&team).limit(1).create().await;
    let prefix = tasks.lock_prefix();
    let a = job(&team, "a", "one").create().await;
    a.is_running().await;
    let waits = job(&team, "waits", "one").create().await;
    waits.has_event("SlotWaiting").await;
    waits.annotate(KEY, Some("other")).await;
    waits.is_running().await;
    assert_eq!(consul.holders(&format!("{prefix}/other")).await.len(), 1);
    // What was made ahead for its old queue is removed.
    let left = format!("/{}/tasks:one/waits/", team.name());
    eventually("its first session is gone", || async {
        let sessions = consul.sessions().await;
        let names = sessions
            .iter()
            .filter_map(|session| session["Name"].as_str());
        same(names.filter(|name| name.contains(&left)).count(), 0)
    })
    .await;

    // A holder keeps the slot that it has.
    let session = a.session().await.expect("its session");
    a.annotate(KEY, Some("third")).await;
    let next = job(&team, "next", "one").create().await;
    next.has_event("SlotWaiting").await;
    tasks
        .shows(json!({ "held": 2, "waiting": 1, "keysInUse": 2 }))
        .await;
    assert_eq!(
        consul.holders(&format!("{prefix}/one")).await,
        [session].into()
    );
    next.is_waiting().await;
    a.finish().await;
    next.is_running().await;
    for job in [&waits, &next] {
        job.finish().await;
    }
    keys_are(consul, &prefix, &[]).await;
}

#[tokio::test]
async fn without_a_key_or_with_a_hostile_one_a_job_stays_suspended_alone() {
    let bed = Bed::shared().await;
    let team = bed.namespace("keyed-hostile").await;
    let tasks = keyed(&team).limit(1).create().await;
    let missing = team.job("missing").semaphore("tasks").create().await;
    let note = warning(&missing, "Malformed").await;
    assert!(note.contains(KEY) && note.contains("tasks"), "{note}");
    let mut hostile = Vec::new();
    let long = "k".repeat(64);
    for (number, key) in ["..", ".lock", "a/../../b", "\u{202e}x\n", &long]
        .iter()
        .enumerate()
    {
        let job = job(&team, &format!("hostile-{number}"), key).create().await;
        let note = warning(&job, "Malformed").await;
        assert!(note.contains("a key has 1 to 63"), "{note}");
        hostile.push(job);
    }
    // They don't stop anything else.
    let good = job(&team, "good", "one").create().await;
    good.is_running().await;
    for job in hostile.iter().chain([&missing]) {
        job.is_waiting().await;
        job.annotate(KEY, Some(job.name())).await;
        job.is_running().await;
    }
    tasks.is_ready().await;

    // A semaphore that is not keyed ignores any key, and an event says so.
    let plain = team.semaphore("plain").limit(1).create().await;
    for (name, key) in [("b", "one"), ("c", "../..")] {
        let job = team.job(name).semaphore("plain").annotation(KEY, key);
        let job = job.create().await;
        let note = warning(&job, "AnnotationIgnored").await;
        assert!(note.contains("not keyed"), "{note}");
        job.is_complete().await;
    }
    assert_eq!(bed.consul().limit(&plain.lock_prefix()).await, Some(1));
}

#[tokio::test]
async fn others_on_a_key_count_there_and_their_things_are_left_alone() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("keyed-shared").await;
    let tasks = keyed(&team).limit(1).create().await;
    let prefix = tasks.lock_prefix();
    tasks.is_ready().await;
    let theirs = ["note", ".lock", "one/deeper/.lock", "quiet/note"];
    for key in theirs {
        consul.put(&format!("{prefix}/{key}"), 0, "mine").await;
    }
    let other = consul.take_slot(&format!("{prefix}/one"), 1).await;
    tasks
        .shows(json!({ "held": 1, "heldHere": 0, "keysInUse": 1 }))
        .await;
    let holders = tasks.status().await["holders"].clone();
    // Since when it holds is known if the operator saw its grant.
    assert_eq!(holders.as_array().map(Vec::len), Some(1), "{holders}");
    assert_eq!(
        (&holders[0]["session"], &holders[0]["key"]),
        (&json!(other), &json!("one")),
        "{holders}"
    );
    let a = job(&team, "a", "one").create().await;
    a.has_event("SlotWaiting").await;
    let b = job(&team, "b", "other").create().await;
    b.is_running().await;
    a.is_waiting().await;
    consul.give_back(&format!("{prefix}/one"), &other).await;
    a.is_running().await;
    for job in [&a, &b] {
        job.finish().await;
    }
    keys_are(consul, &prefix, &theirs).await;
    // A limit that another program left on a key is no conflict for the next one.
    consul
        .put(
            &format!("{prefix}/left/.lock"),
            testbed::SEMAPHORE_FLAGS,
            r#"{"Limit":7,"Holders":{}}"#,
        )
        .await;
    keys_are(consul, &prefix, &theirs).await;
}

#[tokio::test]
async fn a_conflict_on_one_key_stops_that_one() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("keyed-conflict").await;
    let tasks = keyed(&team).limit(1).create().await;
    let prefix = tasks.lock_prefix();
    tasks.is_ready().await;
    let other = consul.take_slot(&format!("{prefix}/one"), 5).await;
    let a = job(&team, "a", "one").create().await;
    let b = job(&team, "b", "other").create().await;
    b.is_running().await;
    tasks
        .has_condition_that_says("LimitAgreed", "False", "LimitConflict", &["key one", "5"])
        .await;
    tasks.has_condition("Ready", "True", "LimitConflict").await;
    b.finish().await;
    // Only the key that is stopped is left.
    tasks.has_condition("Ready", "False", "LimitConflict").await;
    a.is_waiting().await;
    consul.give_back(&format!("{prefix}/one"), &other).await;
    // Nobody uses the limit that they leave behind.
    a.is_running().await;
    assert_eq!(consul.limit(&format!("{prefix}/one")).await, Some(1));
    tasks.has_condition("Ready", "True", "Reconciled").await;
}

#[tokio::test]
async fn a_limit_is_changed_on_all_keys_and_a_deletion_cleans_all_up() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("keyed-limit").await;
    let tasks = keyed(&team).limit(1).create().await;
    let prefix = tasks.lock_prefix();
    let mut jobs = Vec::new();
    for (name, key) in [("a", "one"), ("b", "other"), ("c", "one"), ("d", "other")] {
        let job = job(&team, name, key).create().await;
        job.has_event(if jobs.len() < 2 {
            "SlotGranted"
        } else {
            "SlotWaiting"
        })
        .await;
        jobs.push(job);
    }
    tasks.set_limit(2).await;
    for job in &jobs {
        job.is_running().await;
    }
    tasks
        .shows(json!({ "limit": 2, "appliedLimits": [2], "held": 4, "waiting": 0 }))
        .await;
    for key in ["one", "other"] {
        assert_eq!(consul.limit(&format!("{prefix}/{key}")).await, Some(2));
    }
    let waits = job(&team, "waits", "one").create().await;
    waits.has_event("SlotWaiting").await;

    tasks.delete().await;
    tasks.has_condition("Ready", "False", "Terminating").await;
    let note = warning(&waits, "NoSemaphore").await;
    assert!(note.contains("deleted"), "{note}");
    for job in &jobs {
        job.finish().await;
    }
    tasks.is_gone().await;
    keys_are(consul, &prefix, &[]).await;
    waits.is_waiting().await;
}

#[tokio::test]
async fn a_restart_adopts_all_keys() {
    let bed = Bed::start().await;
    let consul = bed.consul();
    let team = bed.namespace("keyed-restart").await;
    let tasks = keyed(&team).limit(1).create().await;
    let prefix = tasks.lock_prefix();
    let mut jobs = Vec::new();
    for key in ["k1", "k2", "k3"] {
        let job = job(&team, key, key).create().await;
        job.is_running().await;
        jobs.push(job);
    }
    let next = job(&team, "next", "k1").create().await;
    next.has_event("SlotWaiting").await;
    let before = consul.contenders(&prefix).await;
    bed.operator().kill().await;
    jobs[0].finish().await;
    assert_eq!(consul.contenders(&prefix).await, before);

    bed.operator().start().await;
    next.is_running().await;
    tasks
        .shows(json!({ "held": 3, "heldHere": 3, "keysInUse": 3 }))
        .await;
    let after = consul.contenders(&prefix).await;
    for entry in before.iter().filter(|entry| !entry.key.contains("/k1/")) {
        assert!(after.contains(entry), "{} was adopted", entry.key);
    }
    for job in jobs.iter().skip(1).chain([&next]) {
        job.finish().await;
    }
    keys_are(consul, &prefix, &[]).await;
}
