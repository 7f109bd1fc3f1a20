//! How semaphores and their queues are named.

use std::{fmt, sync::Arc};

use crate::Key;

/// A semaphore by its namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SemaphoreRef {
    /// Only workloads of this namespace use it.
    pub namespace: Arc<str>,
    /// Its name there.
    pub name: Arc<str>,
}

/// The queue for the slots of one lock key: the only one of a semaphore, or that of one key of a keyed semaphore.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueRef {
    /// The semaphore.
    pub semaphore: SemaphoreRef,
    /// The key of a keyed semaphore; `None` for one that is not keyed.
    pub key: Option<Key>,
}

impl QueueRef {
    /// The queue of this key.
    pub fn new(semaphore: &SemaphoreRef, key: Option<Key>) -> Self {
        Self {
            semaphore: semaphore.clone(),
            key,
        }
    }

    /// Its name for people who know the namespace: `name`, or `name (key k)`.
    pub fn title(&self) -> String {
        let name = &self.semaphore.name;
        match &self.key {
            Some(key) => format!("{name} (key {key})"),
            None => name.to_string(),
        }
    }
}

impl fmt::Display for SemaphoreRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for QueueRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.semaphore)?;
        match &self.key {
            Some(key) => write!(f, ":{key}"),
            None => Ok(()),
        }
    }
}
