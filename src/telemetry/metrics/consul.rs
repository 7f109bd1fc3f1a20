//! Counts and measures the work with Consul.

use std::{fmt, sync::OnceLock, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use super::register::{Histograms, Register, gauge};

/// Buckets for the seconds that a reconcile or one Consul call takes: from a local round trip to a timeout.
const DURATION_BUCKETS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    kind: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallKindLabel {
    kind: &'static str,
}

/// The metrics of calls to Consul, of sessions, and of the memory for what Consul lists.
#[derive(Debug)]
pub struct ConsulMetrics {
    sessions: Gauge,
    calls: Family<CallLabels, Counter>,
    call_duration: Histograms<CallKindLabel>,
    memory: Gauge,
    memory_limit: Gauge,
    /// Reading of the bytes of this memory that are in use.
    memory_now: OnceLock<Reading>,
}

/// A figure that is read when the metrics are encoded.
struct Reading(Box<dyn Fn() -> usize + Send + Sync>);

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading")
    }
}

impl ConsulMetrics {
    pub(super) fn new(register: &mut Register<'_>) -> Self {
        Self {
            sessions: register.plain("sessions", "Consul sessions that this replica renews"),
            calls: register.plain("consul_calls", "Calls to Consul, by kind and result"),
            call_duration: register.seconds(
                "consul_call_duration",
                "How long calls to Consul took; the kind kv_watch waits for a change",
                Family::new_with_constructor(durations as fn() -> Histogram),
            ),
            memory: register.bytes(
                "consul_memory",
                "What is kept of what Consul lists; with the limit reached, the namespace that keeps most gets PrefixTooLarge",
            ),
            memory_limit: register.bytes(
                "consul_memory_limit",
                "Limit of the memory for what Consul lists: --consul-memory",
            ),
            memory_now: OnceLock::new(),
        }
    }

    /// Sets the number of sessions that are renewed.
    pub fn set_sessions(&self, count: usize) {
        self.sessions.set(gauge(count));
    }

    /// Counts a call to Consul that ended. Both words are from the client's fixed sets: `txn`, `watch`; `ok`,
    /// `denied`.
    pub fn called(&self, kind: &'static str, result: &'static str, took: Duration) {
        let calls = self.calls.get_or_create(&CallLabels { kind, result });
        calls.inc();
        let durations = self.call_duration.get_or_create(&CallKindLabel { kind });
        durations.observe(took.as_secs_f64());
    }

    /// Sets the limit of the memory for what Consul lists, and `now`, which reads at each encoding how much of this
    /// memory is in use. Both are in bytes.
    pub fn count_memory(&self, limit: usize, now: impl Fn() -> usize + Send + Sync + 'static) {
        self.memory_limit.set(gauge(limit));
        let now = Reading(Box::new(now));
        // A process has one memory budget, so a second reading is ignored.
        let _ = self.memory_now.set(now);
    }

    /// Reads how much of the memory is in use.
    pub(super) fn read_memory(&self) {
        if let Some(Reading(now)) = self.memory_now.get() {
            self.memory.set(gauge(now()));
        }
    }
}

pub(super) fn durations() -> Histogram {
    Histogram::new(DURATION_BUCKETS)
}
