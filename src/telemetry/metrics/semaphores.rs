//! Counts and measures what happens at each `ConsulSemaphore`.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use super::register::{Histograms, Register, gauge};

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
    /// The Job failed, because it came while as many Jobs waited as may.
    QueueFull,
    /// The Job failed while it waited, because a newer one waits for the same slots.
    Superseded,
    /// The Job was ended while it ran, because a newer one replaces it.
    Replaced,
}

impl JobEnd {
    pub(super) const ALL: [Self; 6] = [
        Self::Skipped,
        Self::Contended,
        Self::WaitTimedOut,
        Self::QueueFull,
        Self::Superseded,
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

/// The metrics of all semaphores, with a series for each.
#[derive(Debug)]
pub struct SemaphoreMetrics {
    events: EventCounters,
    ends: Family<JobEndLabels, Counter>,
    counts: CountGauges,
    times: TimeGauges,
    waits: Histograms<SemaphoreLabels>,
    holds: Histograms<SemaphoreLabels>,
    readiness: Readiness,
}

/// Counters of what happens to slots.
#[derive(Debug)]
struct EventCounters {
    grants: Family<SemaphoreLabels, Counter>,
    releases: Family<SemaphoreLabels, Counter>,
    losses: Family<SemaphoreLabels, Counter>,
}

/// Gauges of how many slots and Jobs there are.
#[derive(Debug)]
struct CountGauges {
    held: Family<SemaphoreLabels, Gauge>,
    waiting: Family<SemaphoreLabels, Gauge>,
    idle: Family<SemaphoreLabels, Gauge>,
    limit: Family<SemaphoreLabels, Gauge>,
}

/// Gauges of the times in [`SemaphoreTimes`].
#[derive(Debug)]
struct TimeGauges {
    next_start: Family<SemaphoreLabels, Gauge>,
    window_opens: Family<SemaphoreLabels, Gauge>,
    longest_wait_since: Family<SemaphoreLabels, Gauge>,
    longest_hold_since: Family<SemaphoreLabels, Gauge>,
    longest_start_since: Family<SemaphoreLabels, Gauge>,
}

/// Gauges of whether slots can be granted and released.
#[derive(Debug)]
struct Readiness {
    ready: Family<ReadinessLabels, Gauge>,
    /// Reason that each semaphore shows in `ready`.
    reasons: Mutex<HashMap<SemaphoreLabels, &'static str>>,
}

impl EventCounters {
    fn new(register: &mut Register<'_>) -> Self {
        Self {
            grants: register.plain(
                "grants",
                "Slots granted to Jobs of this cluster; a Job that asks for several slots counts once for each slot",
            ),
            releases: register.plain("releases", "Slots released by Jobs of this cluster"),
            losses: register.plain("losses", "Slots lost while their Jobs ran"),
        }
    }

    fn all(&self) -> [&Family<SemaphoreLabels, Counter>; 3] {
        [&self.grants, &self.releases, &self.losses]
    }
}

impl CountGauges {
    fn new(register: &mut Register<'_>) -> Self {
        Self {
            held: register.plain(
                "held_slots",
                "Slots held in all clusters and by all programs; for a keyed semaphore, the sum over all keys",
            ),
            waiting: register.plain("waiting_jobs", "Waiting Jobs of this cluster"),
            idle: register.plain(
                "idle_slots",
                "Free slots that waiting Jobs of this cluster could get, without the Jobs that also wait for slots of other semaphores",
            ),
            limit: register.plain(
                "limit_slots",
                "The limit in Consul, for each key of a keyed semaphore; absent while it is unknown",
            ),
        }
    }

    fn all(&self) -> [&Family<SemaphoreLabels, Gauge>; 4] {
        [&self.held, &self.waiting, &self.idle, &self.limit]
    }
}

impl TimeGauges {
    fn new(register: &mut Register<'_>) -> Self {
        Self {
            next_start: register.seconds(
                "next_start_timestamp",
                "When the next waiting Job of this cluster is likely to start, in Unix time, if slots are held for as long as the last ones; absent while that is not known",
                Family::default(),
            ),
            window_opens: register.seconds(
                "window_opens_timestamp",
                "When the next window opens, in Unix time; absent while a window is open, and if the semaphore has no windows",
                Family::default(),
            ),
            longest_wait_since: register.seconds(
                "longest_wait_since_timestamp",
                "When the Job of this cluster that has waited longest began to wait, in Unix time; absent while no Job waits",
                Family::default(),
            ),
            longest_hold_since: register.seconds(
                "longest_hold_since_timestamp",
                "When the slot that has been held longest, in any cluster and by any program, was granted, in Unix time; absent while no slot is held, or while the time is not known",
                Family::default(),
            ),
            longest_start_since: register.seconds(
                "longest_start_since_timestamp",
                "Time of the oldest grant to a workload that has no pod that runs or has run, in Unix time; only the 20 oldest holders count; absent if there is no such workload",
                Family::default(),
            ),
        }
    }

    /// Returns each gauge with the time that belongs into it.
    fn with(
        &self,
        times: SemaphoreTimes,
    ) -> [(&Family<SemaphoreLabels, Gauge>, Option<Timestamp>); 5] {
        [
            (&self.next_start, times.next_start),
            (&self.window_opens, times.window_opens),
            (&self.longest_wait_since, times.longest_wait_since),
            (&self.longest_hold_since, times.longest_hold_since),
            (&self.longest_start_since, times.longest_start_since),
        ]
    }
}

impl Readiness {
    fn new(register: &mut Register<'_>) -> Self {
        Self {
            ready: register.plain(
                "ready",
                "1 while slots can be granted and released, else 0, with the reason of the condition Ready",
            ),
            reasons: Mutex::default(),
        }
    }

    fn set(&self, semaphore: &SemaphoreLabels, ready: bool, reason: &'static str) {
        let of = |reason| readiness(semaphore, reason);
        self.ready.get_or_create(&of(reason)).set(ready.into());
        let before = self.reasons.lock().insert(semaphore.clone(), reason);
        if let Some(before) = before.filter(|before| *before != reason) {
            self.ready.remove(&of(before));
        }
    }

    fn forget(&self, semaphore: &SemaphoreLabels) {
        if let Some(reason) = self.reasons.lock().remove(semaphore) {
            self.ready.remove(&readiness(semaphore, reason));
        }
    }

    fn forget_all(&self) {
        self.reasons.lock().clear();
        self.ready.clear();
    }
}

impl SemaphoreMetrics {
    pub(super) fn new(register: &mut Register<'_>) -> Self {
        Self {
            events: EventCounters::new(register),
            ends: register.plain(
                "ended_jobs",
                "Jobs of this cluster that the operator ended or deleted because they did not get their slots or had to give them up, by the reason of their event",
            ),
            counts: CountGauges::new(register),
            times: TimeGauges::new(register),
            waits: register.seconds(
                "wait",
                "How long Jobs waited for a grant; a Job counts once for each semaphore and key whose slots it asks for",
                Family::new_with_constructor(waits as fn() -> Histogram),
            ),
            holds: register.seconds(
                "hold",
                "How long Jobs of this cluster held their slots, from the grant to the release: once for each slot",
                Family::new_with_constructor(waits as fn() -> Histogram),
            ),
            readiness: Readiness::new(register),
        }
    }

    /// Counts a grant: a Job got all its slots of a semaphore after waiting this long.
    pub fn granted(&self, semaphore: &SemaphoreLabels, slots: usize, waited: Duration) {
        let slots = slots.try_into().unwrap_or(u64::MAX);
        self.events.grants.get_or_create(semaphore).inc_by(slots);
        let waits = self.waits.get_or_create(semaphore);
        waits.observe(waited.as_secs_f64());
    }

    /// Counts a slot that a Job gave back after holding it this long, if that is known.
    pub fn released(&self, semaphore: &SemaphoreLabels, held: Option<Duration>) {
        self.events.releases.get_or_create(semaphore).inc();
        if let Some(held) = held {
            let holds = self.holds.get_or_create(semaphore);
            holds.observe(held.as_secs_f64());
        }
    }

    /// Counts a Job that was ended or deleted because of the slots that it asks for.
    pub fn ended(&self, semaphore: &SemaphoreLabels, how: JobEnd) {
        self.ends.get_or_create(&end(semaphore, how)).inc();
    }

    /// Counts a slot that a running Job lost.
    pub fn lost(&self, semaphore: &SemaphoreLabels) {
        self.events.losses.get_or_create(semaphore).inc();
    }

    /// Sets what a pass saw of a semaphore: how many of its Jobs wait here, for how many of them a slot is free, and
    /// the number of holders everywhere and the limit, if known.
    pub fn set_counts(
        &self,
        semaphore: &SemaphoreLabels,
        waiting: usize,
        idle: usize,
        held_and_limit: Option<(usize, u32)>,
    ) {
        let counts = &self.counts;
        counts.waiting.get_or_create(semaphore).set(gauge(waiting));
        counts.idle.get_or_create(semaphore).set(gauge(idle));
        if let Some((held, limit)) = held_and_limit {
            counts.held.get_or_create(semaphore).set(gauge(held));
            counts.limit.get_or_create(semaphore).set(i64::from(limit));
        } else {
            counts.held.remove(semaphore);
            counts.limit.remove(semaphore);
        }
        // A counter must exist before its first event, because otherwise a rate never shows the first grant.
        for counters in self.events.all() {
            drop(counters.get_or_create(semaphore));
        }
        for how in JobEnd::ALL {
            drop(self.ends.get_or_create(&end(semaphore, how)));
        }
    }

    /// Sets the times of a semaphore.
    pub fn set_times(&self, semaphore: &SemaphoreLabels, times: SemaphoreTimes) {
        for (gauges, time) in self.times.with(times) {
            if let Some(time) = time {
                gauges.get_or_create(semaphore).set(time.as_second());
            } else {
                gauges.remove(semaphore);
            }
        }
    }

    /// Sets whether slots of a semaphore can be granted and released, and the reason, from a fixed set of words.
    /// There is one series for each semaphore.
    pub fn set_ready(&self, semaphore: &SemaphoreLabels, ready: bool, reason: &'static str) {
        self.readiness.set(semaphore, ready, reason);
    }

    /// Removes the series of a semaphore that was deleted.
    pub fn forget(&self, semaphore: &SemaphoreLabels) {
        self.readiness.forget(semaphore);
        self.set_times(semaphore, SemaphoreTimes::default());
        for gauges in self.counts.all() {
            gauges.remove(semaphore);
        }
        for counters in self.events.all() {
            counters.remove(semaphore);
        }
        for how in JobEnd::ALL {
            self.ends.remove(&end(semaphore, how));
        }
        for histograms in [&self.waits, &self.holds] {
            histograms.remove(semaphore);
        }
    }

    /// Removes the series of all semaphores, because another replica reports on them from now on.
    pub fn forget_all(&self) {
        self.readiness.forget_all();
        for (gauges, _) in self.times.with(SemaphoreTimes::default()) {
            gauges.clear();
        }
        for gauges in self.counts.all() {
            gauges.clear();
        }
        for counters in self.events.all() {
            counters.clear();
        }
        self.ends.clear();
        for histograms in [&self.waits, &self.holds] {
            histograms.clear();
        }
    }
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

fn waits() -> Histogram {
    Histogram::new(WAIT_BUCKETS)
}
