//! The workloads that concern the operator, by their uids.

use consul_client::id::IdMap;
use consul_semaphore::Uid;
use consul_semaphore_workload::TrackedWorkload;

/// The workloads that concern the operator. A test counts how many are looked at: what one tenant writes must not cost
/// a look at the workloads of all others, because everybody waits for the lock of the index.
#[derive(Default)]
pub(super) struct KnownWorkloads {
    /// What is stored of one is large, and a table has room for more than it has.
    all: IdMap<Uid, Box<TrackedWorkload>>,
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
}

impl KnownWorkloads {
    /// Counts that a workload is looked at.
    #[cfg(test)]
    fn count(&self) {
        self.looks.update(|looks| looks + 1);
    }

    /// Only tests count.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "as in tests")]
    fn count(&self) {}

    /// The workload with this uid.
    pub(super) fn get(&self, uid: &Uid) -> Option<&TrackedWorkload> {
        self.count();
        self.all.get(uid).map(Box::as_ref)
    }

    /// The workload with this uid, for changes.
    pub(super) fn get_mut(&mut self, uid: &Uid) -> Option<&mut TrackedWorkload> {
        self.count();
        self.all.get_mut(uid).map(Box::as_mut)
    }

    /// Whether there is a workload with this uid.
    pub(super) fn contains(&self, uid: &Uid) -> bool {
        self.count();
        self.all.contains_key(uid)
    }

    /// All workloads.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Uid, &TrackedWorkload)> {
        let all = self.all.iter().inspect(|_| self.count());
        all.map(|(uid, tracked)| (uid, tracked.as_ref()))
    }

    /// Stores a workload, in the place of its earlier version.
    pub(super) fn insert(&mut self, tracked: TrackedWorkload) {
        let uid = tracked.workload.uid.clone();
        self.all.insert(uid, Box::new(tracked));
    }

    /// Forgets the workload with this uid, and returns it.
    pub(super) fn remove(&mut self, uid: &Uid) -> Option<TrackedWorkload> {
        self.all.remove(uid).map(|tracked| *tracked)
    }

    /// How many workloads were looked at since the last call.
    #[cfg(test)]
    pub(super) fn take_looks(&self) -> usize {
        self.looks.take()
    }
}
