//! Tells whether slots still count as held: by the clock, and not by the time at which a task last ran.

use std::{future::poll_fn, pin::pin, time::Duration};

use tokio::sync::watch;

use super::Lost;
use crate::{Prefix, Reading, SessionState, evidence::tenure, holding::KnownLife, plan::Suspended};
use consul_client::{SessionId, clock::Moment};

/// The knowledge of the slots that a program works in, which all clones share. A slot that is lost stays lost.
#[derive(Clone, Debug)]
pub(crate) struct SlotWatch(watch::Sender<SlotsInUse>);

/// The slots that a program works in, and whether one of them is lost.
#[derive(Debug)]
struct SlotsInUse {
    /// Time that the work takes to end.
    grace: Duration,
    /// The slots that can be lost. The slots of a rate are not among them, because they only say that something may
    /// start.
    slots: Vec<SlotInUse>,
    begun: bool,
    lost: Option<Lost>,
}

/// A slot that the work relies on.
#[derive(Debug)]
pub(super) struct SlotInUse {
    pub(super) prefix: Prefix,
    pub(super) session: SessionId,
    /// State of the session. A renewal counts as soon as it is answered.
    pub(super) life: KnownLife,
    /// Time at which the last reading was sent that shows that the session holds the slot.
    pub(super) shown: Moment,
}

impl SlotInUse {
    /// Returns the reason why the slot has stopped counting as held; `None` if the slot still counts as held.
    fn lost(&self, now: Moment, grace: Duration) -> Option<Suspended> {
        match self.life.get() {
            SessionState::Renewed { sent, ttl } => {
                let until = sent.min(self.shown) + tenure(ttl, grace);
                (until <= now).then_some(Suspended::Unproved)
            }
            SessionState::Gone => Some(Suspended::SlotLost),
            SessionState::Endless | SessionState::Unknown => None,
        }
    }
}

impl SlotsInUse {
    /// Judges the slots unless one is lost already; returns whether one is lost now.
    fn judge(&mut self, now: Moment) -> bool {
        if self.lost.is_some() {
            return false;
        }
        let mut slots = self.slots.iter();
        self.lost = slots.find_map(|held| {
            let why = held.lost(now, self.grace)?;
            let prefix = held.prefix.clone();
            Some(Lost { prefix, why })
        });
        self.lost.is_some()
    }
}

impl SlotWatch {
    /// Returns the watch for work that takes so long to end, with no slots yet.
    pub(super) fn new(grace: Duration) -> Self {
        Self(watch::Sender::new(SlotsInUse {
            grace,
            slots: Vec::new(),
            begun: false,
            lost: None,
        }))
    }

    /// Records that the work begins in these slots, or is about to begin.
    pub(super) fn begin(&self, slots: Vec<SlotInUse>) {
        self.0.send_modify(|state| {
            state.slots = slots;
            state.begun = true;
        });
    }

    /// Whether there are slots to work in. The slots of a rate count here, although they can't be lost.
    pub(super) fn has_begun(&self) -> bool {
        self.0.borrow().begun
    }

    /// Takes into account what a reading of this prefix shows.
    pub(super) fn show(&self, prefix: &Prefix, reading: &Reading) {
        self.0.send_if_modified(|state| {
            let here = state.slots.iter_mut().filter(|held| held.prefix == *prefix);
            for held in here.filter(|held| reading.is_readable() && reading.holds(&held.session)) {
                held.shown = held.shown.max(reading.sent);
            }
            false
        });
    }

    /// Records that a slot is known to be lost, and returns the slot that was lost first.
    pub(super) fn lose(&self, lost: Lost) -> Lost {
        let known = lost.clone();
        self.0.send_if_modified(|state| {
            let first = state.lost.is_none();
            state.lost.get_or_insert(known);
            first
        });
        self.0.borrow().lost.clone().unwrap_or(lost)
    }

    /// Returns the slot that was lost first, if any slot is lost at present.
    pub(crate) fn lost(&self) -> Option<Lost> {
        self.0.send_if_modified(|state| state.judge(Moment::now()));
        self.0.borrow().lost.clone()
    }

    /// Returns the slot that was known to be lost when the work ended, after which the clock does not count.
    pub(crate) fn lost_before(&self) -> Option<Lost> {
        self.0.borrow().lost.clone()
    }

    /// Waits until a slot is lost. The clock is read each time that the future is polled.
    pub(crate) async fn until_lost(&self) -> Lost {
        let mut states = self.0.subscribe();
        let mut changes = pin!(async {
            // The sender is in `self`, so the channel does not close.
            while states.changed().await.is_ok() {
                if let Some(lost) = self.lost() {
                    return lost;
                }
            }
            std::future::pending().await
        });
        poll_fn(|context| match self.lost() {
            Some(lost) => std::task::Poll::Ready(lost),
            None => changes.as_mut().poll(context),
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    const TTL: Duration = Duration::from_mins(1);

    /// A slot of `shared/db` that was renewed and shown so long ago, and whose work takes 10 s to end.
    fn slot_watch(renewed: Duration, shown: Duration) -> (SlotWatch, KnownLife) {
        let now = Moment::now();
        let life = KnownLife::new(SessionState::Renewed {
            sent: now.before(renewed),
            ttl: TTL,
        });
        let slot_watch = SlotWatch::new(Duration::from_secs(10));
        slot_watch.begin(vec![SlotInUse {
            prefix: "shared/db".parse().unwrap(),
            session: "s".into(),
            life: life.clone(),
            shown: now.before(shown),
        }]);
        (slot_watch, life)
    }

    #[test]
    fn the_clock_decides_also_where_no_task_runs() {
        let (second, minute) = (Duration::from_secs(1), TTL);
        for (renewed, shown, lost) in [
            (second, second, None),
            (second, minute, Some(Suspended::Unproved)),
            (minute, second, Some(Suspended::Unproved)),
            (second * 49, second * 49, None),
            (second * 50, second * 50, Some(Suspended::Unproved)),
        ] {
            let (slot_watch, _life) = slot_watch(renewed, shown);
            let known = slot_watch.lost().map(|lost| lost.why);
            assert_eq!(known, lost, "renewed {renewed:?} ago, shown {shown:?} ago");
        }
    }

    #[test]
    fn who_waits_is_told_by_whoever_asks() {
        let (slot_watch, life) = slot_watch(Duration::ZERO, Duration::ZERO);
        let mut waits = pin!(slot_watch.until_lost());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        life.set(SessionState::Gone);
        let Poll::Ready(lost) = waits.as_mut().poll(&mut context) else {
            panic!("it is lost");
        };
        assert_eq!(lost.why, Suspended::SlotLost);
    }

    #[test]
    fn what_is_lost_stays_lost() {
        let (slot_watch, life) = slot_watch(TTL, Duration::ZERO);
        let lost = slot_watch.lost();
        assert!(lost.is_some());
        life.set(SessionState::Renewed {
            sent: Moment::now(),
            ttl: TTL,
        });
        assert_eq!(slot_watch.lost(), lost);
        let another = Lost {
            prefix: "other".parse().unwrap(),
            why: Suspended::SlotLost,
        };
        assert_eq!(Some(slot_watch.lose(another)), lost);
    }

    #[test]
    fn a_renewal_counts_before_any_task_has_seen_it() {
        let (slot_watch, life) = slot_watch(TTL, Duration::ZERO);
        life.set(SessionState::Renewed {
            sent: Moment::now(),
            ttl: TTL,
        });
        assert_eq!(slot_watch.lost(), None);
    }
}
