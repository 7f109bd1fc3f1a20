//! Workloads that ask for slots at several lock keys: what the queues of these keys do together.
//!
//! Each queue decides what it can do with its part of such a workload ([`Part`]). All parts are granted in one
//! transaction, or none. A workload is started once all of them are held; if one was lost before that, the others are
//! given back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Answer, CallId, QueueRef};
use crate::{
    SlotRequest, Uid,
    plan::{Part, Slot, Transaction},
};
use consul_client::{self as consul, Entry, OpError};

/// What to do with a workload, by what its queues can do with their parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Grant all parts.
    Grant,
    /// Start it in these slots.
    Start(Vec<Slot>),
    /// It holds less than it asks for: give that back.
    GiveBack,
    /// Wait.
    Wait,
}

/// Decides that; a part is `None` if the queue can't grant it. Each queue must know what Consul says.
pub(super) fn next(parts: &[Option<&Part>]) -> Next {
    let (mut held, mut free, mut slots) = (0, 0, Vec::new());
    for part in parts.iter().flatten() {
        match part {
            Part::Busy => return Next::Wait,
            Part::Free => free += 1,
            Part::Held(here) => {
                held += 1;
                slots.extend(here.iter().cloned());
            }
        }
    }
    if held == parts.len() {
        Next::Start(slots)
    } else if held > 0 {
        Next::GiveBack
    } else if free == parts.len() {
        Next::Grant
    } else {
        Next::Wait
    }
}

/// What is known of such workloads, and which calls are under way for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Joint {
    /// Those with a part in a queue, by each of the queues that they are in.
    workloads: BTreeMap<QueueRef, BTreeSet<Uid>>,
    /// The transactions that several queues wait for.
    calls: BTreeMap<CallId, Vec<Share>>,
}

impl Joint {
    /// The workloads that this queue's part may decide about.
    pub(super) fn of(&self, queue: &QueueRef) -> BTreeSet<Uid> {
        self.workloads.get(queue).cloned().unwrap_or_default()
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

    /// A transaction that these queues wait for has been sent.
    pub(super) fn sent(&mut self, call: CallId, shares: Vec<Share>) {
        self.calls.insert(call, shares);
    }

    /// A transaction that the queue of this number sent may not be answered any more. Returns the calls that the
    /// other queues wait for.
    pub(super) fn abandon(&mut self, queue: u64) -> Vec<CallId> {
        let others = self.calls.extract_if(.., |call, _| call.queue == queue);
        let ids = others.flat_map(|(call, shares)| {
            let ids = shares.into_iter().map(|share| share.id);
            ids.filter(move |id| *id != call)
        });
        ids.collect()
    }

    /// The answers to the parts of an answered transaction; `None` if no other queue waits for it.
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

/// One queue's part of a transaction.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// The call that the queue waits for.
    pub(super) id: CallId,
    /// The queue's own part.
    pub(super) transaction: Arc<Transaction>,
}

/// The least number of operations for this grant, with the check of a mutex or the CAS of `.lock`.
pub(super) fn operations(request: &SlotRequest) -> usize {
    let slots = usize::try_from(request.slots.get()).unwrap_or(usize::MAX);
    slots.saturating_add(1)
}

/// All parts in one transaction, as it is sent.
pub(super) fn combined(shares: &[Share]) -> Transaction {
    let operations = shares
        .iter()
        .map(|share| share.transaction.operations.iter());
    Transaction {
        operations: operations.flatten().cloned().collect(),
        ..Transaction::default()
    }
}

/// The answer to each queue's part, in order, from the answer to the whole.
fn split(shares: &[Share], answer: &Answer) -> Vec<Answer> {
    let Answer::Transacted { sent, result } = answer else {
        return vec![answer.clone(); shares.len()];
    };
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
            Err(error) => Err(error.clone()),
        };
        Answer::Transacted {
            sent: *sent,
            result,
        }
    });
    answers.collect()
}
