//! Waiting for a slot, and not waiting.

use serde_json::json;
use testbed::{Consul, PATIENCE, eventually, eventually_within, same};

use crate::stage::{PREFIX, Stage};

/// The flags of a mutex's key (`api.LockFlagValue`).
const MUTEX_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

#[tokio::test]
async fn a_slot_that_gets_free_goes_to_who_waits() {
    let stage = Stage::new().await;
    let mut first = stage.first("").await;
    let mut second = stage.exec("", "note second");
    second.says("waiting for a slot of shared/db").await;
    stage.open("first");
    first.ends_with(0).await;
    second.ends_with(0).await;
    assert_eq!(stage.journal(), ["first", "second"]);
    stage.is_clean().await;
}

/// Waits until this many visible contenders wait for a slot. Hundreds of programs may take their time on a busy machine.
pub(crate) async fn so_many_wait(stage: &Stage, count: usize) {
    eventually_within(5 * PATIENCE, "they wait in line", async || {
        let contenders = stage.consul.contenders(PREFIX).await.len();
        // Some may have come in between, with a slot at once.
        same(contenders, count + stage.consul.holders(PREFIX).await.len())
    })
    .await;
}

#[tokio::test]
async fn slots_go_by_priority_among_all_who_wait() {
    let mut journal = Vec::new();
    // A contender that sleeps for two seconds, as on a busy machine, is passed over, as it should be.
    for _ in 0..3 {
        journal = by_priority().await;
        if journal == ["first", "3", "2", "1"] {
            return;
        }
    }
    panic!("{journal:?}");
}

/// One command runs, and three with a priority wait: the order in which they run.
async fn by_priority() -> Vec<String> {
    let stage = Stage::new().await;
    let mut all = vec![stage.first("").await];
    for (waiting, priority) in [1, 3, 2].into_iter().enumerate() {
        so_many_wait(&stage, waiting).await;
        all.push(stage.exec(
            &format!("--priority {priority}"),
            &format!("note {priority}"),
        ));
    }
    so_many_wait(&stage, 3).await;
    stage.open("first");
    for running in &mut all {
        running.ends_with(0).await;
    }
    stage.is_clean().await;
    stage.journal()
}

/// It does not take part in the order, so its sessions wait without a contender.
#[tokio::test]
async fn who_keeps_to_no_order_shows_no_place_in_it() {
    let stage = Stage::new().await;
    let mut first = stage.first("").await;
    let mut second = stage.exec("--fair-order false", "note second");
    second.says("waiting for a slot of shared/db").await;
    assert_eq!(stage.consul.contenders(PREFIX).await.len(), 1);
    stage.open("first");
    first.ends_with(0).await;
    second.ends_with(0).await;
    stage.is_clean().await;
}

#[tokio::test]
async fn a_slot_cools_when_its_command_has_ended() {
    let stage = Stage::new().await;
    let mut first = stage.exec("--cooldown 1h --name vm-1", "note first; exit 3");
    eventually("its end is written", async || {
        let contenders = stage.consul.contenders(PREFIX).await;
        let body = contenders.first().map(testbed::Entry::json);
        body.is_some_and(|body| !body["coolsUntil"].is_null())
    })
    .await;
    let said = stage.exec("--try", "note never").ends_with(75).await;
    assert!(said.contains("held, by vm-1 sh"), "{said}");
    assert!(
        said.contains("is done and whose slot is in its cooldown until"),
        "{said}"
    );
    // A signal right after the command's end counts as the command's.
    eventually("a signal ends the wait", async || {
        first.signal("TERM").await;
        let said = first.said();
        said.contains("the slot stays held")
            .then_some(())
            .ok_or(said)
    })
    .await;
    first.ends_with(3).await;
    assert_eq!(stage.journal(), ["first"]);
    assert_eq!(stage.consul.holders(PREFIX).await.len(), 1, "until its TTL");
}

#[tokio::test]
async fn a_slot_that_has_cooled_is_given_back_also_after_a_wait_for_nothing() {
    let stage = Stage::new().await;
    let mut first = stage.first("--cooldown 1s").await;
    // It has no slot that could cool.
    let mut second = stage.exec("--cooldown 1h", "note never");
    second.says("waiting").await;
    second.signal("TERM").await;
    second.ends_with(143).await;
    stage.open("first");
    first.ends_with(0).await;
    stage.is_clean().await;
    assert_eq!(stage.journal(), ["first"]);
}

