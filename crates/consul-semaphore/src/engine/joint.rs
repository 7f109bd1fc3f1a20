//! Decides about workloads that ask for slots at several lock keys: what the queues of these keys do together.
//!
//! Each queue decides what it can do with its part of such a workload ([`Part`]). All parts are granted in one
//! transaction, or none. A workload is started once all of them are held; if one was lost before that, the others are
//! given back.
//!
//! A workload that can't have all its slots yet is passed over, for
//! [`Settings::pass_over`](crate::Settings::pass_over) after it came to the head of a queue. From then on its queues
//! keep their free slots for it ([`Stance`]), while it is the first in all of them. The workload holds nothing in
//! Consul while it waits, so there is no deadlock. A workload that may keep nothing, because one of its queues can't
//! grant it enough for now, is in nobody's way: the workloads behind it count as the first without it. So some
//! workload is always the first in all of its queues among those that can be granted their slots. That workload gets
//! its slots next, so there is no starvation.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Answer, CallId, Conclusion, QueueRef, capacity::OPERATIONS_ALWAYS_TAKEN};
use crate::{
    SlotRequest, Uid, Workload,
    plan::{Enough, GiveBack, HeldSlot, Part, Stance, Transaction, Waits},
};
use consul_client::{self as consul, Entry, OpError, clock::Moment};

/// Report of a queue about a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum QueueReport<'a> {
    /// Something has happened since the queue's last pass, so the next pass decides.
    Later,
    /// The queue does not know what Consul says.
    Unread,
    /// The queue grants no slots for now, or can't start this workload.
    Stopped,
    /// The workload is not near the head of the queue, and holds nothing.
    Absent,
    /// The workload waits.
    Waits(Waits),
    /// The workload holds its part: these slots.
    Held(&'a [HeldSlot]),
    /// The workload is being written to.
    Busy,
}

impl<'a> QueueReport<'a> {
    /// Returns the report that follows from this part of a workload. `open` says whether the queue grants slots.
    pub(super) fn of(part: Option<&'a Part>, open: bool) -> Self {
        match part {
            Some(Part::Held(slots)) => Self::Held(slots),
            Some(Part::Busy) => Self::Busy,
            Some(Part::Barred) => Self::Stopped,
            Some(Part::Waits(_)) | None if !open => Self::Stopped,
            Some(Part::Waits(waits)) => Self::Waits(*waits),
            None => Self::Absent,
        }
    }
}

impl QueueReport<'_> {
    fn waits(&self) -> Option<&Waits> {
        match self {
            Self::Waits(waits) => Some(waits),
            _ => None,
        }
    }

    /// Returns a copy of the report that can be kept, or `None` if the workload holds slots.
    fn lasting(&self) -> Option<QueueReport<'static>> {
        Some(match self {
            Self::Later => QueueReport::Later,
            Self::Unread => QueueReport::Unread,
            Self::Stopped => QueueReport::Stopped,
            Self::Absent => QueueReport::Absent,
            Self::Waits(waits) => QueueReport::Waits(*waits),
            Self::Busy => QueueReport::Busy,
            Self::Held(_) => return None,
        })
    }

    /// Returns whether enough slots are free for the workload's part.
    fn is_free(&self) -> bool {
        self.waits().is_some_and(|waits| waits.free)
    }

    /// Returns whether the workload's part can be granted.
    pub(super) fn is_grantable(&self) -> bool {
        self.waits().is_some_and(|waits| waits.free && waits.ready)
    }

    /// Returns whether the workload has a place in this queue, or slots.
    pub(super) fn is_concerned(&self) -> bool {
        *self != Self::Absent
    }

    /// Returns whether no workload is before this one.
    pub(super) fn is_first(&self) -> bool {
        self.waits().is_some_and(|waits| waits.first)
    }
}

/// Decision about a workload, by what its queues can do with their parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JointStep {
    /// All parts are granted.
    Grant,
    /// The workload is started in these slots.
    Start(Vec<HeldSlot>),
    /// The workload holds less than it asks for, and gives that back.
    GiveBack,
    /// The workload waits.
    Wait,
}

