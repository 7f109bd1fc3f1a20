//! Reads and writes `.lock`, the one key that names the holders: by its body or, for a mutex, by the session that has
//! locked the key.

use std::{borrow::Cow, collections::BTreeMap};

use super::verbatim::{JsonFields, Verbatim};
use crate::Mode;
use consul_client::{Entry, SessionId};

/// The KV flags that Consul's Go client gives a semaphore's entries (`api.SemaphoreFlagValue`).
pub const SEMAPHORE_FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;

/// The KV flags of Consul's mutex, which `consul lock -n 1` and `api.Lock` use.
pub(super) const MUTEX_FLAGS: u64 = 0x2ddc_cbc0_58a5_0c18;

const LIMIT: &str = "Limit";
const HOLDERS: &str = "Holders";

/// The error for `Holders` that list anything other than sessions.
const NO_SESSION: &str = "`Holders` lists something other than sessions";

/// The error for `Holders` that list more sessions than any semaphore has.
const TOO_MANY_HOLDERS: &str = "`Holders` lists more than 10,000 sessions";

/// The error for a body that could be read in several ways.
const NAME_TWICE: &str = "a name occurs in it twice";

/// The most holders that are read from a body: more sessions than Consul takes in a value.
const MOST_HOLDERS: usize = 10_000;

/// The greatest length of a session's id; Consul's ids have 36 characters.
const LONGEST_ID: usize = 128;

/// The value that the Go client writes for each holder.
const HOLDER_VALUE: &str = "true";

/// The holders, in the format that the client wrote; that format is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holders {
    /// `{"<session>": true}`: the Go client and `consul lock`. Any value other than `true` is kept as it is.
    Map(BTreeMap<SessionId, Option<Verbatim>>),
    /// `["<session>"]`: the form of the guide in Consul's documentation; the Go client can't read it. An entry may
    /// occur twice, and counts twice, because its writer would count it twice.
    Array(Vec<SessionId>),
}

/// The parsed body of `.lock`: its limit and its holders. All other fields of the body are kept as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockBody {
    limit: u32,
    holders: Holders,
    unknown: BTreeMap<String, Verbatim>,
    flags: u64,
}

/// The changes that a transaction makes to a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockChange {
    limit: u32,
    removed: Vec<SessionId>,
    added: Vec<SessionId>,
}

impl LockChange {
    /// Returns the sessions that are added or removed.
    pub(super) fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        self.removed.iter().chain(&self.added)
    }
}

impl LockBody {
    /// Returns a body without holders, in the format that every Consul client can read.
    pub fn new(limit: u32, flags: u64) -> Self {
        Self {
            limit,
            holders: Holders::Map(BTreeMap::new()),
            unknown: BTreeMap::new(),
            flags,
        }
    }

    /// Returns how many sessions may hold a slot at once.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns how many sessions hold a slot, dead holders included.
    pub fn held(&self) -> usize {
        match &self.holders {
            Holders::Map(holders) => holders.len(),
            Holders::Array(holders) => holders.len(),
        }
    }

    /// Returns how many slots are free.
    pub fn room(&self) -> usize {
        room(self.limit, self.held())
    }

    /// Returns the sessions that hold a slot, dead holders included.
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

    /// Returns how many times the session is listed.
    fn times(&self, session: &SessionId) -> usize {
        match &self.holders {
            Holders::Map(holders) => usize::from(holders.contains_key(session)),
            Holders::Array(holders) => holders.iter().filter(|holder| *holder == session).count(),
        }
    }

    /// Whether the holders are a list, as in the guide in Consul's documentation, and not a map. Only clients that
    /// follow the guide write a list.
    pub fn is_list(&self) -> bool {
        matches!(self.holders, Holders::Array(_))
    }

    /// Returns the KV flags to write this body with: the existing ones, if the key exists.
    pub fn flags(&self) -> u64 {
        self.flags
    }

    /// Changes the body as a transaction made for this body did. The result is the body that the transaction wrote,
    /// and need not be parsed again.
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

    /// Returns the body as JSON.
    pub fn encode(&self) -> Vec<u8> {
        LockDraft::of(self).encode()
    }

