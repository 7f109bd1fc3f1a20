//! Keeps track of which queues are due for a pass now, and when the others are.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use super::{QueueRef, SemaphoreRef};
use consul_client::clock::Moment;

/// Work that is due at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DueWork {
    /// A pass over a queue.
    Queue(QueueRef),
    /// A review of a whole semaphore.
    Semaphore(SemaphoreRef),
}

/// Queues and semaphores that are due now or later. Namespaces take turns: however much one namespace has to do, the
/// others wait for only one of its passes.
#[derive(Clone, Debug, Default)]
pub(super) struct Agenda {
    /// Queues of each namespace that are due now, in order. Queues that were taken out before their turn are still
    /// listed here.
    ready: BTreeMap<Arc<str>, VecDeque<QueueRef>>,
    /// Namespaces that have queues in `ready`, in the order of their turns.
    turns: VecDeque<Arc<str>>,
    /// Queues that are due now.
    marked: BTreeSet<QueueRef>,
    times: BTreeSet<(Moment, DueWork)>,
    by_what: BTreeMap<DueWork, Moment>,
}

impl Agenda {
    /// Marks a queue as due for a pass.
    pub(super) fn mark(&mut self, queue: &QueueRef) {
        if !self.marked.insert(queue.clone()) {
            return;
        }
        let namespace = &queue.semaphore.namespace;
        let ready = self.ready.entry(namespace.clone()).or_default();
        if ready.is_empty() {
            self.turns.push_back(namespace.clone());
        }
        ready.push_back(queue.clone());
    }

    /// Whether a queue is due for a pass.
    pub(super) fn is_marked(&self, queue: &QueueRef) -> bool {
        self.marked.contains(queue)
    }

    /// Takes out the queue whose turn it is.
    pub(super) fn next(&mut self) -> Option<QueueRef> {
        loop {
            let namespace = self.turns.pop_front()?;
            let ready = self.ready.get_mut(&namespace)?;
            let queue = ready.pop_front();
            if ready.is_empty() {
                self.ready.remove(&namespace);
            } else {
                self.turns.push_back(namespace);
            }
            let queue = queue.filter(|queue| self.marked.remove(queue));
            if queue.is_some() {
                return queue;
            }
        }
    }

    /// Takes out a queue before its turn. Returns whether the queue was due.
    pub(super) fn take(&mut self, queue: &QueueRef) -> bool {
        self.marked.remove(queue)
    }

    /// Sets the only time at which this work is due.
    pub(super) fn set(&mut self, what: DueWork, time: Option<Moment>) {
        match time {
            Some(time) if self.by_what.get(&what) == Some(&time) => {}
            Some(time) => {
                if let Some(before) = self.by_what.insert(what.clone(), time) {
                    self.times.remove(&(before, what.clone()));
                }
                self.times.insert((time, what));
            }
            None => {
                if let Some(before) = self.by_what.remove(&what) {
                    self.times.remove(&(before, what));
                }
            }
        }
    }

    /// Takes out work whose time has come.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<DueWork> {
        if self.times.first()?.0 > now {
            return None;
        }
        let (_, what) = self.times.pop_first()?;
        self.by_what.remove(&what);
        Some(what)
    }

    /// Returns when the next work is due, or `now` if a queue is due already.
    pub(super) fn next_time(&self, now: Moment) -> Option<Moment> {
        if !self.turns.is_empty() {
            return Some(now);
        }
        self.times.first().map(|(time, _)| *time)
    }

    /// Forgets a queue that no longer exists.
    pub(super) fn forget(&mut self, queue: &QueueRef) {
        self.set(DueWork::Queue(queue.clone()), None);
        if !self.marked.remove(queue) {
            return;
        }
        let namespace = &queue.semaphore.namespace;
        if let Some(ready) = self.ready.get_mut(namespace) {
            ready.retain(|other| other != queue);
            if ready.is_empty() {
                self.ready.remove(namespace);
                self.turns.retain(|turn| turn != namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn queue(namespace: &str, name: &str) -> QueueRef {
        let semaphore = SemaphoreRef {
            namespace: namespace.into(),
            name: name.into(),
        };
        QueueRef::new(&semaphore, None)
    }

    fn at(second: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(second))
    }

    #[test]
    fn a_namespace_with_much_to_do_costs_the_others_one_turn() {
        let mut agenda = Agenda::default();
        for name in ["a", "b", "c", "a"] {
            agenda.mark(&queue("loud", name));
        }
        agenda.mark(&queue("quiet", "d"));
        let order: Vec<_> = std::iter::from_fn(|| agenda.next())
            .map(|queue| queue.semaphore.name.to_string())
            .collect();
        assert_eq!(order, ["a", "d", "b", "c"]);
    }

    #[test]
    fn what_is_taken_out_before_its_turn_has_no_other_one_until_it_is_due_again() {
        let mut agenda = Agenda::default();
        for name in ["a", "b", "c"] {
            agenda.mark(&queue("n", name));
        }
        assert!(agenda.take(&queue("n", "b")));
        assert!(!agenda.take(&queue("n", "b")), "it is not due");
        assert_eq!(agenda.next(), Some(queue("n", "a")));
        agenda.mark(&queue("n", "b"));
        let rest: BTreeSet<_> = std::iter::from_fn(|| agenda.next()).collect();
        assert_eq!(rest, BTreeSet::from([queue("n", "b"), queue("n", "c")]));
        assert_eq!(agenda.next_time(at(9)), None);
    }

    #[test]
    fn what_is_forgotten_is_due_no_more() {
        let mut agenda = Agenda::default();
        agenda.mark(&queue("n", "a"));
        agenda.set(DueWork::Queue(queue("n", "a")), Some(at(5)));
        agenda.forget(&queue("n", "a"));
        assert_eq!(agenda.next_time(at(9)), None);
        assert_eq!(agenda.next(), None);
        agenda.mark(&queue("n", "b"));
        assert_eq!(agenda.next(), Some(queue("n", "b")), "it has a turn again");
    }

    #[test]
    fn the_last_time_counts() {
        let mut agenda = Agenda::default();
        let what = DueWork::Semaphore(queue("n", "a").semaphore);
        agenda.set(what.clone(), Some(at(5)));
        agenda.set(what.clone(), Some(at(3)));
        assert_eq!(agenda.next_time(at(1)), Some(at(3)));
        assert_eq!(agenda.take_due(at(2)), None);
        assert_eq!(agenda.take_due(at(3)), Some(what.clone()));
        assert_eq!(agenda.take_due(at(9)), None);
    }
}
