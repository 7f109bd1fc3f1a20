//! The present, as the engine gets it.

use crate::engine::Now;
use consul_client::clock::{self, Moment};

/// Both clocks as they are, and a random number.
pub fn now() -> Now {
    Now {
        moment: Moment::now(),
        time: clock::time(),
        jitter: fastrand::f64(),
    }
}
