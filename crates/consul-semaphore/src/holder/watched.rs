//! One of the semaphores that a program asks for, and how its prefix is followed.
//!
//! Consul accepts 200 connections from one address, and sends a whole prefix for each change of it. A thousand programs
//! on one machine that all watch the prefix would keep each other, and every other program there, from Consul. So those
//! watch it whose turn is near, and those that hold slots. All others [approach](super::approach) their turn.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use tokio::sync::{mpsc, watch};

use super::{
    approach::{self, Ahead},
    obstacle::conclusion,
    program::Program,
    request::{Request, SlotsOf},
};
use crate::{
    Lock, Mode, Reading, SlotRequest,
    engine::{Engine, Queue, QueueRef, SemaphoreRef},
    identity,
};
use consul_client::{self as consul, Client, Listing, WatchOptions, clock::Moment};

/// One of the semaphores that a program asks for.
pub(super) struct Watched {
    pub(super) asked: SlotsOf,
    pub(super) queue: QueueRef,
    /// Whether the prefix was unused when it was last read, before there was a slot.
    pub(super) unused: bool,
    /// Whether the prefix was unused when it was first read.
    absent: Option<bool>,
    /// Whether it is to be watched, because the turn is near, or the program holds slots or does not wait.
    is_near: bool,
    follows: Follows,
    /// How far apart the readings of the watch are at least.
    spacing: watch::Sender<Duration>,
    /// Whether the program waits in an order, so that nobody else takes the slot that is for it.
    is_awaited: watch::Sender<bool>,
    /// When the reading was sent by which the turn was last found to be far. Only a later one can say so again.
    far_at: Option<Moment>,
}

/// How the prefix is followed.
enum Follows {
    /// Not yet, or not any more.
    No,
    /// By a watch.
    Closely(mpsc::Receiver<News>),
    /// By looks at `.lock` until the turn is near, which closes this.
    FromAfar(mpsc::Receiver<News>),
}

/// How far apart the readings of a program are that holds its slots, in a long queue: it learns from them that a slot is
/// lost, and what `.lock` is when it gives one back.
const HOLDING: Duration = Duration::from_secs(1);

/// How far apart the readings are of a program that waits, for each slot that must come free before it may be next.
const WAITING: Duration = Duration::from_millis(25);

/// How far apart they are at most: a slot stays free for so long if all who wait before leave at once.
const MOST: Duration = Duration::from_millis(200);

/// How far apart the readings of a holder are in a queue of so many, beside sessions that live this long. Two blocking
/// queries, of a fifth of the TTL and a sixteenth of that each, and the pause between them must end within half of it, or
/// the slot counts as lost.
fn holding(contenders: usize, ttl: Option<Duration>) -> Duration {
    if contenders > approach::LONG {
        ttl.map_or(HOLDING, |ttl| HOLDING.min(ttl / 40))
    } else {
        Duration::ZERO
    }
}

/// How far apart the readings of a program are that waits, where others wait before for so many slots. Only those who
/// may be next when all holders end must see each change at once, and all of them are on one machine.
fn waiting(before: usize, lock: &Lock) -> Duration {
    let further = before.saturating_sub(approach::limit_of(lock).unwrap_or(0));
    let further = u32::try_from(further).unwrap_or(u32::MAX);
    WAITING.saturating_mul(further).min(MOST)
}

/// What comes of following a prefix.
pub(super) type News = Result<Listing, consul::Error>;

impl Watched {
    /// Those of a request, in its order.
    pub(super) fn all(request: &Request) -> Vec<Self> {
        let asked = request.semaphores().iter().enumerate();
        let watched = asked.map(|(place, asked)| Self {
            asked: asked.clone(),
            queue: QueueRef::new(&reference(place), None),
            unused: false,
            absent: None,
            is_near: false,
            follows: Follows::No,
            spacing: watch::channel(Duration::ZERO).0,
            is_awaited: watch::channel(false).0,
            far_at: None,
        });
        watched.collect()
    }

    /// Whether nobody used the prefix when it was first read. Those who leave it later have used it.
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

