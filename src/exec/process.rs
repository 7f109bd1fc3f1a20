//! The process in the slot, and its group.

use std::{
    ffi::OsString,
    io,
    os::unix::process::{CommandExt as _, parent_id},
    process::{Command, ExitStatus},
    time::Duration,
};

use rustix::process::{
    Pid, Signal, kill_process, kill_process_group, set_parent_process_death_signal,
    test_kill_process_group,
};
use tokio::time::{Instant, sleep, timeout_at};

use crate::semaphore::plan::Slot;

/// How often it is looked whether a group that is to end has ended.
const LOOK: Duration = Duration::from_millis(50);

/// What is to be started.
pub(super) struct Start<'a> {
    /// The command and its arguments.
    pub(super) command: &'a [OsString],
    /// The slot that it runs in; no process is started without one.
    pub(super) slot: &'a Slot,
    /// Whether it stays in this program's group.
    pub(super) foreground: bool,
    /// Whether it is killed when this program dies.
    pub(super) ends_with_us: bool,
}

/// A command that runs.
pub(super) struct Process {
    child: tokio::process::Child,
    id: Pid,
    /// Whether it leads a group of its own, so that what it has started is reached with it.
    leads: bool,
}

impl Process {
    /// Starts it, with the slot in its environment.
    pub(super) fn start(start: &Start<'_>) -> io::Result<Self> {
        let Start {
            command,
            slot,
            foreground,
            ends_with_us,
        } = *start;
        let this = std::process::id().to_string();
        // This program again, whatever stands at its path by now: it takes measures that end it with
        // this one, and becomes the command (see `become_command`).
        let mut starts = Command::new("/proc/self/exe");
        starts.arg("become");
        if ends_with_us {
            starts.args(["--of", &this]);
        }
        starts
            .arg("--")
            .args(command)
            .env("CONSUL_SEMAPHORE_SESSION", slot.session().as_str())
            .env("CONSUL_SEMAPHORE_LOCK_KEY", slot.key())
            .env("CONSUL_SEMAPHORE_LOCK_INDEX", slot.lock_index().to_string())
            .env(
                "CONSUL_SEMAPHORE_FENCING_TOKEN",
                slot.fencing_token().to_string(),
            );
        if !foreground {
            starts.process_group(0);
        }
        let child = tokio::process::Command::from(starts).spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw);
        Ok(Self {
            child,
            id: id.ok_or_else(|| io::Error::other("the command has no id"))?,
            leads: !foreground,
        })
    }

    /// Waits for its end.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Passes a signal on. What a terminal sends reaches its foreground group without us.
    pub(super) fn forward(&self, signal: Signal) {
        if self.leads || (signal != Signal::INT && signal != Signal::QUIT) {
            self.signal(signal);
        }
    }

    /// Ends it: asks it to, and kills it after a while, with all that is left of its group.
    pub(super) async fn end(&mut self, kill_after: Duration) -> io::Result<ExitStatus> {
        let until = Instant::now() + kill_after;
        self.signal(Signal::TERM);
        // One that was stopped hears it only then.
        self.signal(Signal::CONT);
        let ended = async {
            let status = self.child.wait().await;
            while self.leads && test_kill_process_group(self.id).is_ok() {
                sleep(LOOK).await;
            }
            status
        };
        if let Ok(status) = timeout_at(until, ended).await {
            return status;
        }
        self.signal(Signal::KILL);
        self.child.wait().await
    }

    fn signal(&self, signal: Signal) {
        // An error says that it has ended, or has become somebody else whom we may not signal.
        let _ = if self.leads {
            kill_process_group(self.id, signal)
        } else if self.child.id().is_some() {
            kill_process(self.id, signal)
        } else {
            Ok(())
        };
    }
}

/// Becomes a command that a slot was had for, in the process that was made for it; returns only to tell
/// why that can't be. `of` is the id of the process that holds the slot: if it dies in any way, SIGKILL
/// included, the kernel kills this one.
pub fn become_command(of: Option<u32>, command: &[OsString]) -> io::Error {
    let Some((program, arguments)) = command.split_first() else {
        return io::ErrorKind::InvalidInput.into();
    };
    if let Some(of) = of {
        if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
            return error.into();
        }
        if parent_id() != of {
            return io::Error::other("the process that holds the slot has ended");
        }
    }
    Command::new(program).args(arguments).exec()
}
