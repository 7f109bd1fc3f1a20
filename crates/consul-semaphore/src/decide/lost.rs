//! What becomes of running workloads that lost their slot, or can't show any more that they hold it.

use super::{Observed, Pass, grant};
use crate::{
    OnSlotLost,
    lock::Lock,
    plan::{GiveBack, Plan, Suspend, Suspended},
    workload::{Phase, Workload},
};
use consul_client::SessionId;

/// Suspends the running workloads whose evidence ends. Whether Consul can be asked makes no difference.
pub(super) fn suspend_what_is_not_proved(observed: &Observed<'_>, plan: &mut Plan) {
    plan.deadline = observed.evidence.first_steady();
    let lock_key = observed.settings.prefix.lock_key();
    let running = observed.bound.iter().filter(|workload| {
        workload.phase == Phase::Running
            && workload.started_at(&lock_key)
            && !observed.busy.contains(&workload.uid)
    });
    for workload in running {
        let Some(deadline) = observed.evidence.deadline(observed.settings, workload) else {
            continue;
        };
        if deadline > observed.now {
            plan.deadline = Some(plan.deadline.map_or(deadline, |first| first.min(deadline)));
            continue;
        }
        match observed.settings.on_slot_lost {
            OnSlotLost::Continue => plan.unheld.push(workload.into()),
            OnSlotLost::Reacquire | OnSlotLost::Suspend => {
                plan.suspends
                    .push(Suspend::new(workload, Suspended::Unproved));
            }
        }
    }
}

impl<'a> Pass<'a> {
    /// The running workloads that this semaphore started and that have no slot any more.
    pub(super) fn find_lost(&mut self) -> Vec<&'a Workload> {
        let mut lost: Vec<&Workload> = Vec::new();
        for workload in self.observed.bound {
            let judged = self.settled.contains(&workload.uid) || self.is_busy(&workload.uid);
            if judged || !self.started_here(workload) {
                continue;
            }
            // A neighbour on this prefix holds its slot, or nobody can say whose it is.
            if workload
                .held_by()
                .any(|session| self.reading.holds(session))
            {
                continue;
            }
            match workload.phase {
                // What Consul said before the workload was seen running proves nothing against it.
                Phase::Running if workload.seen > self.reading.sent => self.plan.reread = true,
                Phase::Running => lost.push(workload),
                Phase::Idle if !self.observed.settings.may_start(workload) => {
                    self.forget_grant(workload);
                }
                _ => {}
            }
        }
        lost
    }

    /// A workload without a slot is no longer bound to this semaphore: it asks for another one now, or
    /// its user suspended it or put it on hold and its session died meanwhile. Its template must not
    /// name the grant any longer: when its user takes the hold away or unsuspends it, it queues at the end.
    fn forget_grant(&mut self, workload: &Workload) {
        if let Some(granted) = &workload.granted {
            let session = granted.session.clone();
            self.plan.give_backs.push(GiveBack {
                workload: workload.into(),
                session,
                hold: !workload.lost() && !workload.hold,
            });
        }
    }

    /// Gives running workloads that lost their slot another one, before any waiting workload and whatever
    /// else stands in the way of grants. Those for whom there is none, or that are not to have one,
    /// are suspended, or go on.
    pub(super) fn regrant(&mut self, lost: &[&'a Workload]) {
        if matches!(self.reading.lock(), Lock::Unreadable(_)) || self.plan.record.is_some() {
            return;
        }
        let dead = self.reading.dead_holders();
        for workload in lost {
            let mut held_by = workload.held_by();
            let swap = held_by.find_map(|session| dead.get_key_value(session));
            let room = self.composer.has_room(swap.map(|(session, _)| session));
            match self.observed.settings.on_slot_lost {
                OnSlotLost::Reacquire | OnSlotLost::Continue if room => {}
                OnSlotLost::Continue => {
                    if !self
                        .plan
                        .unheld
                        .iter()
                        .any(|unheld| unheld.uid == workload.uid)
                    {
                        self.plan.unheld.push((*workload).into());
                    }
                    continue;
                }
                OnSlotLost::Reacquire | OnSlotLost::Suspend => {
                    let suspend = Suspend::new(workload, Suspended::SlotLost);
                    self.plan.suspends.push(suspend);
                    continue;
                }
            }
            if let Some(session) = self.session_of(&workload.uid) {
                let swap = swap.map(|(dead, check)| (dead, self.clean_up(dead, check.clone())));
                self.composer.grant(grant(workload, session, false), swap);
            } else {
                // Until its session is made its slot is kept for it: by its dead holder, if it has
                // one yet.
                self.plan.sessions.push((*workload).into());
                if swap.is_none() {
                    self.composer.reserve();
                }
            }
        }
    }

    /// Keeps a free slot for each of our workloads that has pods and stands in `Holders` no more: they
    /// count until they are gone.
    pub(super) fn reserve_for_pods(&mut self) {
        let dead = self.reading.dead_holders();
        for workload in self.observed.bound {
            let has_pods = matches!(workload.phase, Phase::Running | Phase::Stopping);
            if !has_pods || !self.started_here(workload) {
                continue;
            }
            let counts =
                |session: &SessionId| self.reading.holds(session) || dead.contains_key(session);
            let mut own = self.observed.ours.iter();
            let mut asks = self.plan.sessions.iter();
            // What is true of nearly all comes first: the others look through all contenders.
            let counted = workload.held_by().any(counts)
                || own.any(|own| {
                    own.identity.uid == workload.uid && self.reading.holds(&own.session)
                })
                || asks.any(|asks| asks.uid == workload.uid)
                || self.composer.grants(&workload.uid);
            if !counted {
                self.composer.reserve();
            }
        }
    }
}
