//! Consul in a few lines: keys, sessions, and transactions that are applied whole or not at all.

use std::{collections::BTreeMap, sync::Arc};

use crate::{ContenderBody, Identity, Prefix};
use consul_client::{Entry, Listing, Op, SessionId, clock::Moment};

use super::canon::Canon;

/// A datacenter's KV store and its sessions, behind one raft index.
#[derive(Clone, Default)]
pub(crate) struct Consul {
    index: u64,
    /// The index that listings show after a restore, until something is written: raft's own never goes back.
    went_back_to: Option<u64>,
    entries: Arc<BTreeMap<String, Entry>>,
    sessions: Arc<BTreeMap<SessionId, Session>>,
    /// The clock of the datacenter, in seconds.
    pub(crate) seconds: u64,
    /// The lock-delay of all sessions, in seconds.
    pub(crate) lock_delay: u64,
    /// Until when a key can't be locked because its holder died.
    rests: Arc<BTreeMap<String, u64>>,
}

/// What a snapshot of Consul has.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    index: u64,
    entries: Arc<BTreeMap<String, Entry>>,
    sessions: Arc<BTreeMap<SessionId, Session>>,
}

/// Why a transaction is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// An operation's condition does not hold.
    Condition,
    /// The lock-delay of the key's last holder is not over.
    Rests,
    /// There are too many operations.
    TooLarge,
}

#[derive(Clone)]
struct Session {
    /// The identity in its name, if there is one.
    identity: Option<Arc<Identity>>,
    alive: bool,
}

impl Consul {
    /// Makes a session that deletes its keys when it dies, as ours and the Go client's do.
    pub(crate) fn make_session(&mut self, name: &str) -> SessionId {
        let session = SessionId::from(format!("session-{:04}", self.sessions.len()));
        let known = Session {
            identity: Identity::parse(name).map(Arc::new),
            alive: true,
        };
        Arc::make_mut(&mut self.sessions).insert(session.clone(), known);
        session
    }

    /// Sets the raft index of the datacenter, before anything is written.
    pub(crate) fn begin_at(&mut self, index: u64) {
        self.index = index;
    }

    /// Raft commits something.
    fn advance(&mut self) {
        self.index += 1;
        self.went_back_to = None;
    }

