//! What is started ahead, while the slot is awaited: a guard and what becomes the command.

use std::{
    fs,
    path::{Path, PathBuf},
};

use testbed::{Consul, eventually};

use crate::{
    ending::all_are_gone,
    stage::{PREFIX, Running, Stage, children, send},
    waiting::so_many_wait,
};

/// The guard of one that waits, and what becomes its command, once both are there.
async fn prepared(waiting: &Running) -> [String; 2] {
    let guard = child(&waiting.id().to_string()).await;
    let command = child(&guard).await;
    [guard, command]
}

/// The process that this one has started, once it is there.
async fn child(id: &str) -> String {
    eventually("it is ready to start the command", async || {
        children(id).pop()
    })
    .await
}

fn folders(ids: &[String]) -> Vec<PathBuf> {
    let folders = ids.iter().map(|id| Path::new("/proc").join(id));
    folders.collect()
}

/// One runs until the gate `first` is open, and another one is ready to be next.
async fn one_is_next(stage: &Stage, script: &str) -> (Running, Running, [String; 2]) {
    let first = stage.first("").await;
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
    so_many_wait(&stage, 1).await;
    let third = stage.exec("", "note third");
    third.says("waiting").await;
    so_many_wait(&stage, 2).await;
    assert_eq!(children(&third.id().to_string()), [""; 0]);
}

#[tokio::test]
async fn those_behind_are_made_ready_as_those_before_them_are_served() {
    const FLAGS: &str = "--limit 2";
    let stage = Stage::new().await;
    let mut first = stage.first(FLAGS).await;
    let _second = stage.exec(FLAGS, "note second; wait_for end");
    stage.noted("second").await;
    let mut waiting = Vec::new();
    for number in 1..=3 {
        waiting.push(stage.exec(FLAGS, "wait_for end"));
        so_many_wait(&stage, number).await;
    }
    waiting[2].says("waiting").await;
    assert_eq!(children(&waiting[2].id().to_string()), [""; 0]);
    stage.open("first");
    first.ends_with(0).await;
    prepared(&waiting[2]).await;
}

/// The command reads its slots as always, and finds nothing of an `exec` around this one.
#[tokio::test]
async fn all_slots_are_named_to_it_and_no_others() {
    let several =
        "--semaphore prefix=shared/db,limit=1 --semaphore prefix=shared/licenses,limit=5,slots=2";
    for (flags, slots) in [(several, 3), ("--prefix shared/db --limit 1", 0)] {
        let stage = Stage::new().await;
        let mut first = stage.first("").await;
        let script = r#"note "${CONSUL_SEMAPHORE_SLOTS:-none}""#;
        let mut command = stage.command_with(flags, script);
        command.env("CONSUL_SEMAPHORE_SLOTS", "of another");
        let mut second = stage.start(command);
        prepared(&second).await;
        stage.open("first");
        first.ends_with(0).await;
        second.ends_with(0).await;
        let noted = stage.journal().pop().unwrap();
        assert_eq!(noted.matches("\"lockKey\"").count(), slots, "{noted}");
        assert_eq!(noted == "none", slots == 0, "{noted}");
        stage.is_clean().await;
    }
}

#[tokio::test]
async fn a_command_that_is_not_found_says_so_once() {
    let stage = Stage::new().await;
    let mut first = stage.first("").await;
    let arguments = format!("exec --prefix {PREFIX} --limit 1 -- no-such-program");
    let arguments: Vec<_> = arguments.split_whitespace().collect();
    let mut second = stage.start(stage.program(&arguments));
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
        send("KILL", &ids[which]).await;
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
    let mut first = stage.first("").await;
    let mut second = stage.exec("--foreground", "note second");
    second.says("waiting").await;
    assert_eq!(children(&second.id().to_string()), [""; 0]);
    stage.open("first");
    first.ends_with(0).await;
    second.ends_with(0).await;
}

/// Nothing is between `exec` and a command that may continue without it, and what becomes that command ends with `exec`
/// all the same.
#[tokio::test]
async fn what_may_continue_without_a_slot_is_not_started_without_one() {
    for killed in [true, false] {
        let stage = Stage::new().await;
        let mut first = stage.first("").await;
        let mut second = stage.exec("--on-slot-lost continue", "note $$");
        let command = child(&second.id().to_string()).await;
        let mut noted = vec!["first".to_owned()];
        if killed {
            second.signal("KILL").await;
            second.ends().await;
            all_are_gone(&folders(&[command])).await;
        } else {
            stage.open("first");
            first.ends_with(0).await;
            second.ends_with(0).await;
            noted.push(command);
        }
        assert_eq!(stage.journal(), noted);
    }
}

/// What is started ahead could not take the names of so many slots at once.
#[tokio::test]
async fn a_command_with_many_slots_is_started_once_it_has_them() {
    let stage = Stage::new().await;
    let mut first = stage.first("").await;
    let flags =
        "--semaphore prefix=shared/db,limit=1 --semaphore prefix=shared/licenses,limit=28,slots=28";
    let script = r#"note "$CONSUL_SEMAPHORE_SLOTS""#;
    let mut second = stage.start(stage.command_with(flags, script));
    prepared(&second).await;
    stage.open("first");
    first.ends_with(0).await;
    second.ends_with(0).await;
    let journal = stage.journal();
    assert_eq!(journal.len(), 2);
    assert_eq!(journal[1].matches("\"lockKey\"").count(), 29);
    assert!(journal[1].len() > 4096, "{}", journal[1]);
    stage.is_clean().await;
}

#[tokio::test]
async fn what_is_started_ahead_has_no_token() {
    let stage = Stage::with(Consul::builder().acls("root")).await;
    let command = |script| {
        let mut command = stage.command("", script);
        command.env("CONSUL_HTTP_TOKEN", "root");
        command
    };
    let mut first = stage.start(command("note first; wait_for first"));
    stage.noted("first").await;
    let mut second = stage.start(command("note second"));
    for id in prepared(&second).await {
        // There is none for a moment, while the process becomes another program.
        let environment = eventually("it has an environment", async || {
            let environment = fs::read_to_string(format!("/proc/{id}/environ")).unwrap();
            (!environment.is_empty()).then_some(environment)
        })
        .await;
        assert!(environment.contains("CONSUL_HTTP_ADDR"), "{environment}");
        assert!(!environment.contains("TOKEN"), "{environment}");
    }
    stage.open("first");
    first.ends_with(0).await;
    second.ends_with(0).await;
    assert_eq!(stage.journal(), ["first", "second"]);
}
