//! Holds what a user asks for, with what the operator adds to it.

use std::time::Duration;

use super::{
    identity::{Cluster, Identity, NONE},
    plan::Target,
    workload::{Phase, SlotRequest, Workload},
};
use crate::{
    Key, LimitPolicy, Mode, OnSlotLost, Prefix,
    windows::{Opening, Windows},
};

/// The duration that stands in for the TTL of sessions without one, wherever another duration is derived from the
/// TTL.
const STAND_IN_TTL: Duration = Duration::from_mins(5);

/// Longest time that a write to a workload may take.
const LONGEST_WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The order in which contenders are served, for all semaphores of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// See [`Settings::fair`].
    pub fair: Option<Duration>,
    /// See [`Settings::pass_over`].
    pub pass_over: Duration,
}

/// The last free slots, for workloads of some priority and above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The number of reserved slots.
    pub slots: u32,
    /// The least priority of a workload that may have the reserved slots.
    pub min_priority: i32,
}

/// Rules for when the slots of a semaphore are granted, and to whom. Only the operators and programs that are given
/// these rules follow them; all others on the same prefix do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// The windows in which slots are granted. Outside all of them nothing is granted.
    pub windows: Windows,
    /// The slots that are not for everybody.
    pub reserved: Option<Reserved>,
}

impl Restrictions {
    /// Returns how many slots of a semaphore with this limit may be held after a grant to a workload of this
    /// priority.
    pub fn limit(&self, limit: u32, opening: Opening, priority: i32) -> u32 {
        let limit = opening.limit(limit);
        limit.saturating_sub(self.reserved_from(priority))
    }

    /// Returns what [`Self::limit`] returns in the window that allows the most slots.
    pub fn most(&self, limit: u32, priority: i32) -> u32 {
        let limit = self.windows.most(limit);
        limit.saturating_sub(self.reserved_from(priority))
    }

    /// Returns how many slots are not for a workload of this priority.
    pub fn reserved_from(&self, priority: i32) -> u32 {
        let reserved = self
            .reserved
            .filter(|reserved| priority < reserved.min_priority);
        reserved.map_or(0, |reserved| reserved.slots)
    }
}

/// The settings of a semaphore: what a user asks for, with what the operator adds to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The operator's cluster.
    pub cluster: Cluster,
    /// The namespace of the `ConsulSemaphore` and of its workloads.
    pub namespace: String,
    /// The name of the `ConsulSemaphore`.
    pub name: String,
    /// The key of a keyed `ConsulSemaphore`.
    pub key: Option<Key>,
    /// The place of the semaphore in Consul. Each key of a keyed semaphore has its own prefix.
    pub prefix: Prefix,
    /// The way in which the semaphore is stored in Consul.
    pub mode: Mode,
    /// The period of a rate, in which at most `limit` workloads start. `None`: the semaphore is no rate, and `limit`
    /// is how many workloads run.
    pub period: Option<Duration>,
    /// The number of slots that may be held at once.
    pub limit: u32,
    /// The names of the slots, by index.
    pub slot_names: Vec<String>,
    /// The times at which slots are granted, and the priorities that they are granted to.
    pub restrictions: Restrictions,
    /// The policy for another limit in Consul.
    pub policy: LimitPolicy,
    /// Whether the semaphore grants nothing more.
    pub paused: bool,
    /// The time for which a free slot is left to contenders elsewhere whose turn it is; `None`: not at all.
    pub fair: Option<Duration>,
    /// The time for which a workload that asks for several slots is passed over once it is the first in a queue.
    pub pass_over: Duration,
    /// Whether the `ConsulSemaphore` is being deleted.
    pub terminating: bool,
    /// The policy for a running workload that lost its slot.
    pub on_slot_lost: OnSlotLost,
    /// The time for which a session outlives its last renewal; `None`: forever.
    pub ttl: Option<Duration>,
    /// The time for which the slot of a dead holder is not granted again.
    pub lock_delay: Duration,
    /// The time for which a slot stays taken after its workload is finished.
    pub cooldown: Duration,
    /// Whether `.lock` exists only while it is used: the first holder creates it, and the last one deletes it.
    pub transient: bool,
    /// The settings for the ends of waits.
    pub wait: WaitSettings,
}

/// The settings of a semaphore for the ends of waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitSettings {
    /// The time that a workload may wait if it does not say so itself; `None`: for ever.
    pub timeout: Option<Duration>,
    /// The time for which a holder is left alone before another workload may replace it.
    pub replace_after: Duration,
    /// The most workloads that may wait in one queue. A workload that comes while so many wait fails. `None`: any number.
    pub max_waiting: Option<u32>,
}

