//! The client of Consul's HTTP API, against a real Consul and, for what a real one can't be made to
//! show, against answers that were seen from one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers of a test fail the test"
)]

#[path = "consul_client/access.rs"]
mod access;
#[path = "consul_client/credentials.rs"]
mod credentials;
#[path = "consul_client/datacenters.rs"]
mod datacenters;
#[path = "consul_client/faults.rs"]
mod faults;
#[path = "consul_client/keys.rs"]
mod keys;
#[path = "consul_client/lanes.rs"]
mod lanes;
#[path = "consul_client/login.rs"]
mod login;
#[path = "consul_client/login_faults.rs"]
mod login_faults;
#[path = "consul_client/replay.rs"]
mod replay;
#[path = "consul_client/server.rs"]
mod server;
#[path = "consul_client/sessions.rs"]
mod sessions;
#[path = "consul_client/transactions.rs"]
mod transactions;
#[path = "consul_client/transport.rs"]
mod transport;
#[path = "consul_client/watch_faults.rs"]
mod watch_faults;
#[path = "consul_client/watches.rs"]
mod watches;
