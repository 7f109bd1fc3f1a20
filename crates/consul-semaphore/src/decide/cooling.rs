//! Decides about the slots of finished workloads, which stay held for a while.

use super::Pass;
use crate::{fate::OwnContender, identity::ContenderBody};
use consul_client::SessionId;

impl<'a> Pass<'a> {
    /// Returns whether the end of this contender's cooldown is written. The workload is then never started again in
    /// that slot.
    pub(super) fn cools(&self, session: &SessionId) -> bool {
        self.observed.cooldowns.end(session).is_some()
    }

    /// Releases the slot of a workload that has run and is done, after the cooldown of its grant. The cooldown counts
    /// from the time at which the workload is first seen done.
    pub(super) fn cool(&mut self, ours: &'a OwnContender) {
        // While the lock key can't be read, the contender may hold a slot all the same.
        let may_hold = self.reading.may_hold(&ours.session);
        match self.observed.cooldowns.end(&ours.session) {
            Some(end) if may_hold && end > self.observed.now => self.wake_at(end),
            None if may_hold && let Some((body, until)) = self.cooldown_of(ours) => {
                self.composer.cool(ours, body, until);
            }
            _ => self.release(ours),
        }
    }

    /// Returns the body with the cooldown of the grant, and the end of the cooldown if it starts now. Returns `None`
    /// if there is no cooldown.
    fn cooldown_of(&self, ours: &OwnContender) -> Option<(ContenderBody, jiff::Timestamp)> {
        let contender = self.reading.contender(&ours.session)?;
        let body = ContenderBody::read(&contender.value)?;
        let cooldown = body.cooldown();
        let until = self.observed.time.checked_add(cooldown).ok()?;
        (!cooldown.is_zero()).then_some((body, until))
    }
}
