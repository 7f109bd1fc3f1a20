//! Counts and measures the operator's work, as metrics in Prometheus format (`OpenMetrics`).
//!
//! Names follow Prometheus' conventions: one prefix, base units, the unit at the end. Labels are bounded: the
//! namespaces and names of existing semaphores, and fixed words.
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

use super::{build, process::Process, traces};

const PREFIX: &str = "consul_semaphore_operator";

/// Buckets for the seconds that a reconcile or one Consul call takes: from a local round trip to a timeout.
const DURATION_BUCKETS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

/// Buckets for the seconds that a Job waits for a slot, or holds it: at once, 1 s, 5 s, 30 s, 1 min, 5 min, 15 min,
/// 1 h, 4 h, 12 h, 1 d, 3 d, 7 d.
const WAIT_BUCKETS: [f64; 13] = [
    0.25, 1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0,
    604_800.0,
];

/// The `ConsulSemaphore` of a series.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
pub struct SemaphoreLabels {
    namespace: String,
    semaphore: String,
}

impl SemaphoreLabels {
    /// Returns the labels of the `ConsulSemaphore` of this name.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            semaphore: name.into(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReadinessLabels {
    #[prometheus(flatten)]
    of: SemaphoreLabels,
    reason: &'static str,
}

/// The way in which a Job ended because of the slots that it asks for: the reason of its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum JobEnd {
    /// The Job was deleted, because no slot was free and `on-contention` is `Skip`.
    Skipped,
    /// The Job failed, because no slot was free and `on-contention` is `Fail`.
    Contended,
    /// The Job failed, because it had waited for as long as it may.
    WaitTimedOut,
    /// The Job failed while it waited, because a newer one waits for the same slots.
    Superseded,
    /// The Job failed when it came, because as many Jobs waited as may.
    QueueFull,
    /// The Job was ended while it ran, because a newer one replaces it.
    Replaced,
}

