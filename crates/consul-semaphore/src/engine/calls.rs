//! Keeps the pending calls of a queue.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::{
    message::{Action, Call, CallId, News, Outcome, Write},
    proofs,
};
use crate::plan::{SessionRequest, Transaction};
use consul_client::{self as consul, SessionId, clock::Moment};

/// Calls that are pending, and actions that come next.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingCalls {
    /// Number of the queue, which identifies its calls.
    pub(super) queue: u64,
    pub(super) last: u64,
    /// Call that must be answered before anything else is decided from Consul's entries.
    pub(super) blocking: Option<Blocking>,
    /// Transaction that the last pass decided on, until it is sent.
    pub(super) unsent: Option<Arc<Transaction>>,
    /// Whether the last transaction that was sent is not known to have gone through.
    pub(super) in_doubt: bool,
    /// Result of the watch that arrived while a call blocks.
    pub(super) news: Option<Result<News, consul::Error>>,
    /// Pending calls that do not block.
    pub(super) others: BTreeMap<CallId, Pending>,
    pub(super) actions: VecDeque<Action>,
}

/// Call that blocks decisions until it is answered.
#[derive(Clone, Debug)]
pub(super) struct Blocking {
    pub(super) id: CallId,
    pub(super) what: Blocks,
    /// Time at which the call counts as lost, because a running workload must be suspended by then unless its slot is
    /// confirmed.
    pub(super) until: Option<Moment>,
}

#[derive(Clone, Debug)]
pub(super) enum Blocks {
    Read,
    Transact(Arc<Transaction>),
    Resolve(Vec<SessionId>),
}

/// Call that does not block.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    Session(SessionRequest),
    Describe(SessionId),
    Write(Write),
    Proof(proofs::PodQuestion),
    Access,
}
impl PendingCalls {
    fn number(&mut self) -> CallId {
        self.last += 1;
        CallId {
            queue: self.queue,
            number: self.last,
        }
    }

    pub(super) fn block(&mut self, what: Blocks, call: Call, until: Option<Moment>) {
        let id = self.wait_for(what, until);
        self.actions.push_back(Action::Call(id, call));
    }

    /// Waits for a call, and returns the id under which the caller of this function sends it.
    pub(super) fn wait_for(&mut self, what: Blocks, until: Option<Moment>) -> CallId {
        let id = self.number();
        self.unsent = None;
        self.blocking = Some(Blocking { id, what, until });
        id
    }

    pub(super) fn ask(&mut self, pending: Pending, call: Call) {
        let id = self.number();
        self.others.insert(id, pending);
        self.actions.push_back(Action::Call(id, call));
    }

    pub(super) fn report(&mut self, outcome: Outcome) {
        self.actions.push_back(Action::Report(outcome));
    }

    /// Keeps the result of the watch until no call blocks any more. Only the latest result counts, but a reset of the
    /// index is kept.
    pub(super) fn put_off(&mut self, mut news: Result<News, consul::Error>) {
        if let (Ok(news), Some(Ok(before))) = (&mut news, &self.news) {
            news.reset |= before.reset;
        }
        self.news = Some(news);
    }
}
