//! Who may see the memory of what has tokens, and that its command is not concerned.

use std::process;

use testbed::{
    eventually,
    helpers::{core_limits, memory_is_private, shows_who_may_see_it},
};

use crate::stage::{Running, Stage};

/// A command in a slot.
fn exec(stage: &Stage, script: &str) -> Running {
    let mut command = stage.command("", script);
    shows_who_may_see_it(&mut command);
    stage.start(command)
}

/// The process of the command that has noted its id as this line of the journal.
async fn command(stage: &Stage, line: usize) -> u32 {
    let noted = eventually("the command runs", async || {
        stage.journal().get(line).cloned()
    })
    .await;
    noted.parse().unwrap()
}

fn keeps_its_memory_to_itself(exec: &Running) {
    assert!(memory_is_private(exec.id()));
    // The command would inherit another one.
    assert_eq!(core_limits(exec.id()), core_limits(process::id()));
}

fn is_as_without_exec(command: u32) {
    assert!(!memory_is_private(command));
    assert_eq!(core_limits(command), core_limits(process::id()));
}

/// One command is started when there is a slot, and the other one has waited in a process that was started ahead.
#[tokio::test]
async fn exec_keeps_its_memory_to_itself_and_its_command_is_as_without_it() {
    let stage = Stage::new().await;
    let mut first = exec(&stage, "note $$; wait_for first");
    let is_first = command(&stage, 0).await;
    let mut second = exec(&stage, "note $$; wait_for second");
    second.says("waiting").await;
    for exec in [&first, &second] {
        keeps_its_memory_to_itself(exec);
    }
    is_as_without_exec(is_first);
    stage.open("first");
    first.ends_with(0).await;
    is_as_without_exec(command(&stage, 1).await);
    stage.open("second");
    second.ends_with(0).await;
}
