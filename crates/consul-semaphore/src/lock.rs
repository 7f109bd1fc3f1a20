//! `.lock`: the one key that says who holds, by its body or, of a mutex, by the session that has locked
//! it.

use std::{borrow::Cow, collections::BTreeMap};

use super::verbatim::{Fields, Verbatim};
use crate::Mode;
use consul_client::{Entry, SessionId};

/// The KV flags that Consul's Go client gives a semaphore's entries (`api.SemaphoreFlagValue`).
pub const SEMAPHORE_FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;

/// The KV flags of Consul's mutex, which `consul lock -n 1` and `api.Lock` take.
pub(super) const MUTEX_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

const LIMIT: &str = "Limit";
const HOLDERS: &str = "Holders";

/// What is wrong with `Holders` that name anything else.
const NO_SESSION: &str = "`Holders` lists something else than sessions";

/// What is wrong with a body that its readers would read in several ways.
const TWICE: &str = "a name stands in it twice";

/// The longest that a session's id can be; Consul's have 36 characters.
const LONGEST_ID: usize = 128;

/// What the Go client writes beside the session of a holder.
const YES: &str = "true";

/// Who holds, as a client writes it; the shape that is there is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holders {
    /// `{"<session>": true}`: the Go client and `consul lock`. Another value than `true` is kept as it is.
    Map(BTreeMap<SessionId, Option<Verbatim>>),
    /// `["<session>"]`: the form of the guide in Consul's documentation; the Go client can't read it. An entry may
    /// occur twice; it is counted twice, as its writer would.
    Array(Vec<SessionId>),
}

/// The body of `.lock`, understood: its limit and its holders. Everything else in it is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockBody {
    limit: u32,
    holders: Holders,
    unknown: BTreeMap<String, Verbatim>,
    flags: u64,
}

/// What a transaction changes in a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockChange {
    limit: u32,
    removed: Vec<SessionId>,
    added: Vec<SessionId>,
}

impl LockChange {
    /// Those who come or go.
    pub(super) fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        self.removed.iter().chain(&self.added)
    }
}

impl LockBody {
    /// A body without holders, in the shape that every client of Consul's can read.
    pub fn new(limit: u32, flags: u64) -> Self {
        Self {
            limit,
            holders: Holders::Map(BTreeMap::new()),
            unknown: BTreeMap::new(),
            flags,
        }
    }

    /// How many may hold a slot at once.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// How many hold a slot, dead holders included.
    pub fn held(&self) -> usize {
        match &self.holders {
            Holders::Map(holders) => holders.len(),
            Holders::Array(holders) => holders.len(),
        }
    }

    /// How many slots are free.
    pub fn room(&self) -> usize {
        room(self.limit, self.held())
    }

    /// Who holds a slot, dead holders included.
    pub fn holders(&self) -> impl Iterator<Item = &SessionId> {
        let (map, array) = match &self.holders {
            Holders::Map(holders) => (Some(holders.keys()), None),
            Holders::Array(holders) => (None, Some(holders)),
        };
        map.into_iter().flatten().chain(array.into_iter().flatten())
    }

    /// Whether this session holds a slot.
    pub fn holds(&self, session: &SessionId) -> bool {
        self.times(session) > 0
    }

    /// How often it is listed.
    fn times(&self, session: &SessionId) -> usize {
        match &self.holders {
            Holders::Map(holders) => usize::from(holders.contains_key(session)),
            Holders::Array(holders) => holders.iter().filter(|holder| *holder == session).count(),
        }
    }

    /// Whether the holders are a list, as in the guide that Consul's documentation gives, and not in a
    /// map. Only who follows that makes one.
    pub fn is_list(&self) -> bool {
        matches!(self.holders, Holders::Array(_))
    }

    /// The KV flags to write this body with: those that were there.
    pub fn flags(&self) -> u64 {
        self.flags
    }

    /// Changes it as a transaction did that was made for it. It is what that transaction wrote then, and need not be
    /// read again.
    pub(super) fn apply(&mut self, change: &LockChange) {
        let LockChange {
            limit,
            removed,
            added,
        } = change;
        self.limit = *limit;
        match &mut self.holders {
            Holders::Map(holders) => {
                for session in removed {
                    holders.remove(session);
                }
                for session in added {
                    holders.entry(session.clone()).or_insert(None);
                }
            }
            Holders::Array(holders) => {
                if !removed.is_empty() {
                    holders.retain(|holder| !removed.contains(holder));
                }
                holders.extend(added.iter().cloned());
            }
        }
    }

