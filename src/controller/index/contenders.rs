//! Which queues have a contender of which workload. When a workload has changed its key since it was granted a slot,
//! the queue of the new key manages it; the queue of the old one must be marked, too.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
    sync::Arc,
};

use super::Index;
use consul_client::id::{IdMap, IdSet};
use consul_semaphore::{Uid, Workload, engine::QueueRef};

/// The queues that have a contender of each workload.
#[derive(Default)]
pub(super) struct Contenders {
    by_workload: IdMap<Uid, BTreeSet<QueueRef>>,
    by_queue: HashMap<QueueRef, IdSet<Uid>>,
}

impl Contenders {
    /// Sets the workloads that a queue has contenders of.
    fn put(&mut self, queue: &QueueRef, workloads: &[&Uid]) {
        let known = self.by_queue.get_mut(queue);
        // If one workload has two contenders, another may stay known too long: at worst it wakes the queue in vain.
        let same = known.as_deref().map_or(workloads.is_empty(), |known| {
            known.len() == workloads.len()
                && workloads.iter().all(|workload| known.contains(*workload))
        });
        if same {
            return;
        }
        let before = known.map(mem::take).unwrap_or_default();
        let workloads: IdSet<Uid> = workloads.iter().copied().cloned().collect();
        for gone in before.difference(&workloads) {
            self.forget_workload(gone, queue);
        }
        for new in workloads.difference(&before) {
            let queues = self.by_workload.entry(new.clone()).or_default();
            queues.insert(queue.clone());
        }
        if workloads.is_empty() {
            self.by_queue.remove(queue);
        } else {
            self.by_queue.insert(queue.clone(), workloads);
        }
    }

    /// Records that a queue has, or no longer has, a contender of a workload.
    fn set(&mut self, queue: &QueueRef, workload: &Uid, has: bool) {
        if has {
            let workloads = self.by_queue.entry(queue.clone()).or_default();
            if workloads.insert(workload.clone()) {
                let queues = self.by_workload.entry(workload.clone()).or_default();
                queues.insert(queue.clone());
            }
            return;
        }
        if let Some(workloads) = self.by_queue.get_mut(queue) {
            workloads.remove(workload);
            if workloads.is_empty() {
                self.by_queue.remove(queue);
            }
        }
        self.forget_workload(workload, queue);
    }

    fn forget_workload(&mut self, workload: &Uid, queue: &QueueRef) {
        if let Some(queues) = self.by_workload.get_mut(workload) {
            queues.remove(queue);
            if queues.is_empty() {
                self.by_workload.remove(workload);
            }
        }
    }

    /// A queue was closed.
    pub(super) fn forget(&mut self, queue: &QueueRef) {
        self.put(queue, &[]);
    }

    /// The queues that have a contender of a workload.
    pub(super) fn queues_of(&self, workload: &Uid) -> impl Iterator<Item = &QueueRef> {
        self.by_workload.get(workload).into_iter().flatten()
    }
}

impl Index {
    /// Sets the workloads that a queue has contenders of, and returns those that exist. From now on the queue is
    /// marked when one of them changes, whichever queue manages it.
    pub(in crate::controller) fn workloads_of(
        &self,
        queue: &QueueRef,
        uids: &[&Uid],
    ) -> Vec<Option<Arc<Workload>>> {
        let mut state = self.state();
        state.contenders.put(queue, uids);
        let workloads = uids.iter().map(|uid| state.workloads.get(*uid));
        workloads
            .map(|tracked| tracked.map(|tracked| tracked.workload.clone()))
            .collect()
    }

    /// Records that a queue has, or no longer has, a contender of one workload.
    pub(in crate::controller) fn contends(
        &self,
        queue: &QueueRef,
        uid: &Uid,
        does: bool,
    ) -> Option<Arc<Workload>> {
        let mut state = self.state();
        state.contenders.set(queue, uid, does);
        state.workload(uid).filter(|_| does)
    }
}
