//! Records which queues have a contender of which workload. If a workload has changed its key since it was granted a
//! slot, the queue of the new key manages the workload, and the queue of the old key must be marked, too.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
    sync::Arc,
};

use super::Index;
use consul_client::{
    SessionId,
    id::{IdMap, IdSet},
};
use consul_semaphore::{MOST_SLOTS, Uid, Workload, engine::QueueRef};
use consul_semaphore_workload::TrackedWorkload;

/// Contenders of all workloads, by workload and by queue.
#[derive(Default)]
pub(super) struct Contenders {
    by_workload: IdMap<Uid, BTreeMap<QueueRef, Contending>>,
    by_queue: HashMap<QueueRef, IdSet<Uid>>,
    /// Queues of which all contenders were found.
    read: HashSet<QueueRef>,
}

/// Contenders of one workload in one queue.
#[derive(Default)]
struct Contending {
    /// Sessions of the contenders, the latest last, and some that had the same slots before.
    sessions: Vec<SessionId>,
    /// Whether the slots of the workload only cool down. When they began to cool down, no pod of the workload was
    /// left.
    cools: bool,
}

impl Contending {
    fn add(&mut self, session: &SessionId) {
        if self.sessions.contains(session) {
            return;
        }
        if self.sessions.len() >= MOST_SLOTS as usize {
            self.sessions.remove(0);
        }
        self.sessions.push(session.clone());
        self.cools = false;
    }
}

impl Contenders {
    /// Sets the workloads that a queue has contenders of.
    fn put(&mut self, queue: &QueueRef, workloads: &[&Uid]) {
        self.read.insert(queue.clone());
        let known = self.by_queue.get_mut(queue);
        // If one workload has two contenders, another workload may stay known too long. At worst that wakes the queue
        // in vain.
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
            queues.entry(queue.clone()).or_default();
        }
        if workloads.is_empty() {
            self.by_queue.remove(queue);
        } else {
            self.by_queue.insert(queue.clone(), workloads);
        }
    }

    /// Records that a queue has this contender of a workload, or none any more.
    fn set(&mut self, queue: &QueueRef, workload: &Uid, session: Option<&SessionId>) {
        if let Some(session) = session {
            let known = self.by_workload.get_mut(workload);
            if let Some(known) = known.and_then(|queues| queues.get_mut(queue)) {
                return known.add(session);
            }
            let workloads = self.by_queue.entry(queue.clone()).or_default();
            workloads.insert(workload.clone());
            let queues = self.by_workload.entry(workload.clone()).or_default();
            queues.entry(queue.clone()).or_default().add(session);
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

    /// Forgets a queue that was closed.
    pub(super) fn forget(&mut self, queue: &QueueRef) {
        self.put(queue, &[]);
        self.read.remove(queue);
    }

    /// Returns the queues that have a contender of a workload.
    pub(super) fn queues_of(&self, workload: &Uid) -> impl Iterator<Item = &QueueRef> {
        let queues = self.by_workload.get(workload);
        queues.into_iter().flat_map(BTreeMap::keys)
    }
}

impl Index {
    /// Sets the workloads that a queue has contenders of, and returns those workloads that exist. From then on, the
    /// queue is marked when one of them changes, whichever queue manages it.
    pub(in crate::controller) fn workloads_of(
        &self,
        queue: &QueueRef,
        uids: &[&Uid],
    ) -> Vec<Option<Arc<Workload>>> {
        let mut state = self.state();
        state.contenders.put(queue, uids);
        let workloads = uids.iter().map(|uid| state.workloads.get(uid));
        workloads
            .map(|tracked| tracked.map(|tracked| tracked.workload.clone()))
            .collect()
    }

    /// Records that a queue has this contender of a workload, or none any more.
    pub(in crate::controller) fn contends(
        &self,
        queue: &QueueRef,
        uid: &Uid,
        session: Option<&SessionId>,
    ) -> Option<Arc<Workload>> {
        let mut state = self.state();
        state.contenders.set(queue, uid, session);
        state.workload(uid).filter(|_| session.is_some())
    }

    /// Returns the sessions of all contenders of a workload, the latest of each queue first, and some that had its
    /// slots before.
    pub(in crate::controller) fn contending_sessions(&self, uid: &Uid) -> Vec<SessionId> {
        let state = self.state();
        let queues = state.contenders.by_workload.get(uid).into_iter();
        let contending = queues.flat_map(BTreeMap::values);
        let sessions = contending.flat_map(|contending| contending.sessions.iter().rev());
        sessions.cloned().collect()
    }

    /// Notes that the slots of a workload in a queue cool down.
    pub(in crate::controller) fn cools(&self, queue: &QueueRef, uid: &Uid) {
        let mut state = self.state();
        let queues = state.contenders.by_workload.get_mut(uid);
        if let Some(contending) = queues.and_then(|queues| queues.get_mut(queue)) {
            contending.cools = true;
        }
    }

    /// Whether any queue has a contender of a workload, except for slots that only cool down.
    pub(in crate::controller) fn has_contender(&self, uid: &Uid) -> bool {
        let state = self.state();
        let queues = state.contenders.by_workload.get(uid).into_iter();
        let mut contending = queues.flat_map(BTreeMap::values);
        contending.any(|contending| !contending.cools)
    }

    /// Whether all contenders were found in the queues that a workload asks for, as far as these queues exist.
    pub(in crate::controller) fn knows_contenders(&self, tracked: &TrackedWorkload) -> bool {
        let state = self.state();
        let read = &state.contenders.read;
        let uid = &tracked.workload.uid;
        let by_queue = state.contenders.by_workload.get(uid).into_iter();
        let mut contending = by_queue.flat_map(BTreeMap::values);
        // A pass finds contenders before it learns their sessions.
        if contending.any(|contending| contending.sessions.is_empty()) {
            return false;
        }
        state.lists.knows_semaphores(&tracked.namespace)
            && state
                .wanted(tracked)
                .iter()
                .all(|queue| read.contains(queue))
    }
}
