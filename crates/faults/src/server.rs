//! A program that is started, stopped, killed and started again, always in the same way.

use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, Command},
    sync::Mutex,
    time::timeout,
};

/// The script that ends a server when this process is gone, whatever ends it.
const GUARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../testbed/guard");

/// How long a program may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program, running or not. It ends when this is dropped.
pub(crate) struct Server {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    folder: PathBuf,
    guard: Mutex<Option<Child>>,
}

impl Server {
    /// A program that is not started yet. Its log is `<folder>/<name>.log`.
    pub(crate) fn new(name: &str, program: impl Into<PathBuf>, folder: &Path) -> Self {
        Self {
            name: name.to_owned(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            folder: folder.to_owned(),
            guard: Mutex::new(None),
        }
    }

    pub(crate) fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Starts it.
    pub(crate) async fn start(&self) -> Result<()> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{}.log", self.name)))?;
        let guard = Command::new("bash")
            .arg(GUARD)
            .arg(self.folder.join(format!("{}.guard", self.name)))
            .arg(&self.program)
            .args(&self.args)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("HOME", &self.folder)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {} with bash", self.name))?;
        *self.guard.lock().await = Some(guard);
        Ok(())
    }

    /// Sends a signal, by its name without SIG.
    pub(crate) async fn signal(&self, signal: &str) -> Result<()> {
        let mut guard = self.guard.lock().await;
        let Some(pipe) = guard.as_mut().and_then(|guard| guard.stdin.as_mut()) else {
            bail!("{} does not run", self.name)
        };
        pipe.write_all(format!("{signal}\n").as_bytes())
            .await
            .with_context(|| format!("sending {signal} to {}", self.name))
    }

    /// Ends it by a signal, and waits for its end.
    pub(crate) async fn end(&self, signal: &str) -> Result<()> {
        self.signal(signal).await?;
        let guard = self.guard.lock().await.take();
        let Some(mut guard) = guard else {
            return Ok(());
        };
        timeout(PATIENCE, guard.wait())
            .await
            .with_context(|| format!("{} does not end", self.name))??;
        Ok(())
    }

    /// Whether it runs.
    pub(crate) async fn runs(&self) -> bool {
        let mut guard = self.guard.lock().await;
        let status = guard.as_mut().map(Child::try_wait);
        matches!(status, Some(Ok(None)))
    }
}

/// The program and the arguments that a process was started with.
pub(crate) fn command_line(pid: u32) -> Result<(PathBuf, Vec<OsString>)> {
    use std::os::unix::ffi::OsStringExt as _;
    let line = fs::read(format!("/proc/{pid}/cmdline"))?;
    let line = line.strip_suffix(&[0]).unwrap_or(&line);
    let mut words = line
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()));
    let program = words.next().context("a process without a program")?;
    Ok((program.into(), words.collect()))
}
