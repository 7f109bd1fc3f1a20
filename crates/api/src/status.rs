//! Defines the status of a `ConsulSemaphore`: what the operator last saw. The status is a report, not the source of
//! truth.

#![expect(
    unreachable_pub,
    reason = "KubeSchema copies the types into a function, where their pub reaches nobody"
)]

use std::fmt;

use super::schema::plain_descriptions;
use consul_semaphore::{ContenderName, Interval};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Largest number of holders, and of waiting Jobs, that a status lists.
pub const LISTED: usize = 20;

/// The state of the semaphore as the operator last saw it. Fields are left out if unknown.
// Unknown fields are left out, so the status must be written whole, by server-side apply or replace: a merge patch
// would keep the old value.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = plain_descriptions)]
pub struct ConsulSemaphoreStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub observed_generation: Option<i64>,

    /// The limit that is stored in Consul; left out if Consul has no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    pub limit: Option<i32>,

    /// The limit while a window allows fewer slots than `spec.limit`: a slot is granted only while fewer slots than
    /// this are held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    pub window_limit: Option<i32>,

    /// Time at which the next window of the spec opens; left out while a window is open, and if no window ever opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub window_opens: Option<Time>,

    /// Limits that this `ConsulSemaphore` wrote to Consul or is about to write; any other limit was written by
    /// another program or cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied_limits: Vec<i32>,

    /// The greatest fencing token that the operator granted for this `ConsulSemaphore`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub fencing_token: Option<i64>,

    /// Number of slots that are held, in all clusters and by all programs.
    #[serde(default)]
    pub held: i32,

    /// Number of slots that Jobs of this cluster hold.
    #[serde(default)]
    pub held_here: i32,

    /// Number of Jobs of this cluster that wait.
    #[serde(default)]
    pub waiting: i32,

    /// Number of keys of a keyed semaphore that have a holder, or a waiting Job of this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    pub keys_in_use: Option<i32>,

    /// The holders, oldest first, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<HolderStatus>,

    /// The waiting Jobs of this cluster, next first, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queue: Vec<QueueStatus>,

    /// Contenders of other clusters and programs that wait at the prefix, longest first, at most 20;
    /// unknown for a mutex.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_elsewhere: Vec<WaiterStatus>,

    /// The operators that manage the `ConsulSemaphore`, by the names of their replicas; the one that wrote this
    /// status is first. If there are several, stop all but one, or give each a part of the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<String>,

    /// The last intervals in which no slot could be granted, oldest first, at most 20. They don't count for
    /// `wait-timeout`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked: Vec<BlockedStatus>,

    /// Time up to which the operator has counted how long Jobs wait, in steps of 5 minutes; left out while no Job
    /// waits. If no operator runs after this time, the time without an operator does not count for `wait-timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub counted_to: Option<Time>,

    /// Ready is the summary: True when slots can be granted and released.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl ConsulSemaphoreStatus {
    /// Returns the intervals in which no slot could be granted.
    pub fn blocked(&self) -> impl Iterator<Item = Interval> {
        let intervals = self.blocked.iter();
        intervals.map(|interval| Interval {
            from: interval.from.0,
            to: interval.to.as_ref().map(|to| to.0),
        })
    }
}

/// A holder of a slot.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderStatus {
    /// The Consul session that holds the slot.
    pub session: String,

    /// The key, if the semaphore is keyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub key: Option<String>,

    /// Name of the holder.
    #[serde(flatten)]
    pub holder: ContenderName,

    /// The number of the slot among all slots of the semaphore, from 0; left out for a holder that numbers nothing, such
    /// as `consul lock`, and for mode Rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    pub slot_index: Option<u32>,

    /// The name in `spec.slotNames` that the holder was granted with this slot index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub slot_name: Option<String>,

    /// Time at which the holder got the slot, or at which the operator first saw the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub since: Option<Time>,

    /// End of the holder's cooldown; left out until the holder's Job is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub cools_until: Option<Time>,

    /// Why no pod of the holder's Job runs yet; left out if one runs or has run, and while the Job has only just
    /// started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NotStartedStatus")]
    pub not_started: Option<NotStartedStatus>,

    /// Whether the holder's session never expires, so that somebody must destroy the session if the holder is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_expires: bool,
}

/// The reason why no pod of a holder's Job runs yet. The Job has had its slot since the holder's `since`.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotStartedStatus {
    /// The reason in the pod's status, such as `Unschedulable` or `ImagePullBackOff`, or `NoPod` if the Job has no pod.
    pub reason: String,

    /// Explanation for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub message: Option<String>,
}

/// Writes the reason and the explanation in one line.
impl fmt::Display for NotStartedStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, message } = self;
        match message {
            Some(message) => write!(f, "{reason}: {message}"),
            None => f.write_str(reason),
        }
    }
}

/// An interval in which no slot could be granted, because the semaphore was paused, outside its windows or in
/// conflict, or because Consul or the operator was not available.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockedStatus {
    /// Time at which the interval began.
    pub from: Time,

    /// Time at which the interval ended; left out while the interval lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub to: Option<Time>,
}

/// A contender of another cluster or program that waits.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaiterStatus {
    /// The session of the contender.
    pub session: String,

    /// The key, if the semaphore is keyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub key: Option<String>,

    /// Name of the contender.
    #[serde(flatten)]
    pub waiter: ContenderName,
}

/// A waiting Job, or a workload of another kind.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// The kind of the workload, such as Job or Pod.
    pub kind: String,

    /// The name of the workload.
    pub name: String,

    /// The key, if the semaphore is keyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub key: Option<String>,

    /// Number of slots of this semaphore that the workload asks for, if more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    pub slots: Option<i32>,

    /// All slots that the workload asks for, if they are slots of several semaphores, such as `db, licenses:2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub asks_for: Option<String>,

    /// Slots that the workload asks for and that are not free, if the workload is near the head of a queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub lacks: Option<String>,

    /// Why the workload has no slot yet, as one word. The word is the reason of the condition that says why no slot can
    /// be granted, such as `Paused` or `AllSlotsHeld`, or one of these: `TooFewSlotsFree`, `Next`, `LeftToOthers`,
    /// `Behind`, `PassedOver`, `SlotsKept`, `OthersStopped` and `StartRefused`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub reason: Option<String>,

    /// Why the workload has no slot yet, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub message: Option<String>,

    /// Time at which the workload was queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub since: Option<Time>,

    /// Time at which the workload is likely to start, if slots are held for as long as the last slots of this
    /// semaphore were. The time is an estimate, not a promise, and is left out while it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub expected: Option<Time>,
}
