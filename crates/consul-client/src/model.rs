//! Plain data of the KV store. No IO.

use std::{collections::BTreeMap, ops::Deref, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    budget::{Charge, Derived},
    clock::Moment,
    id::Id,
};

/// The id of a session, as Consul made it (a UUID in text). Clones share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(Id);

impl SessionId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether Consul can have made the id: Consul makes UUIDs in lower case. Anybody with write access to a
    /// semaphore's lock can put any other text in place of an id, so no other text is shown: people and their shells
    /// use what they are shown.
    pub fn is_genuine(&self) -> bool {
        self.0.is_uuid()
    }

    /// Returns the id as people are shown it.
    pub fn shown(&self) -> &str {
        if self.is_genuine() {
            self.as_str()
        } else {
            "(no session)"
        }
    }
}

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl AsRef<str> for SessionId {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl From<String> for SessionId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl From<&str> for SessionId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

/// A key with everything that Consul stores for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The full key.
    pub key: String,
    /// The value; empty where Consul has none, and for keys that a transaction wrote or checked.
    pub value: Vec<u8>,
    /// A number that the writer chooses, by which clients mark the purpose of a key.
    pub flags: u64,
    /// The session that holds the key's lock.
    pub session: Option<SessionId>,
    /// Number of times that the key's lock has been acquired.
    pub lock_index: u64,
    /// The raft index of the write that made the key.
    pub create_index: u64,
    /// The raft index of the last write, for a check-and-set. It never goes back for a key, not even when the key is
    /// deleted and made again.
    pub modify_index: u64,
}

/// An entry of a listing. Clones share it. What a client keeps of Consul's answers counts against its
/// [`Budget`](super::Budget) until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Listed(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    entry: Entry,
    /// Hash of the text that the entry was decoded from; `None` if this process made the entry.
    text: Option<u64>,
    _charge: Option<Charge>,
}

impl Listed {
    /// An entry that was decoded from a text with this hash, and that counts as much as the charge says.
    pub(super) fn decoded(entry: Entry, text: u64, charge: Option<Charge>) -> Self {
        Self(Arc::new(Counted {
            entry,
            text: Some(text),
            _charge: charge,
        }))
    }

    /// Whether the entry was decoded from a text with this hash.
    pub(super) fn is_of(&self, text: u64) -> bool {
        self.0.text == Some(text)
    }

    /// Whether both are the same copy.
    #[cfg(test)]
    pub(super) fn is_same_copy(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// An entry that counts against no budget, such as one that this process wrote.
impl From<Entry> for Listed {
    fn from(entry: Entry) -> Self {
        Self(Arc::new(Counted {
            entry,
            text: None,
            _charge: None,
        }))
    }
}

impl Deref for Listed {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        &self.0.entry
    }
}

impl PartialEq for Listed {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Listed {}

/// The entries of a listing, or a part of them. Clones share them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries(Arc<Vec<Listed>>);

impl Entries {
    /// Returns how many bytes a reader derives from the entries: who holds, who waits, and so on.
    pub fn derived_size(&self) -> usize {
        let mut derived = Derived::default();
        self.iter().for_each(|entry| derived.add(entry));
        derived.size()
    }
}

impl Deref for Entries {
    type Target = [Listed];

