//! One semaphore for all users of Consul: Jobs of this operator, of one in another cluster, and foreign programs on
//! one prefix. One file per story; they share one bed where they can.
//!
//! `make test-consul CONSUL=1.8` runs all of them on the oldest Consul.
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
mod copied_cluster;
mod go_client;
mod guide;
mod keyed;
mod limits;
mod mutex;
mod one_task_one_worker;
mod together;
mod two_clusters;