    /// The body as JSON.
    pub fn encode(&self) -> Vec<u8> {
        LockDraft::of(self).encode()
    }

    /// Reads a body.
    fn decode(value: &[u8], flags: u64) -> Result<Self, Unreadable> {
        let body = Verbatim::parse(value).ok_or(Unreadable::NotJson)?;
        if !body.is_object() {
            return Err(Unreadable::OtherShape("it is not an object"));
        }
        let Fields {
            by_name: mut unknown,
            twice,
        } = body.read().ok_or(Unreadable::NotJson)?;
        if twice {
            return Err(Unreadable::OtherShape(TWICE));
        }
        let limit = unknown
            .remove(LIMIT)
            .and_then(|limit| limit.read())
            .filter(|limit| *limit > 0)
            .ok_or(Unreadable::OtherShape("`Limit` is not a positive number"))?;
        let holders = match unknown.remove(HOLDERS) {
            None => Holders::Map(BTreeMap::new()),
            Some(holders) => Self::decode_holders(&holders)?,
        };
        // Go's clients would take these for the same.
        let alike = |name: &str| matches!(name.to_uppercase().as_str(), "LIMIT" | "HOLDERS");
        if unknown.keys().any(|name| alike(name)) {
            return Err(Unreadable::OtherShape(TWICE));
        }
        Ok(Self {
            limit,
            holders,
            unknown,
            flags,
        })
    }

    /// Whether a value is meant to be a semaphore's, well or badly made.
    fn is_meant(value: &[u8]) -> bool {
        let fields: Option<Fields> = Verbatim::parse(value).and_then(|body| body.read());
        fields.is_some_and(|fields| {
            [LIMIT, HOLDERS]
                .iter()
                .any(|name| fields.by_name.contains_key(*name))
        })
    }

    fn decode_holders(value: &Verbatim) -> Result<Holders, Unreadable> {
        let other = || Unreadable::OtherShape(NO_SESSION);
        if value.is_object() {
            let fields: Fields = value.read().ok_or_else(other)?;
            if fields.twice {
                return Err(Unreadable::OtherShape(TWICE));
            }
            let holder = |(id, value): (String, Verbatim)| {
                let value = Some(value).filter(|value| value.raw().get() != YES);
                Some((session(id)?, value))
            };
            let holders: Option<_> = fields.by_name.into_iter().map(holder).collect();
            return Ok(Holders::Map(holders.ok_or_else(other)?));
        }
        // Go writes null for a map that was never made.
        let Some(list) = value.read::<Option<Vec<Verbatim>>>() else {
            return Err(Unreadable::OtherShape(
                "`Holders` is neither a map nor a list",
            ));
        };
        let Some(list) = list else {
            return Ok(Holders::Map(BTreeMap::new()));
        };
        let holders: Option<_> = list.iter().map(|id| session(id.read()?)).collect();
        Ok(Holders::Array(holders.ok_or_else(other)?))
    }
}

fn room(limit: u32, held: usize) -> usize {
    usize::try_from(limit)
        .unwrap_or(usize::MAX)
        .saturating_sub(held)
}

/// A body with what a transaction changes in it. The body is not copied: it may have thousands of holders.
pub(super) struct LockDraft<'a> {
    body: Cow<'a, LockBody>,
    change: LockChange,
    /// How many of the holders in the body are taken out.
    removed: usize,
}

impl<'a> LockDraft<'a> {
    /// Nothing is changed yet.
    pub(super) fn of(body: &'a LockBody) -> Self {
        Self::new(Cow::Borrowed(body))
    }

    /// A new body without holders.
    pub(super) fn fresh(limit: u32, flags: u64) -> Self {
        Self::new(Cow::Owned(LockBody::new(limit, flags)))
    }

    fn new(body: Cow<'a, LockBody>) -> Self {
        let limit = body.limit;
        Self {
            body,
            change: LockChange {
                limit,
                ..LockChange::default()
            },
            removed: 0,
        }
    }

    /// The KV flags to write it with.
    pub(super) fn flags(&self) -> u64 {
        self.body.flags
    }

    /// How many hold a slot then.
    pub(super) fn held(&self) -> usize {
        self.body.held() - self.removed + self.change.added.len()
    }

    /// How many slots are free then, if so many of those that hold one go.
    pub(super) fn room(&self, freed: usize) -> usize {
        room(self.change.limit, self.held() - freed)
    }