    /// What a snapshot has that is taken now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            index: self.index,
            entries: self.entries.clone(),
            sessions: self.sessions.clone(),
        }
    }

    /// Restores the servers from a snapshot: the keys have the indexes that they had then, and the sessions live again.
    /// Of the sessions that had ended, another program's expires at once, because nobody renews it.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot) {
        let mut unrenewed = Vec::new();
        for (id, session) in Arc::make_mut(&mut self.sessions) {
            let known = snapshot.sessions.get(id);
            let lived = known.is_some_and(|known| known.alive);
            if lived && !session.alive && session.identity.is_none() {
                unrenewed.push(id.clone());
            }
            session.alive = lived;
        }
        self.entries = snapshot.entries.clone();
        self.rests = Arc::default();
        self.advance();
        self.went_back_to = Some(snapshot.index);
        for session in unrenewed {
            self.destroy(&session);
        }
    }

    /// All keys.
    pub(crate) fn entries(&self) -> impl std::fmt::Debug {
        self.entries.clone()
    }

    /// Ends a session, by its TTL or by a call, and deletes the keys that it has locked.
    pub(crate) fn destroy(&mut self, session: &SessionId) {
        if !self.is_alive(session) {
            return;
        }
        if let Some(known) = Arc::make_mut(&mut self.sessions).get_mut(session) {
            known.alive = false;
        }
        self.advance();
        let until = self.seconds + self.lock_delay;
        let mut rests = Vec::new();
        Arc::make_mut(&mut self.entries).retain(|key, entry| {
            let of_another = entry.session.as_ref() != Some(session);
            if !of_another {
                rests.push((key.clone(), until));
            }
            of_another
        });
        if self.lock_delay > 0 {
            Arc::make_mut(&mut self.rests).extend(rests);
        }
    }

    pub(crate) fn is_alive(&self, session: &SessionId) -> bool {
        self.sessions
            .get(session)
            .is_some_and(|session| session.alive)
    }

    /// The live sessions with an identity in their names.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (&SessionId, &Identity)> {
        let alive = self.sessions.iter().filter(|(_, session)| session.alive);
        alive.filter_map(|(id, session)| Some((id, session.identity.as_deref()?)))
    }

    /// The identity in a session's name, if there is one. Unlike Consul it also knows that of a dead session, because
    /// whoever read the prefix while it lived knows it, too.
    pub(crate) fn identity(&self, session: &SessionId) -> Option<&Identity> {
        self.sessions.get(session)?.identity.as_deref()
    }

    /// The contenders by workload, and of one workload the oldest first, because the older of two stays.
    pub(super) fn trace(&self, prefix: &Prefix, fair: bool, canon: &mut Canon<'_>) {
        let lock_key = prefix.lock_key();
        let contenders = self.below(prefix).filter(|entry| entry.key != lock_key);
        let mut entries: Vec<&Entry> = contenders.collect();
        entries.sort_by_key(|entry| {
            let identity = entry.session.as_ref().and_then(|s| self.identity(s));
            let owner = identity.and_then(|identity| canon.number(&identity.uid));
            (owner.unwrap_or(usize::MAX), entry.create_index)
        });
        canon.word(&entries.len());
        let older = |than: &Entry| {
            let older = entries.iter();
            older
                .filter(|entry| entry.create_index < than.create_index)
                .count()
        };
        for entry in &entries {
            canon.entry(entry);
            if fair {
                let waits = ContenderBody::read(&entry.value).map(|body| body.waiting.is_some());
                canon.word(&(older(entry), waits));
            }
        }
    }

    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(crate) fn below(&self, prefix: &Prefix) -> impl Iterator<Item = &Entry> {
        let folder = prefix.folder();
        let entries = self.entries.values();
        entries.filter(move |entry| entry.key.starts_with(&folder))
    }

    /// `GET /v1/kv/<prefix>/?recurse`.
    pub(crate) fn list(&self, prefix: &Prefix, sent: Moment) -> Listing {
        Listing {
            entries: self.below(prefix).cloned().collect(),
            index: self.went_back_to.unwrap_or(self.index),
            sent,
            reset: false,
        }
    }

    /// `PUT /v1/kv/<key>` without any condition, by hand.
    pub(crate) fn put(&mut self, key: &str, value: &[u8], flags: u64, session: Option<SessionId>) {
        self.advance();
        let mut entry = self.write(key, value, flags);
        entry.session = session;
        self.insert(entry);
    }

    pub(crate) fn delete(&mut self, key: &str) {
        self.advance();
        self.remove(key);
    }

    /// `PUT /v1/kv/<key>?release=<session>`, by hand.
    pub(crate) fn free(&mut self, key: &str, session: &SessionId) {
        let unlock = Op::Unlock {
            key: key.to_owned(),
            value: b"freed".into(),
            flags: self.entries.get(key).map_or(0, |entry| entry.flags),
            session: session.clone(),
        };
        let _held_by_another = self.transact(&[unlock]);
    }

    fn insert(&mut self, entry: Entry) {
        Arc::make_mut(&mut self.entries).insert(entry.key.clone(), entry);
    }

    fn remove(&mut self, key: &str) {
        Arc::make_mut(&mut self.entries).remove(key);
    }

    /// `PUT /v1/txn`. The answer has the entries that were written or checked, without values, and none for those
    /// that were deleted.
    pub(crate) fn transact(&mut self, operations: &[Op]) -> Result<Vec<Entry>, Refused> {
        let mut after = self.clone();
        after.advance();
        let mut answer = Vec::new();
        for operation in operations {
            let entry = after.apply(operation)?;
            answer.extend(entry.map(|entry| Entry {
                value: Vec::new(),
                ..entry
            }));
        }
        *self = after;
        Ok(answer)
    }

    /// Applies an operation. The answer has no entry if something was deleted.
    fn apply(&mut self, operation: &Op) -> Result<Option<Entry>, Refused> {
        let index_of = |key: &str| self.entries.get(key).map(|entry| entry.modify_index);
        let provided = |holds: bool| holds.then_some(()).ok_or(Refused::Condition);
        match operation {
            Op::Cas {
                key,
                value,
                flags,
                index,
            } => {
                provided(index_of(key).unwrap_or(0) == *index)?;
                let entry = self.write(key, value, *flags);
                self.insert(entry.clone());
                Ok(Some(entry))
            }
            Op::Lock {
                key,
                value,
                flags,
                session,
            } => {
                if self
                    .rests
                    .get(key)
                    .is_some_and(|until| *until > self.seconds)
                {
                    return Err(Refused::Rests);
                }
                provided(self.is_alive(session))?;
                let mut entry = self.write(key, value, *flags);
                match &entry.session {
                    None => {
                        entry.lock_index += 1;
                        entry.modify_index = self.index;
                    }
                    Some(owner) => provided(owner == session)?,
                }
                entry.session = Some(session.clone());
                self.insert(entry.clone());
                Ok(Some(entry))
            }
            Op::Unlock {
                key,
                value,
                flags,
                session,
            } => {
                let held = self
                    .entries
                    .get(key)
                    .and_then(|entry| entry.session.as_ref());
                provided(held == Some(session))?;
                let entry = Entry {
                    session: None,
                    modify_index: self.index,
                    ..self.write(key, value, *flags)
                };
                self.insert(entry.clone());
                Ok(Some(entry))
            }
            Op::Delete { key } => {
                self.remove(key);
                Ok(None)
            }
            Op::DeleteCas { key, index } => {
                // A key that does not exist counts as deleted.
                provided(index_of(key).unwrap_or(*index) == *index)?;
                self.remove(key);
                Ok(None)
            }
            Op::CheckIndex { key, index } => {
                provided(index_of(key) == Some(*index))?;
                Ok(self.entries.get(key).cloned())
            }
            Op::CheckSession { key, session } => {
                let entry = self.entries.get(key);
                provided(entry.is_some_and(|entry| entry.session.as_ref() == Some(session)))?;
                Ok(entry.cloned())
            }
            Op::CheckNotExists { key } => {
                provided(!self.entries.contains_key(key))?;
                Ok(None)
            }
            Op::Set { key, value, flags } => {
                let entry = self.write(key, value, *flags);
                self.insert(entry.clone());
                Ok(Some(entry))
            }
            // No plan contains it.
            Op::Get { .. } => Err(Refused::Condition),
        }
    }

    /// The entry with this value. Its lock stays as it is, and so does the index of an entry that does not change.
    fn write(&self, key: &str, value: &[u8], flags: u64) -> Entry {
        match self.entries.get(key) {
            Some(entry) if entry.value == value && entry.flags == flags => entry.clone(),
            Some(entry) => Entry {
                value: value.into(),
                flags,
                modify_index: self.index,
                ..entry.clone()
            },
            None => Entry {
                key: key.into(),
                value: value.into(),
                flags,
                session: None,
                lock_index: 0,
                create_index: self.index,
                modify_index: self.index,
            },
        }
    }
}
