//! Keeps what the engine has decided about the workloads of a queue that also ask for slots at other lock keys: see
//! [`joint`](crate::engine::joint).

use std::{collections::BTreeMap, time::Duration};

use crate::{Asked, SlotRequest, Uid, plan::Stance};

/// Workloads that ask for slots at several lock keys, as one of the queues knows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct JointRequests {
    /// Stances towards workloads that ask for several slots and can't have all of them yet.
    pub(super) stances: BTreeMap<Uid, Stance>,
    /// Longest cooldown of all semaphores of a workload, for workloads that ask for several semaphores and must not
    /// wait.
    pub(super) longest_cooldowns: BTreeMap<Uid, Duration>,
    /// Whole requests of workloads that ask for slots at several lock keys.
    pub(super) whole: BTreeMap<Uid, Asked>,
    /// Part of the request of workloads that ask for several slots, as far as it is not free.
    lacking: BTreeMap<Uid, Vec<SlotRequest>>,
}

impl JointRequests {
    /// Sets the stance towards this workload, which is `None` if none is decided. Returns whether that is new.
    pub(in crate::engine) fn set_stance(&mut self, workload: &Uid, stance: Option<Stance>) -> bool {
        let before = match stance {
            Some(stance) => self.stances.insert(workload.clone(), stance),
            None => self.stances.remove(workload),
        };
        before != stance
    }

    /// Sets the longest cooldowns of workloads that ask for several semaphores and must not wait.
    pub(in crate::engine) fn set_longest_cooldowns(&mut self, longest: BTreeMap<Uid, Duration>) {
        self.longest_cooldowns = longest;
    }

    /// Sets all that this workload asks for at several lock keys, or forgets it with `None`.
    pub(in crate::engine) fn set_whole(&mut self, workload: &Uid, asked: Option<&Asked>) {
        match asked {
            Some(asked) if self.whole.get(workload) == Some(asked) => {}
            Some(asked) => drop(self.whole.insert(workload.clone(), asked.clone())),
            None => drop(self.whole.remove(workload)),
        }
    }

    /// Sets which part of this workload's request is not free. An empty list means that this is not known. Returns
    /// whether that is new.
    pub(in crate::engine) fn set_lacking(
        &mut self,
        workload: &Uid,
        lacking: &[SlotRequest],
    ) -> bool {
        let before = if lacking.is_empty() {
            self.lacking.remove(workload)
        } else {
            self.lacking.insert(workload.clone(), lacking.to_vec())
        };
        before.unwrap_or_default() != lacking
    }

    /// Returns the waiting workloads that ask for several slots, with the stances towards them.
    pub(in crate::engine) fn stances(&self) -> impl Iterator<Item = (&Uid, Stance)> {
        let stances = self.stances.iter();
        stances.map(|(workload, stance)| (workload, *stance))
    }

    /// Returns whether this workload can't be granted its slots now and keeps nothing.
    pub(super) fn is_passed_over(&self, workload: &Uid) -> bool {
        let stance = self.stances.get(workload);
        stance.is_some_and(|stance| matches!(stance, Stance::PassedOver | Stance::Stopped))
    }

    /// Returns which part of this workload's request is not free, at any of its lock keys.
    pub(super) fn lacking(&self, workload: &Uid) -> &[SlotRequest] {
        self.lacking.get(workload).map_or(&[], Vec::as_slice)
    }
}
