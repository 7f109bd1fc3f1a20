//! Gives fair turns, which limit how many operations of a kind run at once and are shared fairly among their owners.
//!
//! An owner takes another turn only while more turns are free than the owner has: an owner that is alone gets half of
//! the turns, and each owner whose turns hang leaves half of the rest to the others (the dynamic threshold of
//! Choudhury and Hahne for shared buffers, <https://doi.org/10.1109/90.664262>).

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Fair turns of one kind. Clones share them.
#[derive(Clone, Debug)]
pub struct FairTurns {
    shares: Arc<Mutex<Shares>>,
}

impl FairTurns {
    /// Makes this many turns.
    pub fn new(all: usize) -> Self {
        Self {
            shares: Arc::new(Mutex::new(Shares {
                free: all,
                given: 0,
                owners: BTreeMap::new(),
            })),
        }
    }

    /// Waits for a turn of this owner. The turns of one owner are given in the order in which they were asked for.
    pub async fn take(&self, owner: &Arc<str>) -> FairTurn {
        loop {
            let (sender, receiver) = oneshot::channel();
            self.shares.lock().ask(owner, sender);
            self.give_out();
            // The sender is dropped only if the receiver seemed to be dropped.
            if let Ok(turn) = receiver.await {
                return turn;
            }
        }
    }

    /// Gives out the turns that are free. A turn whose receiver has stopped waiting returns when it is dropped.
    fn give_out(&self) {
        loop {
            let Some((owner, waiter)) = self.shares.lock().next() else {
                return;
            };
            let turns = self.clone();
            drop(waiter.send(FairTurn { turns, owner }));
        }
    }
}

/// A turn, which ends when it is dropped.
#[derive(Debug)]
pub struct FairTurn {
    turns: FairTurns,
    owner: Arc<str>,
}

impl Drop for FairTurn {
    fn drop(&mut self) {
        self.turns.shares.lock().give_back(&self.owner);
        self.turns.give_out();
    }
}

/// The owners that have turns or wait for one.
#[derive(Debug)]
struct Shares {
    free: usize,
    /// Number of turns that were given out so far.
    given: u64,
    /// Owners that have a turn or wait for one.
    owners: BTreeMap<Arc<str>, Share>,
}

#[derive(Debug, Default)]
struct Share {
    taken: usize,
    /// Number of the last turn that the owner was given; 0 if it was never given one.
    last: u64,
    waiting: VecDeque<oneshot::Sender<FairTurn>>,
}

impl Shares {
    fn ask(&mut self, owner: &Arc<str>, waiter: oneshot::Sender<FairTurn>) {
        let share = self.owners.entry(owner.clone()).or_default();
        share.waiting.push_back(waiter);
    }

    /// Takes the next turn, if one is free: for the owner that has the fewest turns, and among such owners for the
    /// one that was given its last turn first.
    fn next(&mut self) -> Option<(Arc<str>, oneshot::Sender<FairTurn>)> {
        let waiting = self.owners.iter_mut().filter_map(|(owner, share)| {
            while share
                .waiting
                .front()
                .is_some_and(oneshot::Sender::is_closed)
            {
                share.waiting.pop_front();
            }
            (!share.waiting.is_empty()).then_some((owner, share))
        });
        let (owner, share) = waiting.min_by_key(|(_, share)| (share.taken, share.last))?;
        if share.taken >= self.free {
            return None;
        }
        let waiter = share.waiting.pop_front()?;
        share.taken += 1;
        self.given += 1;
        share.last = self.given;
        self.free -= 1;
        Some((owner.clone(), waiter))
    }

    fn give_back(&mut self, owner: &Arc<str>) {
        if let Some(share) = self.owners.get_mut(owner) {
            share.taken -= 1;
            self.free += 1;
            if share.taken == 0 && share.waiting.is_empty() {
                self.owners.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// Takes a turn, if one is free.
    fn take(turns: &FairTurns, owner: &str) -> Option<FairTurn> {
        turns.take(&owner.into()).now_or_never()
    }

    /// Takes all turns that an owner can take.
    fn take_all(turns: &FairTurns, owner: &str) -> Vec<FairTurn> {
        std::iter::from_fn(|| take(turns, owner)).collect()
    }

    #[test]
    fn each_owner_leaves_half_of_the_free_turns_to_the_others() {
        let turns = FairTurns::new(40);
        let taken = ["a", "b", "c", "d", "e"].map(|owner| take_all(&turns, owner));
        assert_eq!(taken.each_ref().map(Vec::len), [20, 10, 5, 3, 1]);
        assert!(take(&turns, "f").is_some());
        drop(taken);
        assert!(turns.shares.lock().owners.is_empty());
        assert_eq!(take_all(&turns, "d").len(), 20);
    }

    #[test]
    fn a_turn_that_is_given_back_goes_to_the_owner_with_the_fewest() {
        let turns = FairTurns::new(40);
        let mut taken = ["a", "b", "c", "d", "e", "f"].map(|owner| take_all(&turns, owner));
        let (many, none) = ("a".into(), "g".into());
        let mut of_many = Box::pin(turns.take(&many));
        let mut of_none = Box::pin(turns.take(&none));
        assert!(of_many.as_mut().now_or_never().is_none());
        assert!(of_none.as_mut().now_or_never().is_none());
        taken[0].pop();
        assert!(of_many.as_mut().now_or_never().is_none());
        assert!(of_none.now_or_never().is_some());
    }

    #[test]
    fn an_owner_that_always_waits_is_served_as_often_as_any_other() {
        let turns = FairTurns::new(1);
        let owners: [Arc<str>; 3] = ["a", "b", "z"].map(Into::into);
        let asks = |owner: &Arc<str>| {
            let (turns, owner) = (turns.clone(), owner.clone());
            let mut asks = Box::pin(async move { turns.take(&owner).await });
            let turn = asks.as_mut().now_or_never();
            (asks, turn)
        };
        let (_, mut taken) = asks(&owners[0]);
        let mut waiting: Vec<_> = (0..9).map(|number| asks(&owners[number % 3]).0).collect();
        let mut served = Vec::new();
        for _ in 0..6 {
            drop(taken.take());
            let place = waiting.iter_mut().position(|waits| {
                taken = waits.as_mut().now_or_never();
                taken.is_some()
            });
            drop(waiting.remove(place.unwrap()));
            served.push(taken.as_ref().unwrap().owner.to_string());
        }
        served.sort();
        assert_eq!(served, ["a", "a", "b", "b", "z", "z"]);
    }

    #[test]
    fn a_turn_whose_waiter_is_gone_goes_to_the_next_one() {
        let turns = FairTurns::new(40);
        let mut taken = take_all(&turns, "a");
        let owner = "a".into();
        let mut gone = Box::pin(turns.take(&owner));
        let mut given = Box::pin(turns.take(&owner));
        let mut last = Box::pin(turns.take(&owner));
        for waiter in [&mut gone, &mut given, &mut last] {
            assert!(waiter.as_mut().now_or_never().is_none());
        }
        drop(gone);
        taken.pop();
        // The owner was given its turn, and does not take it.
        drop(given);
        assert!(last.now_or_never().is_some());
    }
}
