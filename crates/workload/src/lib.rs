//! The kinds of workloads. No other crate knows how a kind is read and written to.
//!
//! The crate has only types and pure functions: no client, no IO, no clock. The caller reads the API server and sends
//! what [`Kind::request`] returns.
//!
//! | module | subject |
//! |---|---|
//! | [`TrackedWorkload`] | the stored part of a workload that asks for a slot, or was started in one |
//! | [`Kind`] | the kinds, each in a file of its own: how it is read and written to (start, suspend, give back, rename, skip) |
//! | [`row`], [`Table`] | a kind as data; the rows of users |
//! | [`kueue`] | Kueue's Workloads, which have an owner, and its admission checks |
//! | [`owner`] | which owners decide when a workload runs |
//! | `read` | what is read in the same way from all kinds: who made a workload, what manages it, its grant |
//! | [`Obstacle`] | why a workload that names a semaphore is not in its queue |
//! | [`Request`] | what is written to a workload |
//! | [`pods`] | which pods belong to a workload, and when they have ended |
//! | [`NotStarted`] | why a workload that was started has no pod that runs |
//! | [`advice`](advice()) | what is wrong with annotations that have no effect |
//! | `yaml` | YAML that users write |

mod advice;
mod kind;
mod not_started;
mod object;
mod obstacle;
pub mod owner;
pub mod pods;
mod read;
mod request;
mod shape;
mod slots;
mod table;
mod tracked;
mod yaml;

pub use advice::{advice, advice_on};
pub use kind::{Kind, Kinds, Needed, UnknownKind, WAITING, job::Job, kueue, row};
pub use not_started::NotStarted;
pub use object::Object;
pub use obstacle::Obstacle;
pub use request::{EndBelow, Request};
pub use shape::{Shape, Template};
pub use table::Table;
pub use tracked::TrackedWorkload;

/// The name of the kind Job in events.
pub const KIND: &str = <k8s_openapi::api::batch::v1::Job as k8s_openapi::Resource>::KIND;
