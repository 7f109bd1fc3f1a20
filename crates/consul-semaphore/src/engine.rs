//! The engine: a queue's slots are granted, held and released here, without IO and without a clock.
//!
//! What happens comes in as an [`Event`]; what is to be done comes out as an [`Action`], and each call that an
//! action asks for comes back as an event with its id. The caller has the connections, the watches and the
//! clock, carries out what it is asked for side by side, and decides nothing:
//!
//! ```text
//! loop {
//!     wait for an event, or until queue.next_timeout()
//!     queue.handle(event, now, &lookup)      // takes note of it
//!     queue.pass(now, &lookup)               // decides what follows from all that is known
//!     while let Some(action) = queue.next_action() { carry it out }
//! }
//! ```
//!
//! The shape is that of quinn-proto and of other protocols that are written without IO
//! (<https://sans-io.readthedocs.io>): the same code runs in the operator and under the model checker, which
//! drops, doubles, delays and reorders what goes in.
//!
//! - `message`: events, actions, calls and their answers, outcomes
//! - `queue`: the state of one lock key, and a pass over it
//! - `knowledge`: what is known of the prefix, and what is in the way of knowing more
//! - `own_writes`: what was written, until a listing shows it
//! - `sessions`: the sessions that hold slots, and those made ahead
//! - `proofs`: that no pod of a workload is left
//! - `refusals`: what the API server refused, and what follows from that
//! - `holders`: who the holders of other programs are, for people

mod holders;
mod knowledge;
mod message;
mod own_writes;
mod proofs;
mod queue;
mod refusals;
mod sessions;

#[cfg(test)]
pub(crate) use self::knowledge::Memory;

pub use self::{
    knowledge::Trouble,
    message::{Action, Answer, Call, CallId, Event, Moved, News, Now, Outcome, Write, Written},
    queue::{Conclusion, IDLE, Lookup, Queue, Slice, head},
    sessions::Owner,
};
