//! Turns to write to workloads: they bound how many requests run at once.
//!
//! An admission webhook can block all writes in its namespace. So a namespace takes another turn only while more are
//! free than it has: alone it gets half of them, and each namespace whose writes hang leaves half of the rest to the
//! others (the dynamic threshold of Choudhury and Hahne for shared buffers, <https://doi.org/10.1109/90.664262>).
//! Writes that suspend a workload have turns of their own: they must not wait behind thousands of starts.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Writes of each urgency at once, over all namespaces. Both urgencies together leave room for the watches among the
/// 100 requests that the API server accepts on one HTTP/2 connection.
const ALL: usize = 40;

/// Whether a write can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// It suspends a workload that must not run.
    Suspends,
    /// Anything else.
    Usual,
}

/// All turns.
#[derive(Default)]
pub(super) struct Turns {
    suspending: Lane,
    usual: Lane,
}

impl Turns {
    /// Waits for a turn to write in a namespace. Within a namespace, the first to ask gets the first turn.
    pub(super) async fn take(&self, namespace: &Arc<str>, urgency: Urgency) -> Turn {
        let lane = match urgency {
            Urgency::Suspends => &self.suspending,
            Urgency::Usual => &self.usual,
        };
        lane.take(namespace).await
    }
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    lane: Lane,
    namespace: Arc<str>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.lane.shares.lock().give_back(&self.namespace);
        self.lane.give_out();
    }
}

/// The turns of one urgency.
#[derive(Clone, Debug, Default)]
struct Lane {
    shares: Arc<Mutex<Shares>>,
}

impl Lane {
    async fn take(&self, namespace: &Arc<str>) -> Turn {
        loop {
            let (sender, receiver) = oneshot::channel();
            self.shares.lock().ask(namespace, sender);
            self.give_out();
            // The sender is dropped only if the receiver seemed to be.
            if let Ok(turn) = receiver.await {
                return turn;
            }
        }
    }

    /// Gives out the turns that are free. A turn that nobody waits for any more returns when it is dropped.
    fn give_out(&self) {
        loop {
            let Some((namespace, waiter)) = self.shares.lock().next() else {
                return;
            };
            let lane = self.clone();
            drop(waiter.send(Turn { lane, namespace }));
        }
    }
}

/// Who has turns, and who waits for one.
#[derive(Debug, Default)]
struct Shares {
    taken: usize,
    /// The namespaces that have a turn or wait for one.
    namespaces: BTreeMap<Arc<str>, Share>,
}

#[derive(Debug, Default)]
struct Share {
    taken: usize,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

impl Shares {
    fn ask(&mut self, namespace: &Arc<str>, waiter: oneshot::Sender<Turn>) {
        let share = self.namespaces.entry(namespace.clone()).or_default();
        share.waiting.push_back(waiter);
    }

    /// Takes the next turn, if one is free: for the namespace that has the fewest.
    fn next(&mut self) -> Option<(Arc<str>, oneshot::Sender<Turn>)> {
        let free = ALL - self.taken;
        let waiting = self.namespaces.iter_mut().filter_map(|(namespace, share)| {
            while share
                .waiting
                .front()
                .is_some_and(oneshot::Sender::is_closed)
            {
                share.waiting.pop_front();
            }
            (!share.waiting.is_empty()).then_some((namespace, share))
        });
        let (namespace, share) = waiting.min_by_key(|(_, share)| share.taken)?;
        if share.taken >= free {
            return None;
        }
        let waiter = share.waiting.pop_front()?;
        share.taken += 1;
        self.taken += 1;
        Some((namespace.clone(), waiter))
    }

    fn give_back(&mut self, namespace: &Arc<str>) {
        if let Some(share) = self.namespaces.get_mut(namespace) {
            share.taken -= 1;
            self.taken -= 1;
            if share.taken == 0 && share.waiting.is_empty() {
                self.namespaces.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// A turn, if one is free.
    fn take(turns: &Turns, namespace: &str, urgency: Urgency) -> Option<Turn> {
        turns.take(&namespace.into(), urgency).now_or_never()
    }

    /// All turns that a namespace can take.
    fn take_all(turns: &Turns, namespace: &str) -> Vec<Turn> {
        std::iter::from_fn(|| take(turns, namespace, Urgency::Usual)).collect()
    }

    #[test]
    fn each_namespace_leaves_half_of_the_free_turns_to_the_others() {
        let turns = Turns::default();
        let taken = ["a", "b", "c", "d", "e"].map(|namespace| take_all(&turns, namespace));
        assert_eq!(taken.each_ref().map(Vec::len), [20, 10, 5, 3, 1]);
        assert!(take(&turns, "f", Urgency::Usual).is_some());
        assert!(take(&turns, "a", Urgency::Suspends).is_some());
        drop(taken);
        assert!(turns.usual.shares.lock().namespaces.is_empty());
        assert_eq!(take_all(&turns, "d").len(), 20);
    }

    #[test]
    fn a_turn_that_is_given_back_goes_to_the_namespace_with_the_fewest() {
        let turns = Turns::default();
        let mut taken = ["a", "b", "c", "d", "e", "f"].map(|namespace| take_all(&turns, namespace));
        let (many, none) = ("a".into(), "g".into());
        let mut of_many = Box::pin(turns.take(&many, Urgency::Usual));
        let mut of_none = Box::pin(turns.take(&none, Urgency::Usual));
        assert!(of_many.as_mut().now_or_never().is_none());
        assert!(of_none.as_mut().now_or_never().is_none());
        taken[0].pop();
        assert!(of_many.as_mut().now_or_never().is_none());
        assert!(of_none.now_or_never().is_some());
    }

    #[test]
    fn a_turn_whose_waiter_is_gone_goes_to_the_next_one() {
        let turns = Turns::default();
        let mut taken = take_all(&turns, "a");
        let namespace = "a".into();
        let mut gone = Box::pin(turns.take(&namespace, Urgency::Usual));
        let mut given = Box::pin(turns.take(&namespace, Urgency::Usual));
        let mut last = Box::pin(turns.take(&namespace, Urgency::Usual));
        for waiter in [&mut gone, &mut given, &mut last] {
            assert!(waiter.as_mut().now_or_never().is_none());
        }
        drop(gone);
        taken.pop();
        // It was given its turn, and does not take it.
        drop(given);
        assert!(last.now_or_never().is_some());
    }
}
