//! What everyone needs who holds slots, on Consul's side: the operator for Jobs, `exec` for a process.
//!
//! - `renewal`: a session that is kept alive
//! - `backoff`: when something that failed is tried again

mod backoff;
mod renewal;

pub use backoff::{Setback, insist};
pub use renewal::{KnownLife, Renewal, pauses};