/// Decides what to do with a workload. Whether a part was lost is decided only once each queue knows what Consul
/// says.
pub(super) fn next(reports: &[QueueReport<'_>]) -> JointStep {
    let (mut held, mut grantable, mut slots) = (0, 0, Vec::new());
    for report in reports {
        match report {
            QueueReport::Later | QueueReport::Unread | QueueReport::Busy => return JointStep::Wait,
            QueueReport::Held(here) => {
                held += 1;
                slots.extend(here.iter().cloned());
            }
            report => grantable += usize::from(report.is_grantable()),
        }
    }
    if held == reports.len() {
        JointStep::Start(slots)
    } else if held > 0 {
        JointStep::GiveBack
    } else if grantable == reports.len() {
        JointStep::Grant
    } else {
        JointStep::Wait
    }
}

/// Returns the stance of each queue towards a workload that can't have all that it asks for. `due` says that the
/// workload was passed over for long enough.
pub(super) fn stances(reports: &[QueueReport<'_>], due: bool) -> Vec<Option<Stance>> {
    let stopped =
        |report: &QueueReport<'_>| matches!(report, QueueReport::Unread | QueueReport::Stopped);
    let is_held =
        |report: &QueueReport<'_>| matches!(report, QueueReport::Held(_) | QueueReport::Busy);
    // If there is only one queue, each pass finds out itself whether the workload is the first.
    let alone = reports.len() == 1;
    let is_next =
        |report: &QueueReport<'_>| report.waits().is_some_and(|waits| waits.first || alone);
    let is_late = |report: &QueueReport<'_>| {
        report
            .waits()
            .is_some_and(|waits| waits.enough == Enough::Late)
    };
    let absent = |report: &QueueReport<'_>| *report == QueueReport::Absent;
    if reports.iter().any(is_held) || reports.iter().all(absent) {
        return vec![None; reports.len()];
    }
    let never = |report: &QueueReport<'_>| {
        report
            .waits()
            .is_some_and(|waits| waits.enough == Enough::Never)
    };
    if reports
        .iter()
        .any(|report| stopped(report) || never(report))
    {
        return vec![Some(Stance::Stopped); reports.len()];
    }
    let keeps = due && reports.iter().all(is_next);
    let late = reports.iter().filter(|report| is_late(report)).count();
    let missing = reports.iter().filter(|report| !report.is_free()).count();
    let stances = reports.iter().map(|report| {
        // Where the slots of a workload come free far apart, the first slots must wait for the last ones, or the
        // workload would never have them together.
        let late_elsewhere = late - usize::from(is_late(report));
        let missing_elsewhere = missing - usize::from(!report.is_free());
        if late_elsewhere > 0 {
            Some(Stance::Stopped)
        } else if keeps {
            Some(Stance::Keeps)
        } else if missing_elsewhere > 0 {
            Some(Stance::PassedOver)
        } else {
            (!alone).then_some(Stance::Grants)
        }
    });
    stances.collect()
}

/// Returns the part of its request that a workload can't have yet, by what its queues say. The queues are in the
/// order of its requests.
pub(super) fn lacking(requests: &[SlotRequest], reports: &[QueueReport<'_>]) -> Vec<SlotRequest> {
    let both = requests.iter().zip(reports);
    let lacking = both.filter(|(_, report)| !report.is_free());
    lacking.map(|(request, _)| request.clone()).collect()
}

/// Returns the write that makes a workload give back what it holds at one lock key, because it lost a part of its
/// request.
pub(super) fn give_back(workload: &Workload, slots: &[HeldSlot]) -> GiveBack {
    let sessions = slots.iter().map(|slot| slot.session().clone());
    GiveBack {
        workload: workload.into(),
        sessions: workload.given_back_with(sessions.collect()),
        hold: false,
        began: workload.wait_given_back(),
    }
}

/// Basis of the decision that a workload waits. As long as the basis is the same, so is the decision.
#[derive(Clone, Debug)]
pub(super) struct Basis {
    workload: Arc<Workload>,
    /// Queues of the workload, each with its report.
    reports: Vec<(QueueRef, QueueReport<'static>)>,
    /// Whether the workload was passed over for long enough.
    due: bool,
}

impl Basis {
    /// Returns the basis, or `None` if the workload holds slots somewhere.
    pub(super) fn of(
        workload: &Arc<Workload>,
        queues: &[QueueRef],
        reports: &[QueueReport<'_>],
        due: bool,
    ) -> Option<Self> {
        let lasting = queues
            .iter()
            .zip(reports)
            .map(|(queue, report)| Some((queue.clone(), report.lasting()?)));
        Some(Self {
            workload: workload.clone(),
            reports: lasting.collect::<Option<_>>()?,
            due,
        })
    }

    /// Returns whether a decision about this workload, after a pass over this queue, would be the same, or has to
    /// wait for the decision of another queue.
    pub(super) fn holds<'a>(
        &'a self,
        workload: &Arc<Workload>,
        queue: &QueueRef,
        due: bool,
        last_passes: &mut LastPasses<'a, impl Fn(&'a QueueRef) -> LastPass<'a>>,
    ) -> bool {
        let concerned = self.reports.iter().any(|(its, _)| its == queue);
        if !concerned || !Arc::ptr_eq(workload, &self.workload) {
            return false;
        }
        let mut same = self.due == due;
        for (queue, known) in &self.reports {
            match last_passes.of(queue).report(&workload.uid) {
                QueueReport::Later => return true,
                report => same &= report == *known,
            }
        }
        same
    }
}

/// Result of a queue's last pass.
#[derive(Clone, Copy)]
pub(super) enum LastPass<'a> {
    /// The result is outdated, so the next pass decides.
    Outdated,
    /// The pass did not know what Consul says, so it has no result.
    Uncertain,
    /// The pass has this result.
    Certain(&'a Conclusion),
}

impl<'a> LastPass<'a> {
    /// Returns the report of the last pass about a workload.
    pub(super) fn report(self, workload: &Uid) -> QueueReport<'a> {
        match self {
            Self::Outdated => QueueReport::Later,
            Self::Uncertain => QueueReport::Unread,
            Self::Certain(conclusion) => {
                QueueReport::of(conclusion.parts.get(workload), conclusion.open)
            }
        }
    }
}

