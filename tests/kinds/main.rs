//! Journeys of workloads that are no Jobs, on a real API server and a real Consul. The tests play their controllers.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers of a test fail the test"
)]

mod job_set;
