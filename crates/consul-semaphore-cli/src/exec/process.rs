//! Starts, signals and ends the process in the slot and its process group.
//!
//! Two processes precede the command: this program runs itself again as the guard, and again as the process that
//! becomes the command. Both can be started ahead, while the slot is awaited ([`Prepared`]).

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
    ExecSettings,
    become_command::{Become, LONGEST_VARIABLES, Variables, set_variables, socket},
    signals::ends,
};
use consul_semaphore::{OnSlotLost, Sequencer, plan};

/// Interval between checks whether a group that is ending has ended.
const GROUP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Time after a kill in which the program checks whether the group is gone. Processes whose exit code nobody collects
/// may remain even after that.
const GONE_AFTER_KILL: Duration = Duration::from_secs(1);

/// Environment variable that names all slots of a command that has several.
const SLOTS_VARIABLE: &str = "CONSUL_SEMAPHORE_SLOTS";

/// Time that a process started ahead may take to become ready once slots are granted, and the interval of the checks.
/// A replacement would not be ready sooner, unless the first process was stopped.
const READY_TIMEOUT: Duration = Duration::from_secs(2);
const READY_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The command to start, and how it is started.
pub(super) struct CommandLaunch<'a> {
    /// The command and its arguments.
    pub(super) command: &'a [OsString],
    /// Environment variables that the command does not get.
    pub(super) withheld: &'a [&'a str],
    /// Whether the command stays in this program's process group.
    pub(super) foreground: bool,
    /// Whether the command is killed when this program dies.
    pub(super) ends_with_us: bool,
}

impl<'a> CommandLaunch<'a> {
    /// Returns the start that the settings ask for.
    pub(super) fn of(settings: &'a ExecSettings) -> Self {
        Self {
            command: &settings.command,
            withheld: settings.withheld,
            foreground: settings.foreground,
            // A command that may continue without a slot may also continue without this program.
            ends_with_us: settings.slots.on_slot_lost != OnSlotLost::Continue,
        }
    }
}

/// A running command.
pub(super) struct CommandProcess {
    /// Child process: the command, or its guard.
    child: tokio::process::Child,
    id: Pid,
    /// Whether the child leads its own process group, so that signals also reach the processes that the child has
    /// started.
    leads: bool,
    /// Whether the child is the guard.
    guards: bool,
}

/// A process that becomes the command once it is given slots. The process ends if this program ends before that.
pub(super) struct Prepared {
    process: CommandProcess,
    /// Socket to which the process connects to read its slots.
    slots: UnixListener,
}

impl Prepared {
    /// Starts the process without slots.
    pub(super) fn start(start: &CommandLaunch<'_>) -> io::Result<Self> {
        // The process connects by name, because the command would inherit an open socket, and because no other
        // process may open the files that this process has open.
        let name = format!("consul-semaphore-exec-{:032x}", fastrand::u128(..));
        let slots = UnixListener::bind_addr(&socket(&name)?)?;
        slots.set_nonblocking(true)?;
        let process = CommandProcess::spawn(start, Some(&name), &Variables::new())?;
        Ok(Self { process, slots })
    }

    /// Gives the process the slots to run in. Returns `None` if that is not possible; the process then does not
    /// become the command.
    pub(super) async fn run(mut self, slots: &plan::Start) -> Option<CommandProcess> {
        let mut named = serde_json::to_vec(&variables(slots)).ok()?;
        named.push(b'\n');
        let until = Instant::now() + READY_TIMEOUT;
        while named.len() <= LONGEST_VARIABLES
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
                // Another user's process has connected, or no process has connected yet.
                Ok(_) | Err(_) => sleep(READY_CHECK_INTERVAL).await,
            }
        }
        self.process.signal(Signal::KILL);
        None
    }
}

/// Returns whether the other end belongs to the user of this process, because every process of the machine can
/// connect.
fn is_of_this_user(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid == geteuid())
}

impl CommandProcess {
    /// Starts the process with the slots in its environment.
    pub(super) fn start(start: &CommandLaunch<'_>, slots: &plan::Start) -> io::Result<Self> {
        Self::spawn(start, None, &variables(slots))
    }

