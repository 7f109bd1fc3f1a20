//! What must be true of a state, and what it shows.

use super::state::State;

impl State {
    /// How long a workload may run without a slot. Once its operator has read that the slot is gone, and has carried
    /// out what it then decided, the workload has a slot again, or is suspended, or has a session with which the next
    /// pass grants it one. Undisturbed, that takes two passes.
    pub(super) fn check_gap(&self, number: usize) {
        let process = &self.processes[number];
        let operator = &process.operator;
        if operator.is_busy() || !process.clean {
            return;
        }
        let outside = &self.sites[process.site];
        let held = outside.sight().workloads();
        for (uid, had_session) in &process.lost {
            let object = outside.workloads.get(uid);
            let runs = object.is_some_and(|object| object.runs() && !object.rogue);
            let again = outside.observer.robbed_since(uid, process.read);
            let soon = !had_session && operator.has_session(uid);
            let excused = held.contains(uid) || again || soon;
            assert!(!runs || excused, "{uid} runs on without a slot");
        }
    }

    /// Whether there are more holders than the limit: workloads with pods or about to have some, and other programs.
    /// Workloads whose slot somebody took have until the end of the gap.
    pub(super) fn is_above_the_limit(&self) -> bool {
        let sight = self.sites[0].sight();
        let others = match self.client.session() {
            Some(session) => usize::from(sight.holding().any(|(holder, _)| holder == session)),
            None => 0,
        };
        let in_need = self.sites.iter().flat_map(|site| {
            let lock_key = site.settings.prefix.lock_key();
            let in_need = site.workloads.in_need_of_a_slot(&lock_key);
            let counted = in_need.filter(|uid| !site.observer.is_robbed(uid));
            counted.collect::<std::collections::BTreeSet<_>>()
        });
        let limit = self.sites[0].settings.limit;
        in_need.count() + others > usize::try_from(limit).expect("it fits")
    }

    /// What has happened at some point, to show that it can.
    pub(super) fn shows(&self, what: Showing) -> bool {
        let sight = self.sites[0].sight();
        let mut objects = self.sites.iter().flat_map(|site| site.workloads.objects());
        match what {
            Showing::AllDone => objects.all(|object| !object.may_run()),
            Showing::OtherHolds => self
                .client
                .session()
                .is_some_and(|session| sight.holding().any(|(holder, _)| holder == session)),
            Showing::SlotHadAgain => objects.any(|object| {
                let slots = object.granted.iter().flat_map(|granted| &granted.slots);
                let granted = slots.map(|slot| &slot.session);
                object.runs() && !object.reported.is_empty() && !granted.eq(&object.reported)
            }),
            Showing::Suspended => objects.any(|object| {
                object.suspend && object.granted.is_some() && object.reported.is_empty()
            }),
        }
    }
}

/// What a check must see happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Showing {
    AllDone,
    OtherHolds,
    SlotHadAgain,
    Suspended,
}

impl Showing {
    pub(super) const ALL: [Self; 4] = [
        Self::AllDone,
        Self::OtherHolds,
        Self::SlotHadAgain,
        Self::Suspended,
    ];
}
