//! A slot that is lost while its command runs.

use std::io::Write as _;

use testbed::{Fault, Link, Proxy};

use crate::stage::{PREFIX, Stage};

/// Runs until it is asked to end, and notes that.
const UNTIL_TERM: &str = "trap 'note end; exit 0' TERM; note begin; while :; do sleep 0.05; done";

#[tokio::test]
async fn a_command_whose_slot_is_taken_away_is_ended() {
    let stage = Stage::new().await;
    let mut running = stage.exec("", UNTIL_TERM);
    stage.noted("begin").await;
    let holders = stage.consul.holders(PREFIX).await;
    stage.consul.destroy_session(holders.first().unwrap()).await;
    let said = running.ends_with(79).await;
    assert!(said.contains("the slot is lost"), "{said}");
    assert_eq!(stage.journal(), ["begin", "end"]);
}

/// Nobody reads the output, as at a stopped terminal or with a stopped reader of a pipe.
#[tokio::test]
async fn a_command_is_ended_also_where_nobody_reads_what_is_said() {
    let stage = Stage::new().await;
    let (_reader, writer) = std::io::pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    // The pipe is always full: this thread waits until the test is over and its reader is gone.
    std::thread::spawn(move || while filler.write_all(&[b'x'; 4096]).is_ok() {});
    // Otherwise the shell would report there how its children ended.
    let script = format!("exec 2>/dev/null; {UNTIL_TERM}");
    let mut running = stage.start_beside(stage.command("--log-filter debug", &script), writer);
    stage.noted("begin").await;
    let holders = stage.consul.holders(PREFIX).await;
    stage.consul.destroy_session(holders.first().unwrap()).await;
    stage.noted("end").await;
    running.ends_with(79).await;
}

/// It has minutes to end, and somebody wants it to end now.
#[tokio::test]
async fn signals_are_passed_on_after_a_loss_too() {
    let stage = Stage::new().await;
    let slow = "trap 'note term' TERM; trap 'exit 3' INT; note begin; while :; do sleep 0.05; done";
    let mut running = stage.exec("--ttl 1h --kill-after 20m", slow);
    stage.noted("begin").await;
    let holders = stage.consul.holders(PREFIX).await;
    stage.consul.destroy_session(holders.first().unwrap()).await;
    stage.noted("term").await;
    running.signal("INT").await;
    let said = running.ends_with(79).await;
    assert!(said.contains("exit code 3"), "{said}");
}

#[tokio::test]
async fn one_that_may_go_on_has_a_slot_again() {
    let stage = Stage::new().await;
    let mut running = stage.exec("--on-slot-lost continue", "note begin; wait_for end");
    stage.noted("begin").await;
    let before = stage.consul.holders(PREFIX).await;
    stage.consul.destroy_session(before.first().unwrap()).await;
    running.says("the command has a slot again").await;
    let after = stage.consul.holders(PREFIX).await;
    assert_eq!(after.len(), 1);
    assert_ne!(after, before);
    stage.open("end");
    running.ends_with(0).await;
    stage.is_clean().await;
}

#[tokio::test]
async fn one_that_may_go_on_does_so_without_a_slot() {
    let stage = Stage::new().await;
    let flags = "--on-slot-lost continue --lock-delay 0s";
    let mut running = stage.exec(flags, "note begin; wait_for end; note end");
    stage.noted("begin").await;
    let before = stage.consul.holders(PREFIX).await;
    let other = stage.consul.usurp(PREFIX, 1, before.first().unwrap()).await;
    running
        .says("no other slot is free: the command continues")
        .await;
    stage.open("end");
    running.ends_with(0).await;
    assert_eq!(stage.consul.holders(PREFIX).await, [other].into());
    assert_eq!(stage.journal(), ["begin", "end"]);
}

/// No blocking query is answered: that others have the slot shows when it is to be released.
#[tokio::test]
async fn a_loss_that_only_the_release_shows_is_told() {
    let stage = Stage::new().await;
    let proxy = Proxy::start(stage.consul.address()).await;
    proxy.faults(|call| call.query.contains("index=").then_some(Fault::Held));
    let flags = format!("--ttl 10m --consul-address {}", proxy.address());
    for (own, code) in [(0, 79), (3, 3)] {
        let script = format!("note begin {own}; wait_for end-{own}; exit {own}");
        let mut running = stage.exec(&flags, &script);
        stage.noted(&format!("begin {own}")).await;
        let held = stage.consul.holders(PREFIX).await;
        let other = stage.consul.usurp(PREFIX, 1, held.first().unwrap()).await;
        stage.open(&format!("end-{own}"));
        let said = running.ends_with(code).await;
        assert!(
            said.contains("the slot was lost before the command had ended"),
            "{said}"
        );
        stage.consul.give_back(PREFIX, &other).await;
    }
}

/// Consul does not answer at all: the command is asked to end, and killed if it does not.
#[tokio::test]
async fn a_command_whose_slot_nothing_shows_any_more_is_ended() {
    let stage = Stage::new().await;
    let stubborn = "trap '' TERM; note begin; while :; do sleep 0.05; done";
    let mut running = stage.exec("--ttl 30s --kill-after 10s", stubborn);
    stage.noted("begin").await;
    stage.consul.pause().await;
    let said = running.ends_with(79).await;
    assert!(said.contains("exit code 137"), "{said}");
    stage.consul.resume().await;
    assert_eq!(stage.journal(), ["begin"]);
}

/// Consul ends a session that was not renewed for a TTL. The next holder starts after the command of the disconnected
/// one has ended.
#[tokio::test]
async fn who_is_cut_off_has_ended_its_command_before_the_next_one_starts() {
    let stage = Stage::new().await;
    let consul = stage.consul.address().trim_start_matches("http://");
    let link = Link::start(consul.to_owned()).await.unwrap();
    // Its command has five seconds for something that takes one: a shell may be slow.
    let flags = format!(
        "--ttl 15s --kill-after 5s --consul-address {}",
        link.address()
    );
    let slow =
        "trap 'sleep 1; note first ends; exit 0' TERM; note first; while :; do sleep 0.05; done";
    let mut first = stage.exec(&flags, slow);
    stage.noted("first").await;
    let mut second = stage.exec("--ttl 10s --lock-delay 0s", "note second");
    second.says("waiting").await;
    link.cut();
    second.ends_with(0).await;
    first.ends_with(79).await;
    assert_eq!(stage.journal(), ["first", "first ends", "second"]);
}
