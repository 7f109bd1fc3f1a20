//! What lines are called.

use std::sync::Arc;

use consul_semaphore::Key;

/// A `ConsulSemaphore` by its namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::controller) struct SemaphoreRef {
    pub(in crate::controller) namespace: Arc<str>,
    pub(in crate::controller) name: Arc<str>,
}

impl std::fmt::Display for SemaphoreRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A line of Jobs for the slots of one lock key: a semaphore's only one, or that of one key of a keyed
/// semaphore.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::controller) struct LineRef {
    pub(in crate::controller) namespace: Arc<str>,
    pub(in crate::controller) name: Arc<str>,
    pub(in crate::controller) key: Option<Key>,
}

impl LineRef {
    pub(in crate::controller) fn new(semaphore: &SemaphoreRef, key: Option<Key>) -> Self {
        Self {
            namespace: semaphore.namespace.clone(),
            name: semaphore.name.clone(),
            key,
        }
    }

    /// Whose line it is.
    pub(in crate::controller) fn semaphore(&self) -> SemaphoreRef {
        SemaphoreRef {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// What the Jobs of the namespace are told that it is.
    pub(in crate::controller) fn title(&self) -> String {
        match &self.key {
            Some(key) => format!("{} (key {key})", self.name),
            None => self.name.to_string(),
        }
    }
}

impl std::fmt::Display for LineRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)?;
        match &self.key {
            Some(key) => write!(f, ":{key}"),
            None => Ok(()),
        }
    }
}
