//! Real servers for tests, demo and benchmarks: etcd, Kubernetes, Consul, and the operator as a
//! process of its own.
//!
//! A journey reads like a story:
//! ```ignore
//! let bed = Bed::shared().await;
//! let team = bed.namespace("hand-over").await;
//! let db = team.semaphore("db").limit(1).create().await;
//! team.job("a").semaphore("db").runs("2s").create().await;
//! team.job("b").semaphore("db").create().await;
//! team.job("a").is_running().await;
//! team.job("b").is_waiting().await;
//! assert_eq!(bed.consul().holders(&db.lock_prefix()).await.len(), 1);
//! team.job("b").is_complete().await;
//! ```
//! A step that fails, or that waits for what does not come, panics with the line of the story and
//! with what was seen last. Steps that may fail have a twin called `try_`, which returns a `Result`.
//!
//! # The parts
//! | part | what it is |
//! |---|---|
//! | [`Bed`] | all of it; [`Bed::shared`] is one for all tests of a program |
//! | [`Namespace`], [`Job`], [`Semaphore`] | the things of a story |
//! | [`Operator`] | started, stopped, killed, started again |
//! | [`Consul`] | Consul as an observer or a troublemaker sees it; [`Consul::start`] for one alone |
//! | [`ConsulCluster`] | Consul servers that can be lost and come back |
//! | [`Proxy`] | what is between somebody and Consul or Kubernetes: refuses, delays, holds, loses, counts |
//! | [`Kubernetes`], [`ApiServer`] | alone, for tests that need no more |
//! | [`Container`] | the operator as the pod of a Deployment says that it runs |
//! | [`AuthMethod`] | how a Consul comes to trust the tokens of a Kubernetes |
//! | [`Link`] | a way to a server that can be cut |
//! | [`Taker`] | a program of others that takes slots or locks: Consul's Go client, `consul lock` |
//! | [`Kueue`] | a queue for Jobs that benchmarks hold the operator against |
//! | [`LimitWatch`] | an observer that shares no code with the operator |
//! | [`proof`] | a grant as Kubernetes and Consul show it, and that nothing of it is left |
//! | [`helpers`], [`web`] | steps that several suites share; of those about the web page |
//! | [`eventually`] | waits for a condition; [`Namespace::policies_are`] and [`Namespace::lets`] for what the API server takes up late |
//!
//! # What holds for all of them
//! - Ports are free ones of loopback, files are in a new folder; nothing is shared with anything else.
//! - Every server ends with this process, whatever ends it ([`Process`]); then the folder goes, unless
//!   `KEEP_BED` is set or a test has failed ([`Folder`]).
//! - A pod's life is played by kwok: how long it runs, whether it fails and how long it takes to end
//!   is said by annotations on the pod (`stages.yaml`).
//! - This crate must not depend on the operator's: an observer shares no code with what it observes.
//!
//! # Environment
//! | variable | meaning |
//! |---|---|
//! | `SERVERS_DIR` | where `make servers` has put the servers (default `.servers`) |
//! | `TESTBED_CONSUL` | the Consul that is started, and whose `consul lock` is run (default: that of `SERVERS_DIR`) |
//! | `OPERATOR_BIN` | the operator's program (default: the one that cargo has built) |
//! | `CLI_BIN` | the program `consul-semaphore` (default: the one that cargo has built) |
//! | `KEEP_BED` | set: the folder with the logs is kept |
//! | `BED_EXISTING` | 1: uses the Kubernetes of `KUBECONFIG` and the Consul of `CONSUL_HTTP_ADDR` (with the other `CONSUL_*` variables), and starts only the operator |
//! | `BED_MANIFESTS` | where `crds/` and `config/rbac/` are (default: the workspace) |
mod access;
mod api_server;
mod bed;
mod bed_builder;
mod consul;
mod consul_cluster;
mod consul_server;
mod container;
mod env;
mod folder;
pub mod helpers;
mod job;
mod json;
mod kubeconfig;
mod kubernetes;
mod kueue;
mod limit_watch;
mod link;
mod login;
mod manifests;
mod namespace;
mod operator;
mod pods;
mod policies;
mod ports;
mod process;
mod programs;
pub mod proof;
mod proxy;
mod semaphore;
mod story;
mod taker;
mod tls;
mod tools;
mod volumes;
mod wait;
pub mod web;

pub use api_server::ApiServer;
pub use bed::Bed;
pub use bed_builder::BedBuilder;
pub use consul::{Consul, Entry, Lock, SEMAPHORE_FLAGS};
pub use consul_cluster::ConsulCluster;
pub use consul_server::{ConsulBuilder, ConsulServer};
pub use container::Container;
pub use folder::Folder;
pub use job::Job;
pub use kubernetes::Kubernetes;
pub use kueue::{Kueue, Queue};
pub use limit_watch::{LimitWatch, Seen};
pub use link::Link;
pub use login::AuthMethod;
pub use namespace::Namespace;
pub use operator::Operator;
pub use policies::Policy;
pub use ports::lasting_port;
pub use process::{Process, Recipe};
pub use programs::{cli_program, consul_minor, faketime, operator_program, servers};
pub use proxy::{Call, Fault, Proxy};
pub use semaphore::Semaphore;
pub use taker::{Taker, TakerBuilder};
pub use tools::{helm_alone, kubectl_alone};
pub use wait::{Look, PATIENCE, eventually, eventually_within, same};
