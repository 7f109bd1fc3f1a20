//! Commands in slots, outside of Kubernetes: `exec` and `held` against a real Consul, beside Consul's own
//! tool. What the commands do is judged by the journal that they write.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod stage;

mod ending;
mod environment;
mod held;
mod limit;
mod loss;
mod waiting;
