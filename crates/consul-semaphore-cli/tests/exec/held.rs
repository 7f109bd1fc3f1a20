//! Whether a slot is still held.

use serde_json::json;
use testbed::Consul;

use crate::stage::{PREFIX, Stage};

#[tokio::test]
async fn a_sequencer_is_good_until_the_slot_is_given_back() {
    let stage = Stage::new().await;
    let program = env!("CARGO_BIN_EXE_consul-semaphore");
    let asks = format!("{program} held; note $?; env | grep ^CONSUL_SEMAPHORE >\"$FOLDER/slot\"");
    stage.exec("", &asks).ends_with(0).await;
    assert_eq!(stage.journal(), ["0"], "while it runs");

    let slot = std::fs::read_to_string(stage.folder().join("slot")).unwrap();
    let slot: Vec<_> = slot
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    let held = |flags: &[&str]| {
        let mut command = stage.program(&["held"]);
        command.args(flags).envs(slot.iter().copied());
        stage.start(command)
    };
    let said = held(&[]).ends_with(1).await;
    assert!(said.contains("does not exist"), "{said}");
    held(&["--consul-address", "127.0.0.1:1"])
        .ends_with(2)
        .await;
    held(&["--lock-key", "nowhere"]).ends_with(2).await;
}

#[tokio::test]
async fn who_may_not_ask_is_told_what_it_needs() {
    let stage = Stage::with(Consul::builder().acls("root")).await;
    let program = env!("CARGO_BIN_EXE_consul-semaphore");
    for (flags, code, words) in [
        ("", 2, "--pass-consul-credentials"),
        ("--pass-consul-credentials", 0, "held"),
    ] {
        let mut command = stage.command(flags, &format!("{program} held"));
        command.env("CONSUL_HTTP_TOKEN", "root");
        let said = stage.start(command).ends_with(code).await;
        assert!(said.contains(words), "{said}");
    }
}

#[tokio::test]
async fn every_part_of_a_sequencer_counts() {
    let stage = Stage::new().await;
    let session = stage.consul.take_slot(PREFIX, 1).await;
    let key = format!("{PREFIX}/{session}");
    let other = stage.consul.create_session(json!({})).await;
    let held = |key: &str, session: &str, index: &str| {
        let flags = [
            "held",
            "--lock-key",
            key,
            "--session",
            session,
            "--lock-index",
            index,
        ];
        stage.start(stage.program(&flags))
    };
    let said = held(&key, &session, "1").ends_with(0).await;
    assert!(said.contains("held"), "{said}");
    for (key, session, index, why) in [
        (
            key.as_str(),
            other.as_str(),
            "1",
            "is not locked by session",
        ),
        (&key, &session, "2", "has LockIndex 1, not 2"),
        ("shared/other/key", &session, "1", "does not exist"),
    ] {
        let said = held(key, session, index).ends_with(1).await;
        assert!(said.contains(why), "{said}");
    }
    // Its holder is removed by hand.
    let lock = format!("{PREFIX}/.lock");
    let body = json!({ "Limit": 1, "Holders": {} }).to_string();
    stage
        .consul
        .put(&lock, testbed::SEMAPHORE_FLAGS, body)
        .await;
    let said = held(&key, &session, "1").ends_with(1).await;
    assert!(said.contains("is not among the Holders"), "{said}");

    // A mutex is its own lock key.
    let mutex = "shared/one/.lock";
    let acquire = format!("kv/{mutex}?acquire={other}");
    stage.consul.put_json(&acquire, json!({})).await;
    held(mutex, &other, "1").ends_with(0).await;
    held(mutex, &session, "1").ends_with(1).await;
}
