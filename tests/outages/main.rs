//! Consul or Kubernetes is away for long: each outage on its own bed, concurrently, because most of the time is
//! waiting.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod consul_answers;
mod consul_servers;
mod hostile_bytes;
mod job_controller;
mod kubernetes_access;
mod kubernetes_server;
mod restarts;
mod stage;
mod wall_clock;
