//! How a command ends, and its exit code then.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, Signal, kill_process_group};
use testbed::{Consul, eventually};
use tokio::process::Command;

use crate::{
    stage::{PREFIX, Running, Stage, children, send},
    waiting::token,
};

#[tokio::test]
async fn the_exit_code_is_the_commands_own() {
    let stage = Stage::new().await;
    for (script, code) in [
        ("true", 0),
        ("exit 3", 3),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
    ] {
        stage.exec("", script).ends_with(code).await;
    }
    for (command, code) in [("/nowhere/migrate", 127), ("/dev/null", 126)] {
        let exec = ["exec", "--prefix", PREFIX, "--limit=1", "--", command];
        let said = stage.start(stage.program(&exec)).ends_with(code).await;
        assert!(said.contains(command), "{said}");
    }
    stage.is_clean().await;
}

#[tokio::test]
async fn what_the_command_has_started_is_signalled_with_it() {
    let stage = Stage::new().await;
    let mut running = stage.exec(
        "",
        r"
        trap 'trap - TERM; wait; exit 5' TERM
        (trap 'note child ends; exit' TERM; note child ready; while :; do sleep 0.05; done) &
        wait
        ",
    );
    stage.noted("child ready").await;
    running.signal("TERM").await;
    running.ends_with(5).await;
    assert_eq!(stage.journal(), ["child ready", "child ends"]);
    stage.is_clean().await;
}

#[tokio::test]
async fn every_signal_is_passed_on() {
    let stage = Stage::new().await;
    let mut running = stage.exec(
        "",
        r#"
        for signal in USR1 USR2 INT QUIT HUP; do trap "note $signal" $signal; done
        trap 'exit 6' TERM
        note ready
        while :; do sleep 0.05; done
        "#,
    );
    stage.noted("ready").await;
    for signal in ["USR1", "USR2", "INT", "QUIT", "HUP"] {
        running.signal(signal).await;
        stage.noted(signal).await;
    }
    running.signal("TERM").await;
    running.ends_with(6).await;
}

#[tokio::test]
async fn a_signal_that_is_to_be_ignored_stays_ignored() {
    let stage = Stage::new().await;
    let mut running = ignoring(
        &stage,
        "HUP",
        "trap 'note usr1; exit 4' USR1; note ready; while :; do sleep 0.05; done",
    );
    stage.noted("ready").await;
    running.signal("HUP").await;
    running.signal("USR1").await;
    running.ends_with(4).await;
    assert_eq!(stage.journal(), ["ready", "usr1"]);
}

/// Then the kernel forgets exit codes, unless the program heeds the signal.
#[tokio::test]
async fn the_exit_code_is_known_though_the_end_of_children_is_ignored() {
    let stage = Stage::new().await;
    ignoring(&stage, "CHLD", "exit 3").ends_with(3).await;
    stage.is_clean().await;
}

