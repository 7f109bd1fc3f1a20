//! One of the semaphores that a program asks for, and the watch of its prefix.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use tokio::sync::{mpsc, watch};

use super::request::{Request, SlotsOf};
use crate::{
    Mode, SlotRequest,
    engine::{QueueRef, SemaphoreRef},
    identity,
};
use consul_client::{self as consul, Client, Listing, WatchOptions, clock::Moment};

/// One of the semaphores that a program asks for.
pub(super) struct Watched {
    pub(super) asked: SlotsOf,
    pub(super) queue: QueueRef,
    /// Whether the prefix was unused when it was last read, before there was a slot.
    pub(super) unused: bool,
    /// The same when it was first read.
    absent: Option<bool>,
    /// Readings of the prefix, once something waits for one.
    readings: Option<mpsc::Receiver<Reading>>,
    /// How far these are apart at least.
    spacing: watch::Sender<Duration>,
    /// How fast the queue moves, while the program waits in it.
    pace: Option<Pace>,
}

/// The longest time between two readings while something changes: a slot is free for so long at most if all that wait
/// before are gone at once.
const FAR: Duration = Duration::from_millis(200);

/// How long each slot takes to come free until that is known, and at most: a queue that stands still may begin to move
/// at any time.
const FAST: Duration = Duration::from_millis(20);
const SLOW: Duration = Duration::from_millis(100);

/// How fast a queue moves, as one who waits in it sees it.
///
/// Only those who may be next must see at once that a slot is free. A hundred programs on a machine that all read every
/// change would delay the one that the slot is for. So the others read again when half of the time has passed that it
/// takes, at this pace, until they may be next.
#[derive(Debug)]
struct Pace {
    /// For how many slots others waited before, and when that was first seen.
    before: usize,
    since: Moment,
    /// How long each of these slots took, or takes at least.
    each: Duration,
}

impl Pace {
    fn new(before: usize, now: Moment) -> Self {
        Self {
            before,
            since: now,
            each: FAST,
        }
    }

    /// Others wait before for this many slots now.
    fn note(&mut self, before: usize, now: Moment) {
        let took = now.since(self.since);
        match self.before.checked_sub(before) {
            Some(0) => self.each = self.each.max(took),
            Some(fewer) => self.each = took / u32::try_from(fewer).unwrap_or(u32::MAX),
            None => {}
        }
        if self.before != before {
            (self.before, self.since) = (before, now);
        }
    }

    /// How far apart readings are while this many slots must come free before the last one that counts.
    fn spacing(&self, slots: usize) -> Duration {
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        (self.each.min(SLOW) / 2).saturating_mul(slots).min(FAR)
    }
}

type Reading = Result<Listing, consul::Error>;

impl Watched {
    /// Those of a request, in its order.
    pub(super) fn all(request: &Request) -> Vec<Self> {
        let asked = request.semaphores().iter().enumerate();
        let watched = asked.map(|(place, asked)| Self {
            asked: asked.clone(),
            queue: QueueRef::new(&reference(place), None),
            unused: false,
            absent: None,
            readings: None,
            spacing: watch::channel(Duration::ZERO).0,
            pace: None,
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

    /// Others wait before for this many slots; `None`: the program does not wait. Returns whether it would be granted its
    /// slots if all holders ended now. Those of a rate do not end, and those of a mutex have no order.
    pub(super) fn note_before(&mut self, slots: Option<usize>, now: Moment) -> bool {
        let limit = usize::try_from(self.asked.limit).unwrap_or(usize::MAX);
        let before = slots.unwrap_or_default();
        let further = before.saturating_sub(limit);
        let spacing = if slots.is_some() {
            let pace = self.pace.get_or_insert_with(|| Pace::new(before, now));
            pace.note(before, now);
            pace.spacing(further)
        } else {
            self.pace = None;
            Duration::ZERO
        };
        self.spacing.send_if_modified(|known| {
            let changed = *known != spacing;
            *known = spacing;
            changed
        });
        let own = usize::try_from(self.asked.slots.get()).unwrap_or(usize::MAX);
        slots.is_some()
            && before.saturating_add(own) <= limit
            && self.asked.mode == Mode::Semaphore
            && self.asked.period.is_none()
    }

    /// Begins to watch the prefix, with blocking queries of this length, unless it is watched.
    pub(super) fn watch(&mut self, consul: &Client, wait: Duration) {
        let folder = self.asked.prefix.folder();
        self.readings.get_or_insert_with(|| {
            let options = WatchOptions {
                wait,
                spacing: self.spacing.subscribe(),
                ..WatchOptions::default()
            };
            consul.readings(&folder, options)
        });
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Reading>> {
        match &mut self.readings {
            Some(readings) => readings.poll_recv(context),
            None => Poll::Pending,
        }
    }
}

/// Waits for the next reading of any of them. None comes before the others each time, however much happens there.
pub(super) async fn next_reading(watched: &mut [Watched]) -> (SemaphoreRef, Reading) {
    poll_fn(|context| {
        let (before, from) = watched.split_at_mut(fastrand::usize(..=watched.len()));
        for watched in from.iter_mut().chain(before) {
            if let Poll::Ready(Some(reading)) = watched.poll(context) {
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

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn those_far_behind_read_when_half_of_their_wait_is_over() {
        let start = Moment::now();
        let mut pace = Pace::new(10, start);
        assert_eq!(pace.spacing(7), 7 * FAST / 2, "nothing is known yet");
        assert_eq!(pace.spacing(0), Duration::ZERO, "it may be next");

        pace.note(8, start + Duration::from_millis(60));
        assert_eq!(pace.spacing(5), Duration::from_millis(75));
        assert_eq!(pace.spacing(0), Duration::ZERO);
    }

    #[test]
    fn a_pace_follows_the_queue() {
        let start = Moment::now();
        let mut pace = Pace::new(10, start);
        pace.note(10, start + SECOND);
        assert_eq!(pace.spacing(1), SLOW / 2, "it stands still");
        pace.note(12, start + 2 * SECOND);
        assert_eq!(pace.spacing(3), 3 * SLOW / 2, "others came before it");
        assert_eq!(pace.spacing(5), FAR);
        pace.note(4, start + 2 * SECOND + Duration::from_millis(8));
        assert_eq!(
            pace.spacing(1),
            Duration::from_micros(500),
            "they went fast"
        );
        assert_eq!(pace.spacing(usize::MAX), FAR);
    }
}
