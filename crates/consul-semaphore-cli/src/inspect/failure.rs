//! Describes why a command can't do what it was asked to do, with its exit code.

use std::io;

use command_line::page;
use consul_client::{self as consul, SessionId, text::one_line};
use consul_semaphore::Prefix;

use crate::exec::{EXIT_MACHINE, EXIT_SLOT_LOST, UNKNOWN_TOKEN};

/// Largest part of a message from Consul that is repeated, in characters.
const LONGEST_SHOWN_MESSAGE: usize = 600;

/// Failure of a command that shows or releases slots. The exit codes are those of `exec`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InspectFailure {
    /// Consul refuses the request or does not answer.
    #[error("{}{}", one_line(&.0.to_string(), LONGEST_SHOWN_MESSAGE), advice(.0))]
    Consul(#[from] consul::Error),
    /// The settings for Consul are wrong.
    #[error(transparent)]
    Config(#[from] consul::ConfigError),
    /// The prefix has no semaphore.
    #[error(
        "there is no semaphore at {0}: nobody uses this prefix. `consul-semaphore list` shows all semaphores"
    )]
    Nobody(Prefix),
    /// The slot was not released, for this reason.
    #[error("not released: {0}")]
    NotReleased(String),
    /// The slot was lost before, for this reason.
    #[error("the slot was lost, and other clients may have had it meanwhile: {0}")]
    Lost(String),
    /// The session with this id holds a slot that `acquire` did not take.
    #[error(
        "`acquire` did not take the slot of session {session}, so its holder has to release it. To take the slot from its \
         holder, run: consul-semaphore release PREFIX {session}",
        session = .0.shown()
    )]
    NoLease(SessionId),
    /// The slots that are named were not taken together.
    #[error(
        "the slots in CONSUL_SEMAPHORE_SLOTS do not come from one `acquire`: set the variables as `acquire` printed them"
    )]
    SeveralLeases,
    /// The answer can't be written.
    #[error("can't write to stdout: {0}")]
    Output(io::Error),
    /// A problem of this machine occurred.
    #[error("{0}")]
    System(io::Error),
}

impl InspectFailure {
    /// Returns the exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Consul(error) if error.may_pass() => 69,
            Self::Consul(consul::Error::AnswerTooLarge(_) | consul::Error::UnknownDatacenter)
            | Self::Config(_)
            | Self::Nobody(_) => 78,
            Self::Consul(_) => 77,
            Self::NotReleased(_) | Self::NoLease(_) | Self::SeveralLeases => 1,
            Self::Lost(_) => EXIT_SLOT_LOST,
            Self::Output(_) | Self::System(_) => EXIT_MACHINE,
        }
    }
}

/// Returns what the user can do about the error.
fn advice(error: &consul::Error) -> &'static str {
    match error {
        error if error.is_unknown_token() => UNKNOWN_TOKEN,
        consul::Error::Denied(_) => {
            concat!(
                ". Give the token the rules that this page names: ",
                page!("slots.md")
            )
        }
        consul::Error::Unreachable { .. } => {
            ". Check the address in --consul-address or CONSUL_HTTP_ADDR"
        }
        consul::Error::UnknownDatacenter => ". Check --consul-datacenter",
        consul::Error::AnswerTooLarge(_) => {
            " for all keys below the prefix. Use a longer prefix, or delete the keys that do not belong to a semaphore"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_the_exit_code_of_exec_and_says_what_to_do() {
        let denied = |text: &str| consul::Error::Denied(text.to_owned());
        let unreachable = consul::Error::Unreachable {
            message: "127.0.0.1:1: refused".to_owned(),
            undecided: false,
        };
        for (failure, code, words) in [
            (unreachable.into(), 69, "CONSUL_HTTP_ADDR"),
            (denied("no").into(), 77, "docs/slots.md"),
            (denied("ACL not found").into(), 77, "--consul-token-file"),
            (
                consul::Error::AnswerTooLarge(16 << 20).into(),
                78,
                "a longer prefix",
            ),
            (InspectFailure::Nobody("a/b".parse().unwrap()), 78, "list"),
            (
                InspectFailure::NotReleased("no".to_owned()),
                1,
                "not released",
            ),
        ] {
            let failure: InspectFailure = failure;
            assert_eq!(failure.code(), code, "{failure}");
            assert!(failure.to_string().contains(words), "{failure}");
        }
        let forged = InspectFailure::from(denied("a\n\u{1b}[2Jb"));
        assert!(!forged.to_string().contains(char::is_control));
    }
}
