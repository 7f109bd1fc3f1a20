//! Kubernetes Jobs wait for, hold and give back the slots of a Consul semaphore.
//!
//! # The map
//!
//! | module | what it is for | what it must not know |
//! |---|---|---|
//! | [`admission`] | whether the admission policies are in force, and what to do if not | what the operator does |
//! | [`controller`] | Kubernetes: streams in; observe, decide, apply, report; sessions | |
//! | [`check`] | what works and what does not, line by line: it reads, and leaves nothing behind | |
//! | [`manifests`] | the rights and the admission policies of a kind of workload, as YAML | all other modules but the check's table of rights |
//! | [`leader`] | which of several replicas leads: a Lease or a lock in Consul | what the work is |
//! | `identity` | whether the cluster's identity in Consul belongs to this API server alone | slots, the controller |
//! | [`telemetry`] | metrics, traces, health | all other modules |
//! | [`endpoints`] | the HTTP endpoints: probes, and metrics for those who may read them | the controller, the page |
//! | `workload` | the workloads of the cluster: watched, read, written to | the controller, slots |
//! | [`web`] | a page that shows the semaphores, and who may see it | the controller, Consul, the algorithm |
//! | `call`, `watch_scope` | calls to the API server, bounded in time; which namespaces a watch sees | |
//! | `connections` | HTTP connections, with or without TLS, bounded in number and time | what they are for |
//! | `auth` | whose a token is, and what that user may do | what they are for |
//! | `schema` | whether the schemas of a cluster have the fields by which workloads are held | what the operator does |
//! | `streamed` | watches with streamed lists, so that not all objects are in memory at once | what is watched |
//! | [`crash`] | named points at which tests kill or freeze the operator | |
//!
//! Below this library are five crates: [`consul_client`], which knows no semaphores, [`consul_semaphore`], the
//! algorithm, which knows no Kubernetes, [`consul_semaphore_api`], the API types for users, and
//! [`consul_semaphore_workload`], which alone knows what a `batch/v1` Job is. `command_line` is shared with the
//! program `consul-semaphore`.
//!
//! The program itself is beside this library: `main.rs` reads the command line (`cli.rs`), sets the process up
//! (`run.rs`, `report.rs`) and listens for signals (`shutdown.rs`).
//!
//! Dependencies point one way: [`check`] uses the [`controller`], and only [`manifests`] uses [`check`];
//! [`controller`] uses all others except [`web`]. Text from outside is parsed once, at the edge, into types that
//! can't hold invalid values. `tests/modules.rs` checks what a module must not know; `docs/ARCHITECTURE.md` follows
//! one Job through the code.

pub mod admission;
mod auth;
mod call;
pub mod check;
mod connections;
pub mod controller;
pub mod crash;
pub mod endpoints;
mod identity;
pub mod leader;
pub mod manifests;
#[cfg(test)]
mod samples;
mod schema;
mod streamed;
pub mod telemetry;
mod watch_scope;
pub mod web;
mod workload;
