//! A Consul, and commands in slots of one semaphore, which write to a shared journal.

use std::{
    fs,
    path::PathBuf,
    process::{ExitStatus, Stdio},
};

use serde_json::Value;
use testbed::{Consul, ConsulBuilder, ConsulServer, PATIENCE, eventually};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

/// The prefix of the semaphore.
pub(crate) const PREFIX: &str = "shared/db";

/// The functions for the commands' scripts: `note WORDS` writes a line to the journal, and `wait_for NAME` waits
/// until the test opens the gate of that name, or the parent has ended: what a killed `consul lock` has started lives
/// on, and has the output of the test open.
const WORDS: &str = r#"
note() { echo "$*" >>"$FOLDER/journal"; }
wait_for() { while kill -0 $PPID 2>/dev/null && ! [ -e "$FOLDER/$1.open" ]; do sleep 0.05; done; }
"#;

/// A separate Consul for each story.
pub(crate) struct Stage {
    pub(crate) consul: ConsulServer,
}

/// A running program; it is killed at the end of the story.
pub(crate) struct Running {
    child: Child,
    said: PathBuf,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self::with(Consul::builder()).await
    }

    pub(crate) async fn with(consul: ConsulBuilder) -> Self {
        Self {
            consul: consul.start().await,
        }
    }

    /// Our program with these arguments. Without the reset of signals, a test run in the background of a shell would
    /// make it ignore SIGINT, and one under `nohup` SIGHUP.
    pub(crate) fn program(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("env");
        command
            .arg("--default-signal=HUP,INT,QUIT")
            .arg(env!("CARGO_BIN_EXE_consul-semaphore"))
            .args(arguments);
        self.prepare(&mut command);
        command
    }

    /// A script in the only slot of the semaphore, unless the flags say otherwise.
    pub(crate) fn exec(&self, flags: &str, script: &str) -> Running {
        self.start(self.command(flags, script))
    }

    /// The same, not started yet.
    pub(crate) fn command(&self, flags: &str, script: &str) -> Command {
        let limit = if flags.contains("--limit") {
            ""
        } else {
            "--limit 1"
        };
        self.command_with(&format!("--prefix {PREFIX} {limit} {flags}"), script)
    }

    /// A script with these flags alone.
    pub(crate) fn command_with(&self, flags: &str, script: &str) -> Command {
        let arguments = format!("exec {flags} --");
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        let mut command = self.program(&arguments);
        command.args(["sh", "-c", &format!("{WORDS}{script}")]);
        command
    }

    /// A command that has the slot until the gate `first` is open, and has noted `first`.
    pub(crate) async fn first(&self, flags: &str) -> Running {
        let first = self.exec(flags, "note first; wait_for first");
        self.noted("first").await;
        first
    }

    /// A script in one of so many slots, with Consul's own tool.
    pub(crate) fn consul_lock(&self, limit: u32, script: &str) -> Running {
        self.consul_lock_at(PREFIX, limit, script)
    }

    /// The same at another prefix.
    pub(crate) fn consul_lock_at(&self, prefix: &str, limit: u32, script: &str) -> Running {
        let mut command = Command::new(testbed::server("consul").expect("consul"));
        let limit = format!("-n={limit}");
        command.args(["lock", "-child-exit-code", &limit, prefix]);
        command.arg(format!("{WORDS}{script}"));
        self.prepare(&mut command);
        self.start(command)
    }

    pub(crate) fn start(&self, command: Command) -> Running {
        let number = fastrand::u64(..);
        let said = self.folder().join(format!("{number:x}.said"));
        let stderr = fs::File::create(&said).unwrap();
        Running {
            said,
            ..self.start_beside(command, stderr)
        }
    }

    /// The same with another stderr, which the test does not read.
    pub(crate) fn start_beside(&self, mut command: Command, stderr: impl Into<Stdio>) -> Running {
        let said = self.folder().join("nothing.said");
        command.stderr(stderr);
        let child = command.spawn().unwrap();
        Running { child, said }
    }

    fn prepare(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("CONSUL_HTTP_ADDR", self.consul.address())
            .env("FOLDER", self.folder())
            .stdin(Stdio::null())
            .kill_on_drop(true);
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.consul.folder().path().to_owned()
    }

    /// Opens this gate: commands that wait for it continue.
    pub(crate) fn open(&self, gate: &str) {
        fs::write(self.folder().join(format!("{gate}.open")), "").unwrap();
    }

    /// What the commands have noted, in order.
    pub(crate) fn journal(&self) -> Vec<String> {
        let journal = fs::read_to_string(self.folder().join("journal")).unwrap_or_default();
        journal.lines().map(str::to_owned).collect()
    }

    /// Waits until this is in the journal.
    pub(crate) async fn noted(&self, line: &str) {
        eventually(&format!("{line:?} is noted"), async || {
            let journal = self.journal();
            if journal.iter().any(|noted| noted == line) {
                Ok(())
            } else {
                Err(format!("{journal:?}"))
            }
        })
        .await;
    }

    /// The sessions of our program.
    pub(crate) async fn sessions(&self) -> Vec<Value> {
        let mut sessions = self.consul.sessions().await;
        sessions.retain(|session| {
            let name = session["Name"].as_str().unwrap_or_default();
            name.starts_with("consul-semaphore-operator/")
        });
        sessions
    }

    /// Checks that programs that have ended left nothing in Consul.
    pub(crate) async fn is_clean(&self) {
        assert_eq!(self.consul.list(PREFIX).await, []);
        assert_eq!(self.sessions().await, Vec::<Value>::new());
    }
}

impl Running {
    /// Sends it a signal, by its name without SIG.
    pub(crate) async fn signal(&self, signal: &str) {
        send(signal, &self.id().to_string()).await;
    }

    /// The id of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Waits until it ends.
    pub(crate) async fn ends(&mut self) -> ExitStatus {
        let ended = timeout(PATIENCE, self.child.wait()).await;
        ended
            .unwrap_or_else(|_| panic!("it does not end; it said: {}", self.said()))
            .unwrap()
    }

    /// Waits until it ends with this exit code; returns what it said.
    pub(crate) async fn ends_with(&mut self, code: i32) -> String {
        let status = self.ends().await;
        assert_eq!(status.code(), Some(code), "{}", self.said());
        self.said()
    }

    /// What it has written to stderr.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Waits until it has written this to stderr.
    pub(crate) async fn says(&self, words: &str) {
        eventually(&format!("it says {words:?}"), async || {
            let said = self.said();
            if said.contains(words) {
                Ok(())
            } else {
                Err(said)
            }
        })
        .await;
    }
}

/// Sends a process a signal, by its name without SIG.
pub(crate) async fn send(signal: &str, id: &str) {
    let sent = Command::new("kill").args(["-s", signal, id]).status();
    assert!(sent.await.unwrap().success());
}

/// The ids of the processes that this one has started and has not collected.
pub(crate) fn children(id: &str) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children = children.unwrap_or_default();
    children.split_whitespace().map(str::to_owned).collect()
}
