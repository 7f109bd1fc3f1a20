//! What the controllers of other workloads do by themselves, without the operator: the facts that its adapters rely
//! on, one test each. A new version of a controller that breaks one of them breaks the operator.
//!
//! kwok runs the pods: `crates/testbed/src/controller.rs` says what it plays of each.

mod job_set;
mod kueue;
mod mpi_job;
mod pod;
mod ray_job;
mod spark_application;
pub(crate) mod stage;
mod tekton;
mod train_job;
mod workflow;
