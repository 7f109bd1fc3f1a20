//! One of the semaphores that a program asks for, and how its prefix is followed.
//!
//! Consul accepts 200 connections from one address, and sends a whole prefix for each change of it. A thousand programs
//! on one machine that all watch the prefix would keep each other, and every other program there, from Consul. So only
//! who is next watches it, and those that hold slots. All others [approach](super::approach) their turn.

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
    Mode, Reading, SlotRequest,
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
    /// Whether it is to be watched, because the program may be next, holds slots or does not wait.
    is_next: bool,
    follows: Follows,
    /// How far apart the readings of the watch are at least.
    spacing: watch::Sender<Duration>,
    /// Whether the program waits in an order, so that nobody else takes the slot that is for it.
    is_awaited: watch::Sender<bool>,
    /// When the reading was sent by which the program last found that others are before it. Only a later one can say so
    /// again.
    behind_at: Option<Moment>,
}

/// How the prefix is followed.
enum Follows {
    /// Not yet, or not any more.
    No,
    /// By a watch.
    Closely(mpsc::Receiver<News>),
    /// By looks at `.lock` until the program is next, which closes this.
    FromAfar(mpsc::Receiver<News>),
}

/// How far apart the readings of a program are that holds its slots: it learns from them only that a slot is lost.
const HOLDING: Duration = Duration::from_secs(1);

/// How far apart the readings are beside sessions that live this long. Two blocking queries, of a fifth of the TTL and a
/// sixteenth of that each, and the pause between them must end within half of it, or the slot counts as lost.
fn holding(ttl: Option<Duration>) -> Duration {
    ttl.map_or(HOLDING, |ttl| HOLDING.min(ttl / 40))
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
            is_next: false,
            follows: Follows::No,
            spacing: watch::channel(Duration::ZERO).0,
            is_awaited: watch::channel(false).0,
            behind_at: None,
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

    /// Follows the prefix as the last pass says: closely while the program may be next or does not wait, and otherwise
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
            return self.is_next;
        };
        let ttl = engine.queue(&self.queue).and_then(|of| of.settings().ttl);
        let spacing = last.before.map_or(holding(ttl), |_| Duration::ZERO);
        self.spacing
            .send_if_modified(|known| std::mem::replace(known, spacing) != spacing);
        let is_awaited = last.before.is_some() && self.has_order(engine);
        self.is_awaited
            .send_if_modified(|known| std::mem::replace(known, is_awaited) != is_awaited);
        let before = last
            .before
            .filter(|before| self.is_behind(*before, reading));
        match before {
            None => {
                self.is_next = true;
                if matches!(self.follows, Follows::FromAfar(_)) {
                    self.follows = Follows::No;
                }
            }
            Some(before)
                if self
                    .behind_at
                    .is_none_or(|behind_at| behind_at < reading.sent) =>
            {
                // Otherwise its contender is to be written first, which shows its place.
                if let Some(ahead) = Ahead::of(reading, before, program) {
                    (self.is_next, self.behind_at) = (false, Some(reading.sent));
                    self.follows = Follows::FromAfar(approach::begin(consul, &self.asked, ahead));
                }
            }
            Some(_) => {}
        }
        if !self.is_next {
            engine.unfollowed(&self.queue, Moment::now());
        }
        self.is_next
    }

    /// Whether others wait before for so many slots that the program can't be next. A program that watches the prefix
    /// goes on watching while a slot is free: those before it may let their turn pass, or ask for more slots than are
    /// free.
    fn is_behind(&self, before: usize, reading: &Reading) -> bool {
        let lock = reading.lock();
        if !approach::has_order(lock) {
            return false;
        }
        let free = approach::free(lock);
        let may_pass = free > 0 && matches!(self.follows, Follows::Closely(_));
        before >= approach::near(approach::limit_of(lock)) || before > free && !may_pass
    }

    /// Whether all who wait at the prefix can be seen, and are served in an order.
    fn has_order(&self, engine: &Engine) -> bool {
        let settings = engine.queue(&self.queue).map(Queue::settings);
        self.asked.mode == Mode::Semaphore && settings.is_some_and(|of| of.fair.is_some())
    }

    /// Begins to watch the prefix if the turn is near, with blocking queries of this length, unless it is watched.
    pub(super) fn watch(&mut self, consul: &Client, wait: Duration) {
        if self.is_next && matches!(self.follows, Follows::No) {
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
            (self.is_next, self.follows) = (true, Follows::No);
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
            assert!(query * 2 + holding(Some(ttl)) < ttl / 2, "{seconds} s");
        }
    }
}
