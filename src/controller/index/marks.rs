//! The queues that are due a pass, until the engine takes them.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::Notify;

use consul_semaphore::engine::QueueRef;

/// Queues that are due a pass.
#[derive(Default)]
pub(super) struct Marks {
    queues: BTreeSet<QueueRef>,
    wake: Arc<Notify>,
}

impl Marks {
    /// Marks a queue as due a pass.
    pub(super) fn mark(&mut self, queue: QueueRef) {
        if self.queues.insert(queue) {
            self.wake.notify_one();
        }
    }

    /// Takes them out.
    pub(super) fn take(&mut self) -> BTreeSet<QueueRef> {
        std::mem::take(&mut self.queues)
    }

    /// Notified when a queue is marked.
    pub(super) fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }
}
