//! One lock key of a `ConsulSemaphore` at work: its grantor, in a task of its own, and what is to be
//! reported of it. A semaphore has one; a keyed one has one for each key that is in use.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, mpsc, watch},
    time::sleep,
};

use super::{
    access::Stated,
    finalizer,
    passes::Passes,
    report::{Shown, slots},
};
use crate::controller::{
    Context,
    feed::Feed,
    grantor::Grantor,
    home::Home,
    index::{InLine, LineRef},
};
use consul_client::{self as consul, SessionId, clock::Moment};
use consul_semaphore::{
    Agreement, Defence, Key, Reading, Settings,
    engine::{Conclusion, Event, Moved, Owner},
    evidence::LATE,
};
use consul_semaphore_api::conditions::Finding;

/// What holds for all keys of a semaphore.
pub(super) struct Orders {
    /// As its spec has them: with its own prefix and without a key.
    pub(super) settings: Settings,
    /// Of which generation of the spec that is.
    pub(super) generation: Option<i64>,
    pub(super) access: Stated,
    pub(super) home: Option<Home>,
    /// How often the home has been another one.
    pub(super) moves: u64,
    /// Whether Consul may not be used at all.
    pub(super) barred: bool,
    /// The limits that are known to be recorded as ours.
    pub(super) applied: Vec<u32>,
}

/// Of which spec something is true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SpecOf {
    pub(super) generation: Option<i64>,
    /// What its limit is.
    pub(super) limit: u32,
}

/// What is true of one lock key after a pass.
pub(super) struct Account {
    pub(super) key: Option<Key>,
    /// The number of that pass.
    pub(super) pass: u64,
    /// What it went by.
    pub(super) spec: SpecOf,
    /// Up to where its grantor had heard of the watch.
    pub(super) heard: u64,
    pub(super) conclusion: Conclusion,
    /// A limit that was moved while others go by the one before.
    pub(super) moved: Option<Moved>,
    pub(super) shown: Shown,
    pub(super) in_line: InLine,
    /// Whether a Job waits for what others may do there, or may have to let one go first who has come.
    pub(super) awaits_others: bool,
    pub(super) fencing_token: Option<u64>,
    pub(super) findings: Vec<Finding>,
    pub(super) obstacle: Option<Obstacle>,
    /// Why its `.lock` is left to others once the semaphore is deleted.
    pub(super) left: Option<String>,
    /// How long the watch may wait for news.
    pub(super) wait: Duration,
}

/// Why Consul can't be used.
#[derive(Clone, Debug)]
pub(super) struct Obstacle {
    /// Since when.
    pub(super) since: Moment,
    /// Whether the place in Consul does not exist, and never will.
    pub(super) nowhere: bool,
    pub(super) why: String,
}

/// A lock key at work.
pub(super) struct Branch {
    pub(super) reference: LineRef,
    pub(super) access: Stated,
    pub(super) grantor: Grantor,
    pub(super) shown: Shown,
    generation: Option<i64>,
    moves: u64,
    orders: watch::Receiver<Arc<Orders>>,
    feed: Feed,
    wake: Arc<Notify>,
    pub(super) passes: Passes,
}

impl Branch {
    pub(super) fn new(
        context: Arc<Context>,
        reference: LineRef,
        mut orders: watch::Receiver<Arc<Orders>>,
        feed: Feed,
        defence: Defence,
        wake: Arc<Notify>,
    ) -> Self {
        let first = orders.borrow_and_update().clone();
        let mut grantor = Grantor::new(
            context,
            reference.clone(),
            first.settings_of(reference.key.as_ref()),
            first.applied.clone(),
            defence,
            wake.clone(),
            feed.turns(),
        );
        grantor.move_to(first.home.clone());
        Self {
            reference,
            access: first.access.clone(),
            grantor,
            shown: Shown::default(),
            generation: first.generation,
            moves: first.moves,
            orders,
            feed,
            wake,
            passes: Passes::default(),
        }
    }

