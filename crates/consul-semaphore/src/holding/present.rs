//! The present, for the engine.

use crate::engine::Now;
use consul_client::clock::{self, Moment};

/// The present by both clocks, and a random number.
pub fn now() -> Now {
    Now {
        moment: Moment::now(),
        time: clock::time(),
        jitter: fastrand::f64(),
    }
}
