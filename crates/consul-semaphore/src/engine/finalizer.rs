//! Tracks the finalizer of a semaphore, which is added before anything is written to Consul and removed when nothing
//! is left there.

use std::time::Duration;

use super::Now;
use crate::holding::Setback;
use consul_client::clock::Moment;

/// Time after which a removal is retried.
const RETRY_REMOVAL_AFTER: Duration = Duration::from_secs(1);

/// Progress of the work on a semaphore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FinalizerPhase {
    /// Nothing may begin before the finalizer has been added.
    #[default]
    Waiting,
    /// The finalizer has been added, and the work goes on.
    Working,
    /// Nothing is left to do.
    Done,
}

/// State of the finalizer, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Finalizer {
    phase: FinalizerPhase,
    /// Whether the finalizer must be added.
    missing: bool,
    /// Last failure to add the finalizer.
    setback: Option<Setback>,
    /// Whether a write of the finalizer is pending.
    asked: bool,
    /// Time at which to retry the removal of the finalizer.
    again: Option<Moment>,
}

impl Finalizer {
    /// Returns the state for a semaphore without an object that could have a finalizer, so that the work may begin.
    pub(super) fn not_needed() -> Self {
        Self {
            phase: FinalizerPhase::Working,
            ..Self::default()
        }
    }

    /// Returns whether the work has begun and not ended.
    pub(super) fn is_active(&self) -> bool {
        self.phase == FinalizerPhase::Working
    }

    /// Records whether the semaphore has the finalizer. A `deleted` semaphore no longer gets one: nothing starts
    /// there, and what has started continues as long as another finalizer keeps the semaphore.
    pub(super) fn observe(&mut self, is_there: bool, deleted: bool) {
        self.missing = !is_there && !deleted;
        if self.phase == FinalizerPhase::Waiting {
            self.phase = match (is_there, deleted) {
                (true, _) => FinalizerPhase::Working,
                (false, true) => FinalizerPhase::Done,
                (false, false) => FinalizerPhase::Waiting,
            };
        }
        if is_there {
            self.setback = None;
        }
    }

    /// Returns when to add the finalizer, or `None` if it is there or a write of it is pending.
    pub(super) fn due(&self) -> Option<Moment> {
        let due = self.missing && !self.asked && self.phase != FinalizerPhase::Done;
        due.then(|| {
            self.setback
                .map_or(Moment::default(), |before| before.until)
        })
    }

    /// Checks whether the finalizer may be removed now. The error says when it may be, if that is known.
    pub(super) fn may_be_removed(&self, now: Moment) -> Result<(), Option<Moment>> {
        match self.again {
            _ if self.asked || self.phase == FinalizerPhase::Done => Err(None),
            Some(again) if again > now => Err(Some(again)),
            _ => Ok(()),
        }
    }

    /// Records that a write of the finalizer has been sent.
    pub(super) fn ask(&mut self) {
        self.asked = true;
    }

    /// Records whether the finalizer was added. A failed write is retried after a pause.
    pub(super) fn added(&mut self, done: bool, now: Now) {
        if !std::mem::take(&mut self.asked) {
            return;
        }
        if done {
            self.observe(true, false);
        } else {
            let before = self.setback.as_ref();
            self.setback = Some(Setback::with_jitter(before, now.moment, now.jitter));
        }
    }

    /// Records whether the finalizer was removed. A failed write is retried soon.
    pub(super) fn removed(&mut self, done: bool, now: Now) {
        if !std::mem::take(&mut self.asked) {
            return;
        }
        if done {
            self.phase = FinalizerPhase::Done;
        }
        self.again = (!done).then(|| now.moment + RETRY_REMOVAL_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Now {
        Now {
            moment: Moment::from_boot(Duration::from_secs(1)),
            time: jiff::Timestamp::UNIX_EPOCH,
            jitter: 0.0,
        }
    }

    #[test]
    fn it_is_added_when_it_is_missing_and_again_after_a_pause() {
        let mut finalizer = Finalizer::default();
        assert_eq!(finalizer.due(), None);
        finalizer.observe(false, false);
        assert_eq!(finalizer.due(), Some(Moment::default()), "at once");
        finalizer.ask();
        assert_eq!(finalizer.due(), None, "it is under way");
        finalizer.added(false, now());
        assert!(finalizer.due() > Some(now().moment) && !finalizer.is_active());
        finalizer.observe(false, false);
        assert!(finalizer.due() > Some(now().moment), "no sooner");
        finalizer.ask();
        finalizer.added(true, now());
        assert!(finalizer.due().is_none() && finalizer.is_active());
        finalizer.observe(false, false);
        assert_eq!(finalizer.due(), Some(Moment::default()), "taken off");
    }

    #[test]
    fn a_removal_that_failed_is_tried_again() {
        let mut finalizer = Finalizer::default();
        finalizer.observe(true, true);
        assert_eq!(finalizer.may_be_removed(now().moment), Ok(()));
        finalizer.ask();
        assert_eq!(finalizer.may_be_removed(now().moment), Err(None));
        finalizer.removed(false, now());
        let again = now().moment + RETRY_REMOVAL_AFTER;
        assert_eq!(finalizer.may_be_removed(now().moment), Err(Some(again)));
        assert_eq!(finalizer.may_be_removed(again), Ok(()));
        finalizer.ask();
        finalizer.removed(true, now());
        assert!(!finalizer.is_active());
    }

    #[test]
    fn who_is_deleted_without_it_is_let_go() {
        let mut finalizer = Finalizer::default();
        finalizer.observe(false, true);
        assert!(!finalizer.is_active() && finalizer.due().is_none());
    }

    #[test]
    fn who_is_deleted_and_kept_by_another_one_gives_back_what_it_has() {
        let mut finalizer = Finalizer::default();
        finalizer.observe(true, false);
        finalizer.observe(false, true);
        assert!(finalizer.is_active(), "its workloads may still hold slots");
        assert_eq!(finalizer.due(), None, "the API server would refuse it");
        assert_eq!(finalizer.may_be_removed(now().moment), Ok(()));
    }
}
