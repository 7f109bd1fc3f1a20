//! Counts and measures the operator's work, as metrics in Prometheus format (`OpenMetrics`).
//!
//! Names follow Prometheus' conventions: one prefix, base units, the unit at the end. Labels are bounded: the
//! namespaces and names of existing semaphores, and fixed words.

mod consul;
mod register;
mod semaphores;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};

pub use self::{
    consul::ConsulMetrics,
    semaphores::{JobEnd, SemaphoreLabels, SemaphoreMetrics, SemaphoreTimes},
};
use self::{consul::durations, register::Register};
use super::{build, process::Process, traces};

const PREFIX: &str = "consul_semaphore_operator";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabel {
    resource: Arc<str>,
}

/// The kind of a workload. There are few values, because every kind has to be switched on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkloadKindLabel {
    kind: Arc<str>,
}

/// All metrics of the process. Clones share one state.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    passes: PassMetrics,
    semaphores: SemaphoreMetrics,
    consul: ConsulMetrics,
    starts: Family<WorkloadKindLabel, Counter>,
    watch_errors: Family<ResourceLabel, Counter>,
    leader: Gauge,
    events_dropped: Counter,
    spans_dropped: Family<ReasonLabel, Counter>,
}

#[derive(Debug)]
struct PassMetrics {
    reconciles: Counter,
    reconcile_errors: Family<ReasonLabel, Counter>,
    reconcile_duration: Histogram,
}

impl PassMetrics {
    fn new(register: &mut Register<'_>) -> Self {
        Self {
            reconciles: register.plain("reconciles", "Passes over a queue"),
            reconcile_errors: register.plain(
                "reconcile_errors",
                "Passes that failed, by the reason that the condition shows",
            ),
            reconcile_duration: register.seconds(
                "reconcile_duration",
                "How long a pass took, without the calls that follow",
                durations(),
            ),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Creates a new set of metrics, all at zero.
    pub fn new() -> Self {
        let mut all = Registry::default();
        all.register_collector(Box::new(Process::new()));
        let registry = all.sub_registry_with_prefix(PREFIX);
        let build = Info::new(vec![("version", build::VERSION), ("commit", build::COMMIT)]);
        registry.register("build", "The version and commit of the operator", build);
        let register = &mut Register(registry);
        let inner = Inner {
            passes: PassMetrics::new(register),
            semaphores: SemaphoreMetrics::new(register),
            starts: register.plain("starts", "Workloads started in their slots, by kind"),
            watch_errors: register.plain(
                "watch_errors",
                "Watches of the API server that failed and were started again",
            ),
            leader: register.plain("leader", "1 while this replica leads"),
            consul: ConsulMetrics::new(register),
            events_dropped: register.plain(
                "events_dropped",
                "Kubernetes events that were dropped because too many of their namespace were due",
            ),
            spans_dropped: register.plain(
                "spans_dropped",
                "Spans of traces that were dropped, by reason: queue_full, not_taken",
            ),
            registry: all,
        };
        Self(Arc::new(inner))
    }

    /// Returns the metrics of semaphores.
    pub fn semaphores(&self) -> &SemaphoreMetrics {
        &self.0.semaphores
    }

    /// Returns the metrics of the work with Consul.
    pub fn consul(&self) -> &ConsulMetrics {
        &self.0.consul
    }

    /// Counts a pass over a semaphore that ended, successfully or with a reason from the errors' bounded vocabulary.
    pub fn pass(&self, took: Duration, result: Result<(), &'static str>) {
        let passes = &self.0.passes;
        passes.reconciles.inc();
        passes.reconcile_duration.observe(took.as_secs_f64());
        if let Err(reason) = result {
            let errors = &passes.reconcile_errors;
            errors.get_or_create(&ReasonLabel { reason }).inc();
        }
    }

    /// Counts a workload of this kind that was started in its slots.
    pub fn started(&self, kind: &str) {
        let kind = kind.into();
        let starts = &self.0.starts;
        starts.get_or_create(&WorkloadKindLabel { kind }).inc();
    }

    /// Sets whether this replica leads.
    pub fn set_leader(&self, leads: bool) {
        self.0.leader.set(leads.into());
    }

    /// Counts a failure of the watch of this resource, which is then restarted.
    pub fn watch_failed(&self, resource: &str) {
        let resource = resource.into();
        let errors = &self.0.watch_errors;
        errors.get_or_create(&ResourceLabel { resource }).inc();
    }

    /// Counts a Kubernetes event that was not written, because its namespace had too many pending.
    pub fn events_dropped(&self) {
        self.0.events_dropped.inc();
    }

    /// Creates the counters of dropped spans. They must exist before their first event, for a rate to show it.
    pub fn count_spans(&self) {
        for reason in [traces::QUEUE_FULL, traces::NOT_TAKEN] {
            self.spans_dropped(0, reason);
        }
    }

    /// Counts spans that were dropped, for a reason from a fixed set of words.
    pub(super) fn spans_dropped(&self, count: usize, reason: &'static str) {
        self.0
            .spans_dropped
            .get_or_create(&ReasonLabel { reason })
            .inc_by(count.try_into().unwrap_or(u64::MAX));
    }

    /// Returns all metrics in the text format of `OpenMetrics` 1.0.
    pub fn encode(&self) -> String {
        self.0.consul.read_memory();
        let mut page = String::new();
        if let Err(error) = text::encode(&mut page, &self.0.registry) {
            // Writing to a String can't fail, so an error means that a metric is malformed.
            tracing::error!(%error, "metrics cannot be encoded");
        }
        page.shrink_to_fit();
        page
    }
}
