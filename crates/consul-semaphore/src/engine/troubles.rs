//! Keeps which kinds of calls to Consul fail, and when they are tried again.

use super::Now;
use crate::holding::Setback;
use consul_client::{self as consul, clock::Moment};

/// Failure that keeps Consul from being used now.
#[derive(Clone, Debug)]
pub struct ConsulTrouble {
    /// Last error: Consul's answer, or the reason why there was none.
    pub error: consul::Error,
    /// Time since which every call of this kind has failed.
    pub since: Moment,
    /// Pause before the next try.
    pub(crate) setback: Setback,
}

/// Troubles by the kind of call. Only a success of the same kind ends a trouble: while one kind fails, the others
/// work and say nothing about it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Troubles {
    /// Trouble with reading the prefix.
    pub(super) reading: Option<ConsulTrouble>,
    /// Trouble with asking for the owners of its contenders' sessions.
    pub(super) resolving: Option<ConsulTrouble>,
    /// Trouble with transactions and with making sessions.
    pub(super) writing: Option<ConsulTrouble>,
}

impl Troubles {
    fn all(&self) -> impl Iterator<Item = &ConsulTrouble> {
        let Self {
            reading,
            resolving,
            writing,
        } = self;
        [reading, resolving, writing].into_iter().flatten()
    }

    /// Returns the trouble to tell people of: the one that comes first in a pass.
    pub(super) fn first(&self) -> Option<&ConsulTrouble> {
        self.all().next()
    }

    /// Returns the time since which some kind of call has failed without a break.
    pub(super) fn since(&self) -> Option<Moment> {
        self.all().map(|trouble| trouble.since).min()
    }

    /// Returns when each failing kind of call is tried again.
    pub(super) fn due(&self) -> impl Iterator<Item = Moment> {
        self.all().map(|trouble| trouble.setback.until)
    }

    /// Returns whether asking for the owners of contenders fails.
    pub(super) fn resolving_fails(&self) -> bool {
        self.resolving.is_some()
    }

    /// Returns whether writing fails.
    pub(super) fn writing_fails(&self) -> bool {
        self.writing.is_some()
    }

    /// Returns how often each kind of call has failed in a row.
    #[cfg(test)]
    pub(crate) fn attempts(&self) -> [Option<u32>; 3] {
        let Self {
            reading,
            resolving,
            writing,
        } = self;
        [reading, resolving, writing]
            .map(|trouble| trouble.as_ref().map(|trouble| trouble.setback.attempts()))
    }
}

/// Records one more failure of a kind of call.
pub(super) fn note_failure(trouble: &mut Option<ConsulTrouble>, error: consul::Error, now: Now) {
    let before = trouble.take();
    let (since, setback) = match &before {
        Some(before) => (before.since, Some(&before.setback)),
        None => (now.moment, None),
    };
    *trouble = Some(ConsulTrouble {
        error,
        since,
        setback: Setback::with_jitter(setback, now.moment, now.jitter),
    });
}
