//! What everyone needs who holds slots, on Consul's side: the operator for Jobs, `exec` for a process.
//!
//! - `view`: the prefix as it is seen, and what is in the way
//! - `renewal`: a session that is kept alive
//! - `backoff`: when something that failed is tried again

mod backoff;
mod renewal;
mod view;

pub(crate) use backoff::Setback;
pub(crate) use renewal::{Renewal, pauses};
pub(crate) use view::{News, View};
