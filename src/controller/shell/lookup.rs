//! Answers what the engine looks up: workloads in the index, and sessions that are renewed by this process.

use std::{collections::BTreeSet, sync::Arc};

use crate::controller::{Context, index::Index, session_manager::SessionManager};
use consul_client::SessionId;
use consul_semaphore::{
    Key, SessionState, Uid, Workload,
    engine::{
        Changes, Located, Lookup, Overdue, QueueRef, Reach, SemaphoreRef, Stores, Superseded,
    },
};

/// Lookups of the engine for all queues.
pub(super) struct EngineStores<'a> {
    index: &'a Index,
    session_manager: &'a SessionManager,
}

impl<'a> EngineStores<'a> {
    pub(super) fn of(context: &'a Context) -> Self {
        Self {
            index: &context.index,
            session_manager: &context.shared.session_manager,
        }
    }
}

impl Stores for EngineStores<'_> {
    type Of<'a>
        = OfQueue<'a>
    where
        Self: 'a;

    fn of<'a>(&'a self, queue: &'a QueueRef) -> OfQueue<'a> {
        OfQueue {
            index: self.index,
            session_manager: self.session_manager,
            queue,
        }
    }

    fn keys(&self, semaphore: &SemaphoreRef) -> Vec<Option<Key>> {
        self.index.keys(semaphore)
    }

    fn open(&self, queue: &QueueRef) {
        self.index.open(queue);
    }

    fn close(&self, queue: &QueueRef) -> bool {
        self.index.close(queue)
    }

    fn keeps(&self, session: &SessionId) -> bool {
        self.session_manager.tracks(session)
    }
}

/// Lookups of the engine for one queue.
pub(super) struct OfQueue<'a> {
    index: &'a Index,
    session_manager: &'a SessionManager,
    queue: &'a QueueRef,
}

impl Lookup for OfQueue<'_> {
    fn bound(&self) -> Vec<Arc<Workload>> {
        self.index.bound(self.queue)
    }

    fn workload(&self, uid: &Uid) -> Option<Arc<Workload>> {
        self.index.workload(uid)
    }

    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Workload>>> {
        self.index.workloads_of(self.queue, uids)
    }

    fn touched(&self) -> BTreeSet<Uid> {
        self.index.touched(self.queue)
    }

    fn life(&self, session: &SessionId) -> Option<SessionState> {
        self.session_manager.life(session)
    }

    fn changes(&self) -> Option<Changes> {
        self.index.changes(self.queue)
    }

    fn started(&self, uid: &Uid) -> Option<Arc<Workload>> {
        self.index.started(self.queue, uid)
    }

    fn waiting(&self, reach: &Reach<'_>) -> Vec<Arc<Workload>> {
        self.index.waiting(self.queue, reach)
    }

    fn overdue(&self, now: jiff::Timestamp, most: usize) -> Vec<Overdue> {
        self.index.overdue(self.queue, now, most)
    }

    fn next_overdue(&self) -> Option<jiff::Timestamp> {
        self.index.next_overdue(self.queue)
    }

    fn postpone(&self, workload: &Uid, until: jiff::Timestamp) {
        self.index.postpone(self.queue, workload, until);
    }

    fn unrecorded(&self, most: usize) -> Vec<Arc<Workload>> {
        self.index.unrecorded(self.queue, most)
    }

    fn superseded(&self, most: usize) -> Vec<Superseded> {
        self.index.superseded(self.queue, most)
    }

    fn unadmitted(&self, most: usize) -> Vec<Arc<Workload>> {
        self.index.unadmitted(self.queue, most)
    }

    fn admit(&self, workload: &Uid) {
        self.index.admit(self.queue, workload);
    }

    fn count_waiting(&self) -> usize {
        self.index.count_waiting(self.queue)
    }

    fn count_admitted(&self, apart: &BTreeSet<Uid>) -> Option<usize> {
        self.index.count_admitted(self.queue, apart)
    }

    fn replaceable(&self, by: &Workload) -> Vec<Located> {
        self.index.replaceable(&by.uid)
    }

    fn contends(&self, uid: &Uid, session: Option<&SessionId>) -> Option<Arc<Workload>> {
        self.index.contends(self.queue, uid, session)
    }
}
