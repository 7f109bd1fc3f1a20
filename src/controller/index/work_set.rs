//! The workloads that one task handles.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::Notify;

use super::dirty_set::DirtySet;
use consul_semaphore::Uid;

/// The workloads that one task handles. The task takes those that have changed and remembers itself when it looks at one
/// again, so that one change costs no look at all of them.
#[derive(Default)]
pub(super) struct WorkSet {
    /// All workloads may be among them while the operator starts, and no memory is kept for them afterwards.
    members: BTreeSet<Uid>,
    changed: DirtySet<Uid>,
}

impl WorkSet {
    /// A workload is one of them now, or still is and has changed.
    pub(super) fn insert(&mut self, workload: &Uid) {
        self.members.insert(workload.clone());
        self.changed.mark(workload.clone());
    }

    /// A workload is none of them any more. Returns whether it was one.
    pub(super) fn remove(&mut self, workload: &Uid) -> bool {
        let was = self.members.remove(workload);
        if was {
            self.changed.mark(workload.clone());
        }
        was
    }

    /// Whether a workload is one of them.
    pub(super) fn contains(&self, workload: &Uid) -> bool {
        self.members.contains(workload)
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Uid> {
        self.members.iter()
    }

    /// Takes those that have come, have changed or have gone since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<Uid> {
        self.changed.take()
    }

    /// Notified when one has come, has changed or has gone.
    pub(super) fn wake(&self) -> Arc<Notify> {
        self.changed.wake()
    }
}
