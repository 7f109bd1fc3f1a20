//! The web page on real servers, read like a browser reads it: who sees what, and when. `tests/browser/` tests its
//! appearance. The metrics over TLS, for those who may read them.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod access;
mod live;
mod metrics;
mod reader;
