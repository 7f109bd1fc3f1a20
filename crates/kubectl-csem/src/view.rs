//! What is shown, as text: from objects of the API server to lines. Nothing here does IO or asks a clock.
//!
//! It shows what the operator wrote: the status of a `ConsulSemaphore`, its conditions, its events. How a
//! Job is read and where it stands in line is asked of the operator's own code.
//!
//! | module | subject |
//! |---|---|
//! | [`age`] | lengths of time, as kubectl writes them |
//! | [`text`], [`table`] | words with a tone, lines, columns |
//! | [`frame`] | a text as what a terminal is sent |
//! | [`item`] | a `ConsulSemaphore` as it was read |
//! | [`holder`] | who holds a slot |
//! | [`recorded`] | events |
//! | [`queue`] | who waits, in which order, and why |
//! | [`list`], [`show`] | the texts of the two commands |
//! | [`document`] | the same for programs |
//! | [`changes`] | what has changed, a line each |
//! | [`release`] | what becomes of a holder whose session is ended |

pub(crate) mod age;
pub(crate) mod changes;
pub(crate) mod document;
pub(crate) mod frame;
pub(crate) mod holder;
pub(crate) mod item;
pub(crate) mod list;
pub(crate) mod queue;
pub(crate) mod recorded;
pub(crate) mod release;
#[cfg(test)]
mod samples;
pub(crate) mod show;
pub(crate) mod table;
pub(crate) mod text;