    /// Follows the prefix as the last pass says: closely while the turn is near or the program does not wait, and otherwise
    /// from afar. Returns whether that is closely.
    pub(super) fn follow(
        &mut self,
        engine: &mut Engine,
        program: &Program,
        consul: &Client,
    ) -> bool {
        let reading = engine.queue(&self.queue).and_then(Queue::reading);
        let last = conclusion(engine, &self.queue);
        let (Some(reading), Some(last)) = (reading, last) else {
            return self.is_near;
        };
        let ttl = engine.queue(&self.queue).and_then(|of| of.settings().ttl);
        let spacing = match last.before {
            Some(before) => waiting(before, reading.lock()),
            None => holding(reading.count_of_contenders(), ttl),
        };
        self.spacing
            .send_if_modified(|known| std::mem::replace(known, spacing) != spacing);
        let is_awaited = last.before.is_some() && self.has_order(engine);
        self.is_awaited
            .send_if_modified(|known| std::mem::replace(known, is_awaited) != is_awaited);
        let before = last.before.filter(|before| self.is_far(*before, reading));
        match before {
            None => {
                self.is_near = true;
                if matches!(self.follows, Follows::FromAfar(_)) {
                    self.follows = Follows::No;
                }
            }
            Some(before) if self.far_at.is_none_or(|far_at| far_at < reading.sent) => {
                // Otherwise its contender is to be written first, which shows its place.
                if let Some(ahead) = Ahead::of(reading, before, program) {
                    (self.is_near, self.far_at) = (false, Some(reading.sent));
                    self.follows = Follows::FromAfar(approach::begin(consul, &self.asked, ahead));
                }
            }
            Some(_) => {}
        }
        if !self.is_near {
            engine.unfollowed(&self.queue, Moment::now());
        }
        self.is_near
    }

    /// Whether others wait before for so many slots that the turn is far. Once it is near it stays so until a few more have
    /// come before, and while a slot is free: those before may let their turn pass, or ask for more slots.
    fn is_far(&self, before: usize, reading: &Reading) -> bool {
        let lock = reading.lock();
        let near = approach::near(reading.count_of_contenders(), lock);
        let is_close = matches!(self.follows, Follows::Closely(_));
        let is_far = match (is_close, approach::free(lock)) {
            (false, free) => before > near.saturating_add(free),
            (true, 0) => before > near + approach::NEAR,
            (true, _) => before > near + approach::MOST_NEAR,
        };
        is_far && approach::has_order(lock)
    }

    /// Whether all who wait at the prefix can be seen, and are served in an order.
    fn has_order(&self, engine: &Engine) -> bool {
        let settings = engine.queue(&self.queue).map(Queue::settings);
        self.asked.mode == Mode::Semaphore && settings.is_some_and(|of| of.fair.is_some())
    }

    /// Begins to watch the prefix if the turn is near, with blocking queries of this length, unless it is watched.
    pub(super) fn watch(&mut self, consul: &Client, wait: Duration) {
        if self.is_near && matches!(self.follows, Follows::No) {
            let options = WatchOptions {
                wait,
                spacing: self.spacing.subscribe(),
                urgent: self.is_awaited.subscribe(),
                shares_turns: true,
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
        if matches!(reading, Poll::Ready(None)) {
            (self.is_near, self.follows) = (true, Follows::No);
        }
        reading
    }
}

/// Waits for the next reading of any of them; `None`: one of them has come near, and is to be watched. None comes before
/// the others each time, however much happens there.
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

/// What the workload asks for, for the engine.
pub(super) fn requests(request: &Request) -> Vec<SlotRequest> {
    let asked = request.semaphores().iter().enumerate();
    let requests = asked.map(|(place, asked)| SlotRequest {
        semaphore: reference(place).name,
        key: None,
        slots: asked.slots,
    });
    requests.collect()
}

/// The name for the engine of the semaphore at this place. It is part of the sessions' names: a session of one prefix
/// counts under no other one.
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
            let pause = holding(approach::LONG + 1, Some(ttl));
            assert!(query * 2 + pause < ttl / 2, "{seconds} s");
        }
    }
}
