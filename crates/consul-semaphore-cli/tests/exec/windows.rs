//! Windows and reserved slots, by the flags of each command.

use tokio::process::Command;

use crate::stage::{Running, Stage};

/// It opens once in four years.
const LEAP_DAY: &str = "0 0 29 2 *,duration=1m";

/// It is always open.
const ALWAYS: &str = "* * * * *,duration=1h";

/// A script in a slot of the semaphore, with these windows.
fn in_windows(stage: &Stage, flags: &str, windows: &str, script: &str) -> Running {
    let mut command = stage.command(flags, script);
    command.env("CONSUL_SEMAPHORE_WINDOW", windows);
    stage.start(command)
}

#[tokio::test]
async fn nothing_starts_outside_the_windows() {
    let stage = Stage::new().await;
    let mut waits = in_windows(&stage, "--wait-for 2s", LEAP_DAY, "note never");
    waits
        .says("waiting for a slot of shared/db: outside its windows until 20")
        .await;
    let mut once = in_windows(&stage, "--try", LEAP_DAY, "note never");
    once.ends_with(75).await;
    let said = once.said();
    let expected = "no slot of shared/db is free: outside its windows until 20";
    assert!(said.contains(expected), "{said}");
    // Others do not know the windows, and one window is enough.
    stage.exec("", "note other").ends_with(0).await;
    let both = format!("{LEAP_DAY};{ALWAYS}");
    in_windows(&stage, "", &both, "note open")
        .ends_with(0)
        .await;
    waits.ends_with(124).await;
    assert_eq!(stage.journal(), ["other", "open"]);
    stage.is_clean().await;
}

#[tokio::test]
async fn a_window_may_have_fewer_slots() {
    let stage = Stage::new().await;
    let one = format!("{ALWAYS},limit=1");
    let mut first = in_windows(&stage, "--limit 2", &one, "note first; wait_for first");
    stage.noted("first").await;
    let mut second = in_windows(&stage, "--limit 2", &one, "note second");
    second.says("; its window allows 1").await;
    stage.open("first");
    first.ends_with(0).await;
    second.ends_with(0).await;
    stage.is_clean().await;
}

#[tokio::test]
async fn the_last_slots_are_for_a_higher_priority() {
    let stage = Stage::new().await;
    let reserve = "--limit 2 --reserve 1,minPriority=10";
    let mut first = stage.first(reserve).await;
    let mut second = stage.exec(reserve, "note second");
    second
        .says("; the last 1 are reserved for priority 10 and above")
        .await;
    let urgent = format!("{reserve} --priority 10");
    stage.exec(&urgent, "note urgent").ends_with(0).await;
    stage.open("first");
    first.ends_with(0).await;
    second.ends_with(0).await;
    assert_eq!(stage.journal(), ["first", "urgent", "second"]);
    stage.is_clean().await;
}

#[tokio::test]
async fn each_of_several_semaphores_has_windows_of_its_own() {
    let stage = Stage::new().await;
    let of = |stage: &Stage, windows: &str| -> Command {
        let mut command = stage.command_with("", "note both");
        let both = format!("prefix=shared/db,limit=1;prefix=licenses,limit=1,window=({windows})");
        command.env("CONSUL_SEMAPHORE_SEMAPHORE", both);
        command
    };
    let waits = stage.start(of(&stage, LEAP_DAY));
    waits
        .says("waiting for a slot of licenses: outside its windows until 20")
        .await;
    stage.start(of(&stage, ALWAYS)).ends_with(0).await;
    assert_eq!(stage.journal(), ["both"]);
}
