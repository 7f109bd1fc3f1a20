//! Collects what has changed since a task last took the changes.

use std::{collections::BTreeSet, mem, sync::Arc};

use tokio::sync::Notify;

/// Set of the queues or workloads that a task has to look at. Each is in the set once, until the task takes it.
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
    /// Marks a queue or a workload.
    pub(super) fn mark(&mut self, one: T) {
        if self.dirty.insert(one) {
            self.wake.notify_one();
        }
    }

    /// Takes all that are marked. The cost does not depend on how many they are.
    pub(super) fn take(&mut self) -> BTreeSet<T> {
        mem::take(&mut self.dirty)
    }

    /// Returns the `Notify` that is notified when something is marked.
    pub(super) fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }
}
