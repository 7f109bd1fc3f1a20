//! Reports the operator's own state: metrics, traces and health.
//!
//! This module knows nothing of Kubernetes, Consul or semaphores: other modules pass plain values.
mod build;
mod health;
mod metrics;
mod process;
mod traces;

pub use build::{COMMIT, CONSUL, KUBERNETES, VERSION, version};
pub use health::{Health, Part};
pub use metrics::{
    ConsulMetrics, JobEnd, Metrics, SemaphoreLabels, SemaphoreMetrics, SemaphoreTimes,
};
pub use traces::{Span, SpanRef, Traces};

/// The handles that the controller reports through. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    /// Counters, gauges and histograms.
    pub metrics: Metrics,
    /// The answer of `/readyz`.
    pub health: Health,
    /// The destination of traces of Jobs.
    pub traces: Traces,
}
