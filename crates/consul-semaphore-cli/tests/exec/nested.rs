//! Commands that run in a slot and ask for a slot of the same semaphore.

use crate::stage::{PREFIX, Stage};

/// A script that runs our program with these arguments.
fn inside(arguments: &str) -> String {
    let program = env!("CARGO_BIN_EXE_consul-semaphore");
    format!("{program} exec --prefix {PREFIX} --limit 1 {arguments}")
}

#[tokio::test]
async fn who_waits_for_itself_is_told_so() {
    let stage = Stage::new().await;
    let script = inside("--quiet --wait-for 2s -- true");
    let said = stage.exec("", &script).ends_with(124).await;
    let expected = "this command runs in a slot of shared/db and waits for another one";
    assert!(
        said.contains(expected) && said.contains("--reentrant"),
        "{said}"
    );
    // A command that runs in no slot waits for others.
    let mut first = stage.first("").await;
    let mut waits = stage.exec("", "note second");
    waits.says("1 of 1 held").await;
    assert!(!waits.said().contains("--reentrant"), "{}", waits.said());
    stage.open("first");
    first.ends_with(0).await;
    waits.ends_with(0).await;
    stage.is_clean().await;
}

#[tokio::test]
async fn a_reentrant_command_runs_in_the_slot_that_it_has() {
    let stage = Stage::new().await;
    let script = format!(
        "note $CONSUL_SEMAPHORE_SESSION; {}",
        inside("--reentrant -- sh -c 'echo $CONSUL_SEMAPHORE_SESSION >>$FOLDER/journal; exit 7'")
    );
    stage.exec("", &script).ends_with(7).await;
    let journal = stage.journal();
    assert!(
        !journal[0].is_empty() && journal[0] == journal[1],
        "{journal:?}"
    );
    stage.is_clean().await;
}

/// What it was told of a slot is true no more, or was never.
#[tokio::test]
async fn a_reentrant_command_that_runs_in_no_slot_takes_one() {
    let stage = Stage::new().await;
    let script = "note $CONSUL_SEMAPHORE_SESSION";
    stage.exec("--reentrant", script).ends_with(0).await;
    let mut outdated = stage.command("--reentrant", script);
    outdated
        .env("CONSUL_SEMAPHORE_LOCK_KEY", "shared/db/5e55")
        .env("CONSUL_SEMAPHORE_SESSION", "5e55")
        .env("CONSUL_SEMAPHORE_LOCK_INDEX", "1");
    stage.start(outdated).ends_with(0).await;
    let journal = stage.journal();
    assert!(
        journal.len() == 2 && !journal.contains(&"5e55".to_owned()),
        "{journal:?}"
    );
    stage.is_clean().await;
}

#[tokio::test]
async fn a_reentrant_command_waits_for_no_part_of_what_it_asks_for() {
    let stage = Stage::new().await;
    let program = env!("CARGO_BIN_EXE_consul-semaphore");
    let script = format!(
        "{program} exec --reentrant --semaphore prefix={PREFIX},limit=1 --semaphore prefix=shared/other,limit=1 -- true"
    );
    let said = stage.exec("", &script).ends_with(78).await;
    assert!(
        said.contains("in a slot of shared/db, but not in enough slots of shared/other"),
        "{said}"
    );
    stage.is_clean().await;
}
