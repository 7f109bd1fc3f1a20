//! Why there is no slot, or none yet.

use super::Settings;
use crate::{Agreement, Lock, Prefix, Reading, lock::Unreadable, plan::Taker};
use consul_client::{self as consul, SessionId};

/// How many holders a message names.
const NAMED: usize = 5;

/// Why there is no slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Others hold the slots, or come first.
    #[error("no slot of {prefix} is free: {holders}")]
    Taken {
        /// The prefix.
        prefix: Prefix,
        /// Who holds them, for people.
        holders: String,
    },
    /// Consul does not answer, or has no leader.
    #[error(transparent)]
    Unreachable(consul::Error),
    /// Consul answers with a refusal.
    #[error(transparent)]
    Refused(consul::Error),
    /// Nobody uses the prefix, but [`Settings::must_exist`] is set.
    #[error("there is no semaphore at {0}: nobody uses this prefix")]
    Absent(Prefix),
    /// Others use another limit.
    #[error(
        "the limit of {prefix} is {theirs} in Consul, not {ours}: all who use the prefix must have the same limit"
    )]
    Limit {
        /// The prefix.
        prefix: Prefix,
        /// The limit that was asked for.
        ours: u32,
        /// The limit in Consul.
        theirs: u32,
    },
    /// The prefix is used for something else.
    #[error("{prefix}/.lock: {why}")]
    Unusable {
        /// The prefix.
        prefix: Prefix,
        /// Why.
        why: Unreadable,
    },
}

impl AcquireError {
    /// Whether waiting may help against this error: it may if no server answers, none leads, or one fails.
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

    /// Whether the prefix is used in another way than these settings say: all users must agree.
    pub(super) fn conflict(
        settings: &Settings,
        reading: Option<&Reading>,
        agreement: Option<Agreement>,
    ) -> Option<Self> {
        let prefix = settings.prefix.clone();
        match (reading.map(Reading::lock), agreement) {
            // A key that was left behind is removed after the lock-delay.
            (Some(Lock::Unreadable(why)), _) if !matches!(why, Unreadable::LeftOver { .. }) => {
                let why = why.clone();
                Some(Self::Unusable { prefix, why })
            }
            (_, Some(Agreement::Conflict { theirs })) => Some(Self::Limit {
                prefix,
                ours: settings.limit,
                theirs,
            }),
            _ => None,
        }
    }
}

/// Whether a slot is blocked only by what a dead holder has left, which is removed after the lock-delay. A holder
/// that does not wait for slots waits for that, too: otherwise nobody might ever remove it.
pub(super) fn rests(reading: &Reading) -> bool {
    match reading.lock() {
        Lock::Unreadable(Unreadable::LeftOver { .. }) => true,
        Lock::Semaphore { body, .. } => {
            let live = body.held() - reading.dead_holders().len();
            body.room() == 0 && live < usize::try_from(body.limit()).unwrap_or(usize::MAX)
        }
        _ => false,
    }
}

/// The holders of the slots, for people.
pub(super) fn holders(reading: Option<&Reading>) -> String {
    let Some(reading) = reading else {
        return "the holders are unknown".to_owned();
    };
    let (limit, holders): (_, Vec<_>) = match reading.lock() {
        Lock::Semaphore { body, .. } if body.room() > 0 => {
            return "others that were queued before wait, too".to_owned();
        }
        Lock::Semaphore { body, .. } => (body.limit(), body.holders().collect()),
        Lock::Mutex { holder, .. } if holder.is_none() => {
            return "its lock-delay runs".to_owned();
        }
        Lock::Mutex { holder, .. } => (1, holder.iter().collect()),
        Lock::Absent { .. } | Lock::Unreadable(_) => return "nobody holds one".to_owned(),
    };
    let name = |session: &SessionId| Taker::new(session, reading.contender(session)).describe(None);
    let held = holders.len();
    let mut named: Vec<_> = holders.into_iter().take(NAMED).map(name).collect();
    if held > NAMED {
        named.push(format!("{} more", held - NAMED));
    }
    format!("{held} of {limit} held, by {}", named.join("; by "))
}
