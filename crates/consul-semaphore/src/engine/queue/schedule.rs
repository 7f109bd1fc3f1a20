//! Decides when the next pass over a queue is due.

use std::time::Duration;

use crate::{
    engine::{calls::Blocking, message::Now},
    evidence::LATE,
};
use consul_client::clock::Moment;

/// Time until the next pass when nothing is due.
pub const IDLE: Duration = Duration::from_hours(1);

/// Shortest time between two passes that are caused only by the passing of time.
const MIN_PASS_INTERVAL: Duration = Duration::from_millis(10);

/// Time after which the queue tries again what no event announces.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Times at which passes are due.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Schedule {
    /// Time of the last pass over everything.
    passed: Moment,
    next: Moment,
    /// Time at which to try again what no event announces.
    again: Option<Moment>,
}

impl Schedule {
    /// Returns whether there was a pass over everything at this moment.
    pub(in crate::engine) fn has_passed(&self, now: Now) -> bool {
        self.passed == now.moment
    }

    /// Returns when the next pass is due, if nothing happens before.
    pub(super) fn next(&self) -> Moment {
        self.next
    }

    /// Records that a pass over everything begins.
    pub(super) fn begin_pass(&mut self, now: Now) {
        self.passed = now.moment;
        self.again = None;
    }

    /// Schedules another try soon.
    pub(super) fn retry_soon(&mut self, now: Now) {
        let again = now.moment + RETRY_AFTER;
        self.again = Some(again);
        self.wake_by(again);
    }

    /// Schedules a pass for this moment, unless one is due before.
    pub(in crate::engine) fn wake_by(&mut self, due: Moment) {
        self.next = self.next.min(due);
    }

    /// Returns whether there is nothing to decide before this call is answered, and if so schedules a pass for the
    /// case that no answer comes. Such waits save checking thousands of workloads each time one of them changes, and
    /// never last long.
    pub(super) fn waits_for(
        &mut self,
        blocking: &Blocking,
        deadline: Option<Moment>,
        now: Now,
    ) -> bool {
        // The call is awaited past the deadline at the time when it was sent, because its answer, or a listing that
        // came meanwhile, may show what is needed.
        let given_up = blocking.until.or(deadline);
        let looked = self.passed + LATE;
        let next = given_up.map_or(looked, |given_up| given_up.min(looked));
        if next > now.moment {
            self.next = next;
        }
        next > now.moment
    }

    /// Schedules the next pass for the earliest of these times, after everything that was due by now is done.
    /// `quiet_until` is the end of the pause after a lost race.
    pub(super) fn set_next(
        &mut self,
        times: impl Iterator<Item = Moment>,
        quiet_until: Option<Moment>,
        now: Now,
    ) {
        let now = now.moment;
        let next = times
            .chain(self.again)
            .filter(|time| *time > now)
            .min()
            .unwrap_or(now + IDLE)
            .max(now + MIN_PASS_INTERVAL);
        // After a lost race the queue tries again before anything else is due.
        let quiet = quiet_until.filter(|until| *until > now);
        self.next = quiet.map_or(next, |quiet| quiet.min(next));
    }
}
