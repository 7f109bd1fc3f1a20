//! Keeps what is known of the slots that the workloads of a queue hold, until they are free again.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    Lookup,
    calls::PendingCalls,
    holders::ForeignHolders,
    message::{Now, Outcome},
    proofs::{PodQuestion, Proofs, Remark},
};
use crate::{
    Cooldowns, Evidence, Excluded, OwnContender, Phase, Plan, Reading, SessionState, Settings,
    Starts, Uid, Workload,
    plan::{Grant, HeldSlot, Transaction},
    rate::START_WITHIN,
};
use consul_client::SessionId;

/// State of the held slots, including those in their cooldown.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotsHeld {
    pub(crate) evidence: Evidence,
    pub(crate) cooldowns: Cooldowns,
    /// Slots of a rate.
    pub(crate) starts: Starts,
    pub(crate) proofs: Proofs,
    /// Running workloads that were reported to continue without a slot.
    unheld: BTreeSet<Uid>,
    /// Greatest fencing token that was seen.
    fencing_token: Option<u64>,
    /// Names of the foreign holders.
    pub(super) foreign: ForeignHolders,
}

impl SlotsHeld {
    /// Returns the greatest fencing token that was seen.
    pub(super) fn fencing_token(&self) -> Option<u64> {
        self.fencing_token
    }