/// A script under a program that was started to ignore this signal.
fn ignoring(stage: &Stage, signal: &str, script: &str) -> Running {
    let exec = stage.command("", script);
    let mut command = Command::new("sh");
    command.args(["-c", &format!(r#"trap "" {signal}; exec "$@""#), "sh"]);
    // Not with the reset of signals, which comes first.
    command.args(exec.as_std().get_args().skip(1));
    let known = exec.as_std().get_envs();
    let known = known.filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    let known = known.collect::<Vec<_>>();
    command.env_clear().envs(known).kill_on_drop(true);
    stage.start(command)
}

#[tokio::test]
async fn a_stopped_command_ends_at_a_signal() {
    let stage = Stage::new().await;
    for signal in ["TERM", "INT", "HUP", "QUIT"] {
        let script =
            format!("trap 'exit 5' {signal}; note $$ {signal}; kill -s STOP $$; wait_for end");
        let mut running = stage.exec("", &script);
        let command = eventually("the command runs", async || {
            let journal = stage.journal();
            let last = journal.last()?.strip_suffix(signal)?;
            Some(last.trim().to_owned())
        })
        .await;
        is_stopped(&command).await;
        running.signal(signal).await;
        running.ends_with(5).await;
    }
    stage.is_clean().await;
}

/// A shell would wait for this program, which can't stop: nobody could use the terminal.
#[tokio::test]
async fn a_command_that_a_terminal_stops_is_resumed() {
    let stage = Stage::new().await;
    let mut command = stage.command("--foreground", "note $$; wait_for end; exit 4");
    command.process_group(0);
    let mut running = stage.start(command);
    eventually("the command runs", async || stage.journal().pop()).await;
    let group = i32::try_from(running.id()).ok().and_then(Pid::from_raw);
    kill_process_group(group.unwrap(), Signal::TSTP).unwrap();
    stage.open("end");
    running.ends_with(4).await;
    stage.is_clean().await;
}

/// Waits until this process is stopped.
async fn is_stopped(id: &str) {
    let stat = Path::new("/proc").join(id).join("stat");
    eventually("it is stopped", async || {
        let stat = fs::read_to_string(&stat).unwrap_or_default();
        stat.contains(") T ").then_some(())
    })
    .await;
}

/// A command that starts another process and waits for it; both note their ids. The started process ignores all
/// signals that can be ignored.
const TWO: &str = r#"
    (trap '' TERM INT HUP; sh -c 'echo $$ >>"$FOLDER/journal"; while :; do sleep 0.05; done') &
    note $$
    wait
    "#;

/// The folders in `/proc` of the processes that have noted their ids.
async fn processes(stage: &Stage) -> Vec<PathBuf> {
    let ids = eventually("both run", async || {
        Some(stage.journal()).filter(|journal| journal.len() == 2)
    })
    .await;
    let processes: Vec<_> = ids.iter().map(|id| Path::new("/proc").join(id)).collect();
    assert!(processes.iter().all(|process| process.exists()));
    processes
}

/// Whether the process has ended: it may still be visible if nobody has collected its exit code.
fn is_gone(process: &Path) -> bool {
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

pub(crate) async fn all_are_gone(processes: &[PathBuf]) {
    eventually("they are gone", async || {
        processes.iter().all(|process| is_gone(process))
    })
    .await;
}

#[tokio::test]
async fn a_command_and_what_it_has_started_die_with_the_program_that_holds_the_slot() {
    let stage = Stage::new().await;
    let mut running = stage.exec("", TWO);
    let processes = processes(&stage).await;
    running.signal("KILL").await;
    running.ends().await;
    all_are_gone(&processes).await;
}

#[tokio::test]
async fn a_command_at_a_terminal_dies_with_the_program_that_holds_its_slot() {
    let stage = Stage::new().await;
    let mut running = stage.exec("--foreground", "note $$; while :; do sleep 0.05; done");
    let id = eventually("the command runs", async || stage.journal().pop()).await;
    running.signal("KILL").await;
    running.ends().await;
    all_are_gone(&[Path::new("/proc").join(id)]).await;
}

/// Killing the guard between the two does not leave the command running.
#[tokio::test]
async fn a_command_and_what_it_has_started_die_with_their_guard() {
    let stage = Stage::new().await;
    let mut running = stage.exec("", TWO);
    let processes = processes(&stage).await;
    let [guard] = children(&running.id().to_string()).try_into().unwrap();
    send("KILL", &guard).await;
    running.ends_with(137).await;
    all_are_gone(&processes).await;
    stage.is_clean().await;
}

/// systemd and others send a signal to all processes of a unit, so this program gets it while it gives the slot back.
#[tokio::test]
async fn a_signal_that_comes_with_the_end_of_the_command_leaves_nothing_behind() {
    for _ in 0..3 {
        let stage = Stage::new().await;
        let said = signals_come_with_the_end(&stage).await;
        // A signal that is handled later than a second after the end counts as a user's, who does not wait.
        if !said.contains("the slot stays held") {
            return stage.is_clean().await;
        }
    }
    panic!("the slot stays held");
}

async fn signals_come_with_the_end(stage: &Stage) -> String {
    let mut running = stage.exec(
        "",
        r#"
        wait_for id
        trap '' TERM INT HUP
        exec=$(cat "$FOLDER/id.open")
        (for _ in 1 2 3 4 5 6 7 8 9; do kill -s TERM $exec; kill -s INT $exec; kill -s HUP $exec; done) 2>/dev/null &
        exit 4
        "#,
    );
    let id = running.id().to_string();
    let written = stage.folder().join("id");
    fs::write(&written, id).unwrap();
    fs::rename(written, stage.folder().join("id.open")).unwrap();
    running.ends_with(4).await
}

#[tokio::test]
async fn a_refused_release_says_that_the_token_is_refused() {
    let stage = Stage::with(Consul::builder().acls("root")).await;
    let token = token(
        &stage.consul,
        r#"key_prefix "" { policy = "write" } session_prefix "" { policy = "write" }"#,
    )
    .await;
    let mut command = stage.command("", "note begin; wait_for end");
    command.env("CONSUL_HTTP_TOKEN", &token);
    let mut running = stage.start(command);
    stage.noted("begin").await;
    let known = stage.consul.with_token(&token).get("acl/token/self").await;
    let accessor = known["AccessorID"].as_str().unwrap();
    stage
        .consul
        .delete_at(&format!("acl/token/{accessor}"))
        .await;
    stage.open("end");
    let said = running.ends_with(0).await;
    let last = said.lines().last().unwrap();
    for words in [
        "Consul denies it: ",
        "the slot stays held until its session has expired",
        "Consul does not know the token",
    ] {
        assert!(last.contains(words), "{said}");
    }
}

/// A terminal sends typed signals to all of its foreground group; this program is not in such a group.
#[tokio::test]
async fn a_command_in_the_same_group_gets_what_only_this_program_was_sent() {
    let stage = Stage::new().await;
    let script = "trap 'note int; exit 4' INT; note ready; while :; do sleep 0.05; done";
    let mut command = stage.command("--foreground", script);
    command.process_group(0);
    let mut running = stage.start(command);
    stage.noted("ready").await;
    running.signal("INT").await;
    running.ends_with(4).await;
    assert_eq!(stage.journal(), ["ready", "int"]);
}
