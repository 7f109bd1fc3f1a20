//! The engine's events, answers, actions and outcomes.

use std::{sync::Arc, time::Duration};

use crate::{
    Identity, Settings, Workload,
    plan::{
        Cooling, End, Fail, GiveBack, Grant, RecordWait, Release, Rename, Skip, Start, Suspend,
        Target, Transaction,
    },
};
use consul_client::{self as consul, Entries, Entry, Listing, Session, SessionId, clock::Moment};

/// The present, provided by the caller. The engine has no clock and no randomness of its own.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For intervals.
    pub moment: Moment,
    /// For people, and to compare with times that others wrote.
    pub time: jiff::Timestamp,
    /// A random number from 0 to 1: pauses get longer by up to this factor.
    pub jitter: f64,
}

/// A call that the engine requested. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// The queue that requested it.
    pub(super) queue: u64,
    /// The number of the call within that queue.
    pub(super) number: u64,
}

#[cfg(test)]
impl CallId {
    pub(crate) fn sample(number: u64) -> Self {
        Self { queue: 1, number }
    }
}

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// The spec was set.
    Spec {
        /// What it asks for.
        settings: Box<Settings>,
        /// Whether its generation has changed.
        changed: bool,
    },
    /// `status.appliedLimits`, as known to be recorded.
    Recorded(Vec<u32>),
    /// The same, with limits of another operator, which may be about to write them to Consul.
    Found(Vec<u32>),
    /// Access to Consul has changed, with this many operations in a transaction; `None` means no access: nothing is
    /// read or written.
    Access(Option<usize>),
    /// How many operations Consul accepts in a transaction, after it refused more.
    Capacity(usize),
    /// A watch listed the prefix, or failed.
    Listed(Result<News, consul::Error>),
    /// Nothing more happens in Consul: all sessions stay as they are.
    Abandoned,
    /// A call has ended. An answer that no call waits for is ignored, so one that comes late or twice does no harm.
    Answered(CallId, Answer),
}

/// What a watch brought for one lock key and the keys beside it.
#[derive(Clone, Debug)]
pub struct News {
    /// What is below the prefix.
    pub entries: Entries,
    /// The index that it was read at.
    pub index: u64,
    /// When the request for it was sent.
    pub sent: Moment,
    /// Whether the index went back since the previous answer.
    pub reset: bool,
}

impl From<Listing> for News {
    fn from(listing: Listing) -> Self {
        Self {
            entries: listing.entries,
            index: listing.index,
            sent: listing.sent,
            reset: listing.reset,
        }
    }
}

/// How a call ended. Each call is answered eventually: one that timed out gets an error.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Of [`Call::Read`].
    Listing(Result<Listing, consul::Error>),
    /// Of [`Call::Transact`].
    Transacted {
        /// When it was sent.
        sent: Moment,
        /// The entries that it wrote.
        result: Result<Vec<Entry>, consul::Error>,
    },
    /// Of [`Call::Resolve`]: at least those of the sessions that belong to our node.
    Resolved(Result<Vec<Session>, consul::Error>),
    /// Of [`Call::Describe`].
    Described(Result<Option<Session>, consul::Error>),
    /// Of [`Call::CreateSession`]. The caller renews the session from now on.
    SessionMade(Result<SessionId, consul::Error>),
    /// Of [`Call::Write`].
    Written(Written),
    /// Of [`Call::Prove`]: the workload as it is now and its remaining pods, or why there is no answer.
    Proof(Result<(Option<Arc<Workload>>, Vec<String>), String>),
    /// Of [`Call::AskAccess`]: whether workloads may be written to; `None` if that is unknown.
    Access(Option<bool>),
}

/// How a write to a workload ended.
#[derive(Clone, Debug)]
pub enum Written {
    /// It was done.
    Done,
    /// The workload has changed since. The value is as read then, or `None` if it no longer exists.
    Outdated(Option<Arc<Workload>>),
    /// It was not sent, because its answer could have come too late.
    NotSent,
    /// The API server refused it.
    Refused {
        /// What it says.
        message: String,
        /// Whether the operator may not write to any workload there.
        forbidden: bool,
    },
    /// It was not answered, for this reason: it may still be applied.
    Unanswered(String),
}

/// Something to do.
#[derive(Clone, Debug)]
pub enum Action {
    /// A call whose end is reported with this id.
    Call(CallId, Call),
    /// Renew a session that was found, from now on.
    Adopt(SessionId),
    /// Stop renewing a session, and destroy it.
    Destroy(SessionId),
    /// Stop renewing a session that no longer exists.
    Forget(SessionId),
    /// Report something that happened.
    Report(Outcome),
}