    /// Records the fencing tokens of these slots.
    pub(super) fn note_tokens<'a>(&mut self, slots: impl IntoIterator<Item = &'a HeldSlot>) {
        let greatest = slots.into_iter().map(HeldSlot::fencing_token).max();
        self.fencing_token = self.fencing_token.max(greatest);
    }

    /// Records that a transaction is sent, and until when the slots of a rate are held that it grants.
    pub(super) fn sent(&mut self, transaction: &Transaction, settings: &Settings, now: Now) {
        let Some(period) = settings.period else {
            return;
        };
        let (starts, clock) = (&mut self.starts, (now.moment, now.time));
        for grant in &transaction.grants {
            for (ordinal, session) in &grant.sessions {
                let identity = Arc::new(settings.identity(&grant.workload, *ordinal));
                starts.granting(session.clone(), identity, period, clock);
            }
        }
        for session in &transaction.stamped {
            starts.moving(session, clock);
        }
        for (gone, session) in &transaction.replaced {
            starts.replacing(gone, session.clone());
        }
    }

    /// Records that a workload was granted slots. Returns whether it was running and had lost its slot, which was not
    /// reported before.
    pub(super) fn granted(&mut self, grant: &Grant) -> bool {
        let reported = self.unheld.remove(&grant.workload.uid);
        !grant.starts && !reported
    }

    /// Records what a reading says about the slots of our contenders.
    pub(super) fn observe(
        &mut self,
        reading: &Reading,
        ours: &[OwnContender],
        settings: &Settings,
        now: Now,
    ) {
        if let Some(period) = settings.period {
            self.starts
                .observe(reading, ours, period, (now.moment, now.time));
            self.cooldowns.take(self.starts.ends());
        } else {
            self.cooldowns.observe(reading, ours, now.moment, now.time);
        }
    }

    /// Brings the proofs that no pod is left up to date with our contenders in a reading, and with the pods that have
    /// ended.
    pub(super) fn observe_pods(
        &mut self,
        reading: &Reading,
        ours: &[OwnContender],
        now: Now,
        lookup: &impl Lookup,
    ) {
        let Self {
            proofs, evidence, ..
        } = self;
        let all = ours.len() + evidence.count_of_steady();
        proofs.retain(all, |session| reading.contender(session).is_some());
        let touched = lookup.touched();
        let steady = touched.iter().flat_map(|uid| evidence.steady_sessions(uid));
        steady.for_each(|session| proofs.touch(session));
        for contender in ours {
            if touched.contains(&contender.identity.uid) {
                proofs.touch(&contender.session);
            }
        }
        proofs.note_starts(ours, now.moment);
    }

    /// Adds the proof that no pod is left to each contender whose fate depends on one. Returns the questions whose
    /// answers are missing.
    pub(super) fn prove(
        &mut self,
        ours: &mut [OwnContender],
        reading: &Reading,
        settings: &Settings,
        excluded: &Excluded,
        now: Now,
    ) -> Vec<PodQuestion> {
        let mut questions = Vec::new();
        for contender in ours {
            let workload = contender.workload.as_ref();
            let may_start = workload.is_some_and(|workload| settings.may_start(workload))
                && !excluded.immovable.contains(&contender.identity.uid);
            let held = reading.holds(&contender.session);
            if !settings.is_rate() && contender.needs_proof(held, may_start) {
                questions.extend(self.proofs.apply(contender, now.moment));
            }
        }
        questions
    }

    /// Takes over the answer to a question about pods, and returns what to remark about it.
    pub(super) fn proved(
        &mut self,
        question: PodQuestion,
        answer: Result<(Option<Arc<Workload>>, Vec<String>), String>,
        now: Now,
        lookup: &impl Lookup,
    ) -> Option<Remark> {
        let known = lookup.workload(&question.identity.uid);
        let answer = answer.map(|(mut workload, pods)| {
            // The workload as it was read for the proof may be written to, so it must know its wait.
            if let Some(workload) = &mut workload {
                Arc::make_mut(workload).note_wait(known.as_deref(), now.time);
            }
            (workload, pods)
        });
        self.proofs.answered(question, answer, known, now)
    }

    /// Brings the evidence for the slots of running workloads up to date. `started` are the workloads that were
    /// started here, and `reading` is `None` while the pass does not know what Consul says.
    pub(super) fn update_evidence<'a>(
        &mut self,
        started: impl Iterator<Item = &'a Arc<Workload>>,
        ours: &[OwnContender],
        reading: Option<&Reading>,
        settings: &Settings,
        now: Now,
        lookup: &impl Lookup,
    ) {
        let lock_key = settings.prefix.lock_key();
        let runs = |workload: &&Workload| {
            workload.phase == Phase::Running && workload.started_at(&lock_key)
        };
        let running: Vec<&Workload> = started.map(AsRef::as_ref).filter(runs).collect();
        let life = |session: &SessionId| lookup.life(session);
        self.evidence
            .observe(now.moment, settings, &running, reading, ours, life);
    }

    /// Returns the sessions of workloads that wait for a rate, if the sessions may end before a slot granted now
    /// does. `ahead` are the sessions that were made ahead.
    pub(super) fn brief<'a>(
        &self,
        ours: &'a [OwnContender],
        ahead: impl Iterator<Item = &'a SessionId>,
        settings: &Settings,
        now: Now,
        lookup: &impl Lookup,
    ) -> BTreeSet<SessionId> {
        let Some(period) = settings.period else {
            return BTreeSet::new();
        };
        let stamp = now.moment + START_WITHIN + period;
        ours.iter()
            .map(|ours| &ours.session)
            .filter(|session| self.starts.get(session).is_none())
            .chain(ahead)
            .filter(|session| {
                let end = lookup.life(session).and_then(SessionState::end);
                end.is_some_and(|end| end <= stamp)
            })
            .cloned()
            .collect()
    }

    /// Returns whether nothing is known yet of the session of a workload that waits for a rate, so that nothing can
    /// be granted.
    pub(super) fn is_unsure(
        &self,
        ours: &[OwnContender],
        settings: &Settings,
        lookup: &impl Lookup,
    ) -> bool {
        let mut waiting = ours.iter().map(|ours| &ours.session);
        settings.is_rate()
            && waiting.any(|session| {
                let waits = self.starts.get(session).is_none();
                waits && matches!(lookup.life(session), None | Some(SessionState::Unknown))
            })
    }

    /// Reports each running workload that continues without a slot, once. A workload is known to have a slot again
    /// when one is granted to it, and only while Consul's entries are known.
    pub(super) fn report_unheld(&mut self, plan: &Plan, certain: bool, calls: &mut PendingCalls) {
        let mut known = std::mem::take(&mut self.unheld);
        for workload in &plan.unheld {
            if !known.contains(&workload.uid) {
                calls.report(Outcome::GoesOn(workload.clone()));
            }
        }
        if certain {
            let next = plan.sessions.iter().map(|request| &request.workload.uid);
            let soon: BTreeSet<&Uid> = plan
                .transaction
                .iter()
                .flat_map(|transaction| &transaction.grants)
                .map(|grant| &grant.workload.uid)
                .chain(next)
                .collect();
            known.retain(|uid| soon.contains(uid));
        }
        known.extend(plan.unheld.iter().map(|workload| workload.uid.clone()));
        self.unheld = known;
    }
}
