//! What the timeline is made of: one record a line, each with the second at which it was written.
//!
//! Two clocks order them. `t`, in seconds, is for durations. etcd's revision is for order: it is the
//! `resourceVersion` of everything in Kubernetes, and the proxy asks for it before and after each
//! write to a `.lock`. So whether a pod had ended when its slot was released is known exactly, however
//! late the watch was.

use std::{cmp::Reverse, collections::BTreeSet};

use serde::{Deserialize, Serialize};

/// One line of the timeline.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Seconds since the campaign began; goes on when a campaign is resumed.
    pub t: f64,
    /// What was seen or done.
    #[serde(flatten)]
    pub what: What,
}

/// What was seen or done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum What {
    /// A bed is up. What was before it, in a campaign that is resumed, was another bed.
    Bed {
        /// What the choice of faults depends on.
        seed: u64,
        /// How many faults are asked for.
        faults: usize,
    },
    /// A semaphore that is watched from now on.
    Semaphore(Semaphore),
    /// A write through the proxy, and its answer.
    Write {
        /// Who wrote.
        writer: Writer,
        /// `PUT`, `DELETE`, `PATCH` or `POST`.
        method: String,
        /// Path and query.
        path: String,
        /// The answer's status; none if the server did not answer.
        status: Option<u16>,
        /// Whether the answer was kept from the writer.
        lost: bool,
        /// How long the server took, in milliseconds.
        ms: u64,
    },
    /// A contender's body as its session's owner wrote it: which Job the session is for.
    Contender {
        /// Where the semaphore is in Consul.
        prefix: String,
        /// The session, and the name of the key.
        session: String,
        /// The Job.
        uid: String,
    },
    /// A session was made; Consul has said so.
    Session {
        /// Its id.
        session: String,
        /// What it is called: who it is for.
        name: String,
    },
    /// A Job that is to wait was made, by an API server that may be another cluster's.
    Made {
        /// The cluster's name.
        cluster: String,
        /// Its place in the line.
        place: Place,
    },
    /// A contender that waits was written; Consul has said so.
    Waits {
        /// Where the semaphore is in Consul.
        prefix: String,
        /// Its session.
        session: String,
        /// What it says of its place in the line.
        place: Option<Place>,
        /// The second at which it was sent to Consul.
        sent: f64,
    },
    /// A revision of a `.lock`, read by the proxy before another write was let through.
    Lock {
        /// Where the semaphore is in Consul.
        prefix: String,
        /// Whose write made it.
        writer: Writer,
        /// etcd's revision before the write was sent.
        before: u64,
        /// etcd's revision after the write was done and before it was answered; that before, where the
        /// writer may not have waited for the answer.
        after: u64,
        /// What it is now.
        body: Body,
        /// The sessions of whose contenders the transaction itself checked that they are gone or
        /// free.
        dead: BTreeSet<String>,
    },
    /// A revision of a `.lock` as a blocking query showed it.
    Seen {
        /// Where the semaphore is in Consul.
        prefix: String,
        /// Its `ModifyIndex`.
        index: u64,
    },
    /// A Job as the API server's watch shows it.
    Job(Job),
    /// A pod of a Job as the API server's watch shows it.
    Pod {
        /// Its namespace and name.
        pod: String,
        /// Where the semaphore of its Job is in Consul.
        prefix: String,
        /// Its Job.
        uid: String,
        /// Its `resourceVersion`; 0 for one that a new listing no longer has.
        rv: u64,
        /// Whether it is there and has not ended.
        alive: bool,
        /// Its grace period, in seconds.
        grace: f64,
    },
    /// A Job was made to run by somebody's hand.
    ByHand {
        /// The Job.
        uid: String,
        /// Its `resourceVersion` then.
        rv: u64,
    },
    /// A fault.
    Fault {
        /// Its place in the plan.
        id: usize,
        /// Its kind.
        kind: String,
        /// The semaphore that it hits; none if it hits all.
        prefix: Option<String>,
        /// What became of it.
        phase: Phase,
        /// What it hit, for people.
        note: String,
    },
    /// Something is away, or is there again.
    Outage {
        /// What.
        part: Part,
        /// Whether it is away.
        away: bool,
    },
    /// A `consul lock` of the load.
    Foreign {
        /// Where the semaphore is in Consul.
        prefix: String,
        /// Which one.
        id: usize,
        /// What it does now.
        state: ForeignState,
    },
    /// From here on nobody watches. What follows, up to the next bed, is not judged: the campaign is
    /// over, or was broken off, and on the next bed violations are planted first.
    Unwatched,
    /// The load has ended and all faults are healed: from now on everything must come to rest.
    Drain,
    /// What was still there when everything should have been at rest.
    Rest {
        /// Sessions of this cluster that are left in Consul.
        sessions: usize,
        /// Contender keys that are left in Consul.
        contenders: usize,
    },
}

