//! The engine's events, answers, actions and outcomes.

use std::{sync::Arc, time::Duration};

use crate::{
    Identity, Settings, Workload,
    plan::{Cooling, GiveBack, Grant, Release, Rename, Skip, Start, Suspend, Target, Transaction},
};
use consul_client::{self as consul, Entry, Listing, Session, SessionId, clock::Moment};

/// The present, as the caller has it. The engine has no clock and no randomness of its own.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For intervals.
    pub moment: Moment,
    /// For people, and for times that others wrote.
    pub time: jiff::Timestamp,
    /// A random number from 0 to 1: pauses are longer by up to this share.
    pub jitter: f64,
}

/// A call that the engine asked for. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// Which queue asked for it.
    pub(super) queue: u64,
    /// Which of its calls it is.
    pub(super) number: u64,
}

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// The spec is as given here.
    Spec {
        /// What it asks for.
        settings: Box<Settings>,
        /// Whether its generation is another one than before.
        changed: bool,
    },
    /// `status.appliedLimits`, as it is known to be recorded.
    Recorded(Vec<u32>),
    /// There is another way to Consul, which takes so many operations in a transaction; `None`: there is
    /// none, and nothing is read or written.
    Access(Option<usize>),
    /// How many operations Consul takes in a transaction, now that it refused more.
    Capacity(usize),
    /// A watch listed the prefix, or failed.
    Listed(Result<News, consul::Error>),
    /// Nothing more happens in Consul: all sessions stay as they are.
    Abandoned,
    /// A call has ended. An answer that no call waits for is ignored, so one that comes late or twice does no harm.
    Answered(CallId, Answer),
}

/// What a watch brought of one lock key and the keys beside it.
#[derive(Clone, Debug)]
pub struct News {
    /// What is below the prefix.
    pub entries: Arc<Vec<Entry>>,
    /// The index that it was read at.
    pub index: u64,
    /// When the request for it was sent.
    pub sent: Moment,
    /// Whether the index went back since the answer before.
    pub reset: bool,
}

impl From<Listing> for News {
    fn from(listing: Listing) -> Self {
        Self {
            entries: Arc::new(listing.entries),
            index: listing.index,
            sent: listing.sent,
            reset: listing.reset,
        }
    }
}

/// How a call ended. Each call is answered at some time: a call that timed out has an error.
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
    /// Of [`Call::Resolve`]: those of the sessions that belong to our node, at least.
    Resolved(Result<Vec<Session>, consul::Error>),
    /// Of [`Call::Describe`].
    Described(Result<Option<Session>, consul::Error>),
    /// Of [`Call::CreateSession`]. The caller keeps the session from now on.
    SessionMade(Result<SessionId, consul::Error>),
    /// Of [`Call::Write`].
    Written(Written),
    /// Of [`Call::Prove`]: the workload as it is now, and the pods of it that are left; or why there is no answer.
    Proof(Result<(Option<Arc<Workload>>, Vec<String>), String>),
    /// Of [`Call::AskAccess`]: whether workloads may be written to; `None` if that is unknown.
    Access(Option<bool>),
}

/// How a write to a workload ended.
#[derive(Clone, Debug)]
pub enum Written {
    /// It was done.
    Done,
    /// The workload has changed since; as it was read then, or `None` if it is gone.
    Outdated(Option<Arc<Workload>>),
    /// It was not sent, because its answer could have come too late.
    NotSent,
    /// The API server refuses it.
    Refused {
        /// What it says.
        message: String,
        /// Whether the operator may not write to any workload there.
        forbidden: bool,
    },
    /// It has no answer, for this reason: it may be applied yet.
    Unanswered(String),
}

/// Something to be done.
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
    /// Something happened that is reported to people.
    Report(Outcome),
}

/// A call whose answer matters.
#[derive(Clone, Debug)]
pub enum Call {
    /// Reads the prefix.
    Read {
        /// It has been given up by then.
        not_after: Option<Moment>,
    },
    /// Writes to Consul: all of it or nothing.
    Transact {
        /// What is written.
        transaction: Arc<Transaction>,
        /// It has been given up by then, and is not to be sent any more.
        not_after: Option<Moment>,
    },
    /// Asks for the owners of these sessions. Only those of our own node can be ours.
    Resolve {
        /// Which.
        sessions: Vec<SessionId>,
        /// It has been given up by then.
        not_after: Option<Moment>,
    },
    /// Asks who a holder is, for people.
    Describe(SessionId),
    /// Makes a session.
    CreateSession {
        /// Its name.
        name: String,
        /// How long it lives without a renewal; `None`: for ever.
        ttl: Option<Duration>,
        /// How long nobody else may lock a key that it held when it died.
        lock_delay: Duration,
    },
    /// Writes to a workload.
    Write {
        /// What is written.
        write: Write,
        /// How long it may take.
        timeout: Duration,
        /// When it must have been answered, if it is sent at all.
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
    /// It is started in its slot.
    Start(Start),
    /// It is suspended.
    Suspend(Suspend),
    /// It gives its slot back.
    GiveBack(GiveBack),
    /// Its annotation is set to the session that holds its slot now.
    Rename(Rename),
    /// It is deleted.
    Skip(Skip),
}

impl Write {
    /// The workload, at the version that was decided on.
    pub fn target(&self) -> &Target {
        match self {
            Self::Start(Start { workload, .. })
            | Self::Suspend(Suspend { workload, .. })
            | Self::GiveBack(GiveBack { workload, .. })
            | Self::Rename(Rename { workload, .. })
            | Self::Skip(Skip { workload, .. }) => workload,
        }
    }

    /// Whether the workload, read again, shows that the write was done though its answer was lost.
    pub(super) fn is_done_in(&self, workload: Option<&Workload>) -> bool {
        match (self, workload) {
            // A workload that lost its slot names the session in its template already, but does not report it.
            (Self::Start(start), Some(workload)) => {
                let mut sessions = start.sessions();
                sessions.all(|session| workload.started_by(session)) && !workload.lost()
            }
            (Self::Skip(_), workload) => workload.is_none(),
            (Self::Start(_), None)
            | (Self::Suspend(_) | Self::GiveBack(_) | Self::Rename(_), _) => false,
        }
    }
}

/// What is reported to people. Nothing is decided by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A slot was granted.
    Granted {
        /// To whom, under which session.
        grant: Grant,
        /// When, as its contender says.
        at: Option<jiff::Timestamp>,
        /// Whether a running workload lost its slot by then, which was not reported before.
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
    /// A slot begins to cool.
    Cools(Cooling),
    /// A dead holder was dropped.
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
    /// The API server refuses a write.
    Refused {
        /// To which workload.
        workload: Target,
        /// What it says.
        message: String,
    },
    /// A write has no answer, and it is repeated.
    Unanswered {
        /// To which workload.
        workload: Target,
        /// Why there is no answer.
        why: String,
    },
    /// A slot is kept because pods have not ended for long.
    PodsRemain {
        /// Whose.
        identity: Arc<Identity>,
        /// Which pods.
        pods: Vec<String>,
    },
    /// It can't be seen whether pods are left.
    PodsUnknown {
        /// Whose.
        identity: Arc<Identity>,
        /// Why.
        why: String,
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
    /// How many contenders are not of this cluster.
    pub others: usize,
}