/// Last passes of the queues of many workloads. These workloads have few queues, so each queue is looked up once.
pub(super) struct LastPasses<'a, Find> {
    find: Find,
    found: Vec<(&'a QueueRef, LastPass<'a>)>,
}

impl<'a, Find: Fn(&'a QueueRef) -> LastPass<'a>> LastPasses<'a, Find> {
    pub(super) fn new(find: Find) -> Self {
        Self {
            find,
            found: Vec::new(),
        }
    }

    fn of(&mut self, queue: &'a QueueRef) -> LastPass<'a> {
        let known = self.found.iter().find(|(known, _)| *known == queue);
        if let Some((_, found)) = known {
            return *found;
        }
        let found = (self.find)(queue);
        self.found.push((queue, found));
        found
    }
}

/// A workload that came to the head of one of its queues.
#[derive(Clone, Debug)]
struct Head {
    /// Time from which free slots are kept for the workload.
    due: Moment,
    /// Whether the engine has already noticed that this time is over.
    noticed: bool,
    queue: QueueRef,
}

/// State of workloads that ask for several slots, and the calls that are pending for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Joint {
    /// Workloads with a part in a queue, by each of the queues in which they ask for slots.
    workloads: BTreeMap<QueueRef, BTreeSet<Uid>>,
    /// Workloads that are the first in one of their queues, or were.
    heads: BTreeMap<Uid, Head>,
    /// Bases of the last decisions that workloads wait.
    bases: BTreeMap<Uid, Basis>,
    /// Transactions that several queues wait for.
    calls: BTreeMap<CallId, Vec<JointShare>>,
    /// A flaw that tests put into the stances.
    #[cfg(test)]
    pub(super) distort: Option<fn(Stance) -> Stance>,
}

impl Joint {
    /// Returns the workloads with a part in a queue, about which this queue's part may decide.
    pub(super) fn of(&self, queue: &QueueRef) -> Option<&BTreeSet<Uid>> {
        self.workloads.get(queue)
    }

    /// Records the queues of a workload, and whether any of them has a part of it.
    pub(super) fn note(&mut self, workload: &Uid, queues: &[QueueRef], any: bool) {
        for queue in queues {
            let there = self.workloads.entry(queue.clone()).or_default();
            if any {
                there.insert(workload.clone());
            } else {
                there.remove(workload);
            }
            if there.is_empty() {
                self.workloads.remove(queue);
            }
        }
    }

    /// Records that a workload can't have all its slots yet and is the first in this queue. The workload is passed
    /// over until `due`, unless an earlier call has already set that time.
    pub(super) fn note_head(&mut self, workload: &Uid, queue: &QueueRef, due: Moment) {
        self.heads.entry(workload.clone()).or_insert_with(|| Head {
            due,
            noticed: false,
            queue: queue.clone(),
        });
    }

    /// Returns whether a workload was passed over for long enough.
    pub(super) fn is_due(&self, workload: &Uid, now: Moment) -> bool {
        let head = self.heads.get(workload);
        head.is_some_and(|head| head.due <= now)
    }

    /// Returns the basis of the last decision that a workload waits.
    pub(super) fn basis(&self, workload: &Uid) -> Option<&Basis> {
        self.bases.get(workload)
    }

    /// Records the basis of the decision that a workload waits, or with `None` that it does not wait.
    pub(super) fn note_basis(&mut self, workload: &Uid, basis: Option<Basis>) {
        match basis {
            Some(basis) => drop(self.bases.insert(workload.clone(), basis)),
            None => drop(self.bases.remove(workload)),
        }
    }

    /// Forgets a queue that was removed. The decisions about its workloads were told to that queue alone, and a new
    /// queue under its name begins anew.
    pub(super) fn closed(&mut self, queue: &QueueRef) {
        for workload in self.workloads.remove(queue).into_iter().flatten() {
            self.forget(&workload);
        }
        self.heads.retain(|_, head| head.queue != *queue);
    }

