//! Follows the prefix of one of the semaphores that a program asks for.
//!
//! Consul accepts 200 connections from one address, and sends a whole prefix for each change of it. A thousand
//! programs on one machine that all watch the prefix would keep each other, and every other program there, from
//! Consul. So a program watches the prefix only if its turn is near, or if it holds slots or does not wait. All other
//! programs [approach](super::approach) their turn.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use tokio::sync::{mpsc, watch};

use super::{
    approach::{self, OthersAhead},
    obstacle::conclusion,
    program::Program,
    request::{Request, SlotsOf},
};
use crate::{
    Lock, Mode, Reading, SlotRequest,
    engine::{Engine, Queue, QueueRef, SemaphoreRef},
    identity,
};
use consul_client::{self as consul, Client, Entries, Listing, WatchOptions, clock::Moment};

/// One of the semaphores that a program asks for.
pub(super) struct Watched {
    pub(super) asked: SlotsOf,
    pub(super) queue: QueueRef,
    /// Whether the prefix was unused when it was last read, before the program had a slot.
    pub(super) unused: bool,
    /// Whether the prefix was unused when it was first read; `None` before that.
    absent: Option<bool>,
    /// Whether the prefix is to be watched, because the turn is near, or the program holds slots or does not wait.
    is_near: bool,
    follows: Follows,
    /// The entries of the last listing: most of them are in the next one, too.
    known: watch::Sender<Entries>,
    /// The shortest time between two readings of the watch.
    spacing: watch::Sender<Duration>,
    /// Whether the program waits in an order, so that no other program takes the slot that is for it.
    is_awaited: watch::Sender<bool>,
    /// Time at which the reading was sent by which the turn was last found to be far. Only a later reading can say so
    /// again.
    far_at: Option<Moment>,
}

/// The way in which the prefix is followed.
enum Follows {
    /// The prefix is not followed.
    No,
    /// The prefix is watched.
    Closely(mpsc::Receiver<News>),
    /// The program looks at `.lock` at intervals until the turn is near, which closes the channel.
    FromAfar(mpsc::Receiver<News>),
}

/// The shortest time between two readings of a program that holds its slots, in a long queue. The program learns from
/// the readings that a slot is lost, and the state of `.lock` when it gives a slot back.
const HOLDER_READING_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time between two readings of a program whose turn is far. Until its contender is written, which shows
/// its place, it has nothing to learn from the prefix.
const FAR_READING_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time between two readings of a program that waits, for each slot that must come free before the
/// program may be next.
const WAITER_READING_INTERVAL_PER_SLOT: Duration = Duration::from_millis(80);

/// The longest value of the time between two readings of a program that waits: a slot stays free for so long if all
/// contenders before the program leave at once.
const LONGEST_WAITER_READING_INTERVAL: Duration = Duration::from_millis(250);

/// Returns the shortest time between two readings of a holder in a queue of so many contenders, with sessions of this
/// TTL. Two blocking queries, of a fifth of the TTL and a sixteenth of that each, and the pause between them must end
/// within half of the TTL, or the slot counts as lost.
fn holding(contenders: usize, ttl: Option<Duration>) -> Duration {
    if contenders > approach::LONG_QUEUE {
        ttl.map_or(HOLDER_READING_INTERVAL, |ttl| {
            HOLDER_READING_INTERVAL.min(ttl / 40)
        })
    } else {
        Duration::ZERO
    }
}

/// Returns the shortest time between two readings of a program that waits in a queue of so many contenders, where
/// others wait before it for `before` slots. All waiting programs may be on one machine, so only a program that may be
/// next when all holders end sees each change at once, and in a long queue only the program that is next.
fn waiting(before: usize, contenders: usize, lock: &Lock) -> Duration {
    let at_once = if contenders > approach::LONG_QUEUE {
        0
    } else {
        approach::limit_of(lock).unwrap_or(0)
    };
    let further = before.saturating_sub(at_once);
    let further = u32::try_from(further).unwrap_or(u32::MAX);
    WAITER_READING_INTERVAL_PER_SLOT
        .saturating_mul(further)
        .min(LONGEST_WAITER_READING_INTERVAL)
}

/// The results of following a prefix.
pub(super) type News = Result<Listing, consul::Error>;

