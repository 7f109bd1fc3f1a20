//! Why there is no exit code of the command's own.

use std::{io, time::Duration};

use rustix::process::Signal;

use consul_client as consul;
use consul_semaphore::Prefix;

/// The exit code that says that the slot was lost.
pub const LOST: u8 = 79;

/// The exit code that says that this machine is in the way.
pub const MACHINE: u8 = 71;

/// Why a command was not run to its own end. The exit codes are those of sysexits.h where that has one.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nobody was to be waited for, and there is no slot.
    #[error("no slot of {prefix} is free: {holders}")]
    Taken {
        /// Where.
        prefix: Prefix,
        /// Who holds them.
        holders: String,
    },
    /// There was no slot for as long as was to be waited.
    #[error("no slot of {prefix} within {}s: {holders}", patience.as_secs())]
    OutOfPatience {
        /// Where.
        prefix: Prefix,
        /// How long.
        patience: Duration,
        /// Who holds them.
        holders: String,
    },
    /// Consul does not answer, or has no leader.
    #[error(transparent)]
    Unreachable(consul::Error),
    /// Consul answers, and refuses.
    #[error("{error}{advice}", error = .0, advice = advice(.0))]
    Refused(consul::Error),
    /// The way to Consul is set up wrong.
    #[error(transparent)]
    Config(#[from] consul::ConfigError),
    /// The prefix is used in another way; all who use it must agree.
    #[error("{0}")]
    Conflict(String),
    /// The slot was lost, so the command was ended, with this exit code.
    #[error("the command was ended because its slot was lost: exit code {0}")]
    Lost(u8),
    /// A signal came before there was a slot.
    #[error("ended by signal {} before there was a slot", .0.as_raw())]
    Interrupted(Signal),
    /// This machine is in the way.
    #[error("{0}")]
    System(io::Error),
}

impl Failure {
    /// Tells whether waiting may help against this error: it does where no server answers, none
    /// leads, or one fails.
    pub(super) fn of(error: &consul::Error) -> Self {
        match error {
            consul::Error::LoginFailed(failure) if failure.passing => {
                Self::Unreachable(error.clone())
            }
            consul::Error::Unreachable { .. }
            | consul::Error::NotSent(_)
            | consul::Error::NoLeader { .. }
            | consul::Error::TooManyRequests(_)
            | consul::Error::Unexpected { status: 500.., .. } => Self::Unreachable(error.clone()),
            _ => Self::Refused(error.clone()),
        }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Unreachable(_) => 69,
            Self::System(_) => MACHINE,
            Self::Taken { .. } => 75,
            Self::Refused(_) => 77,
            Self::Conflict(_) | Self::Config(_) => 78,
            Self::Lost(_) => LOST,
            // As timeout(1) has it.
            Self::OutOfPatience { .. } => 124,
            Self::Interrupted(signal) => u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX),
        }
    }
}

/// What to do about a refusal.
fn advice(error: &consul::Error) -> &'static str {
    match error {
        error if error.is_unknown_token() => {
            ". Consul does not know the token: it was deleted, has expired, or is another Consul's. Bring one that \
             this Consul knows: --consul-token-file (CONSUL_HTTP_TOKEN_FILE), or CONSUL_HTTP_TOKEN"
        }
        consul::Error::Denied(_) => ". Give the token the rules that docs/exec.md names",
        _ => "",
    }
}
