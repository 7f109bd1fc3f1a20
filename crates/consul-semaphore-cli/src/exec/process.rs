//! The process in the slot, and its group.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::process::{CommandExt as _, ExitStatusExt as _, parent_id},
    process::{Command, ExitStatus},
    time::Duration,
};

use rustix::process::{
    Pid, Signal, kill_process, kill_process_group, set_parent_process_death_signal,
    test_kill_process_group,
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use consul_semaphore::{Sequencer, plan};

/// How often it is checked whether a group that is ending has ended.
const LOOK: Duration = Duration::from_millis(50);

/// How long it is checked whether a killed group is gone. Even then, processes may remain whose exit code nobody
/// collects.
const KILLED: Duration = Duration::from_secs(1);

/// The variable that names all slots of a command that has several.
const SLOTS: &str = "CONSUL_SEMAPHORE_SLOTS";

/// What to start.
pub(super) struct Start<'a> {
    /// The command and its arguments.
    pub(super) command: &'a [OsString],
    /// Environment variables that the command does not get.
    pub(super) withheld: &'a [&'a str],
    /// The slots that it runs in; no process is started without one.
    pub(super) slots: &'a plan::Start,
    /// Whether it stays in this program's group.
    pub(super) foreground: bool,
    /// Whether it is killed when this program dies.
    pub(super) ends_with_us: bool,
}

/// A running command.
pub(super) struct Process {
    /// The command, or its guard.
    child: tokio::process::Child,
    id: Pid,
    /// Whether it leads a group of its own, so that signals also reach what it has started.
    leads: bool,
    /// Whether it is the guard.
    guards: bool,
}

impl Process {
    /// Starts it, with the slots in its environment.
    pub(super) fn start(start: &Start<'_>) -> io::Result<Self> {
        let Start {
            command,
            withheld,
            slots,
            foreground,
            ends_with_us,
        } = *start;
        // A separate group can be ended with this program, whatever has joined it.
        let guards = ends_with_us && !foreground;
        let mut starts = becoming(ends_with_us.then(std::process::id), guards, command);
        set_slots(&mut starts, slots);
        for variable in withheld {
            starts.env_remove(variable);
        }
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
            guards,
        })
    }

    /// Waits until it ends, and returns its exit code.
    pub(super) async fn ended(&mut self) -> io::Result<u8> {
        let status = self.child.wait().await?;
        if self.guards && status.signal().is_some() {
            // The guard was killed: the command dies with it, and what the command has started must die, too.
            self.signal(Signal::KILL);
        }
        Ok(code(status))
    }

    /// Passes a signal on. Signals from a terminal already reach its foreground group.
    pub(super) fn forward(&self, signal: Signal) {
        let keys = signal == Signal::INT || signal == Signal::QUIT;
        if self.leads || !keys || !is_at_terminal() {
            self.signal(signal);
        }
    }

    /// Asks it to end.
    pub(super) fn ask_to_end(&self) {
        self.signal(Signal::TERM);
        // A stopped process receives it only after this.
        self.signal(Signal::CONT);
    }

    /// Waits until it has ended, and kills it with the rest of its group if that takes too long. Returns its exit
    /// code.
    pub(super) async fn end_within(&mut self, kill_after: Duration) -> io::Result<u8> {
        let until = Instant::now() + kill_after;
        let ended = async {
            let code = self.ended().await;
            self.is_gone().await;
            code
        };
        if let Ok(code) = timeout_at(until, ended).await {
            return code;
        }
        self.signal(Signal::KILL);
        let code = self.ended().await;
        // The guard may be gone before the command is.
        let _ = timeout(KILLED, self.is_gone()).await;
        code
    }

    /// Waits until nothing is left of its group.
    async fn is_gone(&self) {
        while self.leads && test_kill_process_group(self.id).is_ok() {
            sleep(LOOK).await;
        }
    }

    fn signal(&self, signal: Signal) {
        // An error means that it has ended, or that its id now belongs to a process that we may not signal.
        let _ = if self.leads {
            kill_process_group(self.id, signal)
        } else if self.child.id().is_some() {
            kill_process(self.id, signal)
        } else {
            Ok(())
        };
    }
}

/// Names the first slot to a command, and all of them if there are several: not those of an `exec` around this one.
fn set_slots(command: &mut Command, slots: &plan::Start) {
    let slot = &slots.slot;
    command
        .env("CONSUL_SEMAPHORE_SESSION", slot.session().as_str())
        .env("CONSUL_SEMAPHORE_LOCK_KEY", slot.key())
        .env("CONSUL_SEMAPHORE_LOCK_INDEX", slot.lock_index().to_string())
        .env(
            "CONSUL_SEMAPHORE_FENCING_TOKEN",
            slot.fencing_token().to_string(),
        );
    if slots.others.is_empty() {
        command.env_remove(SLOTS);
    } else {
        command.env(SLOTS, Sequencer::list(slots));
    }
}

/// This program again, even if another file is at its path by now: it arranges to end with the process `of`, and
/// becomes the command (see [`become_command`]) or its guard.
pub(super) fn becoming(of: Option<u32>, guards: bool, command: &[OsString]) -> Command {
    let mut starts = Command::new("/proc/self/exe");
    starts.arg("become");
    if let Some(of) = of {
        starts.args(["--of", &of.to_string()]);
    }
    if guards {
        starts.arg("--guard");
    }
    starts.arg("--").args(command);
    starts
}

/// The exit code of a process, as shells give it.
pub(super) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

/// Whether this process is in the foreground of its terminal, which sends typed signals to all of its group.
fn is_at_terminal() -> bool {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    in_foreground(&stat)
}

/// The same from a line of `proc_pid_stat(5)`: state, parent, group, session, terminal and its group follow the name,
/// which may contain anything.
fn in_foreground(stat: &str) -> bool {
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    let mut fields = fields.unwrap_or_default().split_whitespace().skip(2);
    let (group, of_terminal) = (fields.next(), fields.nth(2));
    group.is_some() && group == of_terminal
}

/// Becomes a command that has a slot, in the process that was made for it. Returns only if that fails, with the
/// reason. `of` is the id of the process that holds the slot: if it dies in any way, SIGKILL included, the kernel
/// kills this one.
pub(crate) fn become_command(of: Option<u32>, command: &[OsString]) -> io::Error {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_at_a_terminal_is_in_its_foreground_group() {
        for (stat, foreground) in [
            ("7 (a) b) S 1 70 60 34816 70 4194304 1", true),
            ("7 (sh) S 1 70 60 34816 71 4194304 1", false),
            ("7 (sh) S 1 70 60 0 -1 4194304 1", false),
            ("", false),
        ] {
            assert_eq!(in_foreground(stat), foreground, "{stat}");
        }
    }
}
