//! How a command ends, and what its exit code is then.

use std::path::Path;

use testbed::eventually;

use crate::stage::{PREFIX, Stage};

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
        (trap 'note child ends; exit' TERM; note child ready; while :; do sleep 0.05; done) &
        trap 'trap - TERM; wait; exit 5' TERM
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
    let program = env!("CARGO_BIN_EXE_consul-semaphore-operator");
    let inner = r#"trap 'echo usr1 >>"$FOLDER/journal"; exit 4' USR1
        echo ready >>"$FOLDER/journal"; while :; do sleep 0.05; done"#;
    let mut command = stage.program(&[]);
    command = {
        let mut nohup = tokio::process::Command::new("sh");
        nohup.args(["-c", r#"trap "" HUP; exec "$@""#, "sh", program]);
        nohup.args([
            "exec",
            "--prefix",
            PREFIX,
            "--limit=1",
            "--",
            "sh",
            "-c",
            inner,
        ]);
        let known = command.as_std().get_envs();
        let known = known.filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        nohup
            .env_clear()
            .envs(known.collect::<Vec<_>>())
            .kill_on_drop(true);
        nohup
    };
    let mut running = stage.start(command);
    stage.noted("ready").await;
    running.signal("HUP").await;
    running.signal("USR1").await;
    running.ends_with(4).await;
    assert_eq!(stage.journal(), ["ready", "usr1"]);
}

#[tokio::test]
async fn a_command_dies_with_the_program_that_holds_its_slot() {
    let stage = Stage::new().await;
    let mut running = stage.exec("", "note $$; while :; do sleep 1; done");
    let id = eventually("the command runs", async || stage.journal().pop()).await;
    let command = Path::new("/proc").join(id);
    assert!(command.exists());
    running.signal("KILL").await;
    running.ends().await;
    eventually("the command is gone", async || !command.exists()).await;
}
