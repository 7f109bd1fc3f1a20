//! Real servers for tests, the demo and benchmarks: etcd, Kubernetes, Consul, and the operator as a
//! process.
//!
//! A test reads like a story:
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
//! A step that fails or times out panics with the line of the test and with what was seen last. Steps that may fail
//! have a counterpart called `try_`, which returns a `Result`.
//!
//! # The parts
//! | part | what it is |
//! |---|---|
//! | [`Bed`] | Kubernetes, Consul and the operator together; all tests of a program share [`Bed::shared`] |
//! | [`Namespace`], [`Job`], [`Semaphore`] | what a test creates and waits for |
//! | [`Object`] | the same for an object of any other kind, as JSON |
//! | [`Operator`] | the operator as a process: start it, stop it, kill it, start it again |
//! | [`Consul`] | an HTTP client that reads and changes Consul; [`Consul::start`] starts a single server |
//! | [`ConsulCluster`] | several Consul servers that can be lost and come back |
//! | [`Kubernetes`], [`ApiServer`], [`Etcd`] | each on its own, for tests that need no more |
//! | [`Proxy`] | a proxy in front of Consul or Kubernetes: it refuses, delays, holds, loses and counts calls |
//! | [`Link`] | a TCP connection to a server that can be cut |
//! | [`Certificates`], [`ServerCertificate`] | a certificate authority with certificates, and what a [`Proxy`] shows of them |
//! | [`WallClock`] | a program's own wall clock, which can jump |
//! | [`Container`] | the operator as the pod of a Deployment describes it |
//! | [`AuthMethod`] | an auth method of Consul that trusts the tokens of a Kubernetes |
//! | [`SlotClient`] | another program that takes slots or locks: Consul's Go client, `consul lock` |
//! | [`Controller`] | the controllers of other workloads than Jobs, with their webhooks |
//! | [`Kueue`] | a queue for Jobs that benchmarks compare the operator with |
//! | [`LimitWatch`] | watches whether a limit is kept, without any code of the operator |
//! | [`proof`] | a grant as Kubernetes and Consul show it, and proof that nothing of it is left |
//! | [`command_line`] | a program as its user sees it: arguments, environment, exit codes |
//! | [`helpers`], [`web`] | steps that several suites share; the same for the web page |
//! | [`http_client`] | the HTTP client that all tests use |
//! | [`Process`], [`Folder`] | the process and the folder of each server |
//! | [`eventually`] | waits for a condition; [`Namespace::policies_are`] and [`Namespace::lets`] wait for what the API server applies late |
//!
//! # Common rules
//! - Ports are free ports on loopback, and files are in a new folder. Nothing is shared with anything else.
//! - Every server ends with this process, however that ends ([`Process`]). Then the folder is removed, unless
//!   `KEEP_BED` is set or a test has failed ([`Folder`]).
//! - kwok simulates the life of a pod: annotations on the pod say how long it runs, whether it fails and how
//!   long it takes to end (`stages.yaml`). What it plays of a controller's own pods is said in `controller.rs`.
//! - This crate must not depend on the operator's crates: an observer shares no code with what it observes.
//!
//! # Environment
//! | variable | meaning |
//! |---|---|
//! | `SERVERS_DIR` | where `make servers` has put the servers (default `.servers`) |
//! | `KUBERNETES`, `CONSUL` | another version than the bed's own, such as 1.34 and 1.20, that `make servers` has built with the same variables; of Consul also for `consul lock` |
//! | `OPERATOR_BIN` | the operator's program (default: the one that cargo has built) |
//! | `CLI_BIN` | the program `consul-semaphore` (default: the one that cargo has built) |
//! | `KEEP_BED` | if set, the folder with the logs is kept |
//! | `BED_EXISTING` | `1` uses the Kubernetes of `KUBECONFIG` and the Consul of `CONSUL_HTTP_ADDR` (with the other `CONSUL_*` variables), and kubectl on `PATH`, and starts only the operator |
//! | `BED_MANIFESTS` | where `crds/` and `config/rbac/` are (default: the workspace) |
mod access;
mod api_server;
mod bed;
mod bed_builder;
mod certificates;
pub mod command_line;
mod consul;
mod consul_cluster;
mod consul_server;
mod container;
mod controller;
mod env;
mod etcd;
mod existing;
mod folder;
pub mod helpers;
mod http;
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
mod object;
mod operator;
mod pods;
mod policies;
mod ports;
mod process;
mod programs;
pub mod proof;
mod proxy;
mod read_again;
mod semaphore;
mod slot_client;
mod story;
mod tls;
mod tools;
mod volumes;
mod wait;
mod wall_clock;
pub mod web;

pub use api_server::ApiServer;
pub use bed::Bed;
pub use bed_builder::BedBuilder;
pub use certificates::Certificates;
pub use consul::{Consul, Entry, Lock, SEMAPHORE_FLAGS};
pub use consul_cluster::ConsulCluster;
pub use consul_server::{ConsulBuilder, ConsulServer};
pub use container::Container;
pub use controller::{Controller, Running};
pub use etcd::Etcd;
pub use existing::Existing;
pub use folder::Folder;
pub use http::http_client;
pub use job::{Job, SEMAPHORE_LABEL, WORKLOAD_LABEL};
pub use kubernetes::Kubernetes;
pub use kueue::{Kueue, Queue};
pub use limit_watch::{LimitWatch, Seen};
pub use link::Link;
pub use login::AuthMethod;
pub use namespace::Namespace;
pub use object::{Object, Refusal};
pub use operator::Operator;
pub use policies::Policy;
pub use ports::lasting_port;
pub use process::{Process, Recipe};
pub use programs::{cli_program, consul_minor, operator_program, server, server_folders};
pub use proxy::{Call, Fault, Next, Proxy, ProxyBuilder};
pub use semaphore::Semaphore;
pub use slot_client::{SlotClient, SlotClientBuilder};
pub use tls::ServerCertificate;
pub use tools::{helm_alone, kubectl_alone};
pub use wait::{Look, PATIENCE, eventually, eventually_within, same, until};
pub use wall_clock::WallClock;
