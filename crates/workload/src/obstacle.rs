//! Why a workload that names a semaphore is not in its queue.

use consul_semaphore_api::annotations::{AnnotationError, KEY};

/// Why a workload that names a semaphore is not in its queue. Its text says why, and what to correct.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// Its annotations can't be read: it stays suspended until they are corrected.
    #[error(transparent)]
    Malformed(#[from] AnnotationError),
    /// Something else starts and stops it: it is left alone.
    #[error("{0}")]
    Managed(String),
    /// Its semaphore is keyed, and it does not name its key.
    #[error("the semaphore is keyed, and the Job has no annotation {KEY}")]
    NoKey,
}

impl Obstacle {
    /// The reason of the operator's events about it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) | Self::NoKey => "Malformed",
            Self::Managed(_) => "ManagedElsewhere",
        }
    }
}
