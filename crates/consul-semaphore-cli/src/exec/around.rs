//! The slots that this program itself runs in: an `exec` around it holds them, or `acquire` took them.

use consul_client::Client;
use consul_semaphore::{
    Identity, Prefix,
    holder::{Request, SlotsOf},
};

use super::failure::ExecFailure;
use crate::held::{NotTold, SequencerToCheck, SlotVerdict, ask};

/// Slots that the environment names, as `exec` and `acquire` name them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotsAround(pub(crate) Vec<SequencerToCheck>);

impl SlotsAround {
    /// Returns the slots of the semaphore at this prefix.
    fn at(&self, prefix: &Prefix) -> impl Iterator<Item = &SequencerToCheck> {
        let is_here = |slot: &&SequencerToCheck| slot.prefix() == Some(prefix.as_str());
        self.0.iter().filter(is_here)
    }

    /// Whether one of the slots is of the semaphore at this prefix.
    pub(crate) fn has_slot_of(&self, prefix: &Prefix) -> bool {
        self.at(prefix).next().is_some()
    }

    /// Returns what to tell a command that waits for a slot of this semaphore; `None` if it does not run in one.
    pub(super) fn warning(&self, prefix: &Prefix) -> Option<String> {
        self.has_slot_of(prefix).then(|| {
            format!(
                "this command runs in a slot of {prefix} and waits for another one: if commands that wait like this \
                 hold all slots, they wait forever. With --reentrant, the command runs in the slot that it already has"
            )
        })
    }

    /// Whether the command may run in these slots, because they are all that it asks for and are still held.
    ///
    /// # Errors
    /// They are some of what it asks for, `acquire` took them, or Consul does not say whether they are held.
    pub(super) async fn suffice(
        &self,
        request: &Request,
        consul: &Client,
    ) -> Result<bool, ExecFailure> {
        let has = |of: &&SlotsOf| {
            let needed = usize::try_from(of.slots.get()).unwrap_or(usize::MAX);
            self.at(&of.prefix).count() >= needed
        };
        let (has, lacks): (Vec<_>, Vec<_>) = request.semaphores().iter().partition(has);
        let slots: Vec<_> = has
            .iter()
            .flat_map(|of| self.at(&of.prefix))
            .cloned()
            .collect();
        match (has.first(), lacks.first()) {
            (None, _) => Ok(false),
            (Some(has), Some(lacks)) => Err(ExecFailure::Partly {
                has: has.prefix.clone(),
                lacks: lacks.prefix.clone(),
            }),
            (Some(has), None) => match ask(consul, &slots).await {
                Ok(SlotVerdict::Held) if is_leased(consul, &slots).await? => {
                    Err(ExecFailure::Leased(has.prefix.clone()))
                }
                Ok(verdict) => Ok(verdict == SlotVerdict::Held),
                Err(error) => Err(ExecFailure::Unknown(error)),
            },
        }
    }
}

/// Whether `acquire` took one of these slots, so that no process watches it.
async fn is_leased(consul: &Client, slots: &[SequencerToCheck]) -> Result<bool, ExecFailure> {
    for slot in slots {
        let session = match consul.session(&slot.session).await {
            Ok(session) => session,
            Err(error) => return Err(ExecFailure::Unknown(NotTold::Consul(error))),
        };
        let holder = session.and_then(|session| Identity::parse(&session.name));
        if holder.is_some_and(|holder| holder.is_lease()) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_belongs_to_the_semaphore_right_above_its_key() {
        let slot = |lock_key: &str| SequencerToCheck {
            lock_key: lock_key.to_owned(),
            session: "s".into(),
            lock_index: 1,
        };
        let around = SlotsAround(vec![slot("shared/db/s"), slot("shared/mutex/.lock")]);
        let warns = |prefix: &str| around.warning(&prefix.parse().unwrap()).is_some();
        assert!(warns("shared/db") && warns("shared/mutex"));
        assert!(!warns("shared") && !warns("shared/d") && !warns("db"));
    }
}
