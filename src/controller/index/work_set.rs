//! Keeps the workloads that one task handles.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::Notify;

use super::dirty_set::DirtySet;
use consul_semaphore::Uid;

/// Set of the workloads that one task handles. The task takes those that have changed, and remembers itself when it
/// looks at a workload again. So one change does not cost a look at all of them.
#[derive(Default)]
pub(super) struct WorkSet {
    /// Workloads of the set. All workloads may be in it while the operator starts, and no memory is kept for them
    /// afterwards.
    members: BTreeSet<Uid>,
    changed: DirtySet<Uid>,
}

impl WorkSet {
    /// Adds a workload to the set, or notes that a workload of the set has changed.
    pub(super) fn insert(&mut self, workload: &Uid) {
        self.members.insert(workload.clone());
        self.changed.mark(workload.clone());
    }

    /// Removes a workload from the set. Returns whether it was in the set.
    pub(super) fn remove(&mut self, workload: &Uid) -> bool {
        let was = self.members.remove(workload);
        if was {
            self.changed.mark(workload.clone());
        }
        was
    }

    /// Whether a workload is in the set.
    pub(super) fn contains(&self, workload: &Uid) -> bool {
        self.members.contains(workload)
    }

    /// Returns all workloads of the set, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Uid> {
        self.members.iter()
    }

    /// Takes the workloads that were added, have changed or were removed since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<Uid> {
        self.changed.take()
    }

    /// Returns the `Notify` that is notified when a workload was added, has changed or was removed.
    pub(super) fn wake(&self) -> Arc<Notify> {
        self.changed.wake()
    }
}
