//! The slots that this program itself runs in, because an `exec` around it holds them.

use consul_client::Client;
use consul_semaphore::{
    Prefix,
    holder::{Request, SlotsOf},
};

use super::failure::ExecFailure;
use crate::held::{SequencerToCheck, SlotVerdict, ask};

/// Slots that an `exec` around this one holds, as the environment names them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotsAround(pub(crate) Vec<SequencerToCheck>);

impl SlotsAround {
    /// Returns the slots of the semaphore at this prefix.
    fn at(&self, prefix: &Prefix) -> impl Iterator<Item = &SequencerToCheck> {
        let is_here = |slot: &&SequencerToCheck| slot.prefix() == Some(prefix.as_str());
        self.0.iter().filter(is_here)
    }

    /// Returns what to tell a command that waits for a slot of this semaphore; `None` if it does not run in one.
    pub(super) fn warning(&self, prefix: &Prefix) -> Option<String> {
        self.at(prefix).next()?;
        Some(format!(
            "this command runs in a slot of {prefix} and waits for another one: if all slots are held by commands that \
             wait like this, they wait forever. With --reentrant it runs in the slot that it has"
        ))
    }

    /// Whether the command may run in these slots, because they are all that it asks for and are still held.
    ///
    /// # Errors
    /// They are some of what it asks for, or Consul does not say whether they are held.
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
            (Some(_), None) => match ask(consul, &slots).await {
                Ok(verdict) => Ok(verdict == SlotVerdict::Held),
                Err(error) => Err(ExecFailure::Unknown(error)),
            },
        }
    }
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
