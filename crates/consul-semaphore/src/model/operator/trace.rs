//! The part of an operator's state that counts when two states are compared.

use super::super::{canon::Canon, outside::Outside, requests::Patch};
use super::{Operator, Step};
use crate::{
    Identity, LimitPolicy, Lock, Memory, Reading, Workload,
    plan::{Target, Transaction},
};
use consul_client::Op;

impl Operator {
    /// All that counts of its knowledge. What it saw counts only if it may read it once more.
    pub(in super::super) fn trace(
        &self,
        outside: &Outside,
        looks_again: bool,
        canon: &mut Canon<'_>,
    ) {
        canon.word(&(self.deposed, self.pending.len()));
        let semaphore = self.engine.semaphore(&self.reference.semaphore);
        let (Some(queue), Some(semaphore)) = (self.queue(), semaphore) else {
            return canon.word(&'-');
        };
        canon.word(&semaphore.limits_now());
        canon.word(&semaphore.watched().is_known());
        let settings = &outside.settings;
        let now = canon.now();
        let excluded = queue.writes.excluded_now(now);
        for uid in canon.workloads() {
            let all = queue.sessions.ahead.iter();
            let ahead = all.filter(|(slot, _)| slot.workload == *uid);
            canon.in_order(ahead.map(|(_, session)| session));
            canon.word(&(excluded(uid), queue.writes.refusals.history(uid)));
            canon.word(&self.stopped.contains(uid));
            let workload = outside.workloads.read(uid, now);
            let deadline =
                workload.and_then(|workload| queue.held.evidence.deadline(settings, &workload));
            canon.word(&deadline.map(|deadline| deadline <= now));
        }
        for step in &self.pending {
            step.trace(outside, canon);
        }
        canon.sessions(queue.sessions());
        canon.sessions(queue.sessions.unused.iter());
        let troubles = queue.knowledge.troubles.attempts();
        canon.word(&(queue.is_blocked(), troubles));
        let (defence, fenced) = (queue.limits.defence, queue.limits.fenced);
        // Both are about limits that are being moved, or fought over.
        if outside.applied != [settings.limit] {
            canon.word(&fenced);
        }
        if settings.policy == LimitPolicy::Enforce {
            canon.word(&defence);
        }
        let Memory { deaths, turns, .. } = &queue.knowledge.memory;
        let fair = settings.fair.is_some();
        if fair {
            canon.word(&turns.is_free());
        }
        // Only a holder can be found dead, whether it is one now or becomes one again.
        for session in canon.spoken_of() {
            let due = |since| now.since(since) >= settings.lock_delay;
            let may_hold = outside.consul.is_alive(&session) || outside.is_in_holders(&session);
            let since = deaths.since(&session).filter(|_| may_hold);
            canon.word(&since.map(due));
            if fair {
                canon.word(&turns.ends(&session).map(|ends| ends <= now));
                canon.word(&turns.is_forgotten(&session, now));
                let kept = turns.kept(&session, false);
                canon.word(&kept.map(|(slots, until)| (slots, until <= now)));
                if let Some(index) = turns.index(&session) {
                    canon.index(&settings.prefix.contender_key(&session), index);
                }
            }
            let cools = queue.held.cooldowns.end(&session);
            canon.word(&cools.map(|end| end <= now));
        }
        let reading = queue.reading();
        if looks_again {
            for workload in &self.store.workloads {
                trace_workload(workload, reading, outside, canon);
            }
        }
        // Whose turn it is also depends on what a transaction leaves of the reading.
        let kept = looks_again || (fair && queue.is_blocked());
        if let Some(reading) = reading.filter(|_| kept) {
            trace_reading(reading, outside, canon);
        }
    }
}

/// A workload as it was seen.
fn trace_workload(
    workload: &Workload,
    reading: Option<&Reading>,
    outside: &Outside,
    canon: &mut Canon<'_>,
) {
    canon.workload(&workload.uid);
    canon.version(&outside.workloads, &workload.uid, &workload.version);
    canon.word(&reading.is_some_and(|reading| workload.seen > reading.sent));
    let Workload {
        hold,
        phase,
        granted,
        reported,
        ..
    } = workload;
    canon.word(&(hold, format!("{phase:?}")));
    canon.granted(granted.as_ref(), reported);
}

