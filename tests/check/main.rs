//! `check` against a real Consul and a real Kubernetes: each thing that does not work is reported, with what to do
//! about it, and nothing is left behind.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod stage;

mod consul;
mod kubernetes;
mod semaphore;
