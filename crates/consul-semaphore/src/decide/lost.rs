//! Decides what happens to running workloads that lost their slot, or can no longer prove that they hold it.

use std::collections::BTreeMap;

use super::{Observed, Pass, grant};
use crate::{
    Asked, OnSlotLost,
    compose::Regrant,
    lock::Lock,
    plan::{GiveBack, Plan, SessionRequest, Suspended},
    workload::{Phase, Workload},
};
use consul_client::{Op, SessionId};

/// A slot that a running workload has lost, and its dead holder with the check that the holder is still dead.
type Lost<'a, 'd> = (&'a Workload, u32, Option<(&'d SessionId, &'d Op)>);

/// Suspends the running workloads whose evidence ends, whether or not Consul can be reached.
pub(super) fn suspend_what_is_not_proved(observed: &Observed<'_>, plan: &mut Plan) {
    plan.deadline = observed.evidence.first_steady();
    let lock_key = observed.settings.prefix.lock_key();
    let running = observed.bound.iter().filter(|workload| {
        workload.phase == Phase::Running
            && workload.started_at(&lock_key)
            && !observed.excluded.busy.contains(&workload.uid)
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
                plan.stop(workload, Suspended::Unproved);
            }
        }
    }
}

impl<'a> Pass<'a> {
    /// Returns the slots that running workloads of this semaphore have lost.
    pub(super) fn find_lost(&mut self) -> Vec<(&'a Workload, u32)> {
        let mut lost: Vec<(&Workload, u32)> = Vec::new();
        for workload in self.observed.bound {
            if self.is_busy(&workload.uid) {
                continue;
            }
            // A slot that one of the workload's sessions holds is not lost, even if that session is not among our
            // contenders: a neighbour at this prefix may own it, or its owner is unknown.
            let slots = (0..).zip(workload.slots_at(&self.lock_key));
            let unheld = slots.filter(|(ordinal, sessions)| {
                // A held slot of a rate counts a start that has already been made, so it is not evidence for this
                // run.
                let held = !self.observed.settings.is_rate()
                    && sessions.clone().any(|session| self.reading.holds(session));
                !held && !self.is_settled(&workload.uid, *ordinal)
            });
            let unheld: Vec<u32> = unheld.map(|(ordinal, _)| ordinal).collect();
            match workload.phase {
                _ if unheld.is_empty() => {}
                // An answer of Consul from before the workload was seen running does not show that the slot is lost.
                Phase::Running if workload.seen > self.reading.sent => self.plan.reread = true,
                Phase::Running => {
                    lost.extend(unheld.into_iter().map(|ordinal| (&**workload, ordinal)));
                }
                Phase::Idle
                    if !self.has_settled(&workload.uid)
                        && !self.observed.settings.may_start(workload) =>
                {
                    self.forget_grant(workload);
                }
                _ => {}
            }
        }
        lost
    }

    /// Removes the grant from the template of a workload that has no slot. Such a workload is no longer bound to this
    /// semaphore: it asks for another one now, or its user suspended it or put it on hold and its session ended in
    /// the meantime. When its user removes the hold or unsuspends it, the workload queues at the end.
    fn forget_grant(&mut self, workload: &Workload) {
        if let Some(granted) = &workload.granted {
            let sessions = granted.slots.iter().map(|slot| slot.session.clone());
            self.plan.give_backs.push(GiveBack {
                workload: workload.into(),
                sessions: sessions.collect(),
                hold: !workload.lost() && !workload.hold,
                began: workload.wait_given_back(),
            });
        }
    }

