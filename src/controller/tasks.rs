//! Tasks about workloads: a few at once, one for each workload, and none waits for another.

use std::collections::HashSet;

use tokio::task::JoinSet;

use consul_semaphore::Uid;

/// Tasks that each return a `T`.
pub(super) struct Tasks<T> {
    most: usize,
    running: JoinSet<(Uid, T)>,
    busy: HashSet<Uid>,
    last: Option<Uid>,
}

impl<T: Send + 'static> Tasks<T> {
    /// At most this many at once.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            running: JoinSet::new(),
            busy: HashSet::new(),
            last: None,
        }
    }

    /// How many more can start now.
    pub(super) fn free(&self) -> usize {
        self.most.saturating_sub(self.busy.len())
    }

    /// Whether there is one about this workload.
    pub(super) fn has(&self, workload: &Uid) -> bool {
        self.busy.contains(workload)
    }

    /// The workload that the last one was started about.
    pub(super) fn last(&self) -> Option<&Uid> {
        self.last.as_ref()
    }

    /// Starts one about a workload that has none.
    pub(super) fn start(&mut self, workload: Uid, task: impl Future<Output = T> + Send + 'static) {
        self.busy.insert(workload.clone());
        self.last = Some(workload.clone());
        self.running.spawn(async move { (workload, task.await) });
    }

    /// The next that has ended, with its workload; `None` if none runs.
    pub(super) async fn next(&mut self) -> Option<(Uid, T)> {
        match self.running.join_next().await? {
            Ok((workload, ended)) => {
                self.busy.remove(&workload);
                Some((workload, ended))
            }
            // A task that panics is a bug, and ends the operator. None is aborted.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future;

    use super::*;

    #[tokio::test]
    async fn one_that_takes_long_delays_no_other() {
        let mut tasks = Tasks::new(2);
        tasks.start("slow".into(), future::pending());
        for name in ["a", "b", "c"] {
            assert_eq!(tasks.free(), 1);
            tasks.start(name.into(), future::ready(name));
            assert!(tasks.has(&name.into()) && tasks.free() == 0);
            assert_eq!(tasks.next().await, Some((name.into(), name)));
        }
        assert!(tasks.has(&"slow".into()));
    }
}
