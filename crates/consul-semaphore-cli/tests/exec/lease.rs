//! Slots that no process holds: `acquire`, `renew` and `release`.

use std::{collections::BTreeMap, fs, process::Stdio};

use tokio::process::Command;

use crate::stage::{PREFIX, Running, Stage};

/// What `acquire` prints.
type Variables = BTreeMap<String, String>;

impl Stage {
    /// Takes slots with these flags; returns the variables that name them.
    async fn acquire(&self, flags: &str) -> Variables {
        let arguments: Vec<_> = ["acquire"].into_iter().chain(flags.split(' ')).collect();
        let output = self.program(&arguments).output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let printed = String::from_utf8(output.stdout).unwrap();
        let lines = printed.lines().map(|line| line.split_once('=').unwrap());
        lines
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// Takes the only slot of the semaphore for ten minutes.
    async fn acquire_one(&self) -> Variables {
        self.acquire(&format!("--prefix {PREFIX} --limit 1 --for 10m"))
            .await
    }

    /// This command of our program, in an environment that names these slots.
    fn step(&self, command: &str, slots: &Variables) -> Running {
        let mut command = self.program(&[command]);
        command.envs(slots);
        self.start(command)
    }
}

#[tokio::test]
async fn the_steps_of_a_pipeline_share_a_slot() {
    let stage = Stage::new().await;
    let slot = stage.acquire_one().await;
    let names: Vec<_> = slot.keys().map(String::as_str).collect();
    let expected = ["FENCING_TOKEN", "LOCK_INDEX", "LOCK_KEY", "SESSION"];
    assert_eq!(
        names,
        expected.map(|name| format!("CONSUL_SEMAPHORE_{name}"))
    );
    assert_eq!(stage.consul.holders(PREFIX).await.len(), 1);
    // The slot outlives the machine that took it, whose agent's node would end the session.
    assert_eq!(stage.sessions().await[0]["Node"], "consul-semaphore-exec");

    stage.step("held", &slot).ends_with(0).await;
    stage.step("renew", &slot).ends_with(0).await;
    let refused = stage.exec("--try", "note never").ends_with(75).await;
    assert!(refused.contains("held, by acquire on "), "{refused}");

    stage.step("release", &slot).ends_with(0).await;
    stage.is_clean().await;
    for (command, code) in [("held", 1), ("renew", 79), ("release", 79)] {
        stage.step(command, &slot).ends_with(code).await;
    }
    // Whoever comes next waits for no lock-delay.
    stage.exec("--try", "note next").ends_with(0).await;
}

#[tokio::test]
async fn slots_of_several_semaphores_are_released_together() {
    let stage = Stage::new().await;
    let program = env!("CARGO_BIN_EXE_consul-semaphore");
    let script = format!(
        "eval \"$({program} acquire --for 10m --output shell --purpose deploy \
           --semaphore prefix={PREFIX},limit=3,slots=2 --semaphore prefix=other,limit=1,mode=mutex)\" && \
         {program} held && {program} renew && {program} show {PREFIX} >\"$FOLDER/shown\" && {program} release"
    );
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script])
        .env("CONSUL_HTTP_ADDR", stage.consul.address())
        .env("FOLDER", stage.folder())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    stage.start(shell).ends_with(0).await;
    let shown = fs::read_to_string(stage.folder().join("shown")).unwrap();
    assert_eq!(shown.matches("deploy").count(), 2, "{shown}");
    assert!(shown.contains("Lease"), "{shown}");
    stage.is_clean().await;
    assert_eq!(stage.consul.list("other").await, []);
}

#[tokio::test]
async fn what_no_step_releases_comes_back_by_itself() {
    let stage = Stage::new().await;
    let flags = format!("--prefix {PREFIX} --limit 1 --for 10s --purpose cut-short");
    stage.acquire(&flags).await;
    let mut next = stage.exec("--lock-delay 0s", "note next");
    next.says("cut-short on ").await;
    next.ends_with(0).await;
    stage.is_clean().await;
}

#[tokio::test]
async fn a_slot_that_acquire_did_not_take_is_not_given_back() {
    let stage = Stage::new().await;
    let program = env!("CARGO_BIN_EXE_consul-semaphore");
    let script =
        format!("{program} release; note $?; {program} renew; note $?; {program} held; note $?");
    let said = stage.exec("", &script).ends_with(0).await;
    assert_eq!(stage.journal(), ["1", "1", "0"]);
    assert!(said.contains("`acquire` did not take this slot"), "{said}");
}

#[tokio::test]
async fn who_gets_no_slot_or_can_not_say_so_leaves_nothing() {
    let stage = Stage::new().await;
    let slot = stage.acquire_one().await;
    let acquire = ["acquire", "--prefix", PREFIX, "--limit=1", "--for=10m"];
    let mut late = stage.program(&acquire);
    late.arg("--wait-for=1s");
    stage.start(late).ends_with(124).await;
    assert_eq!(stage.sessions().await.len(), 1);
    stage.step("release", &slot).ends_with(0).await;

    let mut mute = stage.program(&acquire);
    mute.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
    stage.start(mute).ends_with(71).await;
    stage.is_clean().await;
}