    /// Grants another slot to running workloads that lost theirs, before any waiting workload, and even while nothing
    /// else is granted. Workloads for which no slot is free, or that must not have one, are suspended or continue, as
    /// `onSlotLost` says.
    pub(super) fn regrant(&mut self, lost: &[(&'a Workload, u32)]) {
        if matches!(self.reading.lock(), Lock::Unreadable(_)) || self.plan.record.is_some() {
            return;
        }
        let dead = self.reading.dead_holders();
        for slots in lost.chunk_by(|(a, _), (b, _)| a.uid == b.uid) {
            let slots = slots.iter().map(|&(workload, ordinal)| {
                let mut held_by = (0..)
                    .zip(workload.slots_at(&self.lock_key))
                    .filter(|(other, _)| *other == ordinal)
                    .flat_map(|(_, sessions)| sessions);
                // The dead holder of the slot makes room for the workload, if it is still listed.
                let swap = held_by.find_map(|session| dead.get_key_value(session));
                (workload, ordinal, swap)
            });
            let slots: Vec<Lost<'_, '_>> = slots.collect();
            let swaps = slots.iter().filter_map(|(.., swap)| *swap);
            let gone: Vec<&SessionId> = swaps.map(|(session, _)| session).collect();
            let count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
            let room = self.composer.has_room_instead_of(count, &gone);
            let Some((workload, ..)) = slots.first() else {
                continue;
            };
            match self.observed.settings.on_slot_lost {
                OnSlotLost::Reacquire if room => {}
                OnSlotLost::Continue => {
                    let mut unheld = self.plan.unheld.iter();
                    if !room && !unheld.any(|unheld| unheld.uid == workload.uid) {
                        self.plan.unheld.push((*workload).into());
                    }
                }
                OnSlotLost::Reacquire | OnSlotLost::Suspend => {
                    self.plan.stop(workload, Suspended::SlotLost);
                    continue;
                }
            }
            for slot in slots {
                self.regrant_one(slot);
            }
        }
    }

    /// Gives a running workload one of its slots again, if there is room.
    fn regrant_one(&mut self, (workload, ordinal, swap): Lost<'a, '_>) {
        let gone: Vec<&SessionId> = swap.iter().map(|(session, _)| *session).collect();
        if !self.composer.has_room_instead_of(1, &gone) {
            return;
        }
        if let Some(session) = self.session_of(&workload.uid, ordinal) {
            let swap = swap.map(|(dead, check)| (dead, self.clean_up(dead, check.clone())));
            let sessions = BTreeMap::from([(ordinal, session)]);
            let granted = workload.granted.as_ref();
            let asked = granted.map(Asked::granted).unwrap_or_default();
            let regrant = Regrant {
                index: workload.slot_index(&self.lock_key, ordinal),
                swap,
            };
            self.composer
                .grant(grant(workload, sessions, false), &asked, Some(&regrant));
        } else {
            // The slot is kept for the workload until its session is made.
            self.plan.sessions.push(SessionRequest {
                workload: workload.into(),
                ordinal,
                ahead: false,
            });
            if swap.is_none() {
                self.composer.reserve(1);
            }
        }
    }

    /// Reserves a free slot for each slot of our workloads that have pods and are no longer in `Holders`, because
    /// such slots count until the pods are gone.
    pub(super) fn reserve_for_pods(&mut self) {
        let dead = self.reading.dead_holders();
        for workload in self.observed.bound {
            if !matches!(workload.phase, Phase::Running | Phase::Stopping) {
                continue;
            }
            let counts =
                |session: &SessionId| self.reading.holds(session) || dead.contains_key(session);
            let uid = &workload.uid;
            let mut uncounted = 0;
            for (ordinal, mut sessions) in (0..).zip(workload.slots_at(&self.lock_key)) {
                let mut own = self.observed.ours.iter();
                let mut asks = self.plan.sessions.iter();
                // The check that settles nearly all slots comes first, because the others search all contenders.
                let counted = sessions.any(counts)
                    || own.any(|own| {
                        own.identity.uid == *uid
                            && own.identity.ordinal == ordinal
                            && self.reading.holds(&own.session)
                    })
                    || asks.any(|asks| asks.workload.uid == *uid && asks.ordinal == ordinal)
                    || self.composer.grants(uid, ordinal);
                uncounted += u32::from(!counted);
            }
            self.composer.reserve(uncounted);
        }
    }
}
