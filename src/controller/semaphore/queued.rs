//! Determines why each of the first workloads in a queue has no slot yet, for `status.queue`.

use consul_semaphore::{SlotRequest, Uid, engine::QueueState, plan::Stance};
use consul_semaphore_api::{
    conditions::Reason::{AllSlotsHeld, RunningWithoutSlot},
    waiting::WaitReason,
};

use super::{
    conditions::{Need, Outlook},
    status::brief,
};

/// The reason why a workload has no slot yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Why {
    pub(super) reason: WaitReason,
    /// Explanation for people.
    pub(super) message: String,
}

impl Why {
    fn new(reason: WaitReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// What a queue knows of one of its workloads.
pub(super) struct Facts<'a> {
    pub(super) need: Need,
    pub(super) outlook: &'a Outlook,
    /// Whether the API server refuses to start the workload.
    pub(super) refused: bool,
    /// Use of the free slots while the workload asks for several slots and can't have all of them, and the slots that
    /// it lacks.
    pub(super) stance: Option<(Stance, &'a [SlotRequest])>,
    /// Number of slots that are left to others, who have waited longer than the first workload of the queue.
    pub(super) left: u32,
}

impl<'a> Facts<'a> {
    pub(super) fn of(
        state: &'a QueueState,
        workload: &Uid,
        need: Need,
        outlook: &'a Outlook,
    ) -> Self {
        let queue = &state.queue;
        let mut stances = state.stances();
        let stance = stances.find(|(uid, _)| *uid == workload);
        Self {
            need,
            outlook,
            refused: queue.refuses_start(workload),
            stance: stance.map(|(uid, stance)| (stance, queue.lacking(uid))),
            left: state.left_to_others(),
        }
    }
}

/// The workloads of a queue that come before the next one.
#[derive(Debug, Default)]
pub(super) struct Before<'a> {
    /// Number of free slots that these workloads are about to have, or that are kept for them.
    claimed: u32,
    /// Name of the last of these workloads.
    last: Option<&'a str>,
}

impl<'a> Before<'a> {
    /// Returns why the next workload of the queue, which has this name, waits. The workload then counts among those
    /// before the one after it.
    pub(super) fn next(&mut self, workload: &'a str, facts: &Facts<'_>) -> Why {
        let Facts { need, outlook, .. } = facts;
        let obstacle = outlook.obstacle.as_ref();
        if let Some(stop) = obstacle.filter(|obstacle| obstacle.stops_all()) {
            return Why::new(WaitReason::Condition(stop.reason), &*stop.message);
        }
        if facts.refused {
            let message = "the API server refuses to start it, and the operator retries: its events say what was refused";
            return Why::new(WaitReason::StartRefused, message);
        }
        if let Some((stance, lacks)) = facts.stance
            && let Some(why) = of_several(stance, lacks)
        {
            if stance == Stance::Keeps {
                self.last = Some(workload);
                self.claimed = self.claimed.saturating_add(need.slots);
            }
            return why;
        }
        let before = self.last.replace(workload);
        let free = outlook.free.saturating_sub(self.claimed);
        if free >= need.slots && obstacle.is_none() {
            self.claimed = self.claimed.saturating_add(need.slots);
            return free_for(need.slots, free.saturating_sub(facts.left) < need.slots);
        }
        // The free slots are kept for this workload, if it waits for long.
        self.claimed = u32::MAX;
        match (before, obstacle) {
            (Some(before), _) => Why::new(WaitReason::Behind, format!("behind {before}")),
            (None, Some(obstacle)) if need.slots > 1 && obstacle.is_of_slots() => {
                Why::new(WaitReason::TooFewSlotsFree, &*obstacle.message)
            }
            (None, Some(obstacle)) => {
                Why::new(WaitReason::Condition(obstacle.reason), &*obstacle.message)
            }
            (None, None) if outlook.unheld => {
                let message = "free slots go to the running workloads that have lost their slots";
                Why::new(WaitReason::Condition(RunningWithoutSlot), message)
            }
            (None, None) => Why::new(WaitReason::Condition(AllSlotsHeld), "no slot is free"),
        }
    }
}

/// Returns why a workload waits that asks for several slots and can't have all of them yet.
fn of_several(stance: Stance, lacks: &[SlotRequest]) -> Option<Why> {
    let (reason, meanwhile) = match stance {
        Stance::Grants => return None,
        Stance::PassedOver => (
            WaitReason::PassedOver,
            "workloads behind it start meanwhile",
        ),
        Stance::Keeps => (WaitReason::SlotsKept, "free slots here are kept for it"),
        Stance::Stopped => (
            WaitReason::OthersStopped,
            "another of its semaphores grants no slots, and workloads behind it start meanwhile",
        ),
    };
    let lacks = match lacks {
        [] => "enough slots at once".to_owned(),
        lacks => brief(lacks),
    };
    Some(Why::new(
        reason,
        format!("it waits for {lacks}; {meanwhile}"),
    ))
}

/// Returns why a workload waits for which this many slots are free.
fn free_for(slots: u32, left_to_others: bool) -> Why {
    let free = match slots {
        1 => "a slot is free".to_owned(),
        slots => format!("{slots} slots are free"),
    };
    if left_to_others {
        let message =
            format!("{free}, but left to another cluster or program that has waited longer");
        return Why::new(WaitReason::LeftToOthers, message);
    }
    let message = format!(
        "{free}, and the workload is about to start. If this lasts, see the events of the workload"
    );
    Why::new(WaitReason::Next, message)
}

#[cfg(test)]
mod tests;
