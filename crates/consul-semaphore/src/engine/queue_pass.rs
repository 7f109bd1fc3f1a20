//! Makes passes over queues, and decides what follows for the workloads that ask for slots at several lock keys: see
//! [`joint`](super::joint).

use std::{sync::Arc, time::Duration};

use super::{
    Call, Lookup, Now, Passed, Queue, QueueRef, Reach, Stores, Write,
    agenda::DueWork,
    joint::{self, Joint, JointShare, JointStep, LastPasses, QueueReport},
    semaphores::Semaphores,
};
use crate::{
    Asked, SlotRequest, Uid, Workload, lock_key_of,
    plan::{HeldSlot, Stance, Start},
};
use consul_client::clock::Moment;

/// Largest number of workloads asking for several semaphores for which a queue that frees slots makes other queues
/// decide at once.
const MOST_JOINT_WORKLOADS_TRIED: usize = 8;

/// A pass over a queue, and the decisions about several queues that follow from it.
pub(super) struct QueuePass<'a, S> {
    pub(super) semaphores: &'a mut Semaphores,
    pub(super) joint: &'a mut Joint,
    pub(super) now: Now,
    pub(super) stores: &'a S,
}

impl<S: Stores> QueuePass<'_, S> {
    /// Makes a pass over a queue, and sends the transactions that follow from it. Returns the passes that were made: for
    /// each of them [`Self::join`] decides what follows, once all transactions are sent.
    pub(super) fn run(&mut self, queue: &QueueRef) -> Vec<Passed> {
        let mut passed = Vec::from_iter(self.pass_over(queue));
        let known = self.semaphores.queue(queue);
        if known.is_some_and(|known| known.calls.is_to_free_slots()) {
            self.grant_what_comes_free(queue, &mut passed);
        }
        for Passed { queue, .. } in &passed {
            if let Some(queue) = self.semaphores.queue_mut(queue) {
                queue.transact(self.now);
            }
            self.semaphores.drain(queue);
        }
        passed
    }

    /// Makes a pass over a queue, unless there is nothing to decide now. The transaction of the pass is not sent yet.
    fn pass_over(&mut self, queue: &QueueRef) -> Option<Passed> {
        self.note_longest_cooldowns(queue);
        let state = self.semaphores.states.get_mut(&queue.semaphore);
        let Some(state) = state.filter(|state| state.may_pass()) else {
            self.semaphores
                .agenda
                .set(DueWork::Queue(queue.clone()), None);
            self.join(queue);
            return None;
        };
        let passed = state.pass(&queue.key, self.now, self.stores);
        self.semaphores.drain(queue);
        passed.map(|certain| Passed {
            queue: queue.clone(),
            certain,
        })
    }

    /// Decides what follows for the workloads that ask for several slots, after a pass over one of their queues.
    pub(super) fn join(&mut self, queue: &QueueRef) {
        // As long as an answer is awaited, nothing new is known.
        if self.semaphores.queue(queue).is_some_and(Queue::is_blocked) {
            return;
        }
        let undecided = self.undecided(queue);
        for (workload, queues) in self.joint_workloads(queue, undecided) {
            self.join_one(&workload, &queues);
        }
    }

    /// Returns the workloads about which this queue's part may decide.
    fn joint_at(&self, queue: &QueueRef) -> impl Iterator<Item = &Uid> {
        let known = self.joint.of(queue);
        let new = self
            .semaphores
            .concluded(queue)
            .into_iter()
            .flat_map(|conclusion| conclusion.parts.keys())
            .filter(move |uid| known.is_none_or(|known| !known.contains(*uid)));
        known.into_iter().flatten().chain(new)
    }

    /// Returns the joint workloads of a queue about which something is to be decided. The others go on waiting: while
    /// one workload is granted its slots, hundreds may wait for theirs.
    fn undecided(&self, queue: &QueueRef) -> Vec<Uid> {
        let mut last_passes = LastPasses::new(|queue| self.semaphores.last_pass(queue));
        let lookup = self.stores.of(queue);
        let mut waits = |uid: &Uid| {
            let basis = self.joint.basis(uid)?;
            let due = self.joint.is_due(uid, self.now.moment);
            let workload = lookup.workload(uid)?;
            Some(basis.holds(&workload, queue, due, &mut last_passes))
        };
        let undecided = self.joint_at(queue).filter(|uid| waits(uid) != Some(true));
        undecided.cloned().collect()
    }

    /// Returns these workloads in the order of the queue, each with its queues. Workloads that do not ask for slots
    /// in this queue any more are forgotten.
    fn joint_workloads(
        &mut self,
        queue: &QueueRef,
        uids: Vec<Uid>,
    ) -> Vec<(Arc<Workload>, Vec<QueueRef>)> {
        let mut workloads = Vec::new();
        for uid in uids {
            let workload = self.stores.of(queue).workload(&uid);
            let queues = workload.as_ref().map_or_else(Vec::new, |workload| {
                self.semaphores
                    .queues_for(&queue.semaphore.namespace, workload)
            });
            if let Some(workload) = workload.filter(|_| queues.contains(queue)) {
                workloads.push((workload, queues));
            } else {
                self.joint.note(&uid, std::slice::from_ref(queue), false);
                self.joint.forget(&uid);
                self.take_stance(&uid, queue, None);
                self.tell_request(&uid, std::slice::from_ref(queue), None);
                self.note_lacking(&uid, queue, &[]);
            }
        }
        workloads.sort_by_cached_key(|(workload, _)| workload.place());
        workloads
    }

    /// Grants a whole request in the transaction with which this queue is about to free slots. The request is that of
    /// the first workload for which these slots are enough. Queues of the workload that are due have their pass
    /// first, so that they decide about slots that come free at the same time; these passes are added to `passed`.
    ///
    /// After a failure the queue sends alone what it has decided, because elsewhere another client may always be
    /// faster.
    fn grant_what_comes_free(&mut self, queue: &QueueRef, passed: &mut Vec<Passed>) {
        let all = self.joint_at(queue).cloned().collect();
        let workloads = self.joint_workloads(queue, all).into_iter();
        let several = workloads.filter(|(workload, _)| workload.asks_for_several());
        for (workload, queues) in several.take(MOST_JOINT_WORKLOADS_TRIED) {
            let uid = &workload.uid;
            let is_hopeless = |queue: &QueueRef| {
                let known = self.semaphores.queue(queue);
                let doubts = known.is_none_or(|known| known.calls.is_in_doubt());
                doubts
                    || !self.semaphores.agenda.is_marked(queue)
                        && !self.report(queue, uid).is_grantable()
            };
            if queues.iter().any(is_hopeless) {
                continue;
            }
            for other in &queues {
                if self.semaphores.agenda.take(other) {
                    passed.extend(self.pass_over(other));
                }
            }
            let reports = self.reports(&queues, uid);
            if joint::next(&reports) == JointStep::Grant {
                if self.grant_jointly(&workload, &queues).is_some() {
                    for queue in &queues {
                        self.semaphores.drain(queue);
                    }
                }
                return;
            }
        }
    }

    fn join_one(&mut self, workload: &Arc<Workload>, queues: &[QueueRef]) {
        let uid = &workload.uid;
        let reports = self.reports(queues, uid);
        if reports.contains(&QueueReport::Later) {
            return self.joint.note(uid, queues, true);
        }
        let is_due = self.joint.is_due(uid, self.now.moment);
        let any = reports.iter().any(QueueReport::is_concerned);
        let next = joint::next(&reports);
        let waits = any && next == JointStep::Wait;
        let first = reports.iter().position(QueueReport::is_first);
        let stances = joint::stances(&reports, is_due);
        let lacking = if waits {
            joint::lacking(&workload.requests, &reports)
        } else {
            Vec::new()
        };
        let basis = waits
            .then(|| joint::Basis::of(workload, queues, &reports, is_due))
            .flatten();
        // Queues that were removed are left out, because they have no more pass in which the workload could be
        // forgotten.
        let existing: Vec<QueueRef> = queues
            .iter()
            .filter(|queue| self.semaphores.queue(queue).is_some())
            .cloned()
            .collect();
        self.joint.note(uid, &existing, any);
        self.joint.note_basis(uid, basis);
        if let Some(first) = first.map(|first| &queues[first]) {
            let pass_over = self
                .semaphores
                .queue(first)
                .map(|queue| queue.settings().pass_over);
            let due = self.now.moment + pass_over.unwrap_or_default();
            self.joint.note_head(uid, first, due);
        }
        if !any {
            self.joint.forget(uid);
        }
        let several = any && workload.asks_for_several();
        let asked = several.then(|| self.asked_for(workload, queues)).flatten();
        self.tell_request(uid, queues, asked.as_ref());
        for queue in queues {
            self.note_lacking(uid, queue, &lacking);
        }
        match next {
            JointStep::Grant => drop(self.grant_jointly(workload, queues)),
            JointStep::Start(slots) => self.start_jointly(workload, slots, queues),
            JointStep::GiveBack => self.give_back_jointly(workload, queues),
            JointStep::Wait => {
                for (queue, stance) in queues.iter().zip(stances) {
                    self.take_stance(uid, queue, stance);
                }
                return;
            }
        }
        for queue in queues {
            self.semaphores.drain(queue);
        }
    }

    /// Tells a queue the longest cooldowns of its workloads that ask for several semaphores and must not wait. These
    /// cooldowns decide whether such a workload is too late.
    fn note_longest_cooldowns(&mut self, queue: &QueueRef) {
        if self.semaphores.states.len() < 2 {
            return;
        }
        let waiting = self.stores.of(queue).waiting(&Reach::first(1)).into_iter();
        let hasty = waiting.filter(|workload| {
            let scheduled = workload.cron_job.is_some();
            scheduled && workload.is_skippable() && workload.asks_for_several()
        });
        let longest = hasty.filter_map(|workload| {
            let queues = self
                .semaphores
                .queues_for(&queue.semaphore.namespace, &workload);
            let semaphores = queues
                .iter()
                .map(|queue| self.semaphores.states.get(&queue.semaphore));
            let cooldowns = semaphores
                .flatten()
                .map(|known| known.spec().settings.cooldown);
            Some((workload.uid.clone(), cooldowns.max()?))
        });
        let longest = longest.collect();
        if let Some(queue) = self.semaphores.queue_mut(queue) {
            queue.joint.set_longest_cooldowns(longest);
        }
    }

    /// Tells a queue its stance towards a workload. A queue whose stance changes decides anew.
    fn take_stance(&mut self, workload: &Uid, queue: &QueueRef, stance: Option<Stance>) {
        #[cfg(test)]
        let stance = match self.joint.distort {
            Some(distort) => stance.map(distort),
            None => stance,
        };
        let known = self.semaphores.queue_mut(queue);
        if known.is_some_and(|known| known.joint.set_stance(workload, stance)) {
            self.semaphores.agenda.mark(queue);
        }
    }

    /// Returns all that a workload asks for, by the lock keys of its queues, or `None` if one of the queues is not
    /// known.
    fn asked_for(&self, workload: &Workload, queues: &[QueueRef]) -> Option<Asked> {
        let parts = workload
            .requests
            .iter()
            .zip(queues)
            .map(|(request, queue)| {
                let lock_key = self.semaphores.queue(queue)?.settings().prefix.lock_key();
                Some((lock_key, request.slots.get()))
            });
        Some(Asked::of(parts.collect::<Option<Vec<_>>>()?))
    }

    /// Tells the queues of a workload all that it asks for.
    fn tell_request(&mut self, workload: &Uid, queues: &[QueueRef], asked: Option<&Asked>) {
        for queue in queues {
            if let Some(known) = self.semaphores.queue_mut(queue) {
                known.joint.set_whole(workload, asked);
            }
        }
    }

    /// Tells a queue what a workload lacks. This is only reported, so the queue does not decide anew.
    fn note_lacking(&mut self, workload: &Uid, queue: &QueueRef, lacking: &[SlotRequest]) {
        let known = self.semaphores.queue_mut(queue);
        if known.is_some_and(|known| known.joint.set_lacking(workload, lacking)) {
            self.semaphores.changed.insert(queue.semaphore.clone());
        }
    }

    /// Returns the reports of these queues about a workload.
    fn reports(&self, queues: &[QueueRef], workload: &Uid) -> Vec<QueueReport<'_>> {
        let reports = queues.iter().map(|queue| self.report(queue, workload));
        reports.collect()
    }

    /// Returns the report of a queue about a workload.
    fn report(&self, queue: &QueueRef, workload: &Uid) -> QueueReport<'_> {
        self.semaphores.last_pass(queue).report(workload)
    }

    /// Grants a workload everything that it asks for, in one transaction. Returns `None` if that is not possible now.
    fn grant_jointly(&mut self, workload: &Workload, queues: &[QueueRef]) -> Option<()> {
        let operations = queues
            .iter()
            .map(|queue| self.semaphores.queue(queue)?.operations());
        let mut left = operations.collect::<Option<Vec<_>>>()?.into_iter().min()?;
        let needed: Vec<usize> = workload.requests.iter().map(joint::operations).collect();
        let mut transactions = Vec::new();
        for (place, queue) in queues.iter().enumerate() {
            let others: usize = needed.iter().skip(place + 1).sum();
            let most = left.checked_sub(others)?;
            let lookup = self.stores.of(queue);
            let share =
                self.semaphores
                    .queue_mut(queue)?
                    .share(&workload.uid, most, self.now, &lookup)?;
            left = left.checked_sub(share.operations.len())?;
            transactions.push(share);
        }
        let mut shares = Vec::new();
        let mut not_after: Option<Moment> = None;
        for (queue, transaction) in queues.iter().zip(transactions) {
            let (id, until) = self
                .semaphores
                .queue_mut(queue)?
                .await_transaction(&transaction, self.now);
            not_after = not_after.into_iter().chain(until).min();
            shares.push(JointShare { id, transaction });
        }
        let first = shares.first()?.id;
        let transaction = Arc::new(joint::combined(&shares));
        let call = Call::Transact {
            transaction,
            not_after,
        };
        self.joint.sent(first, shares);
        self.semaphores
            .queue_mut(queues.first()?)?
            .calls
            .send(first, call);
        Some(())
    }

    /// Starts a workload in all its slots, unless the evidence for one of the slots may end before the write is
    /// answered.
    fn start_jointly(&mut self, workload: &Workload, slots: Vec<HeldSlot>, queues: &[QueueRef]) {
        let (mut not_after, mut timeout) = (Moment::END, Duration::MAX);
        for queue in queues {
            let lookup = self.stores.of(queue);
            let Some(queue) = self.semaphores.queue_mut(queue) else {
                return;
            };
            let prefix = queue.settings().prefix.clone();
            let here = slots
                .iter()
                .filter(|slot| lock_key_of(slot.key()) == prefix.lock_key());
            match queue.evidence_for(&workload.uid, here, self.now, &lookup) {
                Some(end) => not_after = not_after.min(end),
                None => return,
            }
            timeout = timeout.min(queue.settings().write_timeout());
        }
        let start = Start::new(workload.into(), slots);
        let Some((first, start)) = queues.first().zip(start) else {
            return;
        };
        let was_sent = self
            .semaphores
            .queue_mut(first)
            .is_some_and(|queue| queue.start_by(&start, timeout, not_after));
        for queue in queues.iter().filter(|_| was_sent) {
            if let Some(queue) = self.semaphores.queue_mut(queue) {
                queue.held.starts.sent(start.sessions());
            }
        }
    }

    /// Makes a workload give back everything that it holds, because it lost a part of it.
    fn give_back_jointly(&mut self, workload: &Workload, queues: &[QueueRef]) {
        for queue in queues {
            let held = match self.report(queue, &workload.uid) {
                QueueReport::Held(slots) => Some(slots.to_vec()),
                _ => None,
            };
            if let Some((queue, slots)) = self.semaphores.queue_mut(queue).zip(held) {
                queue.write(Write::GiveBack(joint::give_back(workload, &slots)));
            }
        }
    }
}
