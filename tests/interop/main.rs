//! One semaphore for everything that speaks Consul: Jobs of this operator, of one in another cluster,
//! and programs of others on one prefix. One file a story; those that can share one bed.
//!
//! `make test-consul-1.8` runs all of them on the oldest Consul.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "a user's clock tells what time it is"
)]

mod contenders;
mod go_client;
mod guide;
mod keyed;
mod limits;
mod mutex;
mod one_task_one_worker;
mod together;
mod two_clusters;
