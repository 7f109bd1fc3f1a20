//! The documentation: its links lead somewhere, its manifests are what the API server takes, and its commands
//! are run.
//!
//! What stands in a block ```` ```sh ```` is run, by the scene of its page: a test that makes what the page takes
//! for granted, and runs the page's commands as a reader types them. What stands in a block ```` ```console ````
//! is what a reader sees, and is not run. A page with commands needs a scene, and a scene has to run all of them.
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
mod exec;
mod faq;
mod gitops;
mod install;
mod links;
mod made;
mod migrate;
mod operations;
mod plugin;
mod reference;
mod scope;
mod security;
mod tasks;
mod upgrade;
mod web;
mod yaml;
