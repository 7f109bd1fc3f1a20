//! Holds what every slot holder needs on Consul's side: the operator for workloads, the [holder](crate::holder) for a
//! program.
//!
//! - `renewal`: a session that is kept alive
//! - `setback`: when to retry something that failed
//! - `present`: the current time, for the engine

mod present;
mod renewal;
mod setback;

pub use present::now;
pub use renewal::{KnownLife, OnChange, Renewal, backoff};
pub use setback::{Setback, retry_until_ok};
