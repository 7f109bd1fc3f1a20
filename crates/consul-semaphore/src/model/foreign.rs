//! Other programs on the same prefix: they know nothing about us, and keep the rules as they know them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{canon::Canon, consul::Consul};
use crate::{
    Prefix,
    lock::{MUTEX_FLAGS, SEMAPHORE_FLAGS},
};
use consul_client::{Entries, Entry, Op, SessionId, clock::Moment};

/// The body as Consul's Go client writes it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct GoLock {
    limit: usize,
    holders: BTreeMap<SessionId, bool>,
}

/// The body as in the guide of Consul's documentation.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct GuideLock {
    limit: usize,
    holders: BTreeSet<SessionId>,
}

/// Which rules a client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// `api.Semaphore` and `consul lock`: a map, flags of its own, and one limit for all.
    Go,
    /// A script that follows the guide: an array, no flags.
    Guide,
    /// `api.Lock` and `consul lock` with one holder: locks `.lock`, with flags of its own.
    Mutex,
    /// A script with `?acquire` and `?release`: the same without flags, whatever the key contains.
    Script,
}

/// One such program, with its own choice of limit.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) style: Style,
    pub(super) limit: usize,
    session: Option<SessionId>,
    /// The prefix as it last read it, possibly long ago.
    seen: Entries,
}

impl Client {
    pub(super) fn new(style: Style, limit: usize) -> Self {
        Self {
            style,
            limit,
            session: None,
            seen: Entries::default(),
        }
    }

    /// Adds the program's session, and what the program last saw.
    pub(super) fn trace(&self, canon: &mut Canon<'_>) {
        canon.word(&self.session.is_some());
        if let Some(session) = &self.session {
            canon.session(session);
        }
        for entry in &self.seen {
            canon.entry(entry);
        }
    }

    /// The program's session, if it has one.
    pub(super) fn session(&self) -> Option<&SessionId> {
        self.session.as_ref()
    }

    /// Forgets what it last saw: it reads again before it does anything else.
    pub(super) fn forget(&mut self) {
        self.seen = Entries::default();
    }

    fn flags(&self) -> u64 {
        match self.style {
            Style::Go => SEMAPHORE_FLAGS,
            Style::Mutex => MUTEX_FLAGS,
            Style::Guide | Style::Script => 0,
        }
    }

    /// Whether the program locks the key itself, and owns no other key.
    fn locks(&self) -> bool {
        matches!(self.style, Style::Mutex | Style::Script)
    }

    /// Makes its contender, with a session if it has none; also again if its contender was deleted.
    pub(super) fn arrive(&mut self, consul: &mut Consul, prefix: &Prefix) {
        let known = self.session.take();
        let session = known.unwrap_or_else(|| consul.make_session("db-semaphore"));
        if self.locks() {
            self.session = Some(session);
            return;
        }
        let lock = Op::Lock {
            key: prefix.contender_key(&session),
            value: Vec::new(),
            flags: self.flags(),
            session: session.clone(),
        };
        if consul.transact(&[lock]).is_ok() {
            self.session = Some(session);
        }
    }

    /// Reads the prefix.
    pub(super) fn look(&mut self, consul: &Consul, prefix: &Prefix) {
        self.seen = consul.list(prefix, Moment::default()).entries;
    }

    /// Tries to get into `Holders`, by what it last saw.
    pub(super) fn claim(&self, consul: &mut Consul, prefix: &Prefix) {
        if self.locks() {
            self.acquire(consul, prefix);
        } else if let Some(session) = self.session.clone() {
            self.update(consul, prefix, |holders, limit| {
                let room = holders.len() < limit;
                if room {
                    holders.insert(session);
                }
                room
            });
        }
    }

    /// Locks the mutex if it is free: by the lock alone, as all these programs do.
    fn acquire(&self, consul: &mut Consul, prefix: &Prefix) {
        let key = prefix.lock_key();
        let seen = self.seen.iter().find(|entry| entry.key == key);
        let conflict = seen.is_some_and(|seen| seen.flags != MUTEX_FLAGS);
        if self.style == Style::Mutex && conflict {
            return;
        }
        if let Some(session) = self.session.clone() {
            let lock = Op::Lock {
                key,
                value: b"theirs".into(),
                flags: self.flags(),
                session,
            };
            let _held_or_resting = consul.transact(&[lock]);
        }
    }

    /// Leaves `Holders`, then deletes its contender and its session.
    pub(super) fn leave(&mut self, consul: &mut Consul, prefix: &Prefix) {
        self.look(consul, prefix);
        if let Some(session) = self.session.take() {
            if self.locks() {
                consul.free(&prefix.lock_key(), &session);
                return consul.destroy(&session);
            }
            self.update(consul, prefix, |holders, _| holders.remove(&session));
            consul.delete(&prefix.contender_key(&session));
            consul.destroy(&session);
        }
    }

    /// Dies, and its session with it.
    pub(super) fn die(&mut self, consul: &mut Consul) {
        if let Some(session) = self.session.take() {
            consul.destroy(&session);
        }
    }

    /// Prunes the dead, makes a change, and writes the body with a CAS: no more than every client does. It leaves
    /// alone what it can't parse.
    fn update(
        &self,
        consul: &mut Consul,
        prefix: &Prefix,
        change: impl FnOnce(&mut BTreeSet<SessionId>, usize) -> bool,
    ) {
        let key = prefix.lock_key();
        let lock = self.seen.iter().find(|entry| entry.key == key);
        let (limit, mut holders, index) = match lock {
            None => (self.limit, BTreeSet::new(), 0),
            Some(entry) => match self.decode(entry) {
                Some((limit, holders)) if limit == self.limit => {
                    (limit, holders, entry.modify_index)
                }
                _ => return,
            },
        };
        let alive: BTreeSet<_> = self
            .seen
            .iter()
            .filter_map(|e| e.session.as_ref())
            .collect();
        holders.retain(|holder| alive.contains(holder));
        if change(&mut holders, limit) {
            let cas = Op::Cas {
                key,
                value: self.encode(limit, holders),
                flags: self.flags(),
                index,
            };
            let _lost_to_another = consul.transact(&[cas]);
        }
    }

    fn decode(&self, entry: &Entry) -> Option<(usize, BTreeSet<SessionId>)> {
        match self.style {
            Style::Go if entry.flags != SEMAPHORE_FLAGS => None,
            Style::Go => {
                let lock: GoLock = serde_json::from_slice(&entry.value).ok()?;
                Some((lock.limit, lock.holders.into_keys().collect()))
            }
            Style::Mutex | Style::Script => None,
            Style::Guide => {
                let lock: GuideLock = serde_json::from_slice(&entry.value).ok()?;
                Some((lock.limit, lock.holders))
            }
        }
    }

    fn encode(&self, limit: usize, holders: BTreeSet<SessionId>) -> Vec<u8> {
        let value = match self.style {
            Style::Go => {
                let holders = holders.into_iter().map(|holder| (holder, true)).collect();
                serde_json::to_vec(&GoLock { limit, holders })
            }
            _ => serde_json::to_vec(&GuideLock { limit, holders }),
        };
        value.expect("a lock body is JSON")
    }
}
