//! A command in a slot: like `consul lock`, with a [`consul_semaphore::holder`].
//!
//! | file | subject |
//! |---|---|
//! | `process` | the process and its group: started, signalled, ended |
//! | `guard` | what ends that group when this program can't |
//! | `signals` | the signals that this program receives |
//! | `failure` | why there is no exit code of the command, and which one there is instead |

mod failure;
mod guard;
mod process;
mod signals;

use std::{ffi::OsString, time::Duration};

use consul_client::{self as consul, Client, clock::Moment};
use consul_semaphore::{
    OnSlotLost,
    holder::{self, AcquireError, Holder, Notice, Remains},
    plan::Suspended,
};
use tokio::time::sleep;

pub(crate) use self::{
    failure::{Failure, MACHINE},
    guard::guard,
    process::become_command,
};
use self::{
    process::{Process, Start},
    signals::Signals,
};
use crate::stderr::Stderr;

/// How long after the command's end a signal may be meant for the command: systemd and terminals send it to both.
const GRACE: Duration = Duration::from_secs(1);

/// The command to run, and its slot.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The slot.
    pub(crate) slot: holder::Settings,
    /// How long to wait for it; `None`: without a limit.
    pub(crate) patience: Option<Duration>,
    /// Whether only what goes wrong is reported.
    pub(crate) quiet: bool,
    /// Whether the command stays in this program's process group, so that it can read the terminal.
    pub(crate) foreground: bool,
    /// Environment variables that the command does not get.
    pub(crate) withheld: &'static [&'static str],
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
}

/// Runs a command in a slot and returns the exit code: the command's own, 128 and the signal's number if a signal
/// ended it, or a [`Failure`]'s. Messages go to `stderr`. Must be called on the process's main thread and with a
/// single-threaded runtime: the command ends with the thread that started it.
pub(crate) async fn exec(settings: Settings, consul: consul::Config, stderr: &Stderr) -> u8 {
    let failed = |failure: Failure| {
        stderr.say(&failure.to_string());
        failure.code()
    };
    let (mut signals, consul) = match set_up(consul) {
        Ok(both) => both,
        Err(failure) => return failed(failure),
    };
    let mut holder = hold(&settings, consul.clone(), stderr);
    let ran = run(&settings, &mut holder, &mut signals, stderr).await;
    let code = ran.unwrap_or_else(failed);
    leave(&mut holder, &mut signals, stderr).await;
    consul.log_out().await;
    code
}

fn set_up(consul: consul::Config) -> Result<(Signals, Client), Failure> {
    let signals = Signals::listen().map_err(Failure::System)?;
    Ok((signals, Client::new(consul)?))
}

/// A holder that reports on stderr what happens.
fn hold(settings: &Settings, consul: Client, stderr: &Stderr) -> Holder {
    let (prefix, stderr) = (settings.slot.prefix.clone(), stderr.clone());
    let quiet = settings.quiet;
    let on_notice = move |notice| {
        let progress = matches!(
            notice,
            Notice::Waiting { .. } | Notice::Granted { .. } | Notice::Resting
        );
        if quiet && progress {
            return;
        }
        stderr.say(&match notice {
            Notice::Waiting { holders } => format!("waiting for a slot of {prefix}: {holders}"),
            Notice::Granted {
                waited: Some(waited),
                ..
            } => {
                format!("got a slot after {}s", waited.as_secs())
            }
            Notice::Granted { created: true, .. } => {
                format!("made a new semaphore at {prefix}; nobody else uses it")
            }
            Notice::Granted { .. } => return,
            Notice::Resting => {
                format!("waiting for the lock-delay of a dead holder at {prefix}")
            }
            Notice::Trouble { error, holding } if holding => {
                format!("{error}; the command continues for now")
            }
            Notice::Trouble { error, .. } => format!("{error}; waiting"),
            Notice::Regained => "the slot was lost, and the command has a slot again".to_owned(),
            Notice::Unheld => {
                "the slot is lost, and no other one is free: the command continues".to_owned()
            }
        });
    };
    Holder::new(settings.slot.clone(), consul, on_notice)
}

/// Waits for a slot, and runs the command in it.
async fn run(
    settings: &Settings,
    holder: &mut Holder,
    signals: &mut Signals,
    stderr: &Stderr,
) -> Result<u8, Failure> {
    let patience = async {
        match settings.patience {
            Some(patience) => sleep(patience).await,
            None => std::future::pending().await,
        }
    };
    let granted = tokio::select! {
        granted = holder.acquire() => granted?,
        signal = signals.asks_to_end() => return Err(Failure::Interrupted(signal)),
        () = patience => return Err(out_of_patience(settings, holder)),
    };
    let process = Process::start(&Start {
        command: &settings.command,
        withheld: settings.withheld,
        slot: &granted.slot,
        foreground: settings.foreground,
        // A command that may continue without a slot may also continue without this program.
        ends_with_us: settings.slot.on_slot_lost != OnSlotLost::Continue,
    })
    .map_err(Failure::System)?;
    holder.started(&granted);
    attend(settings, holder, process, signals, stderr).await
}

/// The error if there was no slot within the time to wait.
fn out_of_patience(settings: &Settings, holder: &Holder) -> Failure {
    match (holder.why_waiting(), settings.patience) {
        (AcquireError::Taken { prefix, holders }, Some(patience)) => Failure::OutOfPatience {
            prefix,
            patience,
            holders,
        },
        (why, _) => Failure::NoSlot(why),
    }
}

/// Attends to the process until it has ended.
async fn attend(
    settings: &Settings,
    holder: &mut Holder,
    mut process: Process,
    signals: &mut Signals,
    stderr: &Stderr,
) -> Result<u8, Failure> {
    let why = loop {
        tokio::select! {
            code = process.ended() => return code.map_err(Failure::System),
            why = holder.hold() => break why,
            signal = signals.next() => process.forward(signal),
        }
    };
    process.ask_to_end();
    stderr.say(match why {
        Suspended::SlotLost => "the slot is lost: ending the command",
        Suspended::Unproved => "nothing shows any more that the slot is held: ending the command",
    });
    let code = process.end_within(settings.slot.grace).await;
    Err(Failure::Lost(code.map_err(Failure::System)?))
}

/// Gives back the slot, after its cooldown if the process has run; reports what can't be given back.
async fn leave(holder: &mut Holder, signals: &mut Signals, stderr: &Stderr) {
    holder.finished();
    // Signals that came with the end of the command were meant for it.
    signals.forget();
    let begun = Moment::now();
    let why = loop {
        tokio::select! {
            // A signal does not interrupt a release that is complete.
            biased;
            released = holder.release() => match released {
                Ok(()) => return,
                Err(error) => break error.to_string(),
            },
            signal = signals.asks_to_end() => {
                if holder.cools_until().is_some() || Moment::now().since(begun) > GRACE {
                    break format!("ended by signal {}", signal.as_raw());
                }
            }
        }
    };
    if let Some(Remains { slot, within }) = holder.remains() {
        let what = if slot {
            "the slot stays held"
        } else {
            "the place in the queue stays"
        };
        let latest = within.as_secs();
        stderr.say(&format!(
            "{why}: {what} until its session has expired, {latest}s from now at the latest"
        ));
    }
}
