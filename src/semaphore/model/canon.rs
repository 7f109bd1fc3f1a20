//! When two states are the same: names and numbers that are only ever compared count by their
//! order, so that a state that differs from another in nothing else is not looked at again.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{clock::Moment, consul::SessionId};

/// Goes over a state twice: first it collects what is to be ranked, then it hashes the ranks.
#[derive(Default)]
pub(super) struct Canon {
    sessions: Vec<SessionId>,
    indexes: Vec<u64>,
    moments: Vec<Moment>,
    versions: Vec<u64>,
    clocks: Vec<i64>,
    /// `None` while it collects.
    hasher: Option<DefaultHasher>,
}

/// A hash of what `trace` goes over. It must go the same way both times.
pub(super) fn digest(trace: impl Fn(&mut Canon)) -> u64 {
    let mut canon = Canon::default();
    trace(&mut canon);
    canon.sessions = canon.sessions();
    rank(&mut canon.indexes);
    rank(&mut canon.moments);
    rank(&mut canon.versions);
    rank(&mut canon.clocks);
    canon.hasher = Some(DefaultHasher::new());
    trace(&mut canon);
    canon.hasher.map_or(0, |hasher| hasher.finish())
}

fn rank<T: Ord>(values: &mut Vec<T>) {
    values.sort_unstable();
    values.dedup();
}

fn note<T: Ord + Clone>(hasher: &mut Option<DefaultHasher>, known: &mut Vec<T>, value: &T) {
    match hasher {
        None => known.push(value.clone()),
        Some(hasher) => known.binary_search(value).ok().hash(hasher),
    }
}

impl Canon {
    /// Something that counts by itself.
    pub(super) fn word(&mut self, word: &impl Hash) {
        if let Some(hasher) = &mut self.hasher {
            word.hash(hasher);
        }
    }

    /// A session: a later one has a greater name.
    pub(super) fn session(&mut self, session: &SessionId) {
        note(&mut self.hasher, &mut self.sessions, session);
    }

    /// An index of Consul's.
    pub(super) fn index(&mut self, index: u64) {
        note(&mut self.hasher, &mut self.indexes, &index);
    }

    /// A moment that is compared with others, and not with the present.
    pub(super) fn moment(&mut self, moment: Moment) {
        note(&mut self.hasher, &mut self.moments, &moment);
    }

    /// A Job's version.
    pub(super) fn version(&mut self, version: u64) {
        note(&mut self.hasher, &mut self.versions, &version);
    }

    /// A time on the wall clock, which only orders Jobs.
    pub(super) fn clock(&mut self, clock: i64) {
        note(&mut self.hasher, &mut self.clocks, &clock);
    }

    /// A key: the lock key, or the contender key of a session.
    pub(super) fn key(&mut self, key: &str) {
        match key.rsplit('/').next() {
            Some(name) if name != ".lock" => self.session(&name.into()),
            _ => self.word(&key),
        }
    }

    /// The sessions that were named so far; all of them when it hashes.
    pub(super) fn sessions(&self) -> Vec<SessionId> {
        let mut sessions = self.sessions.clone();
        rank(&mut sessions);
        sessions
    }
}