/// A semaphore that is watched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Semaphore {
    /// Where it is in Consul.
    pub prefix: String,
    /// Its limit at first.
    pub limit: u64,
    /// Its sessions' TTL, in seconds; none if they never expire.
    pub ttl: Option<f64>,
    /// Its lock-delay, in seconds.
    pub lock_delay: f64,
    /// Whether a Job may go on without a slot if there is none for it (`onSlotLost: Continue`).
    pub goes_on: bool,
}

/// A place in the line, as docs/protocol.md has its order: the lesser one is first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Whether it had a slot and lost it.
    pub lost: Reverse<bool>,
    /// A higher one goes first.
    pub priority: Reverse<i64>,
    /// When it came in line, in seconds since 1970.
    pub since: i64,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// Who writes, told apart by the door of the proxy that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writer {
    /// The operator.
    Operator,
    /// A `consul lock`.
    Foreign,
    /// The campaign itself.
    Fault,
    /// Nobody who wrote: the revision was there before the write, or the write was refused.
    Nobody,
}

/// What a `.lock` is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Body {
    /// There is none.
    Absent,
    /// A semaphore's.
    Semaphore {
        /// Its `ModifyIndex`.
        index: u64,
        /// Its limit.
        limit: u64,
        /// The sessions that hold a slot.
        holders: BTreeSet<String>,
    },
    /// Something else: a mutex, or no JSON.
    Other {
        /// Its `ModifyIndex`.
        index: u64,
    },
    /// Consul could not be asked for a minute.
    Unknown,
}

impl Body {
    /// The sessions that hold a slot.
    pub fn holders(&self) -> BTreeSet<String> {
        match self {
            Self::Semaphore { holders, .. } => holders.clone(),
            Self::Absent | Self::Other { .. } | Self::Unknown => BTreeSet::new(),
        }
    }

    /// Its limit.
    pub fn limit(&self) -> Option<u64> {
        match self {
            Self::Semaphore { limit, .. } => Some(*limit),
            Self::Absent | Self::Other { .. } | Self::Unknown => None,
        }
    }

    /// Its `ModifyIndex`.
    pub fn index(&self) -> Option<u64> {
        match self {
            Self::Semaphore { index, .. } | Self::Other { index } => Some(*index),
            Self::Absent | Self::Unknown => None,
        }
    }
}

/// A Job as the API server's watch shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Its uid.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Where its semaphore is in Consul.
    pub prefix: String,
    /// Its `resourceVersion`; 0 for one that a new listing no longer has.
    pub rv: u64,
    /// What it is doing.
    pub state: JobState,
    /// The session that the operator reports for it.
    pub session: Option<String>,
}

/// What a Job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// It could be started: suspended, and no pod of it is left.
    Waiting,
    /// It is suspended, and its pods are not gone yet, or the Job controller has not said so.
    Stopping,
    /// It is on hold.
    Held,
    /// It may have pods.
    Running,
    /// It is complete or failed.
    Finished,
    /// It is deleted; there may be pods.
    Gone,
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It is there.
    Begins,
    /// It is healed.
    Ends,
    /// There was nothing that it could hit.
    Misses,
}

/// What can be away.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The operator, and what it knows: it is started anew.
    Operator,
    /// The operator stands still, and goes on with what it knew.
    Frozen,
    /// Consul, as the operator sees it.
    Consul,
    /// The API server, as the operator sees it.
    Api,
    /// What says whether pods of a Job are left: without it no slot of a Job that is gone is given back.
    Proofs,
    /// What a semaphore needs for grants: it is paused, in conflict, or not there.
    Grants(String),
}

/// What a `consul lock` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForeignState {
    /// It asks for a slot.
    Waits,
    /// Its child runs.
    Holds,
    /// It has ended.
    Ended,
}
