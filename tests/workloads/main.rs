//! Other workloads than Jobs, each with its real controller, and with the webhooks of that in force.
//!
//! The controllers are built on demand: `make test-workloads`.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod beds;
mod controllers;
