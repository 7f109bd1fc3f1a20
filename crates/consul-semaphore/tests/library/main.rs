//! Semaphores as a program uses them, against a real Consul, beside Consul's own tool and `consul-semaphore exec`.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod stage;

mod asking;
mod beside;
mod ending;
mod examples;
mod kinds;
mod loss;
mod names;
mod refusals;
mod running;
mod usage;
