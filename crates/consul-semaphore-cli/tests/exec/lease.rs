//! Slots that no process holds: `acquire`, `renew` and `release`.

use std::{collections::BTreeMap, fs, process::Stdio};

use tokio::process::Command;

use crate::{
    limit::change_limit,
    stage::{PREFIX, Running, Stage},
};

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
    let expected = [
        "FENCING_TOKEN",
        "LOCK_INDEX",
        "LOCK_KEY",
        "SESSION",
        "SLOT_INDEX",
    ];
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
        "slots=$({program} acquire --for 10m --output shell --purpose deploy \
           --semaphore prefix={PREFIX},limit=3,slots=2 --semaphore prefix=other,limit=1,mode=mutex) && eval \"$slots\" && \
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
    let flags = format!("--prefix {PREFIX} --limit 1 --for 20s --purpose cut-short");
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
    assert!(said.contains("`acquire` did not take the slot"), "{said}");
}

#[tokio::test]
async fn who_gets_no_slot_or_can_not_say_so_leaves_nothing() {
    let stage = Stage::new().await;
    let slot = stage.acquire_one().await;
    let acquire = ["acquire", "--prefix", PREFIX, "--limit=1", "--for=10m"];
    let mut late = stage.program(&acquire);
    late.arg("--wait-for=5s");
    stage.start(late).ends_with(124).await;
    assert_eq!(stage.sessions().await.len(), 1);
    stage.step("release", &slot).ends_with(0).await;

    let mut mute = stage.program(&acquire);
    mute.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
    stage.start(mute).ends_with(71).await;
    stage.is_clean().await;
}

/// A slot of a dead holder rests for the lock-delay of whoever takes it, because the holder's work may still run.
#[tokio::test]
async fn a_release_removes_no_dead_holder() {
    let stage = Stage::new().await;
    let flags = format!("--prefix {PREFIX} --limit 2 --for 10m");
    let slot = stage.acquire(&flags).await;
    let dead = stage.consul.take_slot(PREFIX, 2).await;
    stage.consul.destroy_session(&dead).await;
    stage.step("release", &slot).ends_with(0).await;
    assert_eq!(stage.consul.holders(PREFIX).await, [dead].into());
}

#[tokio::test]
async fn slots_are_released_under_a_limit_that_was_lowered() {
    let stage = Stage::new().await;
    let flags = format!("--semaphore prefix={PREFIX},limit=3,slots=2 --for 10m");
    let slots = stage.acquire(&flags).await;
    change_limit(&stage, 1).await;
    stage.step("release", &slots).ends_with(0).await;
    assert_eq!(stage.consul.holders(PREFIX).await.len(), 0);
}

#[tokio::test]
async fn of_two_who_release_at_once_none_is_told_that_consul_is_away() {
    let stage = Stage::new().await;
    let slot = stage.acquire_one().await;
    let mut both = [stage.step("release", &slot), stage.step("release", &slot)];
    let mut codes = Vec::new();
    for one in &mut both {
        codes.push(one.ends().await.code().unwrap());
    }
    codes.sort_unstable();
    assert!(
        [[0, 0], [0, 79]].contains(&[codes[0], codes[1]]),
        "{codes:?}"
    );
    stage.is_clean().await;
}

#[tokio::test]
async fn who_asks_for_a_slot_that_nobody_reads_of_gives_it_back() {
    let stage = Stage::new().await;
    let program = env!("CARGO_BIN_EXE_consul-semaphore");
    let acquire = format!("{program} acquire --prefix {PREFIX} --limit 1 --for 10m");
    // The reader has ended by the time that there is a slot.
    let mut first = stage.first("").await;
    let piped = format!("{{ {acquire}; echo $? >\"$FOLDER/code\"; }} | true");
    let mut piped = stage.start(stage.command_with("--prefix unused --limit 1", &piped));
    piped.says("held, by ").await;
    stage.open("first");
    first.ends_with(0).await;
    piped.ends_with(0).await;
    let code = fs::read_to_string(stage.folder().join("code")).unwrap();
    assert_eq!(code.trim(), "71");
    stage.is_clean().await;
}

#[tokio::test]
async fn a_reentrant_command_does_not_rely_on_a_slot_that_nobody_watches() {
    let stage = Stage::new().await;
    let slot = stage.acquire_one().await;
    let mut command = stage.command("--reentrant", "note never");
    command.envs(&slot);
    let said = stage.start(command).ends_with(78).await;
    assert!(said.contains("`acquire` took the slot"), "{said}");
    let mut command = stage.command("--wait-for 5s", "note never");
    command.envs(&slot);
    stage.start(command).ends_with(124).await;
    assert_eq!(stage.journal(), [""; 0]);
    stage.step("release", &slot).ends_with(0).await;
}

#[tokio::test]
async fn a_list_of_slots_that_can_not_be_read_is_refused() {
    let stage = Stage::new().await;
    let mut slots = stage.acquire_one().await;
    slots.insert("CONSUL_SEMAPHORE_SLOTS".to_owned(), "[{".to_owned());
    let said = stage.step("release", &slots).ends_with(2).await;
    assert!(said.contains("CONSUL_SEMAPHORE_SLOTS"), "{said}");
    assert_eq!(stage.consul.holders(PREFIX).await.len(), 1);
}