    /// Whether this session holds a slot then.
    pub(super) fn holds(&self, session: &SessionId) -> bool {
        let LockChange { removed, added, .. } = &self.change;
        added.contains(session) || (!removed.contains(session) && self.body.holds(session))
    }

    /// Changes the limit; no holder loses a slot by it.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.change.limit = limit;
    }

    /// Takes a holder out.
    pub(super) fn remove(&mut self, session: &SessionId) {
        let LockChange { removed, added, .. } = &mut self.change;
        added.retain(|holder| holder != session);
        let times = self.body.times(session);
        if times > 0 && !removed.contains(session) {
            removed.push(session.clone());
            self.removed += times;
        }
    }

    /// Adds a holder if there is room, and says whether there was.
    ///
    /// It is the only way to add one, so no body of ours has more holders than its limit allowed
    /// when the last one came in.
    #[must_use]
    pub(super) fn add(&mut self, session: SessionId) -> bool {
        let room = self.room(0) > 0;
        if room {
            self.change.added.push(session);
        }
        room
    }

    /// What is changed.
    pub(super) fn change(self) -> LockChange {
        self.change
    }

    /// The body as JSON, as it is then.
    pub(super) fn encode(&self) -> Vec<u8> {
        let unknown = self.body.unknown.iter();
        let unknown = unknown.map(|(name, value)| (name.as_str(), Some(value)));
        // In the order of their names.
        let fields: BTreeMap<&str, Option<&Verbatim>> =
            unknown.chain([(LIMIT, None), (HOLDERS, None)]).collect();
        let mut json = Vec::with_capacity(64 + 48 * self.held());
        for (name, value) in fields {
            json.push(if json.is_empty() { b'{' } else { b',' });
            write_text(&mut json, name);
            json.push(b':');
            match (name, value) {
                (_, Some(value)) => json.extend_from_slice(value.raw().get().as_bytes()),
                (HOLDERS, None) => self.encode_holders(&mut json),
                (_, None) => json.extend_from_slice(self.change.limit.to_string().as_bytes()),
            }
        }
        json.push(b'}');
        json
    }

    fn encode_holders(&self, json: &mut Vec<u8>) {
        let LockChange { removed, added, .. } = &self.change;
        let stays = |session: &&SessionId| removed.is_empty() || !removed.contains(session);
        let text = |json: &mut Vec<u8>, session: &SessionId| match session.as_ref() {
            id if session.is_genuine() => {
                json.push(b'"');
                json.extend_from_slice(id.as_bytes());
                json.push(b'"');
            }
            id => write_text(json, id),
        };
        match &self.body.holders {
            Holders::Map(holders) => {
                let there = holders.iter().filter(|(session, _)| stays(session));
                let mut all: Vec<_> = there
                    .map(|(session, value)| (session, value.as_ref()))
                    .chain(added.iter().map(|session| (session, None)))
                    .collect();
                if !added.is_empty() {
                    // What was there is in order already, which this makes use of.
                    all.sort_by_key(|(session, _)| *session);
                    all.dedup_by(|(a, _), (b, _)| a == b);
                }
                json.push(b'{');
                for (position, (session, value)) in all.into_iter().enumerate() {
                    if position > 0 {
                        json.push(b',');
                    }
                    text(json, session);
                    json.push(b':');
                    let value = value.map_or(YES, |value| value.raw().get());
                    json.extend_from_slice(value.as_bytes());
                }
                json.push(b'}');
            }
            Holders::Array(holders) => {
                let all = holders.iter().filter(stays).chain(added);
                json.push(b'[');
                for (position, session) in all.enumerate() {
                    if position > 0 {
                        json.push(b',');
                    }
                    text(json, session);
                }
                json.push(b']');
            }
        }
    }
}

/// Writes a text as JSON, which cannot fail.
fn write_text(json: &mut Vec<u8>, text: &str) {
    let _ = serde_json::to_writer(json, text);
}

/// The id of a session, if this may be one.
fn session(id: String) -> Option<SessionId> {
    let id = SessionId::from(id);
    is_session(&id).then_some(id)
}

/// Whether this may be the id of a session. Anything else names no contender key below the prefix,
/// and could be made to fill logs and status with what its writer likes.
fn is_session(id: &SessionId) -> bool {
    let id: &str = id.as_ref();
    (1..=LONGEST_ID).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'/')
        && id != ".lock"
}

