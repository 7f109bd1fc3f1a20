//! The admission policies of `config/policies`, on a real API server with the real controllers, which run here with
//! an admin's rights: what happens to Jobs that users, admins, controllers and the operator create and change.
//!
//! The policies apply to the whole cluster, so this program has its own bed.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod stage;

mod admin;
mod changed;
mod controllers;
mod created;
mod cron_jobs;
mod manifests;
mod operator;
mod parts;
mod refused;
mod reported;
mod whole_way;
