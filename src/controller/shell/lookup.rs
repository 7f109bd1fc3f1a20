//! What the engine looks up: Jobs in the index, and sessions that are renewed here.

use std::{collections::BTreeSet, sync::Arc};

use crate::controller::{Context, index::Index, keeper::Keeper};
use consul_client::SessionId;
use consul_semaphore::{
    Job, Key, Life, Uid,
    engine::{Changes, Lookup, QueueRef, SemaphoreRef, Slice, Stores},
};

/// What the engine looks up, for all queues.
pub(super) struct Cluster<'a> {
    index: &'a Index,
    keeper: &'a Keeper,
}

impl<'a> Cluster<'a> {
    pub(super) fn of(context: &'a Context) -> Self {
        Self {
            index: &context.index,
            keeper: &context.keeper,
        }
    }
}

impl Stores for Cluster<'_> {
    type Of<'a>
        = OfQueue<'a>
    where
        Self: 'a;

    fn of<'a>(&'a self, queue: &'a QueueRef) -> OfQueue<'a> {
        OfQueue {
            index: self.index,
            keeper: self.keeper,
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
        self.keeper.keeps(session)
    }
}

/// What the engine looks up for a queue.
pub(super) struct OfQueue<'a> {
    index: &'a Index,
    keeper: &'a Keeper,
    queue: &'a QueueRef,
}

impl Lookup for OfQueue<'_> {
    fn slice(&self, head: usize) -> Slice {
        self.index.slice(self.queue, head)
    }

    fn workload(&self, uid: &Uid) -> Option<Arc<Job>> {
        self.index.job(uid)
    }

    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Job>>> {
        self.index.jobs_of(self.queue, uids)
    }

    fn touched(&self) -> BTreeSet<Uid> {
        self.index.touched(self.queue)
    }

    fn life(&self, session: &SessionId) -> Option<Life> {
        self.keeper.life(session)
    }

    fn changes(&self) -> Option<Changes> {
        self.index.changes(self.queue)
    }

    fn started(&self, uid: &Uid) -> Option<Arc<Job>> {
        self.index.started(self.queue, uid)
    }

    fn waiting(&self, head: usize) -> Vec<Arc<Job>> {
        self.index.waiting(self.queue, head)
    }

    fn contends(&self, uid: &Uid, does: bool) -> Option<Arc<Job>> {
        self.index.contends(self.queue, uid, does)
    }
}
