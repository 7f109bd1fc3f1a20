//! Defines what a user may choose for a semaphore.

use serde::{Deserialize, Serialize};

/// The longest cooldown, in seconds.
pub const LONGEST_COOLDOWN: u64 = 86_400;

/// The longest time that a workload may set for its wait, in seconds.
pub const LONGEST_WAIT: u64 = 2_592_000;

/// The time that a workload may wait, as users write it.
pub type WaitTimeout = crate::Seconds<1, LONGEST_WAIT>;

/// The longest period of a rate, in seconds: Consul's sessions live for 24 hours at most, and those of a rate for more
/// than two periods.
pub const LONGEST_PERIOD: u64 = 43_200;

/// The time in which at most as many workloads start as the limit says, as users write it.
pub type Period = crate::Seconds<1, LONGEST_PERIOD>;

/// The time for which a holder is left alone before another workload may replace it, as users write it.
pub type ReplaceAfter = crate::Seconds<0, LONGEST_WAIT>;

/// The way in which a semaphore is stored in Consul.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The semaphore is a body with a limit and the holders' sessions.
    #[default]
    Semaphore,
    /// The semaphore is a key that the holder's session has locked.
    Mutex,
}

/// What to do when Consul holds another limit that is not ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum LimitPolicy {
    /// Grant nothing until both agree.
    #[default]
    Refuse,
    /// Write the limit of the spec.
    Enforce,
    /// Take Consul's limit, once Consul has had ours: somebody has changed the limit for all who use the prefix. This is
    /// how programs do it; a `ConsulSemaphore` can't ask for it.
    #[serde(skip)]
    Follow,
}

/// What to do when a running workload loses its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OnSlotLost {
    /// Have a slot again at once, before any waiting workload, else suspend the workload, first in the queue.
    #[default]
    Reacquire,
    /// Suspend the workload, first in the queue.
    Suspend,
    /// As `Reacquire`, but the workload runs on if there is no slot.
    Continue,
}

/// The fate of a workload that can't have its slots at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnContention {
    /// The workload waits.
    #[default]
    Wait,
    /// The workload is deleted, because a workload that holds a slot does its work.
    Skip,
    /// The workload fails.
    Fail,
    /// The workload waits. Older workloads that wait for the same slots fail if they have a policy of replacing.
    ReplaceWaiting,
    /// The workload waits. Older workloads that wait for the same slots fail, and workloads that run in these slots are
    /// ended, if they have a policy of replacing.
    ReplaceRunning,
}

impl OnContention {
    /// Whether the workload does not wait for slots that others hold.
    pub fn is_hasty(self) -> bool {
        matches!(self, Self::Skip | Self::Fail)
    }

    /// Whether the newest workload takes the place of the others that ask for the same.
    pub fn replaces(self) -> bool {
        matches!(self, Self::ReplaceWaiting | Self::ReplaceRunning)
    }
}