    /// Forgets a workload that waits no longer.
    pub(super) fn forget(&mut self, workload: &Uid) {
        self.heads.remove(workload);
        self.bases.remove(workload);
    }

    /// Returns when the next workload is passed over no longer.
    pub(super) fn next_due(&self) -> Option<Moment> {
        let heads = self.heads.values().filter(|head| !head.noticed);
        heads.map(|head| head.due).min()
    }

    /// Takes the queues whose workloads have been passed over for long enough. Each is returned once.
    pub(super) fn take_due(&mut self, now: Moment) -> Vec<QueueRef> {
        let heads = self.heads.values_mut();
        let due = heads.filter(|head| !head.noticed && head.due <= now);
        due.map(|head| {
            head.noticed = true;
            head.queue.clone()
        })
        .collect()
    }

    /// Records that a transaction that these queues wait for has been sent.
    pub(super) fn sent(&mut self, call: CallId, shares: Vec<JointShare>) {
        self.calls.insert(call, shares);
    }

    /// Gives up the transactions that the queue of this number sent, because they may not be answered any more.
    /// Returns the calls that the other queues wait for.
    pub(super) fn abandon(&mut self, queue: u64) -> Vec<CallId> {
        let others = self.calls.extract_if(.., |call, _| call.queue == queue);
        let ids = others.flat_map(|(call, shares)| {
            let ids = shares.into_iter().map(|share| share.id);
            ids.filter(move |id| *id != call)
        });
        ids.collect()
    }

    /// Returns the answers to the parts of an answered transaction, or `None` if no other queue waits for it.
    pub(super) fn answered(
        &mut self,
        call: CallId,
        answer: &Answer,
    ) -> Option<Vec<(CallId, Answer)>> {
        let shares = self.calls.remove(&call)?;
        let answers = split(&shares, answer);
        let ids = shares.into_iter().map(|share| share.id);
        Some(ids.zip(answers).collect())
    }
}

/// Part of a transaction that belongs to one queue.
#[derive(Clone, Debug)]
pub(super) struct JointShare {
    /// Call that the queue waits for.
    pub(super) id: CallId,
    /// Transaction with the queue's own part.
    pub(super) transaction: Arc<Transaction>,
}

/// Returns the least number of operations for this grant, with the check of a mutex or the CAS of `.lock`.
pub(super) fn operations(request: &SlotRequest) -> usize {
    let slots = usize::try_from(request.slots.get()).unwrap_or(usize::MAX);
    slots.saturating_add(1)
}

/// Combines all parts into one transaction, as it is sent.
pub(super) fn combined(shares: &[JointShare]) -> Transaction {
    let transactions = || shares.iter().map(|share| &share.transaction);
    let operations = transactions().flat_map(|transaction| &transaction.operations);
    let grants = transactions().flat_map(|transaction| &transaction.grants);
    let mut limits = transactions().filter_map(|transaction| transaction.limit);
    Transaction {
        operations: operations.cloned().collect(),
        grants: grants.cloned().collect(),
        limit: limits.next(),
        ..Transaction::default()
    }
}

/// Splits the answer to the whole transaction into the answers to each queue's part, in order.
fn split(shares: &[JointShare], answer: &Answer) -> Vec<Answer> {
    let Answer::Transacted { sent, result } = answer else {
        return vec![answer.clone(); shares.len()];
    };
    let lengths = shares
        .iter()
        .map(|share| share.transaction.operations.len());
    let total: usize = lengths.sum();
    let mut before = 0;
    let answers = shares.iter().map(|share| {
        let operations = &share.transaction.operations;
        let first = before;
        before += operations.len();
        let result = match result {
            Ok(entries) => {
                let own =
                    |entry: &&Entry| share.transaction.written_keys().any(|key| key == entry.key);
                Ok(entries.iter().filter(own).cloned().collect())
            }
            Err(consul::Error::Conflict(errors)) => {
                let own = errors.iter().filter_map(|error| {
                    let operation = error.operation.checked_sub(first)?;
                    (operation < operations.len()).then(|| OpError {
                        operation,
                        ..error.clone()
                    })
                });
                Err(consul::Error::Conflict(own.collect()))
            }
            // If every Consul accepts this number of operations, the transaction has too many bytes, and the error
            // stays. If there are more operations, the error counts as a conflict, because the next transaction has
            // fewer.
            Err(consul::Error::TooLarge(_)) if total > OPERATIONS_ALWAYS_TAKEN => {
                Err(consul::Error::Conflict(Vec::new()))
            }
            Err(error) => Err(error.clone()),
        };
        Answer::Transacted {
            sent: *sent,
            result,
        }
    });
    answers.collect()
}
