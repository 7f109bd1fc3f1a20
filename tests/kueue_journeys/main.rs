//! Journeys of Jobs and `JobSets` that Kueue admits once the operator has answered its admission check, with Kueue itself
//! and its webhooks.
//!
//! Kueue is built on demand: `make test-workloads`.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod checks;
mod children;
mod ends;
mod late;
mod lost;
mod operator;
mod order;
mod restart;
mod stage;
