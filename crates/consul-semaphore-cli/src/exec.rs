//! Runs a command in slots, like `consul lock`, with a [`consul_semaphore::holder`].
//!
//! | file | subject |
//! |---|---|
//! | `process` | the process and its group: started, signalled, ended |
//! | `around` | the slots that this program itself runs in |
//! | `become_command` | this program again, on its way to be the command |
//! | `guard` | what ends that group when this program can't |
//! | `signals` | the signals that this program receives |
//! | `service_manager` | systemd, if it has started this program |
//! | `limit` | the limit that a semaphore has in Consul |
//! | `failure` | why there is no exit code of the command, and which one there is instead |

mod around;
mod become_command;
mod failure;
mod guard;
mod limit;
mod process;
mod service_manager;
mod signals;

use std::{ffi::OsString, io, sync::Arc, time::Duration};

use consul_client::{self as consul, Client, clock::Moment};
use consul_semaphore::{
    OnSlotLost, Prefix,
    holder::{self, AcquireError, Holder, Lost, Notice, Remains},
    plan::{self, Suspended},
};
use rustix::process::Signal;
use tokio::{
    pin,
    sync::Notify,
    time::{Instant, timeout},
};

pub(crate) use self::{
    around::SlotsAround,
    become_command::Become,
    failure::{EXIT_MACHINE, EXIT_SLOT_LOST, ExecFailure, UNKNOWN_TOKEN},
    guard::guard,
    limit::limit_in_consul,
    process::variables,
    signals::Signals,
};
use self::{
    failure::advice_on,
    process::{CommandLaunch, CommandProcess, Prepared},
    service_manager::ServiceManager,
};
use crate::stderr::Stderr;

/// Time after the command's end in which a signal may still be meant for the command. A signal may arrive here as well,
/// because systemd and terminals send it to both processes.
const SIGNAL_GRACE: Duration = Duration::from_secs(1);

/// Longest time that the last news for the service manager may take.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// The command to run, and its slots.
#[derive(Clone, Debug)]
pub(crate) struct ExecSettings {
    /// Slots that the command needs.
    pub(crate) slots: holder::HolderSettings,
    /// Longest time to wait for the slots; `None` for no limit.
    pub(crate) patience: Option<Duration>,
    /// Whether only what goes wrong is reported.
    pub(crate) quiet: bool,
    /// Whether the command stays in this program's process group, so that it can read the terminal.
    pub(crate) foreground: bool,
    /// Slots that this program itself runs in.
    pub(crate) around: SlotsAround,
    /// Whether the command runs in these slots if they are all that it asks for.
    pub(crate) reentrant: bool,
    /// Environment variables that the command does not get.
    pub(crate) withheld: &'static [&'static str],
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
}

/// Runs a command in its slots and returns the exit code: the command's own, 128 and the signal's number if a signal
/// ended it, or that of an [`ExecFailure`], also instead of 0 if a slot turns out to have been lost. Messages go to
/// `stderr`. Must be called on the process's main thread and with a single-threaded runtime: the command ends with the
/// thread that started it.
pub(crate) async fn exec(settings: ExecSettings, consul: consul::Config, stderr: &Stderr) -> u8 {
    let reporter = match Reporter::new(stderr) {
        Ok(reporter) => reporter,
        Err(error) => return report(&ExecFailure::System(error), stderr),
    };
    let code = exec_in_slots(settings, consul, &reporter).await;
    // Without this, the service manager would not hear of a command that takes no time.
    reporter.service.flush_within(NOTIFY_TIMEOUT);
    code
}

