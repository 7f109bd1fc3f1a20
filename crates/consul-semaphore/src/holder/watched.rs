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
use consul_client::{self as consul, Client, Listing, WatchOptions};

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
}

/// How much further apart the readings are for each that waits before those that may be next: only these must see at
/// once that a slot is free. A hundred programs on a machine that all read every change would delay the one that the
/// slot is for.
const EACH_BEFORE: Duration = Duration::from_millis(10);

/// The longest time between two readings while something changes: a slot is free for so long at most if all that wait
/// before are gone at once.
const FAR: Duration = Duration::from_millis(200);

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
    pub(super) fn note_before(&self, slots: Option<usize>) -> bool {
        let limit = usize::try_from(self.asked.limit).unwrap_or(usize::MAX);
        let before = slots.unwrap_or_default();
        let further = u32::try_from(before.saturating_sub(limit)).unwrap_or(u32::MAX);
        let spacing = EACH_BEFORE.saturating_mul(further).min(FAR);
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