/// A call whose answer matters.
#[derive(Clone, Debug)]
pub enum Call {
    /// Reads the prefix.
    Read {
        /// When it counts as given up.
        not_after: Option<Moment>,
    },
    /// Writes to Consul: all of it or nothing.
    Transact {
        /// What is written.
        transaction: Arc<Transaction>,
        /// When it counts as given up, and must not be sent any more.
        not_after: Option<Moment>,
    },
    /// Asks for the owners of these sessions. Only those of our own node can be ours.
    Resolve {
        /// Which.
        sessions: Vec<SessionId>,
        /// When it counts as given up.
        not_after: Option<Moment>,
    },
    /// Asks who a holder is, to show to people.
    Describe(SessionId),
    /// Makes a session.
    CreateSession {
        /// Its name.
        name: String,
        /// How long it lives without a renewal; `None`: forever.
        ttl: Option<Duration>,
        /// How long nobody else may lock a key that it held when it ended.
        lock_delay: Duration,
        /// Whether nothing waits for it yet: something urgent at the same time may come first.
        ahead: bool,
    },
    /// Writes to a workload.
    Write {
        /// What is written.
        write: Write,
        /// How long it may take.
        timeout: Duration,
        /// When it must have been answered if it is sent at all.
        not_after: Option<Moment>,
    },
    /// Asks whether pods of this workload are left: a GET of it and a LIST of its pods, never a cache.
    Prove(Arc<Identity>),
    /// Asks whether workloads may be written to.
    AskAccess,
}

/// A write to a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Starts it in its slot.
    Start(Start),
    /// Suspends it.
    Suspend(Suspend),
    /// Makes it give its slot back.
    GiveBack(GiveBack),
    /// Sets its annotation to the session that holds its slot now.
    Rename(Rename),
    /// Records beside it when its wait began.
    RecordWait(RecordWait),
    /// Deletes it.
    Skip(Skip),
    /// Makes it fail without a start.
    Fail(Fail),
    /// Ends it while it runs.
    End(End),
}

impl Write {
    /// The workload, at the version that was decided on.
    pub fn target(&self) -> &Target {
        match self {
            Self::Start(Start { workload, .. })
            | Self::Suspend(Suspend { workload, .. })
            | Self::GiveBack(GiveBack { workload, .. })
            | Self::Rename(Rename { workload, .. })
            | Self::RecordWait(RecordWait { workload, .. })
            | Self::Skip(Skip { workload, .. })
            | Self::Fail(Fail { workload, .. })
            | Self::End(End { workload, .. }) => workload,
        }
    }

    /// Whether the workload, read again, shows that the write was done although its answer was lost.
    pub(super) fn is_done_in(&self, workload: Option<&Workload>) -> bool {
        match (self, workload) {
            // A workload that lost its slot names the session in its template already, but does not report it.
            (Self::Start(start), Some(workload)) => {
                let mut sessions = start.sessions();
                sessions.all(|session| workload.started_by(session)) && !workload.lost()
            }
            (Self::Skip(_), workload) => workload.is_none(),
            (Self::Fail(_) | Self::End(_), Some(workload)) => {
                workload.wait.failing || workload.has_ended()
            }
            (Self::RecordWait(record), Some(workload)) => {
                workload.wait.recorded == Some(record.began)
            }
            (Self::Start(_) | Self::RecordWait(_) | Self::Fail(_) | Self::End(_), None)
            | (Self::Suspend(_) | Self::GiveBack(_) | Self::Rename(_), _) => false,
        }
    }
}

/// What is reported to people. No decision depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A slot was granted.
    Granted {
        /// Which slots, to which workload and under which sessions.
        grant: Grant,
        /// When, as its contender says.
        at: Option<jiff::Timestamp>,
        /// Whether a running workload had lost its slot, which was not reported before.
        lost: bool,
    },
    /// A write to a workload was done.
    Written(Write),
    /// A running workload continues without a slot, because of `onSlotLost`.
    GoesOn(Target),
    /// A slot was given back.
    Released {
        /// By whom.
        release: Release,
        /// When it had been granted, as its contender said.
        granted: Option<jiff::Timestamp>,
        /// When its workload was done, if it had a cooldown.
        done: Option<jiff::Timestamp>,
    },
    /// A slot begins to cool down.
    Cools(Cooling),
    /// A dead holder was pruned.
    Pruned(SessionId),
    /// A limit was written.
    LimitWritten {
        /// Which.
        limit: u32,
        /// Whether it overwrote one that is not ours.
        enforced: bool,
    },
    /// A limit was written over another one that others use.
    LimitMoved(Moved),
    /// The API server refused a write.
    Refused {
        /// To which workload.
        workload: Target,
        /// What it says.
        message: String,
    },
    /// The transaction that would grant a workload all its slots has too many bytes: the `.lock`s are too large.
    TooLarge {
        /// Which workload.
        workload: Target,
        /// What Consul says.
        message: String,
    },
    /// A write was not answered, and is repeated.
    Unanswered {
        /// To which workload.
        workload: Target,
        /// Why there is no answer.
        why: String,
    },
    /// A slot is kept because pods have not ended for a long time.
    PodsRemain {
        /// Whose.
        identity: Arc<Identity>,
        /// Which pods.
        pods: Vec<String>,
    },
    /// It is unknown whether pods are left.
    PodsUnknown {
        /// Whose.
        identity: Arc<Identity>,
        /// Why.
        why: String,
        /// Whether that has been so for a long time.
        overdue: bool,
    },
    /// A contender of ours was found, and its session is renewed.
    Adopted {
        /// Whose.
        identity: Arc<Identity>,
        /// The session.
        session: SessionId,
    },
}

/// A limit that was written over another one, and the others that use that other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The limit before.
    pub from: u32,
    /// The limit now.
    pub to: u32,
    /// How many contenders do not belong to this cluster.
    pub others: usize,
}
