//! What somebody is to look at, until it is taken.

use std::{collections::BTreeSet, mem, sync::Arc};

use tokio::sync::Notify;

/// Marked queues or workloads, each once, until the task that looks at them takes them.
pub(super) struct Marks<T> {
    marked: BTreeSet<T>,
    wake: Arc<Notify>,
}

impl<T> Default for Marks<T> {
    fn default() -> Self {
        Self {
            marked: BTreeSet::new(),
            wake: Arc::default(),
        }
    }
}

impl<T: Ord> Marks<T> {
    /// Marks one.
    pub(super) fn mark(&mut self, one: T) {
        if self.marked.insert(one) {
            self.wake.notify_one();
        }
    }

    /// Takes all that are marked. That costs the same however many they are.
    pub(super) fn take(&mut self) -> BTreeSet<T> {
        mem::take(&mut self.marked)
    }

    /// Notified when one is marked.
    pub(super) fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }
}