    /// Reads a body.
    fn decode(value: &[u8], flags: u64) -> Result<Self, Unreadable> {
        let body = Verbatim::parse(value).ok_or(Unreadable::NotJson)?;
        if !body.is_object() {
            return Err(Unreadable::OtherShape("it is not an object"));
        }
        let JsonFields {
            by_name: mut unknown,
            twice,
        } = body.read().ok_or(Unreadable::NotJson)?;
        if twice {
            return Err(Unreadable::OtherShape(NAME_TWICE));
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
        // Go clients take names that differ only in case for the same name.
        let alike = |name: &str| matches!(name.to_uppercase().as_str(), "LIMIT" | "HOLDERS");
        if unknown.keys().any(|name| alike(name)) {
            return Err(Unreadable::OtherShape(NAME_TWICE));
        }
        Ok(Self {
            limit,
            holders,
            unknown,
            flags,
        })
    }

    /// Whether a value is meant to be a semaphore's, even if malformed.
    fn is_meant(value: &[u8]) -> bool {
        let fields: Option<JsonFields> = Verbatim::parse(value).and_then(|body| body.read());
        fields.is_some_and(|fields| {
            [LIMIT, HOLDERS]
                .iter()
                .any(|name| fields.by_name.contains_key(*name))
        })
    }

    fn decode_holders(value: &Verbatim) -> Result<Holders, Unreadable> {
        let other = || Unreadable::OtherShape(NO_SESSION);
        // This check comes before any holder is kept, because each takes far more in memory than the few bytes that
        // it may have here.
        let text = value.raw().get();
        if text.bytes().filter(|byte| *byte == b',').count() >= MOST_HOLDERS {
            return Err(Unreadable::OtherShape(TOO_MANY_HOLDERS));
        }
        if value.is_object() {
            let fields: JsonFields = value.read().ok_or_else(other)?;
            if fields.twice {
                return Err(Unreadable::OtherShape(NAME_TWICE));
            }
            let holder = |(id, value): (String, Verbatim)| {
                let value = Some(value).filter(|value| value.raw().get() != HOLDER_VALUE);
                Some((session(id)?, value))
            };
            let holders: Option<_> = fields.by_name.into_iter().map(holder).collect();
            return Ok(Holders::Map(holders.ok_or_else(other)?));
        }
        // Go writes null for a nil map.
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

/// A body with the changes of a transaction. The body is not copied, as it may have thousands of holders.
pub(super) struct LockDraft<'a> {
    body: Cow<'a, LockBody>,
    change: LockChange,
    /// Number of holders in the body that are removed.
    removed: usize,
}

impl<'a> LockDraft<'a> {
    /// Returns a draft without changes.
    pub(super) fn of(body: &'a LockBody) -> Self {
        Self::new(Cow::Borrowed(body))
    }

    /// Returns a draft of a new body without holders.
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

    /// Returns the KV flags to write the body with.
    pub(super) fn flags(&self) -> u64 {
        self.body.flags
    }

    /// Returns how many sessions hold a slot after the change.
    pub(super) fn held(&self) -> usize {
        self.body.held() - self.removed + self.change.added.len()
    }

    /// Returns how many slots are free after the change, if this many holders leave.
    pub(super) fn room(&self, freed: usize) -> usize {
        room(self.change.limit, self.held() - freed)
    }

    /// Whether this session holds a slot after the change.
    pub(super) fn holds(&self, session: &SessionId) -> bool {
        let LockChange { removed, added, .. } = &self.change;
        added.contains(session) || (!removed.contains(session) && self.body.holds(session))
    }

    /// Changes the limit; no holder loses a slot because of a lower limit.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.change.limit = limit;
    }

    /// Removes a holder.
    pub(super) fn remove(&mut self, session: &SessionId) {
        let LockChange { removed, added, .. } = &mut self.change;
        added.retain(|holder| holder != session);
        let times = self.body.times(session);
        if times > 0 && !removed.contains(session) {
            removed.push(session.clone());
            self.removed += times;
        }
    }

    /// Adds a holder if there is room, and returns whether there was.
    ///
    /// No other function adds a holder, so no body of ours has more holders than its limit allowed when the last one
    /// was added.
    #[must_use]
    pub(super) fn add(&mut self, session: SessionId) -> bool {
        let room = self.room(0) > 0;
        if room {
            self.change.added.push(session);
        }
        room
    }

    /// Returns the change.
    pub(super) fn change(self) -> LockChange {
        self.change
    }

    /// Returns the body as JSON, after the change.
    pub(super) fn encode(&self) -> Vec<u8> {
        let unknown = self.body.unknown.iter();
        // The fields are sorted by name.
        let fields: BTreeMap<&str, Option<&Verbatim>> = unknown
            .map(|(name, value)| (name.as_str(), Some(value)))
            .chain([(LIMIT, None), (HOLDERS, None)])
            .collect();
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
                    // The existing holders are sorted already, which makes this fast.
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
                    let value = value.map_or(HOLDER_VALUE, |value| value.raw().get());
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

/// Returns the id as a session, if it may be the id of one.
fn session(id: String) -> Option<SessionId> {
    let id = SessionId::from(id);
    is_session(&id).then_some(id)
}

/// Whether this may be the id of a session. Any other text names no contender key below the prefix, and could be used
/// to fill logs and status with arbitrary text.
fn is_session(id: &SessionId) -> bool {
    let id: &str = id.as_ref();
    (1..=LONGEST_ID).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'/')
        && id != ".lock"
}

/// The reason why an existing `.lock` can't be used in the mode asked for. Such a key is never written to, and only a
/// key that is left over from a mutex is deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The key is a mutex, by its flags or because a session has locked it.
    #[error("it is used as a mutex (`consul lock -n 1`, api.Lock or ?acquire)")]
    Mutex,
    /// The key was a mutex, by its flags, and is not locked. The value of the key means nothing to anybody, so the
    /// key may be deleted after the lock-delay.
    #[error("it is left over from a mutex that nobody holds")]
    LeftOver {
        /// The key's `ModifyIndex`.
        index: u64,
    },
    /// The mode is mutex, but the key is a semaphore, by its flags or by its body.
    #[error(
        "it is used as a semaphore (`consul lock -n <limit>`, api.Semaphore or the guide's steps)"
    )]
    Semaphore,
    /// The mode is mutex, but the key has a value and no flags, and was never locked: it is someone's data.
    #[error("it has a value, and no session has ever locked it")]
    NeverLocked,
    /// The flags are neither 0 nor those of the mode asked for.
    #[error("its flags {0:#x} are neither 0 nor those of a semaphore or a mutex")]
    Flags(u64),
    /// The value is not JSON.
    #[error("its value is not JSON")]
    NotJson,
    /// The value is JSON, but not a semaphore's.
    #[error("its value is not the value of a semaphore: {0}")]
    OtherShape(&'static str),
}

/// The state of `.lock` as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock {
    /// The key does not exist, or has no value, which the Go client treats as a new one.
    Absent {
        /// The key's `ModifyIndex`; 0 if there is no key. The CAS that creates the body uses it.
        index: u64,
        /// The flags to create the key with: the existing ones, or a semaphore's.
        flags: u64,
    },
    /// A semaphore.
    Semaphore {
        /// The body of the semaphore.
        body: LockBody,
        /// The key's `ModifyIndex`.
        index: u64,
    },
    /// A mutex, or an empty key for one.
    Mutex {
        /// The session that has locked the key.
        holder: Option<SessionId>,
        /// The key's `ModifyIndex`; 0 if there is no key.
        index: u64,
        /// The flags to lock the key with: the existing ones, or a mutex's.
        flags: u64,
    },
    /// The key can't be used in the mode asked for, and is never written to.
    Unreadable(Unreadable),
}

impl Lock {
    /// Reads `.lock` from its KV entry, in the mode asked for.
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

    /// Reads a mutex. The value of a mutex is its holder's choice, and flags 0 are those of a plain `?acquire`.
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
            // The value is of a semaphore without holders: the users of the semaphore may come back, and would
            // overwrite a mutex.
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
