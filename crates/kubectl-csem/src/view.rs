//! The output as text, made from objects of the API server. Nothing here does IO or reads a clock.
//!
//! The output shows what the operator wrote: the status of a `ConsulSemaphore`, its conditions, its events. The
//! operator's own code parses Jobs and orders the queue.
//!
//! | module | subject |
//! |---|---|
//! | [`age`], [`text`], [`table`] | durations, words with a tone, columns, as all programs here show them |
//! | [`frame`] | a text as the bytes for a terminal |
//! | [`item`] | a parsed `ConsulSemaphore` |
//! | [`elsewhere`] | the contenders that wait in other clusters and programs |
//! | [`recorded`] | events |
//! | [`queue`] | the waiting Jobs, in their order, with reasons |
//! | [`list`], [`show`], [`why`] | the texts of these commands |
//! | [`parts`] | the parts that `show` and `why` share |
//! | [`remedy`] | what to do about a Job that waits |
//! | [`missing`], [`operator`] | Jobs that name a semaphore that does not exist; an operator that no longer reports |
//! | [`document`] | the output for programs |
//! | [`changes`] | the changes, one on each line |
//! | [`release`] | what happens to a holder whose session is ended |

pub(crate) mod changes;
pub(crate) mod document;
pub(crate) mod elsewhere;
pub(crate) mod frame;
pub(crate) mod item;
pub(crate) mod list;
pub(crate) mod missing;
pub(crate) mod operator;
mod parts;
pub(crate) mod queue;
pub(crate) mod recorded;
pub(crate) mod release;
mod remedy;
#[cfg(test)]
mod samples;
pub(crate) mod show;
pub(crate) mod why;

pub(crate) use command_line::{age, table, text};
