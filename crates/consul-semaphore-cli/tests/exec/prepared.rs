//! What is started ahead, while the slot is awaited: a guard and what becomes the command.

use std::{
    fs,
    path::{Path, PathBuf},
};

use testbed::{eventually, same};
use tokio::process::Command;

use crate::{
    ending::all_are_gone,
    stage::{PREFIX, Running, Stage},
};

/// The processes that this one has started and has not collected.
fn children(id: &str) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children = children.unwrap_or_default();
    children.split_whitespace().map(str::to_owned).collect()
}

/// The guard of one that waits, and what becomes its command, once both are there.
async fn prepared(waiting: &Running) -> [String; 2] {
    eventually("it is ready to start the command", async || {
        let guard = children(&waiting.id().to_string()).pop()?;
        let command = children(&guard).pop()?;
        Some([guard, command])
    })
    .await
}

fn folders(ids: &[String]) -> Vec<PathBuf> {
    let folders = ids.iter().map(|id| Path::new("/proc").join(id));
    folders.collect()
}

/// One runs until the gate `first` is open, and another one is ready to be next.
async fn one_is_next(stage: &Stage, script: &str) -> (Running, Running, [String; 2]) {
    let first = stage.exec("", "note first; wait_for first");
    stage.noted("first").await;
    let second = stage.exec("", script);
    let ids = prepared(&second).await;
    (first, second, ids)
}

#[tokio::test]
async fn the_command_has_the_process_that_waited_and_its_own_slot() {
    let stage = Stage::new().await;
    let script = "note $$ $CONSUL_SEMAPHORE_SESSION; wait_for second";
    let (mut first, mut second, [_, command]) = one_is_next(&stage, script).await;
    stage.open("first");
    first.ends_with(0).await;
    let noted = eventually("the second runs", async || stage.journal().get(1).cloned()).await;
    let holders = stage.consul.holders(PREFIX).await;
    let session = holders.first().unwrap();
    assert_eq!(noted, format!("{command} {session}"));
    stage.open("second");
    second.ends_with(0).await;
    stage.is_clean().await;
}

#[tokio::test]
async fn as_many_are_ready_as_there_are_slots() {
    let stage = Stage::new().await;
    let (_first, _second, _) = one_is_next(&stage, "note second").await;
    contenders(&stage, 2).await;
    let third = stage.exec("", "note third");
    third.says("waiting").await;
    contenders(&stage, 3).await;
    assert_eq!(children(&third.id().to_string()), [""; 0]);
}

/// Waits until so many are in line or hold a slot.
async fn contenders(stage: &Stage, count: usize) {
    eventually("they are in line", async || {
        same(stage.consul.contenders(PREFIX).await.len(), count)
    })
    .await;
}

/// The command reads its slots as always, and finds nothing of an `exec` around this one.
#[tokio::test]
async fn all_slots_are_named_to_it_and_no_others() {
    let stage = Stage::new().await;
    let asks =
        "--semaphore prefix=shared/db,limit=1 --semaphore prefix=shared/licenses,limit=5,slots=2";
    let first = "note first; wait_for first";
    for (flags, expected) in [(asks, "3"), ("--prefix shared/db --limit 1", "none")] {
        let mut first = stage.exec("", first);
        stage.noted("first").await;
        let script = r#"note "${CONSUL_SEMAPHORE_SLOTS:-none}""#;
        let mut command = stage.command_with(flags, script);
        command.env("CONSUL_SEMAPHORE_SLOTS", "of another");
        let mut second = stage.start(command);
        prepared(&second).await;
        stage.open("first");
        first.ends_with(0).await;
        second.ends_with(0).await;
        let noted = stage.journal().pop().unwrap();
        let slots = noted.matches("\"lockKey\"").count();
        let said = if slots == 0 {
            "none".to_owned()
        } else {
            slots.to_string()
        };
        assert_eq!(said, expected, "{noted}");
        std::fs::remove_file(stage.folder().join("first.open")).unwrap();
    }
    stage.is_clean().await;
}

#[tokio::test]
async fn a_command_that_is_not_found_says_so_once() {
    let stage = Stage::new().await;
    let mut first = stage.exec("", "note first; wait_for first");
    stage.noted("first").await;
    let mut command = stage.program(&[
        "exec",
        "--prefix",
        PREFIX,
        "--limit",
        "1",
        "--",
        "no-such-program",
    ]);
    command.stdout(std::process::Stdio::null());
    let mut second = stage.start(command);
    prepared(&second).await;
    stage.open("first");
    first.ends_with(0).await;
    let said = second.ends_with(127).await;
    assert_eq!(said.matches("no-such-program").count(), 1, "{said}");
    stage.is_clean().await;
}

/// What was started ahead is not used, and says nothing of that.
#[tokio::test]
async fn nothing_is_said_of_what_was_only_prepared() {
    let stage = Stage::new().await;
    let missing = stage.folder().join("missing");
    let missing = missing.to_str().unwrap();
    let mut unused = stage.start(stage.program(&["become", "--slots", missing, "--", "true"]));
    assert_eq!(unused.ends_with(1).await, "");
}

#[tokio::test]
async fn it_ends_when_exec_no_longer_waits() {
    for signal in ["TERM", "KILL"] {
        let stage = Stage::new().await;
        let (mut first, mut second, ids) = one_is_next(&stage, "note second").await;
        second.signal(signal).await;
        second.ends().await;
        all_are_gone(&folders(&ids)).await;
        stage.open("first");
        first.ends_with(0).await;
        assert_eq!(stage.journal(), ["first"]);
    }
}

#[tokio::test]
async fn if_it_has_died_the_command_is_started_all_the_same() {
    for which in [0, 1] {
        let stage = Stage::new().await;
        let (mut first, mut second, ids) = one_is_next(&stage, "note second").await;
        let killed = Command::new("kill")
            .args(["-s", "KILL", &ids[which]])
            .status();
        assert!(killed.await.unwrap().success());
        all_are_gone(&folders(&ids)).await;
        stage.open("first");
        first.ends_with(0).await;
        second.ends_with(0).await;
        assert_eq!(stage.journal(), ["first", "second"]);
        stage.is_clean().await;
    }
}

/// A terminal would stop it, or end it, with the keys that are meant for its user's programs.
#[tokio::test]
async fn nothing_is_started_ahead_at_a_terminal() {
    let stage = Stage::new().await;
    let mut first = stage.exec("", "note first; wait_for first");
    stage.noted("first").await;
    let mut second = stage.exec("--foreground", "note second");
    second.says("waiting").await;
    assert_eq!(children(&second.id().to_string()), [""; 0]);
    stage.open("first");
    first.ends_with(0).await;
    second.ends_with(0).await;
}
