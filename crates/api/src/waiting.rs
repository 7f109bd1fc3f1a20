//! Names the reasons why a workload in a queue has no slot yet: the `reason` of a
//! [`QueueStatus`](crate::QueueStatus). The operator determines the reason, and all others show what it wrote.

use std::fmt;

use super::conditions;

/// The reason why a workload in a queue has no slot yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitReason {
    /// The semaphore grants nothing, or has no free slot for this workload. The word is the reason of the condition
    /// that says so, such as `Paused` or `AllSlotsHeld`.
    Condition(conditions::Reason),
    /// Slots are free, but fewer than this workload asks for.
    TooFewSlotsFree,
    /// A slot is free for this workload, which is about to start.
    Next,
    /// A slot is free and is left to another cluster or program that has waited longer.
    LeftToOthers,
    /// Other workloads are before this one in the queue.
    Behind,
    /// This workload asks for slots of several semaphores, and slots of the others are missing. Meanwhile, free slots
    /// of this semaphore go to workloads behind it.
    PassedOver,
    /// This workload asks for several slots at once and was passed over for long enough, so free slots are kept for
    /// it.
    SlotsKept,
    /// This workload asks for slots of several semaphores, and one of the others grants nothing. Meanwhile, free
    /// slots of this semaphore go to workloads behind it.
    OthersStopped,
    /// The API server refuses to start this workload. The workload's events say why.
    StartRefused,
}

impl WaitReason {
    /// All reasons that are no reason of a condition.
    pub const ALL_OF_THE_QUEUE: [Self; 8] = [
        Self::TooFewSlotsFree,
        Self::Next,
        Self::LeftToOthers,
        Self::Behind,
        Self::PassedOver,
        Self::SlotsKept,
        Self::OthersStopped,
        Self::StartRefused,
    ];

    /// The word in `reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Condition(reason) => reason.as_str(),
            Self::TooFewSlotsFree => "TooFewSlotsFree",
            Self::Next => "Next",
            Self::LeftToOthers => "LeftToOthers",
            Self::Behind => "Behind",
            Self::PassedOver => "PassedOver",
            Self::SlotsKept => "SlotsKept",
            Self::OthersStopped => "OthersStopped",
            Self::StartRefused => "StartRefused",
        }
    }

    /// Whether the workload waits because of something else than its place in this queue and the slots there.
    pub const fn is_elsewhere(self) -> bool {
        matches!(
            self,
            Self::PassedOver | Self::SlotsKept | Self::OthersStopped
        )
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
