//! Temp.
#![allow(missing_docs)]
use crate::clock::Moment;
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct SessionId(String);
impl From<String> for SessionId {
    fn from(s: String) -> Self {
        Self(s)
    }
}
impl From<&str> for SessionId {
    fn from(s: &str) -> Self {
        Self(s.into())
    }
}
impl AsRef<str> for SessionId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}
impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    pub flags: u64,
    pub session: Option<SessionId>,
    pub lock_index: u64,
    pub create_index: u64,
    pub modify_index: u64,
}
#[derive(Clone, Debug)]
pub struct Listing {
    pub entries: Vec<Entry>,
    pub index: u64,
    pub sent: Moment,
    pub reset: bool,
}
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Cas {
        key: String,
        value: Vec<u8>,
        flags: u64,
        index: u64,
    },
    Lock {
        key: String,
        value: Vec<u8>,
        flags: u64,
        session: SessionId,
    },
    Delete {
        key: String,
    },
    DeleteCas {
        key: String,
        index: u64,
    },
    CheckIndex {
        key: String,
        index: u64,
    },
    CheckSession {
        key: String,
        session: SessionId,
    },
    CheckNotExists {
        key: String,
    },
}