/// The prefix as it was read.
fn trace_reading(reading: &Reading, outside: &Outside, canon: &mut Canon<'_>) {
    let mut contenders: Vec<_> = reading.contenders().collect();
    contenders.sort_by_key(|(session, _)| canon.place(session));
    for (session, entry) in contenders {
        canon.entry(entry);
        canon.word(&outside.observer.taken_since(session, reading.sent));
    }
    let lock_key = reading.prefix().lock_key();
    match reading.lock() {
        Lock::Absent { index, .. } => canon.index(&lock_key, *index),
        Lock::Semaphore { body, index } => {
            canon.index(&lock_key, *index);
            canon.body(&body.encode());
        }
        // The exhaustive worlds have semaphores only.
        Lock::Mutex { .. } | Lock::Unreadable(_) => {}
    }
}

impl Step {
    /// All that counts of it.
    pub(in super::super) fn trace(&self, outside: &Outside, canon: &mut Canon<'_>) {
        match self {
            Self::Record { limits } => canon.word(&('r', limits)),
            Self::Finalizer { added } => canon.word(&('f', added)),
            Self::ListSessions => canon.word(&'l'),
            Self::Transact { transaction, .. } => trace_transaction(transaction, outside, canon),
            Self::Patch {
                patch,
                read,
                not_after,
                ..
            } => {
                trace_target(patch.target(), outside, canon);
                let now = canon.now();
                canon.word(&not_after.is_some_and(|not_after| not_after <= now));
                match patch {
                    Patch::Start(start) => {
                        canon.word(&'s');
                        for slot in start.slots() {
                            let (session, index) = (slot.session(), slot.fencing_token());
                            let newest = outside.observer.is_last_grant(session, index);
                            let taken = outside.observer.taken_since(session, *read);
                            canon.word(&(newest, taken));
                            canon.session(session);
                        }
                    }
                    Patch::Suspend(_) => canon.word(&'u'),
                    Patch::Stop(stop) => canon.word(&('o', stop.unhold)),
                    Patch::GiveBack(give_back) => {
                        canon.word(&('g', give_back.hold));
                        canon.in_order(&give_back.sessions);
                    }
                    Patch::Skip(_) => canon.word(&'k'),
                    Patch::Fail(_) => canon.word(&'f'),
                    Patch::End(_) => canon.word(&'e'),
                    Patch::RecordWait(_) => canon.word(&'w'),
                    Patch::Rename(rename) => {
                        canon.word(&'n');
                        canon.in_order(&rename.sessions);
                    }
                }
            }
            Self::MakeSession { name, .. } => {
                canon.word(&'m');
                let identity = Identity::parse(name);
                canon.word(&identity.and_then(|identity| canon.number(&identity.uid)));
            }
            Self::Ask { call, .. } => canon.word(&('a', std::mem::discriminant(call))),
            Self::Destroy(session) => {
                canon.word(&'d');
                canon.session(session);
            }
        }
    }
}

fn trace_target(target: &Target, outside: &Outside, canon: &mut Canon<'_>) {
    canon.workload(&target.uid);
    canon.version(&outside.workloads, &target.uid, &target.version);
}

fn trace_transaction(transaction: &Transaction, outside: &Outside, canon: &mut Canon<'_>) {
    let Transaction {
        operations,
        grants,
        releases,
        cooldowns,
        stamped,
        replaced,
        prunes,
        limit,
        enforced,
        joins,
        removes_lock: _,
        lock: _,
    } = transaction;
    canon.word(&('t', operations.len(), limit, enforced));
    for operation in operations {
        canon.word(&std::mem::discriminant(operation));
        match operation {
            Op::Cas {
                key, value, index, ..
            } => {
                canon.key(key);
                canon.index(key, *index);
                canon.body(value);
            }
            Op::DeleteCas { key, index } | Op::CheckIndex { key, index } => {
                canon.key(key);
                canon.index(key, *index);
            }
            Op::Set { key, value, .. } => {
                canon.key(key);
                canon.body(value);
            }
            Op::Lock { key, .. }
            | Op::Unlock { key, .. }
            | Op::Get { key }
            | Op::Delete { key }
            | Op::CheckSession { key, .. }
            | Op::CheckNotExists { key } => canon.key(key),
        }
    }
    for grant in grants {
        trace_target(&grant.workload, outside, canon);
        canon.in_order(grant.sessions.values());
        canon.word(&grant.starts);
    }
    for release in releases {
        canon.session(&release.session);
        canon.word(&release.held);
    }
    for cooling in cooldowns {
        canon.session(&cooling.session);
    }
    for session in stamped.iter().chain(prunes).chain(joins) {
        canon.session(session);
    }
    for (gone, session) in replaced {
        canon.session(gone);
        canon.session(session);
    }
}
