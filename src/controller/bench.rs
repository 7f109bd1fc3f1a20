//! The index as benchmarks outside of this crate use it: one semaphore, and Jobs as a watch shows them.

use std::sync::Arc;

use super::index::Index;
use consul_client::clock::Moment;
use consul_semaphore::Prefix;
use consul_semaphore::{
    Job, Uid,
    engine::{QueueRef, SemaphoreRef, head},
};
use consul_semaphore_workload::{TrackedWorkload, WorkloadObject};

/// A Job as a pass sees it; `None` if it has nothing to do with us.
pub fn read(job: &WorkloadObject) -> Option<Arc<Job>> {
    TrackedWorkload::read(job, Moment::default()).map(|workload| workload.job)
}

/// The line of one semaphore.
pub struct Queue {
    index: Index,
    line: QueueRef,
}

impl Queue {
    /// A line without Jobs.
    pub fn new(namespace: &str, semaphore: &str, prefix: Prefix) -> Self {
        let semaphore = SemaphoreRef {
            namespace: namespace.into(),
            name: semaphore.into(),
        };
        let line = QueueRef::new(&semaphore, None);
        let index = Index::default();
        index.add_semaphore(&semaphore, prefix, false, true);
        Self { index, line }
    }

    /// A Job as the watch shows it.
    pub fn put(&self, job: &WorkloadObject) {
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        let workload = TrackedWorkload::read(job, Moment::default());
        self.index.put(&Uid::from(uid), workload);
    }

    /// What a pass takes out that can write so many operations: the Jobs that were started, and the head of
    /// the line.
    pub fn slice(&self, limit: u32, operations: usize) -> (Vec<Arc<Job>>, Vec<Arc<Job>>) {
        let head = head(limit, operations, 0);
        let slice = self.index.slice(&self.line, head);
        (slice.bound, slice.waiting)
    }
}
