//! Stores the workloads that concern the operator, by their uids.

use consul_client::id::IdMap;
use consul_semaphore::{Uid, engine::QueueRef};
use consul_semaphore_workload::TrackedWorkload;

/// Workloads that concern the operator. A test counts how many of them are looked at: what one tenant writes must not
/// cost a look at the workloads of all tenants, because everybody waits for the lock of the index.
#[derive(Default)]
pub(super) struct KnownWorkloads {
    /// Stored workloads. Each is in a `Box`, because it is large and the table has room for more than it holds.
    all: IdMap<Uid, Box<IndexedWorkload>>,
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
}

/// Stored workload with its queues.
struct IndexedWorkload {
    tracked: TrackedWorkload,
    /// Queues in which the workload has its place.
    queues: Box<[QueueRef]>,
}

impl KnownWorkloads {
    /// Counts that a workload is looked at.
    #[cfg(test)]
    fn count(&self) {
        self.looks.update(|looks| looks + 1);
    }

    /// Counts nothing, because only tests read the count.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "as in tests")]
    fn count(&self) {}

    /// Returns the workload with this uid.
    pub(super) fn get(&self, uid: &Uid) -> Option<&TrackedWorkload> {
        self.count();
        self.all.get(uid).map(|known| &known.tracked)
    }

    /// Returns the workload with this uid, for changes.
    pub(super) fn get_mut(&mut self, uid: &Uid) -> Option<&mut TrackedWorkload> {
        self.count();
        self.all.get_mut(uid).map(|known| &mut known.tracked)
    }

    /// Whether there is a workload with this uid.
    pub(super) fn contains(&self, uid: &Uid) -> bool {
        self.count();
        self.all.contains_key(uid)
    }

    /// Returns all workloads.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Uid, &TrackedWorkload)> {
        let all = self.all.iter().inspect(|_| self.count());
        all.map(|(uid, known)| (uid, &known.tracked))
    }

    /// Stores a workload, which has its place in these queues, and replaces its earlier version.
    pub(super) fn insert(&mut self, tracked: TrackedWorkload, queues: Vec<QueueRef>) {
        let uid = tracked.workload.uid.clone();
        let queues = queues.into();
        self.all
            .insert(uid, Box::new(IndexedWorkload { tracked, queues }));
    }

    /// Forgets the workload with this uid.
    pub(super) fn remove(&mut self, uid: &Uid) {
        self.all.remove(uid);
    }

    /// Returns the queues in which the workload with this uid has its place.
    pub(super) fn queues_of(&self, uid: &Uid) -> &[QueueRef] {
        self.all.get(uid).map_or(&[], |known| &known.queues)
    }

    /// Sets the queues in which the workload with this uid has its place.
    pub(super) fn set_queues(&mut self, uid: &Uid, queues: Vec<QueueRef>) {
        if let Some(known) = self.all.get_mut(uid) {
            known.queues = queues.into();
        }
    }

    /// Takes the queues of the workload with this uid, which has no place in them any more.
    pub(super) fn take_queues(&mut self, uid: &Uid) -> Box<[QueueRef]> {
        let known = self.all.get_mut(uid);
        known.map_or_else(Box::default, |known| std::mem::take(&mut known.queues))
    }

    /// Returns how many workloads were looked at since the last call.
    #[cfg(test)]
    pub(super) fn take_looks(&self) -> usize {
        self.looks.take()
    }
}
