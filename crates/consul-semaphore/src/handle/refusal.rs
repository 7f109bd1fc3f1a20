//! Says why there is no slot, and what to do about it.

use std::{fmt, time::Duration};

use crate::{
    holder::{AcquireError, HolderSettings},
    lock::Unreadable,
};
use consul_client as consul;

/// The error of a call that gets no slot. The text says why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoSlot {
    /// The reason.
    pub why: AcquireError,
    /// The time for which the call waited, if it was all the time that it had.
    pub waited: Option<Duration>,
    /// Advice about the error: a sentence, or nothing.
    pub advice: String,
}

impl std::error::Error for NoSlot {}

impl fmt::Display for NoSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            why,
            waited,
            advice,
        } = self;
        if let Some(waited) = waited {
            write!(f, "not within {waited:?}: ")?;
        }
        write!(f, "{why}")?;
        if !advice.is_empty() {
            write!(f, ". {advice}")?;
        }
        Ok(())
    }
}

impl NoSlot {
    pub(super) fn new(
        why: AcquireError,
        waited: Option<Duration>,
        settings: &HolderSettings,
    ) -> Self {
        let advice = advice(&why, settings);
        Self {
            why,
            waited,
            advice,
        }
    }

    /// Returns the error if the task has ended with its runtime.
    pub(super) fn ended() -> Self {
        Self {
            why: AcquireError::Unreachable(runtime_ended()),
            waited: None,
            advice: String::new(),
        }
    }

    /// Whether others hold the slots or come first, and it is worth trying again later.
    pub fn is_taken(&self) -> bool {
        matches!(self.why, AcquireError::Taken(_))
    }
}

/// Returns the error of a request that can't be sent, because the runtime has ended.
pub(super) fn runtime_ended() -> consul::Error {
    let ended = "the tokio runtime in which the semaphore was built has ended";
    consul::Error::NotSent(ended.to_owned())
}

/// Returns advice about an error, or an empty text.
fn advice(error: &AcquireError, settings: &HolderSettings) -> String {
    match error {
        AcquireError::Refused(error) => advice_on(error, settings),
        AcquireError::Absent(_) => {
            "Correct the prefix. If it is right, leave must_exist out: a semaphore without a ConsulSemaphore \
             exists only while somebody uses it"
                .to_owned()
        }
        AcquireError::Limit { prefix, theirs, .. } => {
            format!("Set the limit to {theirs}, or delete {prefix}/.lock once nobody uses it")
        }
        AcquireError::Unusable { why, .. } => match why {
            Unreadable::Mutex => "Build the semaphore with mutex, or use another prefix",
            Unreadable::Semaphore => "Build the semaphore with limit instead of mutex, or use another prefix",
            _ => "Use another prefix, or delete the key if nobody needs it",
        }
        .to_owned(),
        AcquireError::Taken(_) | AcquireError::Unreachable(_) => String::new(),
    }
}

/// Returns advice about a refusal of Consul; an empty text about other errors.
pub(super) fn advice_on(refusal: &consul::Error, settings: &HolderSettings) -> String {
    match refusal {
        refusal if refusal.is_unknown_token() => {
            "Consul does not know the token: it was deleted, has expired, or belongs to another Consul. Set a token \
             that this Consul knows, for example in CONSUL_HTTP_TOKEN or CONSUL_HTTP_TOKEN_FILE"
                .to_owned()
        }
        consul::Error::Denied(_) => format!("Give the token these rules: {}", rules(settings)),
        refusal => match refusal.shortest_ttl() {
            Some(shortest) => format!(
                "Set a ttl of at least {} s, the session_ttl_min of this Consul",
                shortest.as_secs_f64().ceil()
            ),
            None => String::new(),
        },
    }
}

/// Returns the ACL rules that a program with these settings needs, in Consul's own language.
fn rules(settings: &HolderSettings) -> String {
    let semaphores = settings.request.semaphores().iter();
    let keys = semaphores.map(|of| {
        format!(
            r#"key_prefix "{}" {{ policy = "write" }}"#,
            of.prefix.folder()
        )
    });
    let mut rules: Vec<_> = keys.collect();
    match &settings.session.node {
        Some(node) => rules.extend(
            ["node", "session"].map(|of| format!(r#"{of} "{node}" {{ policy = "write" }}"#)),
        ),
        None => rules.push(r#"session "<the agent's node>" { policy = "write" }"#.to_owned()),
    }
    rules.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, holder::Request, samples};

    fn settings(node: Option<&str>) -> HolderSettings {
        let mut settings = samples::program(
            Request::one("locks/db".parse().unwrap(), Mode::Semaphore, 3).unwrap(),
        );
        settings.session.node = node.map(str::to_owned);
        settings
    }

    #[test]
    fn who_is_denied_is_told_the_rules_that_it_needs() {
        let denied = AcquireError::Refused(consul::Error::Denied("Permission denied".to_owned()));
        let told = NoSlot::new(denied.clone(), None, &settings(Some("team-a"))).to_string();
        assert_eq!(
            told,
            r#"Consul denies it: Permission denied. Give the token these rules: key_prefix "locks/db/" { policy = "write" }  node "team-a" { policy = "write" }  session "team-a" { policy = "write" }"#
        );
        let told = NoSlot::new(denied, None, &settings(None)).to_string();
        assert!(told.contains("the agent's node"), "{told}");
    }

    #[test]
    fn another_limit_is_told_with_the_key_that_says_so() {
        let conflict = AcquireError::Limit {
            prefix: "locks/db".parse().unwrap(),
            ours: 3,
            theirs: 2,
        };
        let told = NoSlot::new(conflict, None, &settings(None)).to_string();
        assert!(
            told.contains("the limit of locks/db is 2 in Consul, not 3"),
            "{told}"
        );
        assert!(
            told.ends_with("Set the limit to 2, or delete locks/db/.lock once nobody uses it"),
            "{told}"
        );
    }
}