    fn deref(&self) -> &[Listed] {
        &self.0
    }
}

impl From<Vec<Listed>> for Entries {
    fn from(entries: Vec<Listed>) -> Self {
        Self(Arc::new(entries))
    }
}

impl From<Vec<Entry>> for Entries {
    fn from(entries: Vec<Entry>) -> Self {
        entries.into_iter().collect()
    }
}

impl FromIterator<Entry> for Entries {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        entries.into_iter().map(Listed::from).collect()
    }
}

impl FromIterator<Listed> for Entries {
    fn from_iter<I: IntoIterator<Item = Listed>>(entries: I) -> Self {
        Self(Arc::new(entries.into_iter().collect()))
    }
}

impl<'a> IntoIterator for &'a Entries {
    type Item = &'a Listed;
    type IntoIter = std::slice::Iter<'a, Listed>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// All keys below a prefix, as read at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The entries, ordered by key.
    pub entries: Entries,
    /// The index for the next blocking query, which waits until it is passed; at least 1.
    pub index: u64,
    /// Moment at which the request was sent. The listing is at least as new.
    pub sent: Moment,
    /// Whether Consul's indexes went back since the previous listing: Consul lost or restored its data, and
    /// [`Entry::modify_index`] starts anew. Only a watch sets this.
    pub reset: bool,
}

impl Listing {
    /// Splits the listing into parts, each with the entries for which `part_of` returns that part. Entries of no part
    /// are left out.
    pub fn split<K: Ord>(self, part_of: impl Fn(&Entry) -> Option<K>) -> BTreeMap<K, Self> {
        let mut parts: BTreeMap<K, Vec<Listed>> = BTreeMap::new();
        for entry in &self.entries {
            if let Some(part) = part_of(entry) {
                parts.entry(part).or_default().push(entry.clone());
            }
        }
        let (index, sent, reset) = (self.index, self.sent, self.reset);
        let listing = |entries: Vec<Listed>| Self {
            entries: entries.into(),
            index,
            sent,
            reset,
        };
        let parts = parts.into_iter();
        parts
            .map(|(part, entries)| (part, listing(entries)))
            .collect()
    }
}

/// Keys without their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The full keys, in order.
    pub keys: Vec<String>,
    /// Whether no keys were left out because the token may not read them, as far as Consul reports that: since 1.11,
    /// and only if there is a token.
    pub complete: bool,
}

/// An operation of a transaction. Values are bytes, indexes are [`Entry::modify_index`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes the key.
    Set {
        /// The key.
        key: String,
        /// Value to write.
        value: Vec<u8>,
        /// Flags to write.
        flags: u64,
    },
    /// Writes the key if it was last written at `index`; 0: if it does not exist.
    Cas {
        /// The key.
        key: String,
        /// Value to write.
        value: Vec<u8>,
        /// Flags to write.
        flags: u64,
        /// Index that the key must have.
        index: u64,
    },
    /// Writes the key and locks it, unless another session holds it or its lock-delay runs.
    Lock {
        /// The key.
        key: String,
        /// Value to write.
        value: Vec<u8>,
        /// Flags to write.
        flags: u64,
        /// Session that is to hold the key.
        session: SessionId,
    },
    /// Writes the key and unlocks it, if the session holds it.
    Unlock {
        /// The key.
        key: String,
        /// Value to write.
        value: Vec<u8>,
        /// Flags to write.
        flags: u64,
        /// Session that holds the key.
        session: SessionId,
    },
    /// Reads the key, which must exist. A token that must not read it gets no entry and no error.
    Get {
        /// The key.
        key: String,
    },
    /// Deletes the key, if it exists.
    Delete {
        /// The key.
        key: String,
    },
    /// Deletes the key if it was last written at `index`.
    DeleteCas {
        /// The key.
        key: String,
        /// Index that the key must have.
        index: u64,
    },
    /// Fails unless the key was last written at `index`.
    CheckIndex {
        /// The key.
        key: String,
        /// Index that the key must have.
        index: u64,
    },
    /// Fails unless the session holds the key.
    CheckSession {
        /// The key.
        key: String,
        /// Session that must hold the key.
        session: SessionId,
    },
    /// Fails if the key exists.
    CheckNotExists {
        /// The key.
        key: String,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// An id may be shown anywhere: on a command line, in a table, on a page.
        #[test]
        fn only_what_consul_makes_is_shown(
            text in prop_oneof![".{0,40}", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"],
        ) {
            let id = SessionId::from(text.as_str());
            let uuid = text.len() == 36
                && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
                && text.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
            prop_assert_eq!(id.is_genuine(), uuid);
            prop_assert_eq!(id.shown(), if uuid { text.as_str() } else { "(no session)" });
        }
    }
}