    /// Has a pass after everything that happens, and gives account of each, until it is closed or
    /// dropped.
    pub(super) async fn run(mut self, accounts: mpsc::Sender<Account>) {
        self.await_the_watch().await;
        let (mut known, mut given) = (Conclusion::default(), Moment::now());
        while let Some(pass) = self.passes.begin() {
            let heard = self.grantor.hear(&self.feed);
            let conclusion = self.grantor.pass();
            let mut next = self.grantor.queue.next_timeout();
            let blocked = self.grantor.queue.is_blocked();
            if conclusion.certain || !blocked {
                known = conclusion;
            }
            // While Consul is about to answer, what was known before is told again, and only if that takes long.
            if blocked && Moment::now() < given + LATE {
                next = next.min(given + LATE);
            } else {
                given = Moment::now();
                self.grantor.tell_newcomers();
                let account = self.account(known.clone(), pass, heard);
                if accounts.send(account).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = self.wake.notified() => {}
                changed = self.orders.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.heed();
                }
                () = self.grantor.progress() => {}
                () = sleep(next.since(Moment::now())) => {}
            }
        }
    }

    /// One key of many does not ask for itself what the watch is about to bring for all.
    async fn await_the_watch(&mut self) {
        let keyed = self.reference.key.is_some();
        while keyed && self.feed.is_silent() && self.grantor.home.is_some() {
            tokio::select! {
                () = self.wake.notified() => {}
                changed = self.orders.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.heed();
                }
            }
        }
    }

    /// Does as the overseer says.
    pub(super) fn heed(&mut self) {
        let orders = self.orders.borrow_and_update().clone();
        let changed = self.generation != orders.generation;
        self.generation = orders.generation;
        let settings = Box::new(orders.settings_of(self.reference.key.as_ref()));
        self.grantor.handle(Event::Spec { settings, changed });
        self.grantor.handle(Event::Recorded(orders.applied.clone()));
        self.access = orders.access.clone();
        if self.moves != orders.moves {
            self.moves = orders.moves;
            if orders.barred {
                self.grantor.abandon_sessions();
            }
            self.grantor.move_to(orders.home.clone());
        }
    }

    fn account(&mut self, mut conclusion: Conclusion, pass: u64, heard: u64) -> Account {
        if let Some(reading) = self.grantor.queue.reading() {
            self.shown = self.show(reading);
        }
        let seen = self.grantor.sees(&self.feed);
        conclusion.idle &= seen && !self.grantor.queue.is_blocked();
        if conclusion.settled.is_some()
            && matches!(conclusion.agreement, Some(Agreement::Write { .. }))
        {
            // It is written with the first holder; until then nobody says anything else.
            conclusion.agreement = Some(Agreement::Agreed);
        }
        let findings = self.findings(&conclusion);
        let moved = self.grantor.take_moved();
        let reading = self.grantor.queue.reading();
        let in_line = self.in_line(reading);
        Account {
            key: self.reference.key.clone(),
            pass,
            spec: SpecOf {
                generation: self.generation,
                limit: self.grantor.queue.settings().limit,
            },
            heard,
            shown: self.shown.clone(),
            awaits_others: in_line.waiting > 0 && self.depends_on_others(&conclusion, seen),
            fencing_token: self.grantor.queue.fencing_token(),
            findings,
            in_line,
            moved,
            obstacle: self.obstacle(),
            left: reading.and_then(finalizer::why_left_to_others),
            wait: self.grantor.watch_wait(),
            conclusion,
        }
    }

    /// Who is in line now, also if it was granted a slot by the last pass.
    fn in_line(&self, reading: Option<&Reading>) -> InLine {
        let holders = reading.into_iter().flat_map(|reading| {
            let (_, held) = slots(reading.lock()).unwrap_or_default();
            // One without a contender is dead, and its Job may wait for another slot.
            let lives = |session: &&SessionId| reading.contender(session).is_some();
            held.into_iter().filter(lives)
        });
        let own = holders.filter_map(|session| match self.grantor.queue.owner(session) {
            Some(Owner::Own(identity)) => Some(&identity.uid),
            _ => None,
        });
        let index = &self.grantor.context.index;
        index.in_line(&self.reference, own)
    }

    /// What is in the way of using Consul.
    pub(super) fn obstacle(&self) -> Option<Obstacle> {
        let trouble = self.grantor.queue.trouble()?;
        Some(Obstacle {
            since: trouble.since,
            nowhere: matches!(trouble.error, consul::Error::Unsupported(_)),
            why: trouble.error.to_string(),
        })
    }

    /// Takes what the watch brought, for one that has no passes.
    pub(super) fn hear(&mut self) {
        self.grantor.hear(&self.feed);
    }
}

impl PartialEq for Orders {
    /// Whether they say the same: a home is another one when it has moved.
    fn eq(&self, other: &Self) -> bool {
        let Self {
            settings,
            generation,
            access,
            home: _,
            moves,
            barred,
            applied,
        } = self;
        *settings == other.settings
            && *generation == other.generation
            && *access == other.access
            && *moves == other.moves
            && *barred == other.barred
            && *applied == other.applied
    }
}

/// Gives these orders to all branches. Says whether they are others than those before; if not, nobody
/// is woken.
pub(super) fn give(orders: Orders, to: &watch::Sender<Arc<Orders>>) -> bool {
    to.send_if_modified(|known| {
        let news = **known != orders;
        if news {
            *known = Arc::new(orders);
        }
        news
    })
}

impl Orders {
    fn settings_of(&self, key: Option<&Key>) -> Settings {
        match key {
            Some(key) => self.settings.clone().of_key(key),
            None => self.settings.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::samples;

    fn orders(change: impl FnOnce(&mut Orders)) -> Orders {
        let mut orders = Orders {
            settings: samples::settings(1),
            generation: Some(1),
            access: Stated::default(),
            home: None,
            moves: 0,
            barred: false,
            applied: vec![1],
        };
        change(&mut orders);
        orders
    }

    #[test]
    fn orders_that_say_the_same_wake_nobody() {
        let (to, mut given) = watch::channel(Arc::new(orders(|_| {})));
        let mut is_news = |orders| {
            let news = give(orders, &to);
            assert_eq!(given.has_changed().unwrap(), news);
            given.borrow_and_update();
            news
        };
        assert!(!is_news(orders(|_| {})), "the echo of a status");
        assert!(is_news(orders(|orders| orders.settings.paused = true)));
        assert!(is_news(orders(|orders| orders.generation = Some(2))));
        assert!(is_news(orders(|orders| orders.moves = 1)), "another way");
        assert!(is_news(orders(|orders| orders.applied = vec![1, 2])));
    }
}
