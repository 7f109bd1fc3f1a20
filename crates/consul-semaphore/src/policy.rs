//! What a user may choose of a semaphore.

use serde::{Deserialize, Serialize};

/// The longest cooldown, in seconds.
pub const LONGEST_COOLDOWN: u64 = 86_400;

/// How a semaphore is stored in Consul.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Mode {
    /// A body with a limit and the holders' sessions.
    #[default]
    Semaphore,
    /// A key that the holder's session has locked.
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

/// What happens to a workload if all slots are taken when it comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnContention {
    /// It waits.
    #[default]
    Wait,
    /// It is deleted: a workload that holds a slot does its work.
    Skip,
}
