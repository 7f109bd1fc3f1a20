//! Defines the engine's events, answers, actions and outcomes.

use std::{sync::Arc, time::Duration};

use crate::{
    Identity, Settings, Termination, Workload,
    plan::{
        Cooling, End, Fail, GiveBack, Grant, RecordWait, Release, Rename, Skip, Start, Suspend,
        Target, Transaction,
    },
    rate::StartAnswer,
};
use consul_client::{self as consul, Entries, Entry, Listing, Session, SessionId, clock::Moment};

/// Current time and randomness, provided by the caller. The engine has no clock and no randomness of its own.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Current time of the monotonic clock, for intervals.
    pub moment: Moment,
    /// Current wall-clock time, for people, and to compare with times that others wrote.
    pub time: jiff::Timestamp,
    /// Random number from 0 to 1: pauses get longer by up to this factor.
    pub jitter: f64,
}

/// Id of a call that the engine requested. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// Number of the queue that requested the call.
    pub(super) queue: u64,
    /// Number of the call within that queue.
    pub(super) number: u64,
}

#[cfg(test)]
impl CallId {
    pub(crate) fn sample(number: u64) -> Self {
        Self { queue: 1, number }
    }
}

/// Event that the caller reports to a queue.
#[derive(Debug)]
pub enum Event {
    /// The spec was set.
    Spec {
        /// Settings that the spec asks for.
        settings: Box<Settings>,
        /// Whether the generation of the spec has changed.
        changed: bool,
    },
    /// `status.appliedLimits` is known to be recorded with these limits.
    Recorded(Vec<u32>),
    /// `status.appliedLimits` has these limits, including those of another operator, which may be about to write them
    /// to Consul.
    Found(Vec<u32>),
    /// Access to Consul has changed: a transaction may have this many operations. `None` means no access, so nothing
    /// is read or written.
    Access(Option<usize>),
    /// Consul accepts this many operations in a transaction, after it refused more.
    Capacity(usize),
    /// A watch listed the prefix, or failed.
    Listed(Result<News, consul::Error>),
    /// The queue must do nothing more in Consul: all sessions stay as they are.
    Abandoned,
    /// A call has ended. An answer that no call waits for is ignored, so an answer that comes late or twice does no
    /// harm.
    Answered(CallId, Answer),
}

/// Listing by a watch of one lock key and the keys beside it.
#[derive(Clone, Debug)]
pub struct News {
    /// Entries below the prefix.
    pub entries: Entries,
    /// Index at which Consul read the entries.
    pub index: u64,
    /// Time at which the request for the listing was sent.
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

/// Result of a call. Each call is answered eventually, because a call that timed out gets an error.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Answer to [`Call::Read`].
    Listing(Result<Listing, consul::Error>),
    /// Answer to [`Call::Transact`].
    Transacted {
        /// Time at which the transaction was sent.
        sent: Moment,
        /// Entries that the transaction wrote.
        result: Result<Vec<Entry>, consul::Error>,
    },
    /// Answer to [`Call::Resolve`]: at least those of the sessions that belong to our node.
    Resolved(Result<Vec<Session>, consul::Error>),
    /// Answer to [`Call::Describe`].
    Described(Result<Option<Session>, consul::Error>),
    /// Answer to [`Call::CreateSession`]. The caller renews the session from now on.
    SessionMade(Result<SessionId, consul::Error>),
    /// Answer to [`Call::Write`].
    Written(Written),
    /// Answer to [`Call::Prove`]: the workload as it is now and its remaining pods, or why there is no answer.
    Proof(Result<(Option<Arc<Workload>>, Vec<String>), String>),
    /// Answer to [`Call::AskAccess`]: whether workloads may be written to; `None` if that is unknown.
    Access(Option<bool>),
}

/// Result of a write to a workload.
#[derive(Clone, Debug)]
pub enum Written {
    /// The write was done. By now, `Lookup` must return the workload as it is after the write.
    Done,
    /// The workload has changed since. The value is the workload as it was read then, or `None` if it no longer
    /// exists. By now, `Lookup` must return the same.
    Outdated(Option<Arc<Workload>>),
    /// The write was not sent, because its answer could have come too late.
    NotSent,
    /// The API server refused the write.
    Refused {
        /// Message of the API server.
        message: String,
        /// Whether the refusal is not about this workload, because the operator may write to no workload in its
        /// namespace.
        forbidden: bool,
    },
    /// The write was not answered, for this reason, and may still be applied.
    Unanswered(String),
}

