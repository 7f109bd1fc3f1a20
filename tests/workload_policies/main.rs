//! The admission policies of `config/workloads`, on a real API server with the kinds' own definitions: what happens to
//! workloads that users, their controllers and the operator create and change. No controller runs, but for
//! `whole_way.rs`.
//!
//! The definitions come with the controllers, which are built on demand: `make test-workloads`.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod stage;

mod changed;
mod created;
mod operator;
mod owners;
mod whole_way;
