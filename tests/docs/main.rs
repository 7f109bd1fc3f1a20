//! The documentation: its links lead to existing places, the API server accepts its manifests, and its commands are
//! run.
//!
//! A block ```` ```sh ```` is run by the scene of its page: a test that sets up what the page assumes, and runs the
//! page's commands as a reader types them. A block ```` ```console ```` shows what a reader sees, and is not run. A
//! page with commands needs a scene, and a scene has to run all of them.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod page;
mod shell;

mod admission;
mod check;
mod consul_acl;
mod consul_k8s;
mod exec;
mod generated;
mod gitops;
mod install;
mod kinds;
mod links;
mod made;
mod migrate;
mod operations;
mod pipelines;
mod plugin;
mod scope;
mod security;
mod site;
mod slots;
mod tasks;
mod troubleshooting;
mod upgrade;
mod web;
mod why_waiting;
mod yaml;
