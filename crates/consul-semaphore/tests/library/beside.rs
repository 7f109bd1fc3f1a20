//! One prefix for all: this library, `consul lock`, `consul-semaphore exec`.

use std::{fs, path::PathBuf, process::Stdio};

use serde_json::Value;
use testbed::{PATIENCE, cli_program, eventually, server};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use crate::stage::{PREFIX, Stage, slot_of, soon};

/// A program that holds a slot until its gate is opened.
struct Program {
    child: Child,
    gate: PathBuf,
}

impl Program {
    /// Waits for its slot, and notes that it has one.
    fn start(stage: &Stage, mut command: Command, name: &str) -> Self {
        let folder = stage.consul.folder().path();
        let gate = folder.join(format!("{name}.open"));
        // It ends with its parent, which a test that fails kills: the folder is kept then.
        let script = format!(
            "echo {name} >>'{}/journal'; while kill -0 $PPID 2>/dev/null && ! [ -e '{}' ]; do sleep 0.05; done",
            folder.display(),
            gate.display()
        );
        if name.starts_with("exec") {
            command.args(["sh", "-c"]);
        }
        command.arg(script);
        command.env("CONSUL_HTTP_ADDR", stage.consul.address());
        command.stdin(Stdio::null()).kill_on_drop(true);
        let child = command.spawn().unwrap();
        Self { child, gate }
    }

    fn exec(stage: &Stage, limit: &str) -> Self {
        let mut command = Command::new(cli_program().unwrap());
        command.args([
            "exec", "--quiet", "--prefix", PREFIX, "--limit", limit, "--",
        ]);
        Self::start(stage, command, "exec")
    }

    fn consul_lock(stage: &Stage, name: &str, limit: &str) -> Self {
        let mut command = Command::new(server("consul").unwrap());
        command.args(["lock", "-n", limit, PREFIX]);
        Self::start(stage, command, name)
    }

    async fn ends(mut self) {
        fs::write(&self.gate, "").unwrap();
        let ended = timeout(PATIENCE, self.child.wait()).await;
        assert!(ended.expect("it ends").unwrap().success());
    }
}

impl Stage {
    /// The holders as our program shows them.
    async fn shown(&self) -> Vec<Value> {
        let mut show = Command::new(cli_program().unwrap());
        show.args(["show", PREFIX, "-o", "json"]);
        let output = show.env("CONSUL_HTTP_ADDR", self.consul.address()).output();
        let shown: Value = serde_json::from_slice(&output.await.unwrap().stdout).unwrap();
        shown["holders"].as_array().unwrap().clone()
    }

    async fn noted(&self, name: &str) {
        let journal = self.consul.folder().path().join("journal");
        eventually(&format!("{name} has a slot"), async || {
            let noted = fs::read_to_string(&journal).unwrap_or_default();
            noted.lines().any(|line| line == name)
        })
        .await;
    }
}

#[tokio::test]
async fn programs_of_all_kinds_share_the_slots_of_a_prefix() {
    let stage = Stage::new().await;
    let semaphore = stage.semaphore(2);
    let lock = Program::consul_lock(&stage, "lock", "2");
    stage.noted("lock").await;
    let exec = Program::exec(&stage, "2");
    stage.noted("exec").await;
    let refused = soon(semaphore.try_acquire()).await.unwrap_err();
    assert!(refused.is_taken(), "{refused}");
    let waits = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await.unwrap() }
    });
    lock.ends().await;
    let slot = soon(waits).await.unwrap();
    assert_eq!(stage.held().await, 2);
    let mut kinds: Vec<_> = stage
        .shown()
        .await
        .iter()
        .map(|holder| holder["kind"].clone())
        .collect();
    kinds.sort_by_key(Value::to_string);
    assert_eq!(kinds, ["Process", "Program"]);
    exec.ends().await;
    // They wait for the library as for each other.
    let second = slot_of(&semaphore).await;
    let next = Program::consul_lock(&stage, "next", "2");
    stage.contend(3).await;
    assert_eq!(stage.held().await, 2);
    slot.release().await.unwrap();
    stage.noted("next").await;
    next.ends().await;
    second.release().await.unwrap();
}

#[tokio::test]
async fn a_mutex_is_the_lock_of_consul_lock() {
    let stage = Stage::new().await;
    let mutex = stage.builder().mutex().build().unwrap();
    let lock = Program::consul_lock(&stage, "lock", "1");
    stage.noted("lock").await;
    let refused = soon(mutex.try_acquire()).await.unwrap_err();
    assert!(refused.is_taken(), "{refused}");
    let waits = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    lock.ends().await;
    let slot = soon(waits).await.unwrap();
    slot.release().await.unwrap();
}