async fn exec_in_slots(settings: ExecSettings, consul: consul::Config, reporter: &Reporter) -> u8 {
    let stderr = &reporter.stderr;
    let failed = |failure| report(&failure, stderr);
    let (mut signals, consul) = match set_up(consul, settings.quiet, stderr) {
        Ok(both) => both,
        Err(failure) => return failed(failure),
    };
    if settings.reentrant {
        match settings
            .around
            .suffice(&settings.slots.request, &consul)
            .await
        {
            Ok(false) => {}
            suffice => {
                consul.log_out().await;
                let ran = match suffice {
                    Ok(_) => run_inside(&settings, reporter, &mut signals).await,
                    Err(failure) => Err(failure),
                };
                return ran.unwrap_or_else(failed);
            }
        }
    }
    let near = Arc::new(Notify::new());
    let mut holder = hold(&settings, consul.clone(), reporter.clone(), near.clone());
    let ran = run(&settings, &mut holder, &near, &mut signals, reporter).await;
    // A command that may go on without its slots has lost nothing by that.
    let relies = ran.is_ok() && settings.slots.on_slot_lost != OnSlotLost::Continue;
    let mut code = ran.unwrap_or_else(failed);
    let words = ReportWording::of(&settings);
    // The loss is judged at this moment, because this program may have slept.
    let lost = holder.lost();
    leave(words, &mut holder, &mut signals, stderr).await;
    if relies && let Some(lost) = lost.or_else(|| holder.lost()) {
        stderr.say(&words.of_late_loss(&lost));
        code = if code == 0 { EXIT_SLOT_LOST } else { code };
    }
    consul.log_out().await;
    code
}

/// Reports a failure. Returns its exit code.
pub(crate) fn report(failure: &ExecFailure, stderr: &Stderr) -> u8 {
    stderr.say(&failure.to_string());
    failure.code()
}

/// Listens for signals and makes the client. Warns of a token that others may read, unless `quiet` is set.
pub(crate) fn set_up(
    consul: consul::Config,
    quiet: bool,
    stderr: &Stderr,
) -> Result<(Signals, Client), ExecFailure> {
    if let Some(exposure) = consul.exposures().first().filter(|_| !quiet) {
        stderr.say(&format!("warning: {exposure}"));
    }
    let signals = Signals::listen().map_err(ExecFailure::System)?;
    Ok((signals, Client::new(consul)?))
}

/// Makes a holder that reports what happens, and that notifies `near` when its turn is near.
fn hold(settings: &ExecSettings, consul: Client, reporter: Reporter, near: Arc<Notify>) -> Holder {
    let words = ReportWording::of(settings);
    let (quiet, around) = (settings.quiet, settings.around.clone());
    let on_notice = move |notice| {
        if notice == Notice::Near {
            near.notify_one();
        }
        let warning = match &notice {
            Notice::Waiting(missing) => around.warning(&missing.of.prefix),
            _ => None,
        };
        let silent = quiet && notice.is_progress();
        // The rest is about a command that runs, whose status nothing would set right again.
        let waits = matches!(
            notice,
            Notice::Waiting(_) | Notice::Resting(_) | Notice::Trouble { holding: false, .. }
        );
        let lines = words.of_notice(notice);
        if waits && let Some(line) = lines.first() {
            reporter.service.status(line);
        }
        let said = lines.into_iter().filter(|_| !silent).chain(warning);
        said.for_each(|line| reporter.stderr.say(&line));
    };
    Holder::new(settings.slots.clone(), consul, on_notice)
}

/// Where the program reports what happens.
#[derive(Clone, Debug)]
struct Reporter {
    stderr: Stderr,
    service: ServiceManager,
}

impl Reporter {
    fn new(stderr: &Stderr) -> io::Result<Self> {
        Ok(Self {
            stderr: stderr.clone(),
            service: ServiceManager::start(stderr)?,
        })
    }
}

/// The words of a report, which name a slot's prefix only if there are several slots.
#[derive(Clone, Copy)]
pub(crate) struct ReportWording {
    several: bool,
}

impl ReportWording {
    fn of(settings: &ExecSettings) -> Self {
        Self::new(settings.slots.request.slots())
    }

    /// Returns the words for so many slots.
    pub(crate) fn new(slots: u32) -> Self {
        Self { several: slots > 1 }
    }

    /// Returns the words for a slot at this prefix.
    fn slot(self, prefix: &Prefix) -> String {
        if self.several {
            format!("a slot of {prefix}")
        } else {
            "the slot".to_owned()
        }
    }

