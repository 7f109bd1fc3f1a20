//! Three replicas of the operator, of which one leads: it is asked to end, killed, put to sleep, cut off, and its
//! lead is taken away. Every story has its own bed.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod load;
mod replicas;

mod access;
mod api_server_away;
mod by_lease;
mod by_lock;
mod hand_over;