impl Watched {
    /// Returns the semaphores of a request, in the order of the request.
    pub(super) fn all(request: &Request) -> Vec<Self> {
        let asked = request.semaphores().iter().enumerate();
        let watched = asked.map(|(place, asked)| Self {
            asked: asked.clone(),
            queue: QueueRef::new(&reference(place), None),
            unused: false,
            absent: None,
            is_near: false,
            follows: Follows::No,
            known: watch::channel(Entries::default()).0,
            spacing: watch::channel(Duration::ZERO).0,
            is_awaited: watch::channel(false).0,
            far_at: None,
        });
        watched.collect()
    }

    /// Whether the prefix was unused when it was first read. A prefix that its users leave after that does not count
    /// as absent.
    pub(super) fn is_absent(&self) -> bool {
        self.absent == Some(true)
    }

    /// Remembers whether the prefix is unused, if that is known.
    pub(super) fn note_unused(&mut self, unused: Option<bool>) {
        if let Some(unused) = unused {
            self.unused = unused;
            self.absent.get_or_insert(unused);
        }
    }

    /// Takes over the limit that the engine uses, unless the program asks for more slots than that. Returns the earlier
    /// limit and the new one, if they differ.
    pub(super) fn take_limit(&mut self, engine: &Engine) -> Option<(u32, u32)> {
        let to = engine.queue(&self.queue)?.settings().limit;
        if to < self.asked.slots.get() {
            return None;
        }
        let from = std::mem::replace(&mut self.asked.limit, to);
        (from != to).then_some((from, to))
    }

    /// Returns the entries of the last listing, for a call that lists the prefix and then sets them.
    pub(super) fn known(&self) -> watch::Sender<Entries> {
        self.known.clone()
    }

    /// Follows the prefix as the last pass says: closely while the turn is near or the program does not wait, and
    /// otherwise from afar. Returns whether the prefix is followed closely.
    pub(super) fn follow(
        &mut self,
        engine: &mut Engine,
        program: &Program,
        consul: &Client,
    ) -> bool {
        let queue = engine.queue(&self.queue);
        let reading = queue.and_then(Queue::reading);
        let last = conclusion(engine, &self.queue);
        let (Some(reading), Some(last)) = (reading, last) else {
            return self.is_near;
        };
        let ttl = queue.and_then(|of| of.settings().ttl);
        let is_granting = queue.is_some_and(|of| of.is_granting(&program.workload.uid));
        let far = last.before.filter(|before| self.is_far(*before, reading));
        let contenders = reading.count_of_contenders();
        let spacing = match last.before {
            Some(_) if far.is_some() => FAR_READING_INTERVAL,
            // If the transaction fails, the engine reads the prefix again itself.
            Some(_) if is_granting => holding(contenders, ttl),
            Some(before) => waiting(before, contenders, reading.lock()),
            None => holding(contenders, ttl),
        };
        self.spacing
            .send_if_modified(|known| std::mem::replace(known, spacing) != spacing);
        let is_awaited = last.before.is_some() && self.has_order(engine);
        self.is_awaited
            .send_if_modified(|known| std::mem::replace(known, is_awaited) != is_awaited);
        match far {
            None => {
                self.is_near = true;
                if matches!(self.follows, Follows::FromAfar(_)) {
                    self.follows = Follows::No;
                }
            }
            Some(before) if self.far_at.is_none_or(|far_at| far_at < reading.sent) => {
                // If the reading does not show the program's contender, the contender is to be written first, because
                // it shows the program's place.
                if let Some(ahead) = OthersAhead::of(reading, before, program) {
                    let following = match self.far_at {
                        Some(_) => approach::begin(consul, &self.asked, ahead),
                        None => approach::pause(&ahead),
                    };
                    (self.is_near, self.far_at) = (false, Some(reading.sent));
                    self.follows = Follows::FromAfar(following);
                }
            }
            Some(_) => {}
        }
        if !self.is_near {
            engine.unfollowed(&self.queue, Moment::now());
        }
        self.is_near
    }

    /// Makes the engine read the prefix again before the slot is given back, if the last reading may be old. In a fast
    /// queue `.lock` has changed since, so that a transaction by that reading would fail, after Consul has written it to
    /// its log.
    pub(super) fn read_before_release(&self, engine: &mut Engine) {
        let reading = engine.queue(&self.queue).and_then(Queue::reading);
        if reading.is_some_and(|reading| reading.count_of_contenders() > approach::LONG_QUEUE) {
            engine.read_again(&self.queue);
        }
    }

