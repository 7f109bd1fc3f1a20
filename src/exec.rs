//! One process in a slot: what `consul lock` does, around the same [engine](consul_semaphore::engine) as the
//! operator's.
//!
//! To the algorithm the process is a Job: idle while it waits, running once it is started, finished when
//! it has ended. So the order, the limit, who is pruned and what becomes of a lost slot are decided
//! where they are decided for Jobs, and nothing here asks a question of its own about slots.
//!
//! | file | subject |
//! |---|---|
//! | `contender` | what is waited for, and when |
//! | `calls` | what the engine asks for, done for the one process |
//! | `leaving` | how what is held is given back, and what is left behind |
//! | `process` | the process and its group: started, signalled, ended |
//! | `guard` | what ends that group when this program can't |
//! | `signals` | what this program is told by signals |
//! | `failure` | why there is no exit code of the process's own, and which one there is instead |
//! | `held` | whether a sequencer is still good |

mod calls;
mod contender;
mod failure;
mod guard;
mod held;
mod leaving;
mod process;
mod signals;

use std::{ffi::OsString, time::Duration};

use tokio::time::sleep;

use self::{
    contender::Contender,
    process::{Process, Start},
    signals::Signals,
};
pub use self::{
    failure::{Failure, LOST, MACHINE},
    guard::guard,
    held::{Sequencer, Verdict, held},
    process::become_command,
};
use crate::stderr::Stderr;
use consul_client::{self as consul, Client};
use consul_semaphore::{Mode, Prefix};
use consul_semaphore::{identity, plan::Suspended};

/// What is to be run, and in which slot.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the semaphore lives in Consul.
    pub prefix: Prefix,
    /// How the slots stand in Consul.
    pub mode: Mode,
    /// How many may hold a slot at once: the same for all who use the prefix; 1 for a mutex.
    pub limit: u32,
    /// Higher goes first.
    pub priority: i32,
    /// How long to wait for a slot.
    pub patience: Patience,
    /// What this host is called in Consul, for people: only what a Consul key may have, no slash.
    pub host: String,
    /// The external node that owns the session; `None`: the node of the agent that is asked, whose
    /// checks end the session too.
    pub node: Option<String>,
    /// How long the session outlives its last renewal.
    pub ttl: Duration,
    /// How long a dead holder's slot rests before it is used.
    pub lock_delay: Duration,
    /// How long the slot stays held once the process has ended.
    pub cooldown: Duration,
    /// Whether slots go by priority and age among all who wait at the prefix.
    pub fair: bool,
    /// Whether the process goes on when its slot is lost and there is no other one.
    pub goes_on: bool,
    /// How long after SIGTERM a process that must end is killed; less than half the TTL.
    pub kill_after: Duration,
    /// Whether the process stays in this program's process group, so that it can read the terminal.
    pub foreground: bool,
    /// Variables of the environment that the command does not find.
    pub withheld: &'static [&'static str],
    /// The command and its arguments.
    pub command: Vec<OsString>,
}

/// How long to wait for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As long as it takes.
    Endless,
    /// So long.
    Until(Duration),
    /// Not at all.
    None,
}

/// Runs a command in a slot and gives the exit code: the command's own, 128 and the signal's number if
/// a signal ended it, or a [`Failure`]'s. What is said to people goes to `stderr`. Must be called on the
/// process's main thread and with a runtime that runs nothing elsewhere: the command ends with the thread
/// that started it.
pub async fn exec(settings: Settings, consul: consul::Config, stderr: &Stderr) -> u8 {
    let failed = |failure: Failure| {
        stderr.say(&failure.to_string());
        failure.code()
    };
    let (mut signals, consul) = match set_up(consul) {
        Ok(both) => both,
        Err(failure) => return failed(failure),
    };
    let mut contender = Contender::new(&settings, consul.clone(), stderr.clone());
    let ran = run(&settings, &mut contender, &mut signals).await;
    let code = ran.unwrap_or_else(failed);
    contender.leave(&mut signals).await;
    consul.log_out().await;
    code
}

fn set_up(consul: consul::Config) -> Result<(Signals, Client), Failure> {
    let signals = Signals::listen().map_err(Failure::System)?;
    Ok((signals, Client::new(consul)?))
}

/// The name of a host as it can stand in a session's name.
pub fn host(name: &str) -> String {
    identity::name_of(name)
}

/// Waits for a slot, and runs the command in it.
async fn run(
    settings: &Settings,
    contender: &mut Contender,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let patience = async {
        match settings.patience {
            Patience::Until(patience) => sleep(patience).await,
            Patience::Endless | Patience::None => std::future::pending().await,
        }
    };
    let slot = tokio::select! {
        granted = contender.acquire() => granted?,
        signal = signals.asks_to_end() => return Err(Failure::Interrupted(signal)),
        () = patience => return Err(contender.out_of_patience()),
    };
    let process = Process::start(&Start {
        command: &settings.command,
        withheld: settings.withheld,
        slot: &slot,
        foreground: settings.foreground,
        // One that may go on without a slot may go on without this program.
        ends_with_us: !settings.goes_on,
    })
    .map_err(Failure::System)?;
    contender.runs(&slot);
    attend(settings, contender, process, signals).await
}

/// Sees to the process until it has ended.
async fn attend(
    settings: &Settings,
    contender: &mut Contender,
    mut process: Process,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let why = {
        let mut hold = std::pin::pin!(contender.hold());
        loop {
            tokio::select! {
                code = process.ended() => return code.map_err(Failure::System),
                why = &mut hold => break why,
                signal = signals.next() => process.forward(signal),
            }
        }
    };
    process.ask_to_end();
    contender.stderr.say(match why {
        Suspended::SlotLost => "the slot is lost: the command is ended",
        Suspended::Unproved => "nothing shows any more that the slot is held: the command is ended",
    });
    let code = process.end_within(settings.kill_after).await;
    Err(Failure::Lost(code.map_err(Failure::System)?))
}
