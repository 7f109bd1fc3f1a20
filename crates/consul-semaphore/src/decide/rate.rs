//! Decides about the slots of a rate: each counts one start and stays held until its stamp.

use super::Pass;
use crate::{
    Asked,
    fate::OwnContender,
    identity::ContenderBody,
    plan::{Part, SessionRequest, Target},
    rate::RateSlot,
    workload::{Phase, SlotId},
};
use consul_client::SessionId;

impl<'a> Pass<'a> {
    /// Decides about each contender of a rate by its stamp, and not by what its workload does once it is started. A
    /// workload can have several contenders here, because the slots of its earlier starts stay held while it waits
    /// for the next start.
    pub(super) fn judge_starts(&mut self) {
        let mut ours: Vec<&'a OwnContender> = self.observed.ours.iter().collect();
        // If two operators made slots for the same start, the older slot is used.
        ours.sort_by_cached_key(|ours| self.precedence(ours));
        for ours in ours {
            if !self.reading.holds(&ours.session) {
                self.judge_waiting(ours);
                continue;
            }
            let Some(slot) = self.observed.starts.get(&ours.session) else {
                continue;
            };
            self.wake_at(slot.end());
            let place = (&ours.identity.uid, ours.identity.ordinal);
            if slot.end() <= self.observed.now {
                self.release(ours);
            } else if self.may_start_in(ours, slot) && !self.settled.contains(&place) {
                self.settle_grant(ours);
            } else if slot.is_unused() && !self.is_busy(&ours.identity.uid) {
                self.release(ours);
            } else {
                self.count_from_start(ours, slot);
            }
        }
    }

    /// Decides about a contender that holds no slot: its workload waits with it, or it is of no use.
    fn judge_waiting(&mut self, ours: &'a OwnContender) {
        let slot = (&ours.identity.uid, ours.identity.ordinal);
        let workload = ours.workload.as_ref();
        let waits = workload.is_some_and(|workload| {
            workload.phase == Phase::Idle && self.observed.settings.may_start(workload)
        });
        let lasts = !self.observed.brief.contains(&ours.session);
        if waits && lasts && !self.waiting.contains_key(&slot) {
            self.waiting.insert(slot, &ours.session);
        } else if self.reading.is_readable() {
            self.release(ours);
        }
    }

    /// Returns whether the workload may be started in this slot. A workload that has started in the slot once is not
    /// started in it again, and a slot that the workload gave back is not used for it again.
    fn may_start_in(&self, ours: &OwnContender, slot: &RateSlot) -> bool {
        let workload = ours.workload.as_ref().filter(|workload| {
            workload.phase == Phase::Idle
                && self.observed.settings.may_start(workload)
                && !workload.started_by(&ours.session)
                && !workload.reported.contains(&ours.session)
        });
        let uid = &ours.identity.uid;
        workload.is_some()
            && slot.may_start(self.observed.now)
            && !self.observed.excluded.immovable.contains(uid)
            && !self.observed.excluded.barred.contains(uid)
    }

    /// Settles that the workload is still to be started in this slot.
    fn settle_grant(&mut self, ours: &'a OwnContender) {
        let uid = &ours.identity.uid;
        self.settled.insert((uid, ours.identity.ordinal));
        if !self.is_busy(uid) {
            self.granted.entry(uid).or_default().push(ours);
        } else if ours
            .workload
            .as_ref()
            .is_some_and(|workload| workload.asks_for_several())
        {
            self.plan.parts.insert(uid.clone(), Part::Busy);
        }
    }

    /// Makes a slot count from its start once the start is known. Until then the slot stays held for as long as the
    /// start may be late.
    fn count_from_start(&mut self, ours: &OwnContender, slot: &RateSlot) {
        let contender = self.reading.contender(&ours.session);
        let body = contender.and_then(|contender| ContenderBody::read(&contender.value));
        let until = slot.earlier_stamp(self.observed.time);
        if let Some((body, until)) = body.zip(until) {
            self.composer.count_from_start(ours, body, until);
        }
    }

    /// Gives each slot whose session is gone to another session, with the same stamp. Another operator that sees the
    /// slot without a session would take it for free after the lock-delay.
    pub(super) fn replace_sessions(&mut self) {
        if !self.observed.settings.is_rate() {
            return;
        }
        let mut dead = self.reading.dead_holders();
        for (gone, slot) in self.observed.starts.orphaned(self.reading) {
            let Some(check) = dead.remove(gone).filter(|_| slot.end() > self.observed.now) else {
                continue;
            };
            let (uid, ordinal) = (&slot.identity.uid, slot.identity.ordinal);
            if !self.composer.has_room_instead_of(1, &[gone]) {
                continue;
            }
            let workload = Target {
                kind: slot.identity.kind.clone(),
                name: slot.identity.workload.clone(),
                uid: uid.clone(),
                version: "".into(),
            };
            let Some(session) = self.session_of(uid, ordinal) else {
                self.plan.sessions.push(SessionRequest {
                    workload,
                    ordinal,
                    ahead: false,
                });
                continue;
            };
            // A workload can have several slots here for the same ordinal, so only one of them gets the session in
            // this pass.
            if !self.taken.insert(session.clone()) {
                continue;
            }
            let body = self
                .composer
                .body(&workload, ordinal, Asked::default(), None);
            let gone = (gone.clone(), check);
            self.composer.replace(gone, session, &slot.body(body));
        }
    }

    /// Gives up a grant that is not whole any more: slots in which nothing was started are released, and the others
    /// stay held until their stamp.
    pub(super) fn give_up_starts(&mut self, held: &[&'a OwnContender]) {
        for ours in held {
            let slot = self.observed.starts.get(&ours.session);
            if slot.is_some_and(RateSlot::is_unused) {
                self.release(ours);
            }
        }
    }

    /// Returns whether a session made for this slot is to take it over from a session that is gone.
    pub(super) fn replaces_slot(&self, slot: &SlotId) -> bool {
        let mut orphaned = self.observed.starts.orphaned(self.reading);
        orphaned.any(|(_, orphan)| orphan.identity.slot() == *slot)
    }

    /// Returns whether this dead holder of a rate has a slot that still counts.
    pub(super) fn still_counts(&self, session: &SessionId) -> bool {
        let slot = self.observed.starts.get(session);
        slot.is_some_and(|slot| slot.end() > self.observed.now)
    }
}
