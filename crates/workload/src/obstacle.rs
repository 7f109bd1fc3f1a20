//! The reasons why a workload that names a semaphore is not in its queue.

use std::sync::Arc;

use consul_semaphore::KindName;
use consul_semaphore_api::annotations::{AnnotationError, KEY};

/// A reason why a workload that names a semaphore is not in its queue. The text gives the reason and says what to
/// correct.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The workload's annotations can't be read. The workload stays suspended until they are corrected.
    #[error(transparent)]
    Malformed(#[from] AnnotationError),
    /// Something else starts and stops the workload, so the operator leaves it alone.
    #[error("{0}")]
    Managed(String),
    /// This owner made the workload and decides when it runs, so the operator leaves it alone.
    #[error("{0} created it, and decides when it runs")]
    Owned(String),
    /// The workload runs without a slot, and its kind can't be held once it runs, so the operator leaves it alone.
    #[error(
        "it runs without a slot, and a {0} can't be held once it has started. Create it held and with its \
         annotations, as the admission policies do"
    )]
    Started(KindName),
    /// The controller of the workload's kind can't hold the workload as it is.
    #[error("{0}")]
    Unfit(String),
    /// The workload can't be started by one patch.
    #[error("{0}")]
    TooLarge(String),
    /// This semaphore is keyed, and the workload does not name the key.
    #[error(
        "ConsulSemaphore {0} is keyed: name the key to wait for in the annotation {KEY}, or after the name, as in {0}/customer-42"
    )]
    NoKey(Arc<str>),
    /// This semaphore is not keyed, and the workload names a key after it.
    #[error("ConsulSemaphore {0} is not keyed: remove the key after its name")]
    NotKeyed(Arc<str>),
    /// Two of the semaphores have the same lock key.
    #[error("{0} and {1} are the same semaphore in Consul: ask for its slots once, as in {0}:2")]
    SameLockKey(String, String),
    /// Different operators manage two of the semaphores.
    #[error(
        "ConsulSemaphores {0} and {1} are managed by different operators: ask for slots of semaphores of one operator"
    )]
    TwoOperators(Arc<str>, Arc<str>),
    /// Two of the semaphores can't be in one transaction of Consul.
    #[error(
        "ConsulSemaphores {0} and {1} differ in spec.consul (datacenter, namespace, partition or token), and slots of both \
         can't be granted at once: ask for slots of semaphores with the same spec.consul"
    )]
    Apart(Arc<str>, Arc<str>),
    /// The workload asks for more slots of a semaphore than the semaphore ever has.
    #[error(
        "it asks for {slots} slots of {semaphore}, but can have at most {most}: ask for fewer slots, or raise the limit"
    )]
    Unsatisfiable {
        /// The semaphore, with the key if it has one.
        semaphore: String,
        /// Number of slots that the workload asks for.
        slots: u32,
        /// Number of slots that it could have at most.
        most: u32,
    },
}

impl Obstacle {
    /// Whether the workload is well-formed but its semaphores can't give it what it asks for.
    pub fn is_unsatisfiable(&self) -> bool {
        matches!(
            self,
            Self::TwoOperators(..) | Self::Apart(..) | Self::Unsatisfiable { .. }
        )
    }

    /// Returns the reason of the operator's events about the obstacle.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_)
            | Self::NoKey(_)
            | Self::NotKeyed(_)
            | Self::SameLockKey(..)
            | Self::Unfit(_) => "Malformed",
            Self::Managed(_) | Self::Owned(_) => "ManagedElsewhere",
            Self::Started(_) => "RanWithoutSlot",
            Self::TwoOperators(..)
            | Self::Apart(..)
            | Self::Unsatisfiable { .. }
            | Self::TooLarge(_) => "Unsatisfiable",
        }
    }
}