    /// Starts the command in the slots that this program itself runs in, which its environment names.
    pub(super) fn start_inside(start: &CommandLaunch<'_>) -> io::Result<Self> {
        Self::spawn(start, None, &Variables::new())
    }

    fn spawn(
        start: &CommandLaunch<'_>,
        slots: Option<&str>,
        variables: &Variables,
    ) -> io::Result<Self> {
        let CommandLaunch {
            command,
            withheld,
            foreground,
            ends_with_us,
        } = *start;
        // The guard can end a separate group together with this program, whatever has joined the group.
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
        let id = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("the process of the command has no id"))?;
        Ok(Self {
            child,
            id,
            leads: !foreground,
            guards,
        })
    }

    /// Waits until the process ends, and returns its exit code.
    pub(super) async fn ended(&mut self) -> io::Result<u8> {
        let status = self.child.wait().await?;
        if self.guards && status.signal().is_some() {
            // The guard was killed. The command dies with the guard, and the processes that the command has started
            // must die too.
            self.signal(Signal::KILL);
        }
        Ok(code(status))
    }

    /// Passes a signal on to the command. Signals from a terminal already reach the terminal's foreground group.
    pub(super) fn forward(&self, signal: Signal) {
        if signal == Signal::TSTP {
            return self.resume();
        }
        let keys = signal == Signal::INT || signal == Signal::QUIT;
        if self.leads || !keys || !is_at_terminal() {
            self.signal(signal);
        }
        if ends(signal) {
            // A stopped process, such as one that reads the terminal in the background, receives the signal only
            // after SIGCONT.
            self.signal(Signal::CONT);
        }
    }

    /// Undoes a stop by the terminal. A shell takes the terminal back only when the process that it waits for is
    /// stopped too. That process leads the group, and this process must keep running to renew the session.
    fn resume(&self) {
        if !self.leads && getpgrp() == getpid() {
            let _ = kill_process_group(getpgrp(), Signal::CONT);
        }
    }

    /// Waits until the process has ended. After the time `until`, kills the process with the rest of its group.
    /// Returns the exit code. The future can be dropped and the function called again.
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
        let _ = timeout_at(until + GONE_AFTER_KILL, self.is_gone()).await;
        code
    }

    /// Waits until no process of the group is left.
    async fn is_gone(&self) {
        while self.leads && test_kill_process_group(self.id).is_ok() {
            sleep(GROUP_CHECK_INTERVAL).await;
        }
    }

    fn signal(&self, signal: Signal) {
        // An error means that the process has ended, or that its id belongs to a process that this program may not
        // signal.
        let _ = if self.leads {
            kill_process_group(self.id, signal)
        } else if self.child.id().is_some() {
            kill_process(self.id, signal)
        } else {
            Ok(())
        };
    }
}

/// Returns the environment variables that name the first slot to a command, and all slots if there are several. A
/// variable that this slot has no value for is removed, so that the command does not see the slots of an `exec` around
/// this one.
pub(crate) fn variables(slots: &plan::Start) -> Variables {
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
    ]
    .map(|(name, value)| (name, Some(value)));
    let index = slot.index().map(|index| index.to_string());
    let all = several.then(|| Sequencer::list(slots));
    let others = [
        ("CONSUL_SEMAPHORE_SLOT_INDEX", index),
        (SLOTS_VARIABLE, all),
    ];
    let variables = first.into_iter().chain(others);
    variables
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Returns the exit code of a process as shells report it.
pub(super) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

/// Returns whether this process is in the foreground of its terminal. A terminal sends typed signals to its whole
/// foreground group.
fn is_at_terminal() -> bool {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    in_foreground(&stat)
}

/// Reads from a line of `proc_pid_stat(5)` whether the process is in the foreground of its terminal. The fields after
/// the name are state, parent, group, session, terminal and the terminal's group; the name may contain anything.
fn in_foreground(stat: &str) -> bool {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = after_name.split_whitespace().skip(2);
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
