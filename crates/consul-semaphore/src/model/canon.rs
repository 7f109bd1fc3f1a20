//! Two states are the same if renaming turns one into the other. Names and numbers that are only ever compared count
//! by what such comparisons say: a session by when it was first mentioned, an index by whether it is still the key's,
//! a version by whether it is still the workload's, a moment by what it is later than. So states that differ in
//! nothing else are checked once.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{consul::Consul, workloads::Workloads};
use crate::{ContenderBody, Granted, Uid};
use consul_client::{Entry, SessionId, clock::Moment};

/// Hashes the given parts of a state, in the order of these workloads.
pub(super) struct Canon<'a> {
    consul: &'a Consul,
    workloads: &'a [Uid],
    now: Moment,
    sessions: Vec<SessionId>,
    hasher: DefaultHasher,
}

impl<'a> Canon<'a> {
    /// Interchangeable workloads are numbered by their place in this list.
    pub(super) fn new(consul: &'a Consul, workloads: &'a [Uid], now: Moment) -> Self {
        Self {
            consul,
            workloads,
            now,
            sessions: Vec::new(),
            hasher: DefaultHasher::new(),
        }
    }

    pub(super) fn digest(&self) -> u64 {
        self.hasher.finish()
    }

    pub(super) fn now(&self) -> Moment {
        self.now
    }

    /// The workloads, in the order used for comparison.
    pub(super) fn workloads(&self) -> &'a [Uid] {
        self.workloads
    }

    /// A value that counts as it is.
    pub(super) fn word(&mut self, word: &impl Hash) {
        word.hash(&mut self.hasher);
    }

    /// A workload's place in that order.
    pub(super) fn number(&self, uid: &Uid) -> Option<usize> {
        self.workloads.iter().position(|workload| workload == uid)
    }

    /// A workload.
    pub(super) fn workload(&mut self, uid: &Uid) {
        self.word(&self.number(uid));
    }

    /// A version of a workload: an older one never comes back.
    pub(super) fn version(&mut self, workloads: &Workloads, uid: &Uid, version: &str) {
        self.word(&workloads.is_at(uid, version));
    }

    /// A session. Its owner and whether it is alive are added at its first mention. What happens to a session that is
    /// never mentioned changes nothing.
    pub(super) fn session(&mut self, session: &SessionId) {
        if let Some(number) = self.known(session) {
            return self.word(&number);
        }
        self.sessions.push(session.clone());
        let identity = self.consul.identity(session);
        let owner = identity.map(|identity| (self.number(&identity.uid), identity.ordinal));
        let alive = self.consul.is_alive(session);
        self.word(&(owner, alive));
    }

    /// A session, if there is one.
    pub(super) fn some_session(&mut self, session: Option<&SessionId>) {
        self.word(&session.is_some());
        if let Some(session) = session {
            self.session(session);
        }
    }

    /// Adds these sessions in this order, and how many there are.
    pub(super) fn in_order<'s>(&mut self, sessions: impl IntoIterator<Item = &'s SessionId>) {
        for session in sessions {
            self.some_session(Some(session));
        }
        self.some_session(None);
    }

    /// What a workload's template and its annotation say about its slots.
    pub(super) fn granted(&mut self, granted: Option<&Granted>, reported: &[SessionId]) {
        let slots = granted.into_iter().flat_map(|granted| &granted.slots);
        self.in_order(slots.map(|slot| &slot.session));
        self.in_order(reported);
    }

    fn known(&self, session: &SessionId) -> Option<usize> {
        self.sessions.iter().position(|known| known == session)
    }

    /// What sessions are sorted by, independent of their names.
    pub(super) fn place(&self, session: &SessionId) -> usize {
        self.known(session).unwrap_or(usize::MAX)
    }

    /// The sessions mentioned so far.
    pub(super) fn spoken_of(&self) -> Vec<SessionId> {
        self.sessions.clone()
    }

    /// Some sessions, in any order.
    pub(super) fn sessions<'s>(&mut self, sessions: impl Iterator<Item = &'s SessionId>) {
        let mut sessions: Vec<&SessionId> = sessions.collect();
        sessions.sort_by_key(|session| self.place(session));
        self.word(&sessions.len());
        for session in sessions {
            self.session(session);
        }
    }

    /// A key: the lock key, or the contender key of a session.
    pub(super) fn key(&mut self, key: &str) {
        match key.rsplit('/').next() {
            Some(name) if name != ".lock" => self.session(&name.into()),
            _ => self.word(&key),
        }
    }

    /// An index that a key had, or 0 for a key that did not exist: an older one never comes back.
    pub(super) fn index(&mut self, key: &str, index: u64) {
        let now = self.consul.get(key).map_or(0, |entry| entry.modify_index);
        self.word(&(index == 0, index == now));
    }

    /// An entry as somebody read it, now or earlier.
    pub(super) fn entry(&mut self, entry: &Entry) {
        self.key(&entry.key);
        self.index(&entry.key, entry.modify_index);
        self.some_session(entry.session.as_ref());
        self.body(&entry.value);
        self.cooldown(&entry.value);
    }

    /// Whether a contender's body records a cooldown, and whether that is over.
    fn cooldown(&mut self, value: &[u8]) {
        let says = std::str::from_utf8(value).is_ok_and(|value| value.contains("coolsUntil"));
        let body = ContenderBody::read(value).filter(|_| says);
        let until = body.and_then(|body| body.cools_until);
        let now = self.now.since(Moment::default()).as_secs();
        let over =
            |until: jiff::Timestamp| u64::try_from(until.as_second()).is_ok_and(|u| u <= now);
        self.word(&until.map(over));
    }

    /// The body of `.lock`, if it is one. Of a contender's body, only the end of its cooldown counts.
    pub(super) fn body(&mut self, value: &[u8]) {
        if let Some(body) = super::sight::Body::read(value) {
            self.word(&body.limit);
            self.sessions(body.holders.iter());
        }
    }
}
