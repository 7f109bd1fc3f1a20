//! Describes why `exec` has no exit code of the command to return, and which exit code it returns instead.

use std::{io, time::Duration};

use command_line::page;
use consul_client as consul;
use consul_semaphore::{
    Prefix,
    holder::{AcquireError, Missing},
    lock::Unreadable,
};
use rustix::process::Signal;

use crate::held::NotTold;

/// The exit code for a lost slot.
pub(crate) const EXIT_SLOT_LOST: u8 = 79;

/// The exit code for a problem of this machine.
pub(crate) const EXIT_MACHINE: u8 = 71;

/// Advice about a token that Consul does not know.
pub(crate) const UNKNOWN_TOKEN: &str = ". Consul does not know the token: it was deleted, has expired, or belongs to \
     another Consul. Set --consul-token-file (CONSUL_HTTP_TOKEN_FILE) or CONSUL_HTTP_TOKEN to a token that this \
     Consul knows";

/// Reason why a command did not run to its own end. The exit codes are those of sysexits.h, where it has a fitting
/// one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecFailure {
    /// No slot could be taken.
    #[error("{0}{advice}", advice = advice(.0))]
    NoSlot(#[from] AcquireError),
    /// The slots were not granted within the time that the user allows for waiting.
    #[error("{}", sentences(missing, *patience))]
    OutOfPatience {
        /// Semaphores whose slots were still missing at the end of the wait.
        missing: Vec<Missing>,
        /// Time that `exec` waited.
        patience: Duration,
    },
    /// Consul has no limit for those who go by the one that is there.
    #[error(
        "--limit consul: nobody uses a semaphore at {0}, so Consul has no limit: set a number, or use the prefix of a \
         ConsulSemaphore"
    )]
    NoLimit(Prefix),
    /// The command runs in slots of some of the semaphores that it asks for, and of others it does not.
    #[error(
        "--reentrant: this command runs in a slot of {has}, but not in enough slots of {lacks}: let the outer command ask \
         for all of these slots"
    )]
    Partly {
        /// A semaphore in whose slots the command runs.
        has: Prefix,
        /// A semaphore of which it has too few.
        lacks: Prefix,
    },
    /// Nobody can tell whether the slots are held that the command runs in.
    #[error(
        "--reentrant: can't find out whether the slot that this command runs in is still held: {0}"
    )]
    Unknown(NotTold),
    /// The slot that the command runs in was taken by `acquire`.
    #[error(
        "--reentrant: `acquire` took the slot of {0} that this command runs in, so nobody would end the command when the slot \
         is lost: run it without exec, or release that slot first"
    )]
    Leased(Prefix),
    /// The settings for Consul are wrong.
    #[error(transparent)]
    Config(#[from] consul::ConfigError),
    /// A slot was lost, so `exec` ended the command and returns this exit code.
    #[error("the command was ended because its slot was lost: exit code {0}")]
    Lost(u8),
    /// A signal arrived before a slot was granted.
    #[error("ended by signal {} before it got a slot", .0.as_raw())]
    Interrupted(Signal),
    /// A problem of this machine occurred.
    #[error("{0}")]
    System(io::Error),
}

impl ExecFailure {
    /// Returns the exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::NoSlot(AcquireError::Unreachable(_)) => 69,
            Self::Unknown(NotTold::Consul(error)) if error.may_pass() => 69,
            Self::System(_) => EXIT_MACHINE,
            Self::NoSlot(AcquireError::Taken(_)) => 75,
            Self::NoSlot(
                AcquireError::Refused(
                    consul::Error::AnswerTooLarge(_) | consul::Error::UnknownDatacenter,
                )
                | AcquireError::Absent(_)
                | AcquireError::Limit { .. }
                | AcquireError::Unusable { .. },
            )
            | Self::Config(_)
            | Self::NoLimit(_)
            | Self::Partly { .. }
            | Self::Leased(_)
            | Self::Unknown(NotTold::Key(_) | NotTold::Prefix(_)) => 78,
            Self::NoSlot(AcquireError::Refused(_)) | Self::Unknown(NotTold::Consul(_)) => 77,
            Self::Lost(_) => EXIT_SLOT_LOST,
            // timeout(1) uses the same exit code.
            Self::OutOfPatience { .. } => 124,
            Self::Interrupted(signal) => u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX),
        }
    }
}

fn sentences(missing: &[Missing], patience: Duration) -> String {
    let within = patience.as_secs();
    let sentences = missing
        .iter()
        .map(|missing| format!("{} within {within}s: {}", missing.none(), missing.holders));
    sentences.collect::<Vec<_>>().join("; ")
}

/// Returns what the user can do about the error.
fn advice(error: &AcquireError) -> String {
    match error {
        AcquireError::Refused(error) => advice_on(error),
        AcquireError::Absent(_) => {
            ". Correct the prefix. If it is right, leave --must-exist out: a semaphore without a \
             ConsulSemaphore exists only while somebody uses it"
                .to_owned()
        }
        AcquireError::Limit { prefix, theirs, .. } => {
            format!(". Set the limit to {theirs}, or delete {prefix}/.lock once nobody uses it")
        }
        AcquireError::Unusable { why, .. } => match why {
            Unreadable::Mutex => ". Use the mode mutex, or another prefix",
            Unreadable::Semaphore => ". Leave the mode mutex out, or use another prefix",
            _ => ". Use another prefix, or delete the key if nobody needs it",
        }
        .to_owned(),
        _ => String::new(),
    }
}

/// Returns what the user can do about a refusal by Consul, or nothing for other errors.
pub(super) fn advice_on(refusal: &consul::Error) -> String {
    match refusal {
        refusal if refusal.is_unknown_token() => UNKNOWN_TOKEN.to_owned(),
        consul::Error::Denied(_) => concat!(
            ". Give the token the rules that this page names: ",
            page!("exec.md")
        )
        .to_owned(),
        consul::Error::AnswerTooLarge(_) => {
            ". Use another prefix, or delete the keys below it that do not belong to a semaphore"
                .to_owned()
        }
        consul::Error::UnknownDatacenter => ". Check --consul-datacenter".to_owned(),
        refusal => match refusal.shortest_ttl() {
            Some(shortest) => format!(
                ". Set --ttl (for acquire: --for) to at least {}s, the session_ttl_min of this Consul",
                shortest.as_secs_f64().ceil()
            ),
            None => String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_below_a_prefix_has_the_exit_code_of_the_commands_that_inspect_it() {
        let large = consul::Error::AnswerTooLarge(16 << 20);
        let failure = ExecFailure::from(AcquireError::Refused(large));
        assert_eq!(failure.code(), 78);
        assert!(failure.to_string().contains("another prefix"), "{failure}");
    }
}
