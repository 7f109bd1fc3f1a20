//! Consul in a few lines: keys, sessions, and transactions that happen whole or not at all.

use std::collections::BTreeMap;

use crate::{
    clock::Moment,
    consul::{Entry, Listing, Op, SessionId},
    semaphore::Prefix,
};

use super::{canon::Canon, observer::Body};

/// A datacenter's KV store and its sessions, behind one raft index.
#[derive(Clone, Default)]
pub(super) struct Consul {
    index: u64,
    entries: BTreeMap<String, Entry>,
    sessions: BTreeMap<SessionId, Session>,
}

/// An operation's condition does not hold.
struct Failed;

#[derive(Clone)]
struct Session {
    name: String,
    alive: bool,
}

impl Consul {
    /// Makes a session that deletes its keys when it dies, as ours and the Go client's do.
    pub(super) fn make_session(&mut self, name: &str) -> SessionId {
        let session = SessionId::from(format!("session-{:04}", self.sessions.len()));
        let name = name.to_owned();
        self.sessions
            .insert(session.clone(), Session { name, alive: true });
        session
    }

    /// Ends a session, by its TTL or by a call: the keys that it has locked go with it.
    pub(super) fn destroy(&mut self, session: &SessionId) {
        if let Some(known) = self.sessions.get_mut(session).filter(|known| known.alive) {
            known.alive = false;
            self.index += 1;
            self.entries
                .retain(|_, entry| entry.session.as_ref() != Some(session));
        }
    }

    pub(super) fn is_alive(&self, session: &SessionId) -> bool {
        self.sessions
            .get(session)
            .is_some_and(|session| session.alive)
    }

    /// The name that a session was made with. Unlike Consul it is also known of a dead one, because
    /// whoever read the prefix while it lived knows it too.
    pub(super) fn name(&self, session: &SessionId) -> Option<&str> {
        self.sessions
            .get(session)
            .map(|session| session.name.as_str())
    }

    /// Who `session` is, and what it has locked.
    pub(super) fn trace(&self, prefix: &Prefix, canon: &mut Canon) {
        for entry in self.below(prefix) {
            trace_entry(entry, canon);
        }
        // Only those that somebody still speaks of: what happens to the others changes nothing.
        for session in canon.sessions() {
            canon.word(&(self.is_alive(&session), self.name(&session)));
        }
    }

    pub(super) fn index(&self) -> u64 {
        self.index
    }

    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(super) fn below(&self, prefix: &Prefix) -> impl Iterator<Item = &Entry> {
        let folder = prefix.folder();
        let entries = self.entries.values();
        entries.filter(move |entry| entry.key.starts_with(&folder))
    }

    /// `GET /v1/kv/<prefix>/?recurse`.
    pub(super) fn list(&self, prefix: &Prefix, sent: Moment) -> Listing {
        Listing {
            entries: self.below(prefix).cloned().collect(),
            index: self.index,
            sent,
            reset: false,
        }
    }

    /// `PUT /v1/kv/<key>`, without any condition: what a person does by hand.
    pub(super) fn put(&mut self, key: &str, value: &[u8], flags: u64, session: Option<SessionId>) {
        self.index += 1;
        let mut entry = self.write(key, value, flags);
        entry.session = session;
        self.entries.insert(key.into(), entry);
    }

    pub(super) fn delete(&mut self, key: &str) {
        self.index += 1;
        self.entries.remove(key);
    }

    /// `PUT /v1/txn`. The answer has what was written or checked, without values, and nothing for
    /// what was deleted; a refusal names the first operation that failed.
    pub(super) fn transact(&mut self, operations: &[Op]) -> Result<Vec<Entry>, usize> {
        let mut after = self.clone();
        after.index += 1;
        let mut answer = Vec::new();
        for (position, operation) in operations.iter().enumerate() {
            let entry = after.apply(operation).map_err(|Failed| position)?;
            answer.extend(entry.map(|entry| Entry {
                value: Vec::new(),
                ..entry
            }));
        }
        *self = after;
        Ok(answer)
    }

    /// Applies an operation, to an answer without an entry where something was deleted.
    fn apply(&mut self, operation: &Op) -> Result<Option<Entry>, Failed> {
        let index_of = |key: &str| self.entries.get(key).map(|entry| entry.modify_index);
        let provided = |holds: bool| if holds { Ok(()) } else { Err(Failed) };
        match operation {
            Op::Cas {
                key,
                value,
                flags,
                index,
            } => {
                provided(index_of(key).unwrap_or(0) == *index)?;
                let entry = self.write(key, value, *flags);
                self.entries.insert(key.clone(), entry.clone());
                Ok(Some(entry))
            }
            Op::Lock {
                key,
                value,
                flags,
                session,
            } => {
                provided(self.is_alive(session))?;
                let mut entry = self.write(key, value, *flags);
                match &entry.session {
                    None => entry.lock_index += 1,
                    Some(owner) => provided(owner == session)?,
                }
                entry.session = Some(session.clone());
                self.entries.insert(key.clone(), entry.clone());
                Ok(Some(entry))
            }
            Op::Delete { key } => {
                self.entries.remove(key);
                Ok(None)
            }
            Op::DeleteCas { key, index } => {
                // A key that is not there counts as deleted.
                provided(index_of(key).unwrap_or(*index) == *index)?;
                self.entries.remove(key);
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
                self.entries.insert(key.clone(), entry.clone());
                Ok(Some(entry))
            }
            // No plan has these.
            Op::Unlock { .. } | Op::Get { .. } => Err(Failed),
        }
    }

    /// The entry with this value. Its lock is left alone, and so is the index of one that does not
    /// change.
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

/// An entry as it counts: who holds its lock, when it was written, and in `.lock` who holds a slot.
/// The body of a contender is only for people.
pub(super) fn trace_entry(entry: &Entry, canon: &mut Canon) {
    canon.index(entry.create_index);
    canon.index(entry.modify_index);
    if let Some(session) = &entry.session {
        canon.session(session);
    }
    canon.key(&entry.key);
    trace_body(&entry.value, canon);
}

/// The body of `.lock`, if it is one.
pub(super) fn trace_body(value: &[u8], canon: &mut Canon) {
    if let Some(body) = Body::read(value) {
        canon.word(&body.limit);
        for holder in &body.holders {
            canon.session(&holder.as_str().into());
        }
    }
}