/// Action for the caller to carry out.
#[derive(Clone, Debug)]
pub enum Action {
    /// Make a call, and report its end with this id.
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

/// Call whose answer the queue needs.
#[derive(Clone, Debug)]
pub enum Call {
    /// Reads the prefix.
    Read {
        /// Time at which the call counts as given up.
        not_after: Option<Moment>,
    },
    /// Writes a transaction to Consul, as a whole or not at all.
    Transact {
        /// Transaction to write.
        transaction: Arc<Transaction>,
        /// Time at which the call counts as given up, and must not be sent any more.
        not_after: Option<Moment>,
    },
    /// Asks for the owners of these sessions. Only sessions of our own node can be ours.
    Resolve {
        /// Sessions to ask about.
        sessions: Vec<SessionId>,
        /// Time at which the call counts as given up.
        not_after: Option<Moment>,
    },
    /// Asks who a holder is, to show it to people.
    Describe(SessionId),
    /// Makes a session.
    CreateSession {
        /// Name of the session.
        name: String,
        /// Time that the session lives without a renewal; `None` means forever.
        ttl: Option<Duration>,
        /// Time in which nobody else may lock a key that the session held when it ended.
        lock_delay: Duration,
        /// Whether nothing waits for the session yet, so that urgent calls at the same time may come first.
        ahead: bool,
    },
    /// Writes to a workload.
    Write {
        /// Write to make.
        write: Write,
        /// Time that the write may take.
        timeout: Duration,
        /// Time by which the write must have been answered if it is sent at all.
        not_after: Option<Moment>,
    },
    /// Asks whether pods of this workload are left, by a GET of the workload and a LIST of its pods, never by a
    /// cache.
    Prove(Arc<Identity>),
    /// Asks whether workloads may be written to.
    AskAccess,
}

/// Write to a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Starts the workload in its slots.
    Start(Start),
    /// Suspends the workload.
    Suspend(Suspend),
    /// Makes the workload give its slots back.
    GiveBack(GiveBack),
    /// Sets the workload's annotation to the sessions that hold its slots now.
    Rename(Rename),
    /// Records the beginning of the workload's wait beside it.
    RecordWait(RecordWait),
    /// Deletes the workload.
    Skip(Skip),
    /// Makes the workload fail without a start.
    Fail(Fail),
    /// Ends the workload while it runs.
    End(End),
}

impl Write {
    /// Returns the workload, at the version that was decided on.
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

    /// Returns whether the workload, read again, shows that the write was done although its answer was lost.
    pub(super) fn is_done_in(&self, workload: Option<&Workload>) -> bool {
        match (self, workload) {
            // A workload that lost its slot already names the session in its template, but does not report it.
            (Self::Start(start), Some(workload)) => {
                let mut sessions = start.sessions();
                sessions.all(|session| workload.started_by(session)) && !workload.lost()
            }
            (Self::Skip(_), workload) => workload.is_none(),
            (Self::End(end), Some(workload)) if end.is_lost() => {
                workload.wait.failing == Some(Termination::Immediate) || workload.has_ended()
            }
            (Self::Fail(_) | Self::End(_), Some(workload)) => {
                workload.wait.failing.is_some() || workload.has_ended()
            }
            (Self::RecordWait(record), Some(workload)) => {
                workload.wait.recorded == Some(record.began)
            }
            (Self::Start(_) | Self::RecordWait(_) | Self::Fail(_) | Self::End(_), None)
            | (Self::Suspend(_) | Self::GiveBack(_) | Self::Rename(_), _) => false,
        }
    }

    /// Returns the result of this write if it is a start, by the answer to it.
    pub(super) fn start_answer(&self, written: &Written) -> StartAnswer {
        match written {
            Written::Done => StartAnswer::Made,
            Written::Outdated(seen) if self.is_done_in(seen.as_deref()) => StartAnswer::Made,
            Written::Outdated(_) | Written::NotSent | Written::Refused { .. } => {
                StartAnswer::NotMade
            }
            Written::Unanswered(_) => StartAnswer::Unknown,
        }
    }
}

/// Outcome that is reported to people. No decision depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Slots were granted.
    Granted {
        /// Slots, with their workload and sessions.
        grant: Grant,
        /// Time of the grant, as the contender says.
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
        /// Contender that was released.
        release: Release,
        /// Time at which the slot had been granted, as the contender said.
        granted: Option<jiff::Timestamp>,
        /// Time at which the workload was done, if it had a cooldown.
        done: Option<jiff::Timestamp>,
    },
    /// A slot begins to cool down.
    Cools(Cooling),
    /// A dead holder was pruned.
    Pruned(SessionId),
    /// A limit was written.
    LimitWritten {
        /// Limit that was written.
        limit: u32,
        /// Whether the limit overwrote one that is not ours.
        enforced: bool,
    },
    /// A limit was written over another limit that others use.
    LimitMoved(Moved),
    /// The API server refused a write.
    Refused {
        /// Workload of the write.
        workload: Target,
        /// Message of the API server.
        message: String,
    },
    /// The transaction that would grant a workload all its slots has too many bytes, because the `.lock`s are too
    /// large.
    TooLarge {
        /// Workload that can't be granted its slots.
        workload: Target,
        /// Message of Consul.
        message: String,
    },
    /// A write was not answered, and is repeated.
    Unanswered {
        /// Workload of the write.
        workload: Target,
        /// Reason why there is no answer.
        why: String,
    },
    /// A slot is kept because pods have not ended for a long time.
    PodsRemain {
        /// Identity of the contender that keeps the slot.
        identity: Arc<Identity>,
        /// Names of the pods.
        pods: Vec<String>,
    },
    /// The proof that no pod of a workload is left failed, so pods may be left.
    PodsUnknown {
        /// Identity of the contender that keeps the slot.
        identity: Arc<Identity>,
        /// Reason why there is no answer.
        why: String,
        /// Whether the proof has failed for a long time.
        overdue: bool,
    },
    /// A contender of ours was found, and its session is renewed.
    Adopted {
        /// Identity of the contender.
        identity: Arc<Identity>,
        /// Session of the contender.
        session: SessionId,
    },
}

/// Change of a limit that others still use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Limit before the write.
    pub from: u32,
    /// Limit after the write.
    pub to: u32,
    /// Number of contenders that do not belong to this cluster.
    pub others: usize,
}
