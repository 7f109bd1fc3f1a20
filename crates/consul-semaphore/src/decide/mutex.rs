//! Applies the rules for a mutex that go beyond the rules for every lock key.

use super::{Observed, Pass};
use crate::Mode;

impl Pass<'_> {
    /// Removes a key that a mutex left behind at the prefix of a semaphore, once Consul's lock-delay for a dead
    /// holder would be over.
    pub(super) fn make_room(&mut self, index: u64) {
        let Some(since) = self.observed.memory.mutex.unused_since() else {
            return;
        };
        let due = since + self.observed.settings.lock_delay;
        if due > self.observed.now {
            self.wake_at(due);
        } else if !self.observed.settings.terminating {
            self.composer.remove_lock(index);
        }
    }

    /// Keeps the pass from locking a mutex that is under Consul's lock-delay, and schedules a pass for the end of
    /// that delay, because the end triggers no watch.
    pub(super) fn let_rest(&mut self) {
        let rests = self.observed.memory.mutex.rests_until();
        if let Some(until) = rests.filter(|until| *until > self.observed.now) {
            self.composer.add_nobody();
            self.wake_at(until);
        }
    }

    /// Leaves a mutex to clients that may be waiting for it unseen, if it is their turn.
    pub(super) fn let_others_in(&mut self) {
        let Observed {
            memory, settings, ..
        } = self.observed;
        let mutex = &memory.mutex;
        let unseen = settings.mode == Mode::Mutex && settings.fair.is_some();
        if !unseen || !mutex.is_others_turn() {
            return;
        }
        match mutex.left_until() {
            None => self.composer.add_nobody(),
            Some(until) if until > self.observed.now => {
                self.composer.add_nobody();
                self.wake_at(until);
            }
            Some(_) => {}
        }
    }
}