    /// Returns the lines that report what happens.
    pub(crate) fn of_notice(self, notice: Notice) -> Vec<String> {
        let line = match notice {
            Notice::Near => return Vec::new(),
            Notice::Waiting(missing) => {
                format!("waiting for {}: {}", missing.of.asked(), missing.holders)
            }
            Notice::Granted { waited, created } => return self.of_grant(waited, &created),
            Notice::Resting(prefix) => {
                format!("waiting for the lock-delay of a dead holder at {prefix}")
            }
            Notice::Trouble { error, holding } if holding => {
                format!("{error}; the command continues for now")
            }
            Notice::Trouble { error, .. } => format!("{error}; waiting"),
            Notice::LimitChanged { prefix, from, to } => {
                format!("the limit of {prefix} in Consul has changed from {from} to {to}")
            }
            Notice::Regained(prefix) => {
                let slot = self.slot(&prefix);
                format!("{slot} was lost, and the command has a slot again")
            }
            Notice::Unheld(prefix) => {
                let slot = self.slot(&prefix);
                format!("{slot} is lost, and no other slot is free: the command continues")
            }
            Notice::StillHeld(held) => held.to_string(),
        };
        vec![line]
    }

    fn of_grant(self, waited: Option<Duration>, created: &[Prefix]) -> Vec<String> {
        let slots = if self.several { "slots" } else { "a slot" };
        let waited = waited.map(|waited| format!("got {slots} after {}s", waited.as_secs()));
        let made = |prefix| format!("created a new semaphore at {prefix}; nobody else uses it");
        waited.into_iter().chain(created.iter().map(made)).collect()
    }

    fn of_loss(self, lost: &Lost) -> String {
        let slot = self.slot(&lost.prefix);
        match lost.why {
            Suspended::SlotLost => format!("{slot} is lost: ending the command"),
            Suspended::Unproved => {
                format!("exec can no longer confirm that {slot} is held: ending the command")
            }
        }
    }

    /// Returns the words for a loss that shows only after the command has ended.
    fn of_late_loss(self, lost: &Lost) -> String {
        let slot = self.slot(&lost.prefix);
        match lost.why {
            Suspended::SlotLost => format!(
                "{slot} was lost before the command had ended: other clients may have had it meanwhile"
            ),
            Suspended::Unproved => format!(
                "exec could not confirm that {slot} was held until the command had ended: other clients may have had it meanwhile"
            ),
        }
    }

    fn of_remains(self, remains: Remains) -> String {
        let what = match (remains.slots, self.several) {
            (true, false) => "the slot stays held until its session has expired",
            (true, true) => "the slots stay held until their sessions have expired",
            (false, _) => "the place in the queue stays until its session has expired",
        };
        let latest = remains.within.as_secs();
        format!("{what}, {latest}s from now at the latest")
    }
}

/// Waits for the slots, and runs the command in them.
async fn run(
    settings: &ExecSettings,
    holder: &mut Holder,
    near: &Notify,
    signals: &mut Signals,
    reporter: &Reporter,
) -> Result<u8, ExecFailure> {
    let start = CommandLaunch::of(settings);
    let (granted, prepared) = wait(settings, holder, &start, near, signals).await?;
    let started_ahead = match prepared {
        Some(prepared) => prepared.run(&granted).await,
        None => None,
    };
    let process = started_ahead
        .map_or_else(|| CommandProcess::start(&start, &granted), Ok)
        .map_err(ExecFailure::System)?;
    holder.started(&granted);
    reporter.service.ready();
    let ended = attend(settings, holder, process, signals, reporter).await;
    reporter.service.status("the command has ended");
    ended
}

