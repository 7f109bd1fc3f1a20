//! The client of Consul's HTTP API, against a real Consul and, for what a real one can't be made to show, against
//! recorded answers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers of a test fail the test"
)]

mod access;
mod credentials;
mod datacenters;
mod faults;
mod keys;
mod lanes;
mod login;
mod login_faults;
mod replay;
mod server;
mod sessions;
mod transactions;
mod transport;
mod watch_faults;
mod watches;
