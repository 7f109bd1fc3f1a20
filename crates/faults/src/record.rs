//! The records of the timeline: one on each line, with the second at which it was written.
//!
//! Two clocks order them. `t`, in seconds, is for durations. etcd's revision is for order: it is the
//! `resourceVersion` of everything in Kubernetes, and the proxy reads it before and after each write to a `.lock`. So
//! it is known exactly whether a pod had ended when its slot was released, however late the watch was.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use serde::{Deserialize, Serialize};

/// One line of the timeline.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Seconds since the campaign began. A resumed campaign continues to count.
    pub t: f64,
    /// What was seen or done.
    #[serde(flatten)]
    pub what: What,
}

/// What was seen or done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum What {
    /// A bed is up. Records before it, in a resumed campaign, belong to another bed.
    Bed {
        /// The seed of the choice of faults.
        seed: u64,
        /// How many faults are asked for.
        faults: usize,
        /// Whether there are other workloads than Jobs.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        workloads: bool,
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
        /// Whether the writer never received the answer.
        lost: bool,
        /// How long the server took, in milliseconds.
        ms: u64,
    },
    /// A contender's body as its session's owner wrote it. It names the session's Job.
    Contender {
        /// Where the semaphore is in Consul.
        prefix: String,
        /// The session, and the name of the key.
        session: String,
        /// The Job.
        uid: String,
    },
    /// Consul has confirmed a new session.
    Session {
        /// Its id.
        session: String,
        /// Its name, which identifies its owner.
        name: String,
    },
    /// A Job that has to wait was created, perhaps in another cluster.
    Made {
        /// The cluster's name.
        cluster: String,
        /// Its place in the queue.
        place: Place,
    },
    /// Consul has confirmed the write of a waiting contender.
    Waits {
        /// Where the semaphore is in Consul.
        prefix: String,
        /// Its session.
        session: String,
        /// Its place in the queue, as its body says.
        place: Option<Place>,
        /// The second at which it was sent to Consul.
        sent: f64,
    },
    /// A revision of a `.lock`, read by the proxy before another write was let through.
    Lock {
        /// Where the semaphore is in Consul.
        prefix: String,
        /// The writer of this revision.
        writer: Writer,
        /// etcd's revision before the write was sent.
        before: u64,
        /// etcd's revision after the write was done and before it was answered. If the writer may not have waited for
        /// the answer, the same as `before`.
        after: u64,
        /// Its new content.
        body: Body,
        /// The sessions whose contenders the transaction itself checked to be absent or unlocked.
        dead: BTreeSet<String>,
    },
    /// The contender of a new holder of a `.lock`, read by the proxy before another write was let through.
    Granted {
        /// Where the semaphore is in Consul.
        prefix: String,
        /// Its session.
        session: String,
        /// Its `ModifyIndex`: the raft index of the transaction that granted the slot.
        index: u64,
    },
    /// A revision of a `.lock` as a blocking query showed it.
    Seen {
        /// Where the semaphore is in Consul.
        prefix: String,
        /// Its `ModifyIndex`.
        index: u64,
    },
    /// A Job, or another workload, as the API server's watch shows it.
    Job(Job),
    /// A pod of one as the API server's watch shows it.
    Pod {
        /// Its namespace and name.
        pod: String,
        /// Where the semaphore of its Job is in Consul.
        prefix: String,
        /// Its Job.
        uid: String,
        /// Its `resourceVersion`; 0 if a new listing no longer has it.
        rv: u64,
        /// Whether it exists and has not ended.
        alive: bool,
        /// Its grace period, in seconds.
        grace: f64,
    },
    /// Somebody made a Job run by hand.
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
        /// What happened to it.
        phase: Phase,
        /// What it hit, for people.
        note: String,
    },
    /// A part is down, or is back.
    Outage {
        /// The part.
        part: Part,
        /// Whether it is down.
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
    /// From here on nobody watches. What follows, up to the next bed, is not judged: the campaign is over or was
    /// interrupted, and on the next bed violations are planted first.
    Unwatched,
    /// The load has ended and all faults are healed. From now on everything must settle.
    Drain,
    /// What was left when everything should have settled.
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
    /// Whether a Job may continue without a slot when it can't get one (`onSlotLost: Continue`).
    pub goes_on: bool,
    /// The period in seconds, if it is a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<f64>,
}

/// A place in the queue. The order is that of docs/protocol.md: the lesser place is first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Whether it had a slot and lost it.
    pub lost: Reverse<bool>,
    /// The priority; a higher one is first.
    pub priority: Reverse<i64>,
    /// When it was queued, in seconds since 1970.
    pub since: i64,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// The writer, which is known by the door of the proxy that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writer {
    /// The operator.
    Operator,
    /// A `consul lock`.
    Foreign,
    /// The operator of a copy of the cluster.
    Copy,
    /// The campaign itself.
    Fault,
    /// No known writer: the revision existed before the write, or the write was refused.
    Nobody,
}

/// The content of a `.lock`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Body {
    /// It does not exist.
    Absent,
    /// A semaphore.
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
    /// Consul could not be read for a minute.
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

/// The kind of a workload.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadKind {
    /// `batch/v1` Job.
    #[default]
    Job,
    /// `JobSet` of `jobset.x-k8s.io`.
    JobSet,
    /// `PipelineRun` of `tekton.dev`.
    PipelineRun,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_job(kind: &WorkloadKind) -> bool {
    *kind == WorkloadKind::Job
}

/// A Job, or another workload, as the API server's watch shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Its kind.
    #[serde(default, skip_serializing_if = "is_job")]
    pub kind: WorkloadKind,
    /// Its uid.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Where its semaphore is in Consul, or the first of several.
    pub prefix: String,
    /// How many slots it asks for, by prefix; empty for one slot.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub asks: BTreeMap<String, usize>,
    /// Its `resourceVersion`; 0 if a new listing no longer has it.
    pub rv: u64,
    /// What it is doing.
    pub state: JobState,
    /// The session that the operator reports for it.
    pub session: Option<String>,
    /// The start by which it runs, if the operator made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
}

/// The write by which the operator made a Job run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The session in the Job's template, which tells the starts of a Job apart; the uid of what can be started once.
    pub session: String,
    /// How many seconds before this record the API server took the write. The API server cuts off the fraction of the
    /// second, so it may have been up to a second later.
    pub ago: f64,
}

/// What a Job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// It can be started: it is suspended, and none of its pods is left, except of a `JobSet`.
    Waiting,
    /// It is suspended, but its pods have not ended yet, or its controller has not confirmed it; or it is to end.
    Stopping,
    /// It is on hold.
    Held,
    /// It may have pods.
    Running,
    /// It is complete or failed, or is about to fail without a pod.
    Finished,
    /// It is deleted; there may still be pods.
    Gone,
}

/// The phase of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It is active.
    Begins,
    /// It is healed.
    Ends,
    /// It found nothing to hit.
    Misses,
}

/// What can be down.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The operator, and all that it knows, until it is restarted.
    Operator,
    /// The operator is frozen, and later continues with what it knew.
    Frozen,
    /// Consul, as the operator sees it.
    Consul,
    /// The API server, as the operator sees it.
    Api,
    /// The listing of a Job's pods. Without it, no slot of a deleted Job is released.
    Proofs,
    /// What grants of a semaphore need: it is paused, in conflict, or does not exist.
    Grants(String),
    /// The API server itself, as the observer sees it without the proxy: the machine has no time for it. This excuses
    /// nothing but lateness.
    Machine,
}

/// The state of a `consul lock`.
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
