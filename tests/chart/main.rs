//! The Helm chart: what it renders and refuses, that it matches the program, and that it works on a real API server.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says so"
)]

mod chart;

mod alerts;
mod flags;
mod kustomize;
mod metrics;
mod notes;
mod options;
mod package;
mod readme;
mod refused;
mod rendered;
mod together;
mod values;

mod installed;
mod operator;
mod planted;
mod scoped;
mod strict;
