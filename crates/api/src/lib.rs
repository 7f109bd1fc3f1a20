//! Defines what users write and read: the `ConsulSemaphore` resource, the annotations on Jobs, the conditions.
//!
//! The crate has types and pure functions only. Nothing here knows how a semaphore works, reads a clock or does IO:
//! text from outside is parsed here, once, into types that can't hold invalid values.
//!
//! | module | subject |
//! |---|---|
//! | [`advice`] | what is wrong with annotations that have no effect |
//! | [`annotations`] | what users ask for on a Job, and the names that a grant writes |
//! | [`conditions`] | the types and reasons of `status.conditions`, and how new ones replace old ones |
//! | [`ConsulSemaphore`] | the custom resource: spec, status, validation rules |
//! | [`crd`] | the custom resource definition as YAML |
//! | [`Ttl`], [`Seconds`] | values of the spec with their own rules |
//! | [`scope`] | which part of a cluster an operator works for; [`SemaphoreSelector`] is its selector |
//! | [`tenancy`] | which prefixes a namespace may use |
//! | [`waiting`] | the reasons why a queued Job has no slot yet |
//! | [`to_yaml`] | YAML for people |

pub mod advice;
pub mod annotations;
pub mod conditions;
pub mod crd;
mod schema;
pub mod scope;
mod selector;
mod spec;
mod status;
pub mod tenancy;
mod ttl;
pub mod waiting;
mod yaml;

pub use consul_semaphore::{InvalidSeconds, Seconds};
pub use crd::crd_yaml;
pub use selector::{InvalidSelector, SemaphoreSelector};
pub use spec::{
    ConsulSemaphore, ConsulSemaphoreSpec, ConsulSpec, Cooldown, LockDelay, ReservedSlots,
    SemaphoreMode, SessionSpec, TokenSecretRef, Window, WindowLength,
};
pub use status::{
    BlockedStatus, ConsulSemaphoreStatus, HolderStatus, LISTED, NotStartedStatus, QueueStatus,
    WaiterStatus,
};
pub use ttl::{InvalidTtl, Ttl};
pub use yaml::to_yaml;

/// The API group of the resource; the domain of the annotations, labels and finalizers.
pub const GROUP: &str = "consul-semaphore.io";
