//! Keeps a bounded queue whose room namespaces share.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;

/// Items to be written in each namespace, the oldest first.
///
/// A namespace may have one more item pending only while more places are free than the namespace takes. So one
/// namespace alone gets half of the places, and each namespace that fills its share leaves half of the rest to the
/// others, as with [`FairTurns`](consul_client::turns::FairTurns). A flood in one namespace drops only items of that
/// namespace.
pub(super) struct FairQueue<T>(Mutex<NamespaceQueues<T>>);

struct NamespaceQueues<T> {
    free: usize,
    /// Namespaces that a writer writes for, or will write for because [`FairQueue::put`] returned
    /// [`Enqueued::First`].
    namespaces: HashMap<Arc<str>, VecDeque<T>>,
}

/// Result of putting an item into the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Enqueued {
    /// The item is the first of its namespace, for which no writer works yet.
    First,
    /// The item is written after others of its namespace.
    Behind,
    /// The item is dropped, because its namespace has too many pending.
    Dropped,
}

impl<T> FairQueue<T> {
    /// Creates a queue in which at most this many items may be pending at once.
    pub(super) fn new(most: usize) -> Self {
        Self(Mutex::new(NamespaceQueues {
            free: most,
            namespaces: HashMap::new(),
        }))
    }

    /// Adds an item to the queue of a namespace. If it is the first one, the caller must have a writer write for the
    /// namespace.
    pub(super) fn put(&self, namespace: &Arc<str>, one: T) -> Enqueued {
        let mut queue = self.0.lock();
        let NamespaceQueues { free, namespaces } = &mut *queue;
        let taken = namespaces.get(namespace).map_or(0, VecDeque::len);
        if taken >= *free {
            return Enqueued::Dropped;
        }
        *free -= 1;
        let enqueued = if namespaces.contains_key(namespace) {
            Enqueued::Behind
        } else {
            Enqueued::First
        };
        let pending = namespaces.entry(namespace.clone()).or_default();
        pending.push_back(one);
        enqueued
    }

    /// Takes the next items of a namespace, at most this many. If it returns none, nobody writes for the namespace
    /// any more, and the writer must end.
    pub(super) fn take(&self, namespace: &Arc<str>, most: usize) -> Vec<T> {
        let mut queue = self.0.lock();
        let NamespaceQueues { free, namespaces } = &mut *queue;
        let Some(pending) = namespaces.get_mut(namespace) else {
            return Vec::new();
        };
        let taken: Vec<T> = pending.drain(..most.min(pending.len())).collect();
        *free += taken.len();
        if taken.is_empty() {
            namespaces.remove(namespace);
        }
        taken
    }

    /// Takes one item of any namespace.
    #[cfg(test)]
    pub(super) fn take_any(&self) -> Option<T> {
        let mut namespaces: Vec<_> = self.0.lock().namespaces.keys().cloned().collect();
        namespaces.sort();
        namespaces
            .iter()
            .find_map(|namespace| self.take(namespace, 1).pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_leaves_half_of_what_is_free_to_the_others() {
        let queue = FairQueue::new(40);
        let fill = |namespace: &str| {
            let namespace = namespace.into();
            (0..100)
                .take_while(|number| queue.put(&namespace, *number) != Enqueued::Dropped)
                .count()
        };
        assert_eq!(["a", "b", "c", "d", "e"].map(fill), [20, 10, 5, 3, 1]);
        // The places of taken items are free again.
        assert_eq!(queue.take(&"a".into(), 30).len(), 20);
        assert_eq!(fill("f"), 11);
    }

    #[test]
    fn somebody_is_told_to_write_once_until_there_is_nothing() {
        let (queue, a) = (FairQueue::new(40), "a".into());
        assert_eq!(queue.put(&a, 1), Enqueued::First);
        assert_eq!(queue.put(&a, 2), Enqueued::Behind);
        assert_eq!(queue.put(&"b".into(), 3), Enqueued::First);
        assert_eq!(queue.take(&a, 9), [1, 2], "the oldest first");
        assert_eq!(
            queue.put(&a, 4),
            Enqueued::Behind,
            "it is still being written"
        );
        assert_eq!(queue.take(&a, 1), [4]);
        assert_eq!(queue.take(&a, 1), [0; 0]);
        assert_eq!(queue.put(&a, 5), Enqueued::First);
    }
}
