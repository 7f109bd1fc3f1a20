//! The pending calls of a queue.

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

/// The calls under way, and the effects that come next.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    /// The number of the queue, which identifies its calls.
    pub(super) queue: u64,
    pub(super) last: u64,
    /// The call that must be answered before anything else is decided by Consul's entries.
    pub(super) blocking: Option<Blocking>,
    /// The transaction that the last pass decided on, until it is sent.
    pub(super) unsent: Option<Arc<Transaction>>,
    /// Whether the last transaction that was sent is not known to have gone through.
    pub(super) in_doubt: bool,
    /// What the watch brought in the meantime.
    pub(super) news: Option<Result<News, consul::Error>>,
    /// The other calls.
    pub(super) others: BTreeMap<CallId, Pending>,
    pub(super) actions: VecDeque<Action>,
}

/// A call that blocks.
#[derive(Clone, Debug)]
pub(super) struct Blocking {
    pub(super) id: CallId,
    pub(super) what: Blocks,
    /// When it counts as lost: a running workload must be suspended by then unless its slot is confirmed.
    pub(super) until: Option<Moment>,
}

#[derive(Clone, Debug)]
pub(super) enum Blocks {
    Read,
    Transact(Arc<Transaction>),
    Resolve(Vec<SessionId>),
}

/// A call that does not block.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    Session(SessionRequest),
    Describe(SessionId),
    Write(Write),
    Proof(proofs::Question),
    Access,
}
impl Calls {
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

    /// Waits for a call that is carried out under this id.
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

    /// Keeps what the watch brought until nothing blocks any more. Only the latest counts, but a reset of the index
    /// is kept.
    pub(super) fn put_off(&mut self, mut news: Result<News, consul::Error>) {
        if let (Ok(news), Some(Ok(before))) = (&mut news, &self.news) {
            news.reset |= before.reset;
        }
        self.news = Some(news);
    }
}