#[tokio::test]
async fn a_command_that_does_not_wait_says_who_holds_the_slot() {
    let stage = Stage::new().await;
    let mut holder = stage.exec("--name ci-7", "note holds; wait_for end");
    stage.noted("holds").await;
    let session = stage.sessions().await[0]["ID"].clone();
    let mut hasty = stage.exec("--try", "note never");
    let said = hasty.ends_with(75).await;
    let named = format!(
        "1 of 1 held, by ci-7 sh (session {})",
        session.as_str().unwrap()
    );
    assert!(said.contains(&named), "{said}");

    stage.open("end");
    holder.ends_with(0).await;
    stage.exec("--try", "note at last").ends_with(0).await;
    assert_eq!(stage.journal(), ["holds", "at last"]);
    stage.is_clean().await;
}

#[tokio::test]
async fn patience_ends_and_so_does_a_wait_that_is_interrupted() {
    let stage = Stage::new().await;
    let mut holder = stage.exec("", "note holds; wait_for end");
    stage.noted("holds").await;
    let mut patient = stage.exec("--wait-for 5s", "note never");
    let said = patient.ends_with(124).await;
    assert!(said.contains("no slot of shared/db within 5s"), "{said}");
    for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let mut waiting = stage.exec("", "note never");
        waiting.says("waiting").await;
        // There is no command to pass this on to.
        waiting.signal("USR1").await;
        waiting.signal(signal).await;
        waiting.ends_with(code).await;
    }
    // They left nothing behind, and did not touch anybody else's slot.
    assert_eq!(stage.consul.holders(PREFIX).await.len(), 1);
    assert_eq!(stage.sessions().await.len(), 1);
    stage.open("end");
    holder.ends_with(0).await;
    assert_eq!(stage.journal(), ["holds"]);
}

#[tokio::test]
async fn another_limit_or_another_use_of_the_key_is_a_conflict() {
    let stage = Stage::new().await;
    let mut three = stage.exec("--limit 3", "note three; wait_for three");
    stage.noted("three").await;
    let said = stage.exec("--limit 2", "note never").ends_with(78).await;
    assert!(said.contains("is 3 in Consul, not 2"), "{said}");
    stage.open("three");
    three.ends_with(0).await;
    // It is not used any more.
    stage.exec("--limit 2", "note two").ends_with(0).await;

    let mutex = stage
        .consul
        .create_session(json!({ "Behavior": "delete", "TTL": "24h" }))
        .await;
    let acquire = format!("kv/{PREFIX}/one/.lock?acquire={mutex}");
    stage.consul.put_json(&acquire, json!({})).await;
    let said = stage.exec("--key one", "note one").ends_with(78).await;
    assert!(said.contains("shared/db/one/.lock"), "{said}");
    assert_eq!(stage.journal(), ["three", "two"]);
    assert_eq!(stage.sessions().await.len(), 0);
}

#[tokio::test]
async fn a_prefix_that_nobody_uses_is_not_made_if_it_must_exist() {
    let stage = Stage::new().await;
    let said = stage.exec("--must-exist", "note never").ends_with(78).await;
    assert!(said.contains("no semaphore at shared/db"), "{said}");
    stage.is_clean().await;
    let mut first = stage.first("").await;
    let mut second = stage.exec("--must-exist", "note second");
    second.says("waiting").await;
    // It exists until the first one ends, and then is the second one's.
    stage.open("first");
    first.ends_with(0).await;
    second.ends_with(0).await;
    assert_eq!(stage.journal(), ["first", "second"]);
    stage.is_clean().await;
}

/// `consul lock -n 1` that was killed leaves its mutex.
#[tokio::test]
async fn what_a_mutex_has_left_is_waited_for_until_it_may_go() {
    let stage = Stage::new().await;
    let dead = stage
        .consul
        .create_session(json!({ "TTL": "24h", "LockDelay": "0s" }))
        .await;
    let acquire = format!("kv/{PREFIX}/.lock?acquire={dead}&flags={MUTEX_FLAGS}");
    stage.consul.put_json(&acquire, json!({})).await;
    stage.consul.destroy_session(&dead).await;
    let hasty = "--try --lock-delay 1s";
    let said = stage.exec(hasty, "note at last").ends_with(0).await;
    assert!(said.contains("lock-delay of a dead holder"), "{said}");
    assert_eq!(stage.journal(), ["at last"]);
    stage.is_clean().await;
}

/// No other contender may be waiting for it, for instance if none of them waits.
#[tokio::test]
async fn the_slot_of_a_dead_holder_is_free_when_it_has_rested_also_to_who_does_not_wait() {
    let stage = Stage::new().await;
    let dead = stage.consul.take_slot(PREFIX, 1).await;
    stage.consul.destroy_session(&dead).await;
    let hasty = "--try --lock-delay 1s";
    let said = stage.exec(hasty, "note at last").ends_with(0).await;
    assert!(said.contains("lock-delay of a dead holder"), "{said}");
    assert_eq!(stage.journal(), ["at last"]);
    stage.is_clean().await;
}