    /// Whether others wait before the program for so many slots that its turn is far. Once the turn is near it stays
    /// near until contenders for a few more slots have come before the program, or for still more while a slot is
    /// free, because the contenders before the program may let their turn pass, or ask for more slots.
    fn is_far(&self, before: usize, reading: &Reading) -> bool {
        let lock = reading.lock();
        let near = approach::near(reading.count_of_contenders(), lock);
        let is_close = matches!(self.follows, Follows::Closely(_));
        let is_far = match (is_close, approach::free(lock)) {
            (false, free) => before > near.saturating_add(free),
            (true, 0) => before > near + approach::SLOTS_NEAR_TURN,
            (true, _) => before > near + approach::MOST_SLOTS_NEAR_TURN,
        };
        is_far && approach::has_order(lock)
    }

    /// Whether all contenders at the prefix can be seen, and are served in an order.
    fn has_order(&self, engine: &Engine) -> bool {
        let settings = engine.queue(&self.queue).map(Queue::settings);
        self.asked.mode == Mode::Semaphore && settings.is_some_and(|of| of.fair.is_some())
    }

    /// Begins to watch the prefix, with blocking queries of this length, if the turn is near and the prefix is not
    /// followed yet.
    pub(super) fn watch(&mut self, consul: &Client, wait: Duration) {
        if self.is_near && matches!(self.follows, Follows::No) {
            let options = WatchOptions {
                wait,
                spacing: self.spacing.subscribe(),
                urgent: self.is_awaited.subscribe(),
                shares_turns: true,
                known: self.known.borrow().clone(),
                ..WatchOptions::default()
            };
            let readings = consul.readings(&self.asked.prefix.folder(), options);
            self.follows = Follows::Closely(readings);
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<News>> {
        let (Follows::Closely(readings) | Follows::FromAfar(readings)) = &mut self.follows else {
            return Poll::Pending;
        };
        let reading = readings.poll_recv(context);
        match &reading {
            Poll::Ready(Some(Ok(listing))) => {
                self.known.send_replace(listing.entries.clone());
            }
            Poll::Ready(None) => (self.is_near, self.follows) = (true, Follows::No),
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        reading
    }
}

/// Waits for the next reading of any of the semaphores; `None` if the turn at one of them has come near, so that its
/// prefix is to be watched. The semaphores are polled from a random one on, so that none comes before the others each
/// time, however much happens there.
pub(super) async fn next_reading(watched: &mut [Watched]) -> (SemaphoreRef, Option<News>) {
    poll_fn(|context| {
        let (before, from) = watched.split_at_mut(fastrand::usize(..=watched.len()));
        for watched in from.iter_mut().chain(before) {
            if let Poll::Ready(reading) = watched.poll(context) {
                return Poll::Ready((watched.queue.semaphore.clone(), reading));
            }
        }
        Poll::Pending
    })
    .await
}

/// Returns the workload's requests for the engine.
pub(super) fn requests(request: &Request) -> Vec<SlotRequest> {
    let asked = request.semaphores().iter().enumerate();
    let requests = asked.map(|(place, asked)| SlotRequest {
        semaphore: reference(place).name,
        key: None,
        slots: asked.slots,
    });
    requests.collect()
}

/// Returns the engine's name for the semaphore at this place of the request. The name is part of the sessions' names,
/// so that a session of one prefix counts under no other prefix.
fn reference(place: usize) -> SemaphoreRef {
    let name = match place {
        0 => identity::NONE.to_owned(),
        further => format!("{}{further}", identity::NONE),
    };
    SemaphoreRef {
        namespace: identity::NONE.into(),
        name: name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_readings_and_the_pause_between_them_end_within_half_of_any_ttl() {
        for seconds in [10, 15, 60, 600, 86_400] {
            let ttl = Duration::from_secs(seconds);
            let wait = ttl / 5;
            let query = wait + wait / 16;
            let pause = holding(approach::LONG_QUEUE + 1, Some(ttl));
            assert!(query * 2 + pause < ttl / 2, "{seconds} s");
        }
    }
}
