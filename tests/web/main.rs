//! The web page on real servers, read as a browser reads it: who sees what, and when. How it looks is
//! shown by `tests/browser/`.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod access;
mod live;
mod reader;
