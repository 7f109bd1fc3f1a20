//! A server as a process that ends with the process that started it.
use std::{
    ffi::{OsStr, OsString},
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::{
    env::Env,
    folder::{Folder, read_ids},
    wait::{self, Look},
};

const GUARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/guard");

/// How many of a log's last lines an error shows.
const LAST_LINES: usize = 30;

/// How long a server may take to end.
const END: Duration = Duration::from_secs(30);

/// What to start: a program with its arguments and environment variables.
#[derive(Clone, Debug)]
pub struct Recipe {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Env,
}

impl Recipe {
    /// A program. `name` is also the name of its log.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Env::default(),
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable; the last value of a name wins.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.set(name, value);
        self
    }
}

/// A server under its guard.
///
/// The guard, a small script, holds a pipe from this process. When the pipe closes, because this was dropped or
/// because this process ended in any way, including SIGKILL, the guard ends the server's process group.
#[derive(Debug)]
pub struct Process {
    recipe: Recipe,
    folder: Arc<Folder>,
    log: PathBuf,
    pid_file: PathBuf,
    guard: Mutex<Option<Child>>,
}

impl Process {
    /// A server that is not started yet. It gets a clean environment, and its log is appended to
    /// `<folder>/<name>.log`.
    pub fn idle(folder: &Arc<Folder>, recipe: Recipe) -> Self {
        Self {
            log: folder.path().join(format!("{}.log", recipe.name)),
            pid_file: folder.path().join(format!("{}.pid", recipe.name)),
            folder: folder.clone(),
            recipe,
            guard: Mutex::new(None),
        }
    }

    pub(crate) fn start(folder: &Arc<Folder>, recipe: &Recipe) -> Result<Self> {
        let this = Self::idle(folder, recipe.clone());
        this.start_again()?;
        Ok(this)
    }

    /// Starts it for the first time, or restarts it with its data and on its ports.
    ///
    /// # Errors
    /// It already runs, or can't be started.
    pub fn start_again(&self) -> Result<()> {
        if self.is_running() {
            bail!("{} runs yet", self.name());
        }
        let guard = spawn(&self.folder, &self.recipe, &self.log, &self.pid_file)?;
        *self.guard.lock() = Some(guard);
        Ok(())
    }

    /// Kills it (SIGKILL), and waits for its end.
    pub(crate) async fn kill(&self) -> Result<()> {
        self.end("KILL").await.map(drop)
    }

    /// Ends it by a signal, and waits for its end.
    ///
    /// # Errors
    /// It does not run, or does not end.
    pub async fn end(&self, signal: &str) -> Result<ExitStatus> {
        self.signal(signal)?;
        self.ended(END).await
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        let mut guard = self.guard.lock();
        matches!(guard.as_mut().map(Child::try_wait), Some(Ok(None)))
    }

    /// Stops it (SIGSTOP), and waits until it has stopped: its guard sends the signal asynchronously.
    pub(crate) async fn pause(&self) -> Result<()> {
        self.signal("STOP")?;
        wait::until(&format!("{} is stopped", self.name()), END, || async {
            let [id, _] = self.ids().ok_or("it does not run")?;
            is_stopped(id)
        })
        .await
    }

    /// Its name, which is also that of its log.
    pub fn name(&self) -> &str {
        &self.recipe.name
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        fs::read(&self.log)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// The ids of the server and of its guard, once the server has started.
    pub fn ids(&self) -> Option<[u32; 2]> {
        read_ids(&self.pid_file).try_into().ok()
    }

    /// Its exit status, if it has ended (128 + the signal's number, if by a signal).
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.guard.lock().as_mut()?.try_wait().ok()?
    }

    /// Sends a signal, by its name without SIG: TERM, KILL, STOP, CONT, HUP.
    pub fn signal(&self, signal: &str) -> Result<()> {
        if let Some(status) = self.exit_status() {
            bail!("{} has ended: {status}", self.name());
        }
        let mut guard = self.guard.lock();
        let Some(pipe) = guard.as_mut().and_then(|guard| guard.stdin.as_mut()) else {
            bail!("{} has no pipe", self.name())
        };
        writeln!(pipe, "{signal}").with_context(|| format!("sending {signal} to {}", self.name()))
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self, patience: Duration) -> Result<ExitStatus> {
        wait::until(&format!("{} ends", self.name()), patience, || async {
            self.exit_status().ok_or_else(|| "it still runs".to_owned())
        })
        .await
    }

    /// Waits until `probe` succeeds. If the server ends early, or does not succeed within `patience`, the error shows
    /// the end of the log.
    pub(crate) async fn ready<F>(
        &self,
        patience: Duration,
        mut probe: impl FnMut() -> F,
    ) -> Result<()>
    where
        F: Future<Output: Look<Value = ()>>,
    {
        let ready = wait::until(&format!("{} gets ready", self.name()), patience, || {
            // Read before the probe, which another server on the same port may answer.
            let ended = self.exit_status();
            let probed = probe();
            async move {
                match ended {
                    Some(status) => Ok(Err(anyhow!("it ended: {status}"))),
                    None => probed.await.judge().map(Ok),
                }
            }
        })
        .await;
        ready.and_then(|outcome| outcome).map_err(|error| {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
            anyhow!(
                "{}: {error}; its log (KEEP_BED=1 keeps it) ends with:\n{last}",
                self.name()
            )
        })
    }
}

/// Whether a process is stopped. The error is its state.
pub(crate) fn is_stopped(id: u32) -> Result<(), String> {
    let state =
        fs::read_to_string(format!("/proc/{id}/stat")).map_err(|error| error.to_string())?;
    // The state comes after the program's name, which is in parentheses.
    let (_, state) = state.rsplit_once(") ").ok_or("it has no state")?;
    wait::same(state.starts_with('T'), true).map(drop)
}

fn spawn(folder: &Folder, recipe: &Recipe, log: &Path, pid_file: &Path) -> Result<Child> {
    let Recipe {
        name,
        program,
        args,
        env,
    } = recipe;
    if let Err(error) = fs::remove_file(pid_file)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error).with_context(|| format!("removing {}", pid_file.display()));
    }
    Command::new("bash")
        .arg(GUARD)
        .arg(pid_file)
        .arg(program)
        .args(args)
        .env_clear()
        // None of a developer's own settings reaches a server: no proxy, kubeconfig or token.
        .envs(
            ["PATH", "TMPDIR"]
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        .env("HOME", folder.path())
        // Servers of a bed live for minutes: they take memory rather than a fifth of the processor for collecting it.
        .env("GOGC", "400")
        .envs(env.iter())
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(folder.held()?)
        .stderr(OpenOptions::new().create(true).append(true).open(log)?)
        // Ctrl-C at a terminal signals the foreground group, not the servers, which end in order.
        .process_group(0)
        .spawn()
        .with_context(|| format!("starting {name} with bash"))
}

impl Drop for Process {
    fn drop(&mut self) {
        // Closes the pipe. The wait is only for the guard's exit status, so that no zombie is left.
        if let Some(mut guard) = self.guard.lock().take() {
            drop(guard.stdin.take());
            std::thread::spawn(move || guard.wait());
        }
    }
}
