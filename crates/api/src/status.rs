//! The status of a `ConsulSemaphore`: what the operator last saw. It is a report, not the source of truth.

#![expect(
    unreachable_pub,
    reason = "KubeSchema copies the types into a function, where their pub reaches nobody"
)]

use super::schema::plain_descriptions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// How many holders, and how many waiting Jobs, a status lists at most.
pub const LISTED: usize = 20;

/// What the operator last saw of the semaphore.
// Unknown fields are left out, so the status must be written whole, by server-side apply or replace: a merge patch
// would keep the old value.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = plain_descriptions)]
pub struct ConsulSemaphoreStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub observed_generation: Option<i64>,

    /// The limit in Consul. Left out as long as nothing is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    pub limit: Option<i32>,

    /// The limits that this `ConsulSemaphore` wrote to Consul or is about to write. Another one in
    /// Consul is somebody else's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied_limits: Vec<i32>,

    /// The greatest fencing token granted here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub fencing_token: Option<i64>,

    /// Slots held, wherever their holders are.
    #[serde(default)]
    pub held: i32,

    /// Slots held by Jobs of this cluster.
    #[serde(default)]
    pub held_here: i32,

    /// Jobs of this cluster in line.
    #[serde(default)]
    pub waiting: i32,

    /// How many keys of a keyed semaphore have a holder, or a Job of this cluster in line. Left out where
    /// the semaphore is not keyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    pub keys_in_use: Option<i32>,

    /// Who holds slots, oldest first, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<HolderStatus>,

    /// Which Jobs of this cluster wait, next first, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queue: Vec<QueueStatus>,

    /// Ready sums up the others: True when slots can be granted and released.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// A holder of a slot.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderStatus {
    /// The Consul session that holds the slot.
    pub session: String,

    /// Of which key's slots it is one, if the semaphore is keyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub key: Option<String>,

    /// Who that is: `<cluster> <namespace>/<name>` of a Job, or of another program the name of its
    /// session and its node. Left out where it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub holder: Option<String>,

    /// When it got the slot, or was seen to have it. Left out where it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub since: Option<Time>,

    /// Until when its slot cools: its Job is done. Left out before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub cools_until: Option<Time>,

    /// Whether its session never expires: if whoever renews nothing is gone for good, somebody must
    /// destroy the session to free the slot. Left out where it expires, or that is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_expires: bool,
}

/// A Job in line.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// The name of the Job, in the namespace of the `ConsulSemaphore`.
    pub job: String,

    /// For which key's slots it waits, if the semaphore is keyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub key: Option<String>,

    /// When it came in line. Left out where it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub since: Option<Time>,
}
