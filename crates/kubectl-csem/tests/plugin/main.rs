//! `kubectl csem` as its users see it: run by the real kubectl, on a real API server with a real operator, real Jobs
//! and a real Consul. All tests share one bed, each in its own namespace.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod stage;
mod terminal;

mod acting;
mod completing;
mod kinds;
mod picture;
mod reading;
mod releasing;
mod rights;
mod shells;
mod watching;
mod why;
mod without;
