//! The admission policies of `config/policies`, on a real API server and beside the real controllers, which
//! run here with an admin's rights: what becomes of Jobs that users, admins, controllers and the operator
//! make and change.
//!
//! They hold for the whole cluster, so this program has a bed of its own.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod stage;

mod admin;
mod changed;
mod controllers;
mod created;
mod manifests;
mod refused;
mod reported;
mod whole_way;
