//! `.lock`: the one key that says who holds, by its body or, of a mutex, by the session that has locked
//! it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

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

/// How a client writes `Holders`; the shape that is there is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// `{"<session>": true}`: the Go client and `consul lock`.
    Map,
    /// `["<session>"]`: the guide that Consul's documentation gives; the Go client can't read it.
    Array,
}

/// The body of `.lock`, understood: its limit and its holders, with everything else that stands
/// in it kept as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockBody {
    limit: u32,
    shape: Shape,
    /// In an array an entry may stand twice; it is counted twice, as its writer would.
    holders: Vec<(SessionId, Verbatim)>,
    unknown: BTreeMap<String, Verbatim>,
    flags: u64,
}

impl LockBody {
    /// A body without holders, in the shape that every client of Consul's can read.
    pub fn new(limit: u32, flags: u64) -> Self {
        Self {
            limit,
            shape: Shape::Map,
            holders: Vec::new(),
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
        self.holders.len()
    }

    /// How many slots are free.
    pub fn room(&self) -> usize {
        usize::try_from(self.limit)
            .unwrap_or(usize::MAX)
            .saturating_sub(self.held())
    }

    /// Who holds a slot, dead holders included.
    pub fn holders(&self) -> impl Iterator<Item = &SessionId> {
        self.holders.iter().map(|(session, _)| session)
    }

    /// Whether this session holds a slot.
    pub fn holds(&self, session: &SessionId) -> bool {
        self.holders().any(|holder| holder == session)
    }

    /// Whether the holders stand in a list, as in the guide that Consul's documentation gives, and not in a
    /// map. Only who follows that makes one.
    pub fn is_list(&self) -> bool {
        self.shape == Shape::Array
    }

    /// The KV flags to write this body with: those that were there.
    pub fn flags(&self) -> u64 {
        self.flags
    }

    /// Changes the limit; nobody loses a slot by it.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Takes a holder out.
    pub fn remove(&mut self, session: &SessionId) {
        self.holders.retain(|(holder, _)| holder != session);
    }

    /// Adds a holder if there is room, and says whether there was.
    ///
    /// It is the only way to add one, so no body of ours has more holders than its limit allowed
    /// when the last one came in.
    #[must_use]
    pub fn add(&mut self, session: SessionId) -> bool {
        let room = self.room() > 0;
        if room {
            self.holders.push((session, Verbatim::yes()));
        }
        room
    }

    /// The body as JSON.
    pub fn encode(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Field<'a> {
            Limit(u32),
            Map(BTreeMap<&'a SessionId, &'a RawValue>),
            Array(Vec<&'a SessionId>),
            Unknown(&'a RawValue),
        }
        let unknown = self.unknown.iter();
        let mut fields: BTreeMap<&str, Field<'_>> = unknown
            .map(|(name, value)| (name.as_str(), Field::Unknown(value.raw())))
            .collect();
        fields.insert(LIMIT, Field::Limit(self.limit));
        let holders = match self.shape {
            Shape::Map => {
                let holders = self.holders.iter();
                Field::Map(holders.map(|(id, value)| (id, value.raw())).collect())
            }
            Shape::Array => Field::Array(self.holders().collect()),
        };
        fields.insert(HOLDERS, holders);
        // Strings, numbers and what was JSON before: writing them cannot fail.
        serde_json::to_vec(&fields).unwrap_or_default()
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
        let (shape, holders) = match unknown.remove(HOLDERS) {
            None => (Shape::Map, Vec::new()),
            Some(holders) => Self::decode_holders(&holders)?,
        };
        // Go's clients would take these for the same.
        let alike = |name: &str| matches!(name.to_uppercase().as_str(), "LIMIT" | "HOLDERS");
        if unknown.keys().any(|name| alike(name)) {
            return Err(Unreadable::OtherShape(TWICE));
        }
        Ok(Self {
            limit,
            shape,
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

    fn decode_holders(value: &Verbatim) -> Result<(Shape, Vec<(SessionId, Verbatim)>), Unreadable> {
        let (shape, holders): (_, Vec<(SessionId, _)>) = if value.is_object() {
            let fields: Fields = value.read().ok_or(Unreadable::OtherShape(NO_SESSION))?;
            if fields.twice {
                return Err(Unreadable::OtherShape(TWICE));
            }
            let holders = fields.by_name.into_iter();
            (
                Shape::Map,
                holders.map(|(id, value)| (id.into(), value)).collect(),
            )
        } else {
            // Go writes null for a map that was never made.
            let Some(list) = value.read::<Option<Vec<Verbatim>>>() else {
                return Err(Unreadable::OtherShape(
                    "`Holders` is neither a map nor a list",
                ));
            };
            let Some(list) = list else {
                return Ok((Shape::Map, Vec::new()));
            };
            let holder = |id: &Verbatim| Some((id.read::<String>()?.into(), Verbatim::yes()));
            let holders: Option<_> = list.iter().map(holder).collect();
            (
                Shape::Array,
                holders.ok_or(Unreadable::OtherShape(NO_SESSION))?,
            )
        };
        if holders.iter().all(|(holder, _)| is_session(holder)) {
            Ok((shape, holders))
        } else {
            Err(Unreadable::OtherShape(NO_SESSION))
        }
    }
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
    /// It was a mutex, by its flags, and nobody has locked it any more. Its value tells nobody
    /// anything, so it may go once it has rested.
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
            // One that was put there by hand is no mutex's remains.
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
            // A semaphore at rest: whoever comes back to it would write over a mutex.
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
