//! What a user asked for, with what the operator adds to it.

use std::time::Duration;

use super::{
    identity::{Cluster, Identity},
    job::Job,
    plan::Target,
};
use crate::api::{LimitPolicy, OnSlotLost, Prefix};

/// What counts as the TTL where sessions have none, for everything else that it gives a measure to.
const UNTIMED: Duration = Duration::from_mins(5);

/// What a user asked for, with what the operator adds to it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The operator's cluster.
    pub cluster: Cluster,
    /// The namespace of the `ConsulSemaphore` and of its Jobs.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Where it lives in Consul.
    pub prefix: Prefix,
    /// How many may hold at once.
    pub limit: u32,
    /// What to do about another limit in Consul.
    pub policy: LimitPolicy,
    /// Grant nothing more.
    pub paused: bool,
    /// The `ConsulSemaphore` is being deleted.
    pub terminating: bool,
    /// What becomes of a running Job that lost its slot.
    pub on_slot_lost: OnSlotLost,
    /// How long a session outlives its last renewal; `None`: for ever.
    pub ttl: Option<Duration>,
    /// How long the slot of a dead holder rests.
    pub lock_delay: Duration,
}

impl Settings {
    /// For how long a reading of the prefix may be relied on: the TTL.
    pub fn span(&self) -> Duration {
        self.ttl.unwrap_or(UNTIMED)
    }

    /// How long a running Job that lost its slot may go on while Consul is asked for another one:
    /// many times what that takes when nothing is wrong.
    pub fn patience(&self) -> Duration {
        self.span() / 8
    }

    /// Whom a session of this Job stands for.
    pub fn identity(&self, job: &Target) -> Identity {
        Identity {
            cluster: self.cluster.id.clone(),
            namespace: self.namespace.clone(),
            semaphore: self.name.clone(),
            job: job.name.as_ref().into(),
            uid: job.uid.clone(),
        }
    }

    /// Whether a session that bears this name is this semaphore's.
    pub fn owns(&self, identity: &Identity) -> bool {
        identity.cluster == self.cluster.id
            && identity.namespace == self.namespace
            && identity.semaphore == self.name
    }

    /// Whether this Job can be started in a slot of this semaphore that it has.
    pub fn may_start(&self, job: &Job) -> bool {
        !self.terminating && job.in_line() && job.wants.as_deref() == Some(self.name.as_str())
    }
}