/// Runs the command in the slots that this program itself runs in. The `exec` around it, or the operator, ends this
/// program if they are lost.
async fn run_inside(
    settings: &ExecSettings,
    reporter: &Reporter,
    signals: &mut Signals,
) -> Result<u8, ExecFailure> {
    let start = CommandLaunch::of(settings);
    let mut process = CommandProcess::start_inside(&start).map_err(ExecFailure::System)?;
    reporter.service.ready();
    loop {
        tokio::select! {
            code = process.ended() => return code.map_err(ExecFailure::System),
            signal = signals.next() => process.forward(signal),
        }
    }
}

/// Waits for the slots. Once the holder's turn is near, starts the process that only has to be given the slots.
async fn wait(
    settings: &ExecSettings,
    holder: &mut Holder,
    start: &CommandLaunch<'_>,
    near: &Notify,
    signals: &mut Signals,
) -> Result<(plan::Start, Option<Prepared>), ExecFailure> {
    let mut prepared = None;
    let patience = settings.patience.unwrap_or(Duration::MAX);
    let waited = timeout(patience, async {
        let acquire = holder.acquire();
        pin!(acquire);
        loop {
            tokio::select! {
                biased;
                // If a signal asks to end in the moment in which a slot is granted, the command is not started.
                signal = signals.asks_to_end() => return Err(ExecFailure::Interrupted(signal)),
                granted = &mut acquire => return Ok(granted?),
                // A process in the foreground is not prepared early, because the terminal would also signal or stop
                // it. A start that fails is tried again once there are slots.
                () = near.notified(), if !settings.foreground && prepared.is_none() => {
                    prepared = Prepared::start(start).ok();
                }
            }
        }
    });
    match waited.await {
        Ok(granted) => Ok((granted?, prepared)),
        Err(_) => Err(out_of_patience(settings.patience, holder)),
    }
}

/// Returns the error for slots that were not granted within the time to wait.
pub(crate) fn out_of_patience(patience: Option<Duration>, holder: &Holder) -> ExecFailure {
    match (holder.why_waiting(), patience) {
        (AcquireError::Taken(missing), Some(patience)) => {
            ExecFailure::OutOfPatience { missing, patience }
        }
        (why, _) => ExecFailure::NoSlot(why),
    }
}

/// Attends to the process until it has ended.
async fn attend(
    settings: &ExecSettings,
    holder: &mut Holder,
    mut process: CommandProcess,
    signals: &mut Signals,
    reporter: &Reporter,
) -> Result<u8, ExecFailure> {
    let lost = loop {
        tokio::select! {
            code = process.ended() => return code.map_err(ExecFailure::System),
            lost = holder.hold() => break lost,
            signal = signals.next() => process.forward(signal),
        }
    };
    process.forward(Signal::TERM);
    let killed = Instant::now() + settings.slots.grace;
    let line = ReportWording::of(settings).of_loss(&lost);
    reporter.stderr.say(&line);
    reporter.service.status(&line);
    loop {
        tokio::select! {
            code = process.end_by(killed) => {
                return Err(ExecFailure::Lost(code.map_err(ExecFailure::System)?));
            }
            // Somebody may want the process to end sooner.
            signal = signals.next() => process.forward(signal),
        }
    }
}

/// Gives back the slots, after their cooldown if the process has run; reports what can't be given back.
pub(crate) async fn leave(
    words: ReportWording,
    holder: &mut Holder,
    signals: &mut Signals,
    stderr: &Stderr,
) {
    holder.finished();
    // Signals that came with the end of the command were meant for it.
    signals.forget();
    let begun = Moment::now();
    let (why, advice) = loop {
        tokio::select! {
            // A signal does not interrupt a release that is complete.
            biased;
            released = holder.release() => match released {
                Ok(()) => return,
                Err(error) => break (error.to_string(), advice_on(&error.why)),
            },
            signal = signals.asks_to_end() => {
                if holder.cools_until().is_some() || Moment::now().since(begun) > SIGNAL_GRACE {
                    break (format!("ended by signal {}", signal.as_raw()), String::new());
                }
            }
        }
    };
    if let Some(remains) = holder.remains() {
        stderr.say(&format!("{why}: {}{advice}", words.of_remains(remains)));
    }
}
