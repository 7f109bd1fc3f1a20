//! What everyone needs who holds slots, on Consul's side: the operator for Jobs, the [holder](crate::holder) for a
//! program.
//!
//! - `renewal`: a session that is kept alive
//! - `backoff`: when something that failed is tried again
//! - `present`: what time it is, for the engine

mod backoff;
mod present;
mod renewal;

pub use backoff::{Setback, insist};
pub use present::now;
pub use renewal::{KnownLife, OnChange, Renewal, pauses};
