//! Keeps the pending calls of a queue.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::{
    message::{Action, Answer, Call, CallId, News, Now, Outcome, Write},
    proofs::PodQuestion,
};
use crate::{
    Uid,
    plan::{SessionRequest, Start, Transaction},
    rate::StartAnswer,
};
use consul_client::{self as consul, SessionId, clock::Moment};

/// Calls that are pending, and actions that come next.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingCalls {
    /// Number of the queue, which identifies its calls.
    pub(super) queue_number: u64,
    last: u64,
    /// Call that must be answered before anything else is decided from Consul's entries.
    blocking: Option<Blocking>,
    /// Transaction that the last pass decided on, until it is sent.
    pub(super) unsent: Option<Arc<Transaction>>,
    /// Whether the last transaction that was sent is not known to have gone through.
    in_doubt: bool,
    /// Result of the watch that arrived while a call blocks.
    news: Option<Result<News, consul::Error>>,
    /// Pending calls that do not block.
    others: BTreeMap<CallId, Pending>,
    actions: VecDeque<Action>,
}

/// Call that blocks decisions until it is answered.
#[derive(Clone, Debug)]
pub(super) struct Blocking {
    id: CallId,
    what: Blocks,
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
    Proof(PodQuestion),
    Access,
}

impl PendingCalls {
    /// Returns the call that must be answered before anything else is decided from Consul's entries.
    pub(super) fn blocking(&self) -> Option<&Blocking> {
        self.blocking.as_ref()
    }

    /// Returns whether a slot is being granted to a workload.
    pub(super) fn is_granting(&self, uid: &Uid) -> bool {
        let blocking = self.blocking.as_ref();
        blocking.is_some_and(|blocking| match &blocking.what {
            Blocks::Transact(transaction) => {
                let mut grants = transaction.grants.iter();
                grants.any(|grant| grant.workload.uid == *uid)
            }
            Blocks::Read | Blocks::Resolve(_) => false,
        })
    }

    /// Returns whether the last pass decided to free slots with a transaction that is not sent yet.
    pub(super) fn is_to_free_slots(&self) -> bool {
        let unsent = self.unsent.as_ref();
        unsent.is_some_and(|unsent| {
            let mut releases = unsent.releases.iter();
            releases.any(|release| release.held) || !unsent.prunes.is_empty()
        })
    }

    /// Returns whether a call blocks, or the transaction of the last pass is still to be sent.
    pub(super) fn awaits_consul(&self) -> bool {
        self.blocking.is_some() || self.unsent.is_some()
    }

    /// Returns whether the last transaction that was sent is not known to have gone through.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Records that a transaction has gone through.
    pub(super) fn committed(&mut self) {
        self.in_doubt = false;
    }

    /// Takes the next action.
    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Requests this action.
    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Sends a call under an id that the queue already waits for.
    pub(super) fn send(&mut self, id: CallId, call: Call) {
        self.act(Action::Call(id, call));
    }

    fn number(&mut self) -> CallId {
        self.last += 1;
        CallId {
            queue: self.queue_number,
            number: self.last,
        }
    }

    /// Makes a call that blocks.
    pub(super) fn block(&mut self, what: Blocks, call: Call, until: Option<Moment>) {
        let id = self.wait_for(what, until);
        self.send(id, call);
    }

    /// Waits for a transaction of this queue, and returns the id under which the transaction is sent.
    pub(super) fn wait_for_transaction(
        &mut self,
        transaction: Arc<Transaction>,
        until: Option<Moment>,
    ) -> CallId {
        self.in_doubt = true;
        self.wait_for(Blocks::Transact(transaction), until)
    }

    /// Waits for a call, and returns the id under which the caller of this function sends it.
    fn wait_for(&mut self, what: Blocks, until: Option<Moment>) -> CallId {
        let id = self.number();
        self.unsent = None;
        self.blocking = Some(Blocking { id, what, until });
        id
    }

    /// Makes a call that does not block.
    pub(super) fn ask(&mut self, pending: Pending, call: Call) {
        let id = self.number();
        self.others.insert(id, pending);
        self.send(id, call);
    }

    /// Asks whether pods are left of the workloads that these questions are about.
    pub(super) fn ask_for_proofs(&mut self, questions: Vec<PodQuestion>) {
        for question in questions {
            let call = Call::Prove(question.identity.clone());
            self.ask(Pending::Proof(question), call);
        }
    }

    /// Asks whether workloads may be written to, unless that is being asked already.
    pub(super) fn ask_access(&mut self) {
        let mut pending = self.others.values();
        if !pending.any(|pending| matches!(pending, Pending::Access)) {
            self.ask(Pending::Access, Call::AskAccess);
        }
    }

    pub(super) fn report(&mut self, outcome: Outcome) {
        self.act(Action::Report(outcome));
    }

    /// Takes the call that blocks, if it has this id.
    pub(super) fn take_blocking(&mut self, id: CallId) -> Option<Blocks> {
        let answered = self.blocking.take_if(|blocking| blocking.id == id);
        answered.map(|blocking| blocking.what)
    }

    /// Takes the call that blocks, if it has no answer at the time when it counts as lost.
    pub(super) fn take_overdue(&mut self, now: Now) -> Option<Blocks> {
        let overdue =
            |blocking: &mut Blocking| blocking.until.is_some_and(|until| until <= now.moment);
        let lost = self.blocking.take_if(overdue);
        lost.map(|blocking| blocking.what)
    }

    /// Forgets the call that blocks and the result of the watch, because the access to Consul has changed. Returns
    /// the transaction that had no answer yet.
    pub(super) fn access_changed(&mut self) -> Option<Arc<Transaction>> {
        self.news = None;
        match self.blocking.take()?.what {
            Blocks::Transact(transaction) => Some(transaction),
            Blocks::Read | Blocks::Resolve(_) => None,
        }
    }

    /// Takes a call that does not block, because it has been answered.
    pub(super) fn take_other(&mut self, id: CallId) -> Option<Pending> {
        self.others.remove(&id)
    }

    /// Forgets the sessions that are being made.
    pub(super) fn forget_made_sessions(&mut self) {
        let others = &mut self.others;
        others.retain(|_, pending| !matches!(pending, Pending::Session(_)));
    }

    /// Returns the start that an answer is about, and its result.
    pub(super) fn started_by(&self, id: CallId, answer: &Answer) -> Option<(Start, StartAnswer)> {
        match (self.others.get(&id)?, answer) {
            (Pending::Write(write @ Write::Start(start)), Answer::Written(written)) => {
                Some((start.clone(), write.start_answer(written)))
            }
            _ => None,
        }
    }

    /// Takes the result of the watch that was kept because a call blocked.
    pub(super) fn take_news(&mut self) -> Option<Result<News, consul::Error>> {
        self.news.take()
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