/// Why a `.lock` that is there can't be used as it is asked for; nothing is ever written to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The key is a mutex, by its flags or because a session has locked it.
    #[error("it is used as a mutex (`consul lock -n 1`, api.Lock or ?acquire)")]
    Mutex,
    /// It was a mutex, by its flags, and is no longer locked. Its value means nothing to anybody, so it may be
    /// deleted after the lock-delay.
    #[error("it is left over from a mutex that nobody holds")]
    LeftOver {
        /// The key's `ModifyIndex`.
        index: u64,
    },
    /// A mutex is asked for, and the key is a semaphore, by its flags or by its body.
    #[error(
        "it is used as a semaphore (`consul lock -n <limit>`, api.Semaphore or the guide's steps)"
    )]
    Semaphore,
    /// A mutex is asked for, and the key has a value and no flags, and was never locked: it is
    /// somebody's data.
    #[error("it has a value, and no session has ever locked it")]
    NeverLocked,
    /// The flags are neither 0 nor those of the use that is asked for.
    #[error("its flags {0:#x} are neither 0 nor those of a semaphore or a mutex")]
    Flags(u64),
    /// The value is not JSON.
    #[error("its value is not JSON")]
    NotJson,
    /// The value is JSON of another shape.
    #[error("its value is not a semaphore's: {0}")]
    OtherShape(&'static str),
}

/// `.lock` as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock {
    /// There is no such key, or one without a value, which the Go client takes for a new one.
    Absent {
        /// The key's `ModifyIndex`; 0 where there is no key. A CAS that creates the body names it.
        index: u64,
        /// The flags to create it with: those that are there, or a semaphore's.
        flags: u64,
    },
    /// A semaphore.
    Semaphore {
        /// Its body.
        body: LockBody,
        /// The key's `ModifyIndex`.
        index: u64,
    },
    /// A mutex, or the place for one.
    Mutex {
        /// The session that has locked the key.
        holder: Option<SessionId>,
        /// The key's `ModifyIndex`; 0 where there is no key.
        index: u64,
        /// The flags to lock it with: those that are there, or a mutex's.
        flags: u64,
    },
    /// Something else: left alone.
    Unreadable(Unreadable),
}

impl Lock {
    /// Reads `.lock` from its KV entry, as what it is asked for.
    pub fn read(mode: Mode, entry: Option<&Entry>) -> Self {
        match mode {
            Mode::Semaphore => Self::read_semaphore(entry),
            Mode::Mutex => Self::read_mutex(entry),
        }
    }

    fn read_semaphore(entry: Option<&Entry>) -> Self {
        let Some(entry) = entry else {
            return Self::Absent {
                index: 0,
                flags: SEMAPHORE_FLAGS,
            };
        };
        if entry.session.is_some() || entry.flags == MUTEX_FLAGS {
            // A key that was written by hand is not left over from a mutex.
            let left_over = entry.session.is_none() && entry.lock_index > 0;
            return Self::Unreadable(if left_over {
                Unreadable::LeftOver {
                    index: entry.modify_index,
                }
            } else {
                Unreadable::Mutex
            });
        }
        if entry.flags != 0 && entry.flags != SEMAPHORE_FLAGS {
            return Self::Unreadable(Unreadable::Flags(entry.flags));
        }
        if entry.value.is_empty() {
            return Self::Absent {
                index: entry.modify_index,
                flags: entry.flags,
            };
        }
        match LockBody::decode(&entry.value, entry.flags) {
            Ok(body) => Self::Semaphore {
                body,
                index: entry.modify_index,
            },
            Err(why) => Self::Unreadable(why),
        }
    }

    /// The value of a mutex is its holder's choice, and flags 0 are those of a plain `?acquire`.
    fn read_mutex(entry: Option<&Entry>) -> Self {
        let Some(entry) = entry else {
            return Self::Mutex {
                holder: None,
                index: 0,
                flags: MUTEX_FLAGS,
            };
        };
        let unmarked = || {
            if entry.session.is_some() || entry.value.is_empty() {
                return None;
            }
            // A semaphore without holders: its users may come back, and would overwrite a mutex.
            if LockBody::is_meant(&entry.value) {
                return Some(Unreadable::Semaphore);
            }
            (entry.lock_index == 0).then_some(Unreadable::NeverLocked)
        };
        let other_use = match entry.flags {
            MUTEX_FLAGS => None,
            0 => unmarked(),
            SEMAPHORE_FLAGS => Some(Unreadable::Semaphore),
            flags => Some(Unreadable::Flags(flags)),
        };
        other_use.map_or_else(
            || Self::Mutex {
                holder: entry.session.clone(),
                index: entry.modify_index,
                flags: entry.flags,
            },
            Self::Unreadable,
        )
    }
}

#[cfg(test)]
mod tests;
