//! What is started ahead, while the slot is awaited: a guard and what becomes the command.

use std::{
    fs,
    path::{Path, PathBuf},
};

use testbed::{eventually, same};
use tokio::process::Command;

use crate::{
    ending::all_are_gone,
    stage::{Running, Stage},
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
    let script = r#"note $$ $CONSUL_SEMAPHORE_SESSION; wait_for second"#;
    let (mut first, mut second, [_, command]) = one_is_next(&stage, script).await;
    stage.open("first");
    first.ends_with(0).await;
    let noted = eventually("the second runs", async || stage.journal().get(1).cloned()).await;
    let holders = stage.consul.holders(crate::stage::PREFIX).await;
    let session = holders.first().unwrap();
    assert_eq!(noted, format!("{command} {session}"));
    stage.open("second");
    second.ends_with(0).await;
    stage.is_clean().await;
}

#[tokio::test]
async fn as_many_are_ready_as_can_be_next() {
    let stage = Stage::new().await;
    let (first, second, _) = one_is_next(&stage, "note second").await;
    let third = stage.exec("", "note third");
    third.says("waiting").await;
    prepared(&third).await;
    let fourth = stage.exec("", "note fourth");
    fourth.says("waiting").await;
    // By then all have seen it.
    eventually("it is in line", async || {
        same(stage.consul.contenders(crate::stage::PREFIX).await.len(), 4)
    })
    .await;
    assert_eq!(children(&fourth.id().to_string()), [""; 0]);
    drop((first, second, third, fourth));
}

#[tokio::test]
async fn it_ends_with_who_waits_no_longer() {
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