impl JobEnd {
    const ALL: [Self; 6] = [
        Self::Skipped,
        Self::Contended,
        Self::WaitTimedOut,
        Self::Superseded,
        Self::QueueFull,
        Self::Replaced,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobEndLabels {
    #[prometheus(flatten)]
    of: SemaphoreLabels,
    reason: JobEnd,
}

/// Times of a semaphore; `None`: there is none, or it is not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct SemaphoreTimes {
    /// When the next waiting Job is likely to start.
    pub next_start: Option<Timestamp>,
    /// When the next window opens, while none is open.
    pub window_opens: Option<Timestamp>,
    /// Since when the Job that has waited longest waits.
    pub longest_wait_since: Option<Timestamp>,
    /// Since when the slot that has been held longest is held.
    pub longest_hold_since: Option<Timestamp>,
    /// Time of the oldest grant whose workload has no pod that runs or has run.
    pub longest_start_since: Option<Timestamp>,
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    kind: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallKindLabel {
    kind: &'static str,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// All metrics of the process. Clones share one state.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    reconciles: Counter,
    reconcile_errors: Family<ReasonLabel, Counter>,
    reconcile_duration: Histogram,
    grants: Family<SemaphoreLabels, Counter>,
    releases: Family<SemaphoreLabels, Counter>,
    losses: Family<SemaphoreLabels, Counter>,
    starts: Family<WorkloadKindLabel, Counter>,
    ends: Family<JobEndLabels, Counter>,
    waits: Histograms<SemaphoreLabels>,
    holds: Histograms<SemaphoreLabels>,
    held: Family<SemaphoreLabels, Gauge>,
    waiting: Family<SemaphoreLabels, Gauge>,
    idle: Family<SemaphoreLabels, Gauge>,
    limit: Family<SemaphoreLabels, Gauge>,
    next_start: Family<SemaphoreLabels, Gauge>,
    window_opens: Family<SemaphoreLabels, Gauge>,
    longest_wait_since: Family<SemaphoreLabels, Gauge>,
    longest_hold_since: Family<SemaphoreLabels, Gauge>,
    longest_start_since: Family<SemaphoreLabels, Gauge>,
    ready: Family<ReadinessLabels, Gauge>,
    /// Reason that each semaphore shows in `ready`.
    reasons: Mutex<HashMap<SemaphoreLabels, &'static str>>,
    watch_errors: Family<ResourceLabel, Counter>,
    sessions: Gauge,
    leader: Gauge,
    consul_calls: Family<CallLabels, Counter>,
    consul_call_duration: Histograms<CallKindLabel>,
    events_dropped: Counter,
    spans_dropped: Family<ReasonLabel, Counter>,
    consul_memory: Gauge,
    consul_memory_limit: Gauge,
    /// Reading of the bytes of this memory that are in use.
    consul_memory_now: OnceLock<Reading>,
}

/// A figure that is read when the metrics are encoded.
struct Reading(Box<dyn Fn() -> usize + Send + Sync>);

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Inner {
    /// Returns the gauges of semaphores, apart from `ready`.
    fn gauges(&self) -> [&Family<SemaphoreLabels, Gauge>; 9] {
        [
            &self.held,
            &self.waiting,
            &self.idle,
            &self.limit,
            &self.next_start,
            &self.window_opens,
            &self.longest_wait_since,
            &self.longest_hold_since,
            &self.longest_start_since,
        ]
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
        let mut make = Register(registry);
        let inner = Inner {
            reconciles: make.plain("reconciles", "Passes over a queue"),
            reconcile_errors: make.plain("reconcile_errors", "Passes that failed, by the reason that the condition shows"),
            reconcile_duration: make.seconds(
                "reconcile_duration",
                "How long a pass took, without the calls that follow",
                durations(),
            ),
            grants: make.plain("grants", "Slots granted to Jobs of this cluster: all of a Job that asks for several"),
            releases: make.plain("releases", "Slots released by Jobs of this cluster"),
            losses: make.plain("losses", "Slots lost while their Jobs ran"),
            starts: make.plain("starts", "Workloads started in their slots, by kind"),
            waits: make.seconds(
                "wait",
                "How long Jobs waited for a grant: once for each semaphore that a Job asks for slots of, and each key",
                Family::new_with_constructor(waits as fn() -> Histogram),
            ),
            ends: make.plain(
                "ended_jobs",
                "Jobs of this cluster that were ended or deleted because of the slots that they ask for, by the reason of their event",
            ),
            holds: make.seconds(
                "hold",
                "How long Jobs of this cluster held their slots, from the grant to the release: once for each slot",
                Family::new_with_constructor(waits as fn() -> Histogram),
            ),
            held: make.plain("held_slots", "Slots held in all clusters and by all programs, or of a keyed semaphore their sum over all keys"),
            waiting: make.plain("waiting_jobs", "Waiting Jobs of this cluster"),
            idle: make.plain("idle_slots", "Free slots that waiting Jobs of this cluster could have; not those that wait for slots of other semaphores, too"),
            limit: make.plain("limit_slots", "The limit in Consul, for each key of a keyed semaphore; absent while it is unknown"),
            next_start: make.seconds(
                "next_start_timestamp",
                "When the next waiting Job of this cluster is likely to start, in Unix time, if slots are held for as long as the last ones; absent while that is not known",
                Family::default(),
            ),
            window_opens: make.seconds(
                "window_opens_timestamp",
                "When the next window opens, in Unix time; absent while one is open, and without windows",
                Family::default(),
            ),
            longest_wait_since: make.seconds(
                "longest_wait_since_timestamp",
                "Since when the Job of this cluster that has waited longest waits, in Unix time; absent while none waits",
                Family::default(),
            ),
            longest_hold_since: make.seconds(
                "longest_hold_since_timestamp",
                "Since when the slot that has been held longest is held, in any cluster and by any program, in Unix time; absent while none is held, or while that is not known",
                Family::default(),
            ),
            longest_start_since: make.seconds(
                "longest_start_since_timestamp",
                "Time of the oldest grant, among the 20 oldest holders, whose workload has no pod that runs or has run, in Unix time; absent if there is none",
                Family::default(),
            ),
            ready: make.plain(
                "ready",
                "1 while slots can be granted and released, else 0, with the reason of the condition Ready",
            ),
            reasons: Mutex::default(),
            watch_errors: make.plain("watch_errors", "Watches of the API server that failed and were started again"),
            sessions: make.plain("sessions", "Consul sessions that this replica renews"),
            leader: make.plain("leader", "1 while this replica leads"),
            consul_calls: make.plain("consul_calls", "Calls to Consul, by kind and result"),
            consul_call_duration: make.seconds(
                "consul_call_duration",
                "How long calls to Consul took; the kind kv_watch waits for a change",
                Family::new_with_constructor(durations as fn() -> Histogram),
            ),
            events_dropped: make.plain(
                "events_dropped",
                "Kubernetes events that were dropped because too many of their namespace were due",
            ),
            spans_dropped: make.plain(
                "spans_dropped",
                "Spans of traces that were dropped, by reason: queue_full, not_taken",
            ),
            consul_memory: make.bytes(
                "consul_memory",
                "What is kept of what Consul lists; with the limit reached, the namespace that keeps most gets PrefixTooLarge",
            ),
            consul_memory_limit: make.bytes("consul_memory_limit", "The limit of that: --consul-memory"),
            consul_memory_now: OnceLock::new(),
            registry: all,
        };
        Self(Arc::new(inner))
    }

    /// Counts a pass over a semaphore that ended, successfully or with a reason from the errors' bounded vocabulary.
    pub fn pass(&self, took: Duration, result: Result<(), &'static str>) {
        self.0.reconciles.inc();
        self.0.reconcile_duration.observe(took.as_secs_f64());
        if let Err(reason) = result {
            self.0
                .reconcile_errors
                .get_or_create(&ReasonLabel { reason })
                .inc();
        }
    }

    /// Counts a grant: a Job got all its slots of a semaphore after waiting this long.
    pub fn granted(&self, semaphore: &SemaphoreLabels, slots: usize, waited: Duration) {
        let slots = slots.try_into().unwrap_or(u64::MAX);
        self.0.grants.get_or_create(semaphore).inc_by(slots);
        self.0
            .waits
            .get_or_create(semaphore)
            .observe(waited.as_secs_f64());
    }

    /// Counts a workload of this kind that was started in its slots.
    pub fn started(&self, kind: &str) {
        let kind = kind.into();
        let starts = &self.0.starts;
        starts.get_or_create(&WorkloadKindLabel { kind }).inc();
    }

    /// Counts a slot that a Job gave back after holding it this long, if that is known.
    pub fn released(&self, semaphore: &SemaphoreLabels, held: Option<Duration>) {
        self.0.releases.get_or_create(semaphore).inc();
        if let Some(held) = held {
            let holds = self.0.holds.get_or_create(semaphore);
            holds.observe(held.as_secs_f64());
        }
    }

    /// Counts a Job that was ended or deleted because of the slots that it asks for.
    pub fn ended(&self, semaphore: &SemaphoreLabels, how: JobEnd) {
        self.0.ends.get_or_create(&end(semaphore, how)).inc();
    }

    /// Counts a slot that a running Job lost.
    pub fn lost(&self, semaphore: &SemaphoreLabels) {
        self.0.losses.get_or_create(semaphore).inc();
    }

    /// Sets what a pass saw of a semaphore: how many of its Jobs wait here, for how many of them a slot is free, and
    /// the number of holders everywhere and the limit, if known.
    pub fn semaphore(
        &self,
        semaphore: &SemaphoreLabels,
        waiting: usize,
        idle: usize,
        held_and_limit: Option<(usize, u32)>,
    ) {
        self.0.waiting.get_or_create(semaphore).set(gauge(waiting));
        self.0.idle.get_or_create(semaphore).set(gauge(idle));
        if let Some((held, limit)) = held_and_limit {
            self.0.held.get_or_create(semaphore).set(gauge(held));
            self.0.limit.get_or_create(semaphore).set(i64::from(limit));
        } else {
            self.0.held.remove(semaphore);
            self.0.limit.remove(semaphore);
        }
        // A counter must exist before its first event, because otherwise a rate never shows the first grant.
        for counters in [&self.0.grants, &self.0.releases, &self.0.losses] {
            drop(counters.get_or_create(semaphore));
        }
        for how in JobEnd::ALL {
            drop(self.0.ends.get_or_create(&end(semaphore, how)));
        }
    }

    /// Sets the times of a semaphore.
    pub fn times(&self, semaphore: &SemaphoreLabels, times: SemaphoreTimes) {
        let times = [
            (&self.0.next_start, times.next_start),
            (&self.0.window_opens, times.window_opens),
            (&self.0.longest_wait_since, times.longest_wait_since),
            (&self.0.longest_hold_since, times.longest_hold_since),
            (&self.0.longest_start_since, times.longest_start_since),
        ];
        for (gauges, time) in times {
            if let Some(time) = time {
                gauges.get_or_create(semaphore).set(time.as_second());
            } else {
                gauges.remove(semaphore);
            }
        }
    }

    /// Sets whether slots of a semaphore can be granted and released, and the reason, from a fixed set of words.
    /// There is one series for each semaphore.
    pub fn ready(&self, semaphore: &SemaphoreLabels, ready: bool, reason: &'static str) {
        let of = |reason| readiness(semaphore, reason);
        self.0.ready.get_or_create(&of(reason)).set(ready.into());
        let before = self.0.reasons.lock().insert(semaphore.clone(), reason);
        if let Some(before) = before.filter(|before| *before != reason) {
            self.0.ready.remove(&of(before));
        }
    }

    /// Removes the series of a semaphore that was deleted.
    pub fn forget(&self, semaphore: &SemaphoreLabels) {
        if let Some(reason) = self.0.reasons.lock().remove(semaphore) {
            self.0.ready.remove(&readiness(semaphore, reason));
        }
        for gauges in self.0.gauges() {
            gauges.remove(semaphore);
        }
        for counters in [&self.0.grants, &self.0.releases, &self.0.losses] {
            counters.remove(semaphore);
        }
        for how in JobEnd::ALL {
            self.0.ends.remove(&end(semaphore, how));
        }
        for histograms in [&self.0.waits, &self.0.holds] {
            histograms.remove(semaphore);
        }
    }

    /// Removes the series of all semaphores, because another replica reports on them from now on.
    pub fn forget_all(&self) {
        self.0.reasons.lock().clear();
        self.0.ready.clear();
        for gauges in self.0.gauges() {
            gauges.clear();
        }
        for counters in [&self.0.grants, &self.0.releases, &self.0.losses] {
            counters.clear();
        }
        self.0.ends.clear();
        for histograms in [&self.0.waits, &self.0.holds] {
            histograms.clear();
        }
    }

    /// Sets the number of sessions that are renewed.
    pub fn sessions(&self, count: usize) {
        self.0.sessions.set(gauge(count));
    }

    /// Sets whether this replica leads.
    pub fn leader(&self, leads: bool) {
        self.0.leader.set(leads.into());
    }

    /// Counts a call to Consul that ended. Both words are from the client's fixed sets: `txn`, `watch`; `ok`,
    /// `denied`.
    pub fn consul_call(&self, kind: &'static str, result: &'static str, took: Duration) {
        self.0
            .consul_calls
            .get_or_create(&CallLabels { kind, result })
            .inc();
        self.0
            .consul_call_duration
            .get_or_create(&CallKindLabel { kind })
            .observe(took.as_secs_f64());
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

    /// Sets the limit of the memory for what Consul lists, and `now`, which reads at each encoding how much of this
    /// memory is in use. Both are in bytes.
    pub fn count_consul_memory(
        &self,
        limit: usize,
        now: impl Fn() -> usize + Send + Sync + 'static,
    ) {
        self.0.consul_memory_limit.set(gauge(limit));
        let now = Reading(Box::new(now));
        // A process has one memory budget, so a second reading is ignored.
        let _ = self.0.consul_memory_now.set(now);
    }

    /// Returns all metrics in the text format of `OpenMetrics` 1.0.
    pub fn encode(&self) -> String {
        if let Some(Reading(now)) = self.0.consul_memory_now.get() {
            self.0.consul_memory.set(gauge(now()));
        }
        let mut page = String::new();
        if let Err(error) = text::encode(&mut page, &self.0.registry) {
            // Writing to a String can't fail, so an error means that a metric is malformed.
            tracing::error!(%error, "metrics cannot be encoded");
        }
        page.shrink_to_fit();
        page
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn readiness(semaphore: &SemaphoreLabels, reason: &'static str) -> ReadinessLabels {
    ReadinessLabels {
        of: semaphore.clone(),
        reason,
    }
}

fn end(semaphore: &SemaphoreLabels, reason: JobEnd) -> JobEndLabels {
    JobEndLabels {
        of: semaphore.clone(),
        reason,
    }
}

fn durations() -> Histogram {
    Histogram::new(DURATION_BUCKETS)
}

fn waits() -> Histogram {
    Histogram::new(WAIT_BUCKETS)
}

/// Registers a metric and returns its handle.
struct Register<'a>(&'a mut Registry);

impl Register<'_> {
    fn plain<M: prometheus_client::registry::Metric + Clone + Default>(
        &mut self,
        name: &str,
        help: &str,
    ) -> M {
        let metric = M::default();
        self.0.register(name, help, metric.clone());
        metric
    }

    fn bytes(&mut self, name: &str, help: &str) -> Gauge {
        let metric = Gauge::default();
        self.0
            .register_with_unit(name, help, Unit::Bytes, metric.clone());
        metric
    }

    fn seconds<M: prometheus_client::registry::Metric + Clone>(
        &mut self,
        name: &str,
        help: &str,
        metric: M,
    ) -> M {
        self.0
            .register_with_unit(name, help, Unit::Seconds, metric.clone());
        metric
    }
}

#[cfg(test)]
mod tests;
