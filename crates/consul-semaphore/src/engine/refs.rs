//! Names semaphores and their queues.

use std::{fmt, sync::Arc};

use crate::Key;

/// The reference to a semaphore, by its namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SemaphoreRef {
    /// Namespace of the semaphore. Only workloads of this namespace use the semaphore.
    pub namespace: Arc<str>,
    /// Name of the semaphore in its namespace.
    pub name: Arc<str>,
}

/// The reference to the queue for the slots of one lock key: the only lock key of a semaphore, or the lock key of one
/// key of a keyed semaphore.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueRef {
    /// The semaphore.
    pub semaphore: SemaphoreRef,
    /// The key of a keyed semaphore; `None` for one that is not keyed.
    pub key: Option<Key>,
}

impl QueueRef {
    /// Makes the reference to the queue of this key.
    pub fn new(semaphore: &SemaphoreRef, key: Option<Key>) -> Self {
        Self {
            semaphore: semaphore.clone(),
            key,
        }
    }

    /// Returns the name of the queue for people who know the namespace: `name`, or `name (key k)`.
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