/// There is no slot that could cool.
#[tokio::test]
async fn who_has_nothing_to_give_back_ends_at_once() {
    let stage = Stage::new().await;
    let flags = "--try --cooldown 24h --consul-address 127.0.0.1:1";
    stage.exec(flags, "note never").ends_with(69).await;
}

/// With a token that must not make sessions, a session would be refused.
#[tokio::test]
async fn who_does_not_wait_makes_no_session_where_all_is_taken() {
    let stage = Stage::with(Consul::builder().acls("root")).await;
    let mut holder = stage.command("", "note holds; wait_for end");
    holder.env("CONSUL_HTTP_TOKEN", "root");
    let mut holder = stage.start(holder);
    stage.noted("holds").await;
    let keys = format!(r#"key_prefix "{PREFIX}/" {{ policy = "write" }}"#);
    let token = token(&stage.consul, &keys).await;
    for (flags, code) in [("--try", 75), ("", 77)] {
        let mut hasty = stage.command(flags, "note never");
        hasty.env("CONSUL_HTTP_TOKEN", &token);
        stage.start(hasty).ends_with(code).await;
    }
    stage.open("end");
    holder.ends_with(0).await;
    assert_eq!(stage.journal(), ["holds"]);
}

#[tokio::test]
async fn a_consul_that_is_away_is_waited_for_unless_nobody_waits() {
    let stage = Stage::new().await;
    let nowhere = "--consul-address 127.0.0.1:1";
    let said = stage
        .exec(&format!("{nowhere} --try"), "note never")
        .ends_with(69)
        .await;
    assert!(said.contains("Consul cannot be reached"), "{said}");
    let mut patient = stage.exec(&format!("{nowhere} --wait-for 30s"), "note never");
    let said = patient.ends_with(69).await;
    assert!(said.contains("; waiting"), "{said}");

    // The command starts once Consul is back.
    stage.consul.pause().await;
    let mut waiting = stage.exec("", "note back");
    waiting.says("Consul cannot be reached").await;
    stage.consul.resume().await;
    waiting.ends_with(0).await;
    assert_eq!(stage.journal(), ["back"]);
}

#[tokio::test]
async fn a_consul_that_refuses_is_not_waited_for() {
    let stage = Stage::with(Consul::builder().acls("root")).await;
    let said = stage.exec("", "note never").ends_with(77).await;
    assert!(
        said.contains("Consul denies it") && said.contains("docs/exec.md"),
        "{said}"
    );
    let mut command = stage.command("", "note never");
    command.env("CONSUL_HTTP_TOKEN", "11111111-2222-3333-4444-555555555555");
    let said = stage.start(command).ends_with(77).await;
    assert!(said.contains("does not know the token"), "{said}");
    assert!(stage.journal().is_empty());

    // The rules in docs/exec.md are enough.
    let keys = format!(r#"key_prefix "{PREFIX}/" {{ policy = "write" }}"#);
    for (flags, rules) in [
        ("", r#"session "bed" { policy = "write" }"#.to_owned()),
        (
            "--node exec-team-a",
            ["node", "session"]
                .map(|kind| format!(r#"{kind} "exec-team-a" {{ policy = "write" }} "#))
                .concat(),
        ),
    ] {
        let token = token(&stage.consul, &format!("{keys} {rules}")).await;
        let mut command = stage.command(flags, "note allowed");
        command.env("CONSUL_HTTP_TOKEN", token);
        stage.start(command).ends_with(0).await;
    }
    assert_eq!(stage.journal(), ["allowed", "allowed"]);
    stage.is_clean().await;
}

#[tokio::test]
async fn a_ttl_that_consul_refuses_ends_the_wait() {
    let config = json!({ "session_ttl_min": "90s" });
    let stage = Stage::with(Consul::builder().config(config)).await;
    let said = stage.exec("", "note never").ends_with(77).await;
    assert!(
        said.contains("to at least 90s, the session_ttl_min"),
        "{said}"
    );
    stage.exec("--ttl 90s", "note ran").ends_with(0).await;
    assert_eq!(stage.journal(), ["ran"]);
    stage.is_clean().await;
}

/// A token with these rules.
pub(crate) async fn token(consul: &Consul, rules: &str) -> String {
    let name = format!("exec-{:x}", fastrand::u64(..));
    let policy = json!({ "Name": name, "Rules": rules });
    consul.put_json("acl/policy", policy).await;
    let token = json!({ "Policies": [{ "Name": name }] });
    let token = consul.put_json("acl/token", token).await;
    token["SecretID"].as_str().unwrap().to_owned()
}