impl Settings {
    /// Returns these settings for one key of a keyed semaphore, at its own prefix.
    #[must_use]
    pub fn of_key(self, key: &Key) -> Self {
        Self {
            prefix: self.prefix.of_key(key),
            key: Some(key.clone()),
            transient: true,
            ..self
        }
    }

    /// Whether the slots of the semaphore count starts. If so, a workload is not judged by its slots any more once it
    /// is started.
    pub fn is_rate(&self) -> bool {
        self.period.is_some()
    }

    /// Whether these are the settings of a program that asks for slots itself. Nobody else uses its sessions, while those
    /// of an operator may be adopted by its successor at any time. A host is not a cluster: each program on a host
    /// stands for itself, although all of them have the same cluster id.
    pub(crate) fn is_program(&self) -> bool {
        self.namespace == NONE
    }

    /// Returns how long a reading of the prefix may be relied on: the TTL.
    pub fn span(&self) -> Duration {
        self.ttl.unwrap_or(STAND_IN_TTL)
    }

    /// Returns how long a running workload that lost its slot may continue while the operator requests another slot
    /// from Consul: many times what the request takes when nothing is wrong. All that time the workload may run
    /// beside the one that took its slot, so a TTL of more than five minutes does not make this time longer.
    pub fn patience(&self) -> Duration {
        self.span().min(STAND_IN_TTL) / 8
    }

    /// Returns how long a write to a workload may take: short compared with the TTL, so that the TTL leaves time for
    /// it.
    pub(crate) fn write_timeout(&self) -> Duration {
        LONGEST_WRITE_TIMEOUT.min(self.span() / 4)
    }

    /// Returns whether there is anything to decide about a workload that was started with these settings. A rate
    /// leaves a workload alone while it runs.
    pub(crate) fn decides_about(&self, started: &Workload) -> bool {
        !self.is_rate() || !matches!(started.phase, Phase::Running | Phase::Stopping)
    }

    /// Returns Consul's own lock-delay for the keys that a session of ours had locked when it died. For a semaphore
    /// that key is the contender key, which nobody else wants; the slot waits until the holder is pruned.
    pub fn session_lock_delay(&self) -> Duration {
        match self.mode {
            Mode::Semaphore => Duration::ZERO,
            Mode::Mutex => self.lock_delay,
        }
    }

    /// Returns the identity for a session that is made for this slot of a workload.
    pub fn identity(&self, workload: &Target, ordinal: u32) -> Identity {
        Identity {
            cluster: self.cluster.id.as_str().into(),
            namespace: self.namespace.as_str().into(),
            semaphore: self.name.as_str().into(),
            key: self.key.clone(),
            kind: workload.kind.clone(),
            workload: workload.name.clone(),
            uid: workload.uid.clone(),
            ordinal,
        }
    }

    /// Returns what a workload asks for from this semaphore.
    pub fn request<'a>(&self, workload: &'a Workload) -> Option<&'a SlotRequest> {
        workload.asks_for(&self.name, self.key.as_ref())
    }

    /// Returns how many slots must be free beside those that a workload of this priority is granted.
    pub fn withheld(&self, opening: Opening, priority: i32) -> u32 {
        self.limit - self.restrictions.limit(self.limit, opening, priority)
    }

    /// Whether a session with this identity belongs to this semaphore.
    pub fn owns(&self, identity: &Identity) -> bool {
        self.owns_of_any_key(identity) && identity.key == self.key
    }

    /// Whether a session with this identity belongs to the same `ConsulSemaphore`, to any of its keys.
    pub fn owns_of_any_key(&self, identity: &Identity) -> bool {
        *identity.cluster == *self.cluster.id
            && *identity.namespace == *self.namespace
            && *identity.semaphore == *self.name
    }

    /// Whether this workload can be started in slots of this semaphore that it has.
    pub fn may_start(&self, workload: &Workload) -> bool {
        !self.terminating && workload.is_queued() && self.request(workload).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn a_long_ttl_gives_a_workload_that_lost_its_slot_no_more_time() {
        let patience = |ttl| {
            let settings = Settings {
                ttl,
                ..samples::settings(1)
            };
            settings.patience()
        };
        assert_eq!(
            patience(Some(Duration::from_mins(2))),
            Duration::from_secs(15)
        );
        let longest = Duration::from_millis(37_500);
        assert_eq!(patience(Some(Duration::from_hours(24))), longest);
        assert_eq!(patience(None), longest);
    }
}
