//! Registers metrics under their names.

use prometheus_client::{
    metrics::{family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry, Unit},
};

/// Histograms with labels.
pub(super) type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Registers a metric and returns its handle.
pub(super) struct Register<'a>(pub(super) &'a mut Registry);

impl Register<'_> {
    pub(super) fn plain<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.0.register(name, help, metric.clone());
        metric
    }

    pub(super) fn bytes(&mut self, name: &str, help: &str) -> Gauge {
        let metric = Gauge::default();
        self.0
            .register_with_unit(name, help, Unit::Bytes, metric.clone());
        metric
    }

    pub(super) fn seconds<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0
            .register_with_unit(name, help, Unit::Seconds, metric.clone());
        metric
    }
}

/// Returns a count as the value of a gauge.
pub(super) fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
