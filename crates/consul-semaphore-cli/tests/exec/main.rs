//! Commands in slots, outside Kubernetes: this program against a real Consul, next to Consul's own tool. The
//! tests judge the commands by the journal that they write.
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
mod inspect;
mod lease;
mod limit;
mod loss;
mod many;
mod memory;
mod names;
mod nested;
mod prepared;
mod rates;
mod service_manager;
mod several;
mod waiting;
mod windows;
