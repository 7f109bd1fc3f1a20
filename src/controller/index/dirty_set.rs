//! What has changed since the task that handles it last took the changes.

use std::{collections::BTreeSet, mem, sync::Arc};

use tokio::sync::Notify;

/// The queues or workloads that a task has to look at, each of them once, until it takes them.
pub(super) struct DirtySet<T> {
    dirty: BTreeSet<T>,
    wake: Arc<Notify>,
}

impl<T> Default for DirtySet<T> {
    fn default() -> Self {
        Self {
            dirty: BTreeSet::new(),
            wake: Arc::default(),
        }
    }
}

impl<T: Ord> DirtySet<T> {
    /// Marks one.
    pub(super) fn mark(&mut self, one: T) {
        if self.dirty.insert(one) {
            self.wake.notify_one();
        }
    }

    /// Takes all that are marked. That costs the same however many they are.
    pub(super) fn take(&mut self) -> BTreeSet<T> {
        mem::take(&mut self.dirty)
    }

    /// Notified when one is marked.
    pub(super) fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }
}
