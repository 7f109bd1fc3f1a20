//! Exposes the index to benchmarks outside of this crate: one semaphore, and workloads from a watch.

use std::sync::Arc;

use super::index::{Credential, Index, Manager, Offer};
use consul_client::clock::Moment;
use consul_semaphore::Prefix;
use consul_semaphore::{
    Restrictions, Uid, Workload,
    engine::{QueueRef, Reach, SemaphoreRef, head},
};
use consul_semaphore_workload::{Job, TrackedWorkload};

/// Returns a workload as a pass sees it; `None` if the workload does not concern the operator.
pub fn read(workload: &Job) -> Option<Arc<Workload>> {
    TrackedWorkload::read(workload, Moment::default()).map(|workload| workload.workload)
}

/// Queue of one semaphore.
pub struct Queue {
    index: Index,
    queue: QueueRef,
}

impl Queue {
    /// Creates a queue without workloads.
    pub fn new(namespace: &str, semaphore: &str, prefix: Prefix) -> Self {
        let semaphore = SemaphoreRef {
            namespace: namespace.into(),
            name: semaphore.into(),
        };
        let queue = QueueRef::new(&semaphore, None);
        let index = Index::default();
        let offer = Offer {
            prefix,
            keyed: false,
            consul: None,
            credential: Some(Credential::Operator),
            limit: 5000,
            restrictions: Restrictions::default(),
            wait_timeout: None,
        };
        futures::executor::block_on(index.add_semaphore(&semaphore, offer, Manager::ThisOperator));
        Self { index, queue }
    }

    /// Adds or updates a workload from the watch.
    pub fn put(&self, workload: &Job) {
        let uid = workload.metadata.uid.as_deref().unwrap_or_default();
        let workload = TrackedWorkload::read(workload, Moment::default());
        self.index.put(&Uid::from(uid), workload);
    }

    /// Returns what a pass that can write this many operations reads: the workloads that were started, and those that
    /// wait.
    pub fn slice(&self, limit: u32, operations: usize) -> (Vec<Arc<Workload>>, Vec<Arc<Workload>>) {
        let reach = Reach::first(head(limit, operations));
        let waiting = self.index.waiting(&self.queue, &reach);
        (self.index.bound(&self.queue), waiting)
    }
}
