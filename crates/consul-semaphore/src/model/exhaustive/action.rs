//! Everything that can happen in a state.

use super::{
    super::operator::{Lost, Step},
    WaitStyle,
    state::State,
};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// An operator's process dies, and another one starts.
    Crash,
    /// A session expires, or is destroyed by hand.
    Expiry,
    /// A contender key is deleted by hand, or a holder taken out of `.lock`.
    ForcedRelease,
    /// A call is carried out, and its answer is lost.
    LostAnswer,
    /// A call is given up, and arrives later or never.
    LateCall,
    /// A call is carried out and answered, and arrives once more.
    CallTwice,
    /// An operator decides on an older view than its last.
    StaleRead,
}

impl Fault {
    pub(super) const ALL: &'static [Self] = &[
        Self::Crash,
        Self::Expiry,
        Self::ForcedRelease,
        Self::LostAnswer,
        Self::LateCall,
        Self::CallTwice,
        Self::StaleRead,
    ];
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// An operator reads, decides, and starts on its plan. Whatever happens between its reading and its steps makes
    /// the reading stale.
    Decide(usize, Seen),
    /// An operator takes the next step of its plan.
    Step(usize, Delivery),
    Crash(usize),
    /// A call arrives that nobody waits for any more.
    Land(usize),
    /// The Job controller handles a workload.
    Control(usize, usize),
    /// A pod completes, or has finished stopping.
    EndPod(usize, usize),
    /// Time passes until nothing waits for a time any more.
    Wait,

    /// A user suspends a running workload.
    Suspend(usize, usize),
    /// A user deletes a workload, and its pods stay behind.
    Delete(usize, usize),
    /// A workload fails while one of its pods still exists.
    Fail(usize, usize),

    Arrive,
    Look,
    Claim,
    Leave,
    Die,

    /// A session of an operator expires, or is destroyed by hand.
    Expire(usize),
    /// A contender key is deleted by hand.
    DeleteContender(usize),
    /// A holder is taken out of `.lock` by hand.
    TakeOut(usize),
}

/// What an operator's decision is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Seen {
    /// Both workloads and Consul as they are now.
    All,
    /// The workloads as in its previous reading.
    OldJobs,
    /// Consul as in its previous reading, or as it knows it from its own transaction.
    OldReading,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Delivery {
    Good,
    Unanswered,
    Late,
    Twice,
}

impl Delivery {
    /// What happens to the answer.
    pub(super) fn lost(self) -> Option<Lost> {
        match self {
            Self::Good | Self::Twice => None,
            Self::Unanswered => Some(Lost::answer()),
            Self::Late => Some(Lost::call()),
        }
    }
}

impl State {
    /// Everything that can happen now. Some of it changes nothing.
    pub(super) fn actions(&self, actions: &mut Vec<Action>) {
        if self.broken.is_some() {
            return;
        }
        self.operators_actions(actions);
        actions.extend((0..self.landing.len()).map(Action::Land));
        actions.push(Action::Wait);
        for (number, site) in self.sites.iter().enumerate() {
            actions.extend((0..site.workloads.pods().len()).map(|pod| Action::EndPod(number, pod)));
            for (workload, object) in site.workloads.objects().enumerate() {
                if site.workloads.awaits_control(object) {
                    actions.push(Action::Control(number, workload));
                }
                if self.user_changes > 0 {
                    actions.push(Action::Delete(number, workload));
                    if object.runs() {
                        actions.push(Action::Suspend(number, workload));
                        actions.push(Action::Fail(number, workload));
                    }
                }
            }
        }
        self.client_actions(actions);
        let sight = self.sites[0].sight();
        if self.may(Fault::Expiry) {
            actions.extend((0..sight.contenders.len()).map(Action::Expire));
        }
        if self.may(Fault::ForcedRelease) {
            let held = sight.body.map_or(0, |body| body.holders.len());
            actions.extend((0..sight.contenders.len()).map(Action::DeleteContender));
            actions.extend((0..held).map(Action::TakeOut));
        }
    }

    fn operators_actions(&self, actions: &mut Vec<Action>) {
        for (number, process) in self.processes.iter().enumerate() {
            if let Some(step) = process.operator.next_step() {
                actions.push(Action::Step(number, Delivery::Good));
                let call = matches!(step, Step::Transact { .. } | Step::Patch { .. });
                for (fault, delivery) in [
                    (Fault::LostAnswer, Delivery::Unanswered),
                    (Fault::LateCall, Delivery::Late),
                    (Fault::CallTwice, Delivery::Twice),
                ] {
                    if call && self.may(fault) {
                        actions.push(Action::Step(number, delivery));
                    }
                }
            } else {
                actions.push(Action::Decide(number, Seen::All));
                if self.may(Fault::StaleRead) {
                    actions.push(Action::Decide(number, Seen::OldJobs));
                    actions.push(Action::Decide(number, Seen::OldReading));
                }
            }
            if self.may(Fault::Crash) {
                actions.push(Action::Crash(number));
            }
        }
    }

    fn client_actions(&self, actions: &mut Vec<Action>) {
        if self.client.session().is_some() {
            if self.setup.manner == WaitStyle::Slow {
                actions.push(Action::Look);
            }
            actions.push(Action::Leave);
            if self.setup.manner != WaitStyle::Silent {
                actions.push(Action::Claim);
            }
        }
        let again = self.client.session().is_some() && self.setup.manner != WaitStyle::Silent;
        if self.arrivals > 0 || again {
            actions.push(Action::Arrive);
        }
    }
}
