//! The process in the slot, and its group.
//!
//! Two programs come before the command: this one again, as the guard and as what becomes the command. They can be
//! started ahead, while the slot is awaited ([`Prepared`]).

use std::{
    ffi::OsString,
    fs,
    io::{self, Write as _},
    os::unix::{
        net::{UnixListener, UnixStream},
        process::{CommandExt as _, ExitStatusExt as _},
    },
    process::ExitStatus,
    time::Duration,
};

use rustix::{
    net::sockopt::socket_peercred,
    process::{
        Pid, Signal, geteuid, getpgrp, getpid, kill_process, kill_process_group,
        test_kill_process_group,
    },
};
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    become_command::{Become, MOST, Variables, set_variables, socket},
    signals::ends,
};
use consul_semaphore::{Sequencer, plan};

/// How often it is checked whether a group that is ending has ended.
const LOOK: Duration = Duration::from_millis(50);

/// How long it is checked whether a killed group is gone. Even then, processes may remain whose exit code nobody
/// collects.
const KILLED: Duration = Duration::from_secs(1);

/// The variable that names all slots of a command that has several.
const SLOTS: &str = "CONSUL_SEMAPHORE_SLOTS";

/// How long what is started ahead may take to be ready once there are slots, and how often that is checked: another
/// one would not be ready sooner, unless this one was stopped.
const READY: Duration = Duration::from_secs(2);
const READY_LOOK: Duration = Duration::from_millis(1);

/// What to start.
pub(super) struct Start<'a> {
    /// The command and its arguments.
    pub(super) command: &'a [OsString],
    /// Environment variables that the command does not get.
    pub(super) withheld: &'a [&'a str],
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

/// A process that becomes the command once it is given slots, and ends if this program does so before.
pub(super) struct Prepared {
    process: Process,
    /// It connects to this, and reads its slots.
    slots: UnixListener,
}

impl Prepared {
    /// Starts it.
    pub(super) fn start(start: &Start<'_>) -> io::Result<Self> {
        // It connects by a name: what it inherits, the command inherits, too, and no other process may open what this
        // one has open.
        let name = format!("consul-semaphore-exec-{:032x}", fastrand::u128(..));
        let slots = UnixListener::bind_addr(&socket(&name)?)?;
        slots.set_nonblocking(true)?;
        let process = Process::spawn(start, Some(&name), &Variables::new())?;
        Ok(Self { process, slots })
    }

    /// Gives it the slots to run in; `None` if that is not possible: then it does not become the command.
    pub(super) async fn run(mut self, slots: &plan::Start) -> Option<Process> {
        let mut named = serde_json::to_vec(&variables(slots)).ok()?;
        named.push(b'\n');
        let until = Instant::now() + READY;
        while named.len() <= MOST
            && matches!(self.process.child.try_wait(), Ok(None))
            && Instant::now() < until
        {
            match self.slots.accept() {
                Ok((mut reader, _)) if is_of_this_user(&reader) => {
                    if reader.write_all(&named).is_ok() {
                        return Some(self.process);
                    }
                    break;
                }
                // Another user's process has connected, or none yet.
                Ok(_) | Err(_) => sleep(READY_LOOK).await,
            }
        }
        self.process.signal(Signal::KILL);
        None
    }
}

/// Whether the other end is a process of the user of this one: every process of the machine can connect.
fn is_of_this_user(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid == geteuid())
}

impl Process {
    /// Starts it, with the slots in its environment.
    pub(super) fn start(start: &Start<'_>, slots: &plan::Start) -> io::Result<Self> {
        Self::spawn(start, None, &variables(slots))
    }

    fn spawn(start: &Start<'_>, slots: Option<&str>, variables: &Variables) -> io::Result<Self> {
        let Start {
            command,
            withheld,
            foreground,
            ends_with_us,
        } = *start;
        // A separate group can be ended with this program, whatever has joined it.
        let guards = ends_with_us && !foreground;
        let becomes = Become {
            of: ends_with_us.then(std::process::id),
            slots: slots.map(str::to_owned),
            guard: guards,
            command: command.to_vec(),
        };
        let mut starts = becomes.command();
        set_variables(&mut starts, variables);
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
        if signal == Signal::TSTP {
            return self.resume();
        }
        let keys = signal == Signal::INT || signal == Signal::QUIT;
        if self.leads || !keys || !is_at_terminal() {
            self.signal(signal);
        }
        if ends(signal) {
            // A stopped process, as one that reads the terminal in the background, receives it only after this.
            self.signal(Signal::CONT);
        }
    }

    /// Undoes a stop by the terminal. A shell takes the terminal back only when the process that it waits for, which
    /// leads the group, is stopped, too; and this one must renew the session.
    fn resume(&self) {
        if !self.leads && getpgrp() == getpid() {
            let _ = kill_process_group(getpgrp(), Signal::CONT);
        }
    }

    /// Waits until it has ended, and from this time on kills it with the rest of its group. Returns its exit code. Can
    /// be dropped and called again.
    pub(super) async fn end_by(&mut self, until: Instant) -> io::Result<u8> {
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
        let _ = timeout_at(until + KILLED, self.is_gone()).await;
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
fn variables(slots: &plan::Start) -> Variables {
    let slot = &slots.slot;
    let several = !slots.others.is_empty();
    let first = [
        ("CONSUL_SEMAPHORE_SESSION", slot.session().to_string()),
        ("CONSUL_SEMAPHORE_LOCK_KEY", slot.key().to_owned()),
        ("CONSUL_SEMAPHORE_LOCK_INDEX", slot.lock_index().to_string()),
        (
            "CONSUL_SEMAPHORE_FENCING_TOKEN",
            slot.fencing_token().to_string(),
        ),
    ];
    let first = first.map(|(name, value)| (name.to_owned(), Some(value)));
    let all = several.then(|| Sequencer::list(slots));
    first.into_iter().chain([(SLOTS.to_owned(), all)]).collect()
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
