//! What everyone needs who holds slots, on Consul's side: the operator for Jobs, `exec` for a process.
//!
//! - `view`: the prefix as it is seen, and what is in the way
//! - `own_writes`: what was written, until the watch shows it
//! - `renewal`: a session that is kept alive
//! - `transact`: a write, what its answer means, and when to look again
//! - `backoff`: when something that failed is tried again

mod backoff;
mod own_writes;
mod renewal;
mod transact;
mod view;

pub use backoff::{Setback, insist};
pub(crate) use own_writes::OwnWrites;
pub use renewal::{KnownLife, Renewal, pauses};
pub use transact::{IDLE, Outcome, SOONEST};
pub use view::{News, View};
