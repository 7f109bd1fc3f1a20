//! The slots of finished workloads, which stay held for a while.

use super::Pass;
use crate::{fate::OwnContender, identity::ContenderBody};
use consul_client::SessionId;

impl<'a> Pass<'a> {
    /// Whether the end of this contender's cooldown is written: its workload is never started again in that slot.
    pub(super) fn cools(&self, session: &SessionId) -> bool {
        self.observed.cooldowns.end(session).is_some()
    }

    /// The workload has run and is done: its slot is released after the cooldown of its grant, counted from when the
    /// workload is first seen done.
    pub(super) fn cool(&mut self, ours: &'a OwnContender) {
        // While the lock can't be read, the contender may hold a slot all the same.
        let may_hold = self.reading.holds(&ours.session) || !self.reading.is_readable();
        match self.observed.cooldowns.end(&ours.session) {
            Some(end) if may_hold && end > self.observed.now => self.wake_at(end),
            None if may_hold && let Some((body, until)) = self.cooldown_of(ours) => {
                self.composer.cool(ours, body, until);
            }
            _ => self.release(ours),
        }
    }

    /// The cooldown in the grant, and when it ends if it starts now; `None` if there is none.
    fn cooldown_of(&self, ours: &OwnContender) -> Option<(ContenderBody, jiff::Timestamp)> {
        let contender = self.reading.contender(&ours.session)?;
        let body = ContenderBody::read(&contender.value)?;
        let cooldown = body.cooldown();
        let until = self.observed.time.checked_add(cooldown).ok()?;
        (!cooldown.is_zero()).then_some((body, until))
    }
}
