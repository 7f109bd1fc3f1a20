//! Rates: at most `limit` starts lie in any period, and a slot is free again some time after its stamp.
//!
//! A start is the write by which the operator made a Job run; it counts as often as the Job asks for slots. The API
//! server says in which second it took the write, so two starts are surely within a period only if they are at least a
//! second closer than that.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Rule, Verdict, Violation,
    requests::Requests,
    spans::{Outages, Spans},
};
use crate::{
    record::{Body, Job, Part, Phase, Record, Semaphore, What, Writer},
    timeline::View,
};

/// The precision of the API server's time, in seconds.
const SECOND: f64 = 1.0;

/// What the clock of the observer may add to a duration, in seconds.
const JITTER: f64 = 0.05;

/// How long after its grant a Job may be started, in seconds.
const START_WITHIN: f64 = 30.0;

/// For how much longer an operator holds a slot that another process stamped, in seconds.
const CLOCKS_APART: f64 = 30.0;

/// How late a slot may be given back while everything works, in seconds, besides the lock-delay.
const RELEASE: f64 = 15.0;

/// The kinds of faults for which a rate promises nothing: they edit sessions, contenders or `.lock`s, or leave ends of slots
/// that were written by a wrong clock to another process.
pub(crate) const EXCEPTED: [&str; 11] = [
    "Consul's data lost",
    "external node deregistered",
    "session destroyed",
    "contender deleted",
    "contender released",
    "session removed from .lock",
    ".lock deleted",
    ".lock overwritten with garbage",
    "limit in .lock changed",
    ".lock replaced by a mutex",
    "operator's wall clock jumps",
];

pub(super) fn judge(bed: &[Record], outages: &Outages, requests: &Requests, verdict: &mut Verdict) {
    for record in bed {
        if let What::Semaphore(semaphore) = &record.what
            && let Some(period) = semaphore.period
        {
            let rate = Rate {
                semaphore,
                period,
                bed,
                requests,
            };
            rate.judge_starts(verdict);
            rate.judge_slots(outages, verdict);
        }
    }
}

/// The operator made a Job run.
struct Started {
    /// The earliest second at which the API server can have taken the write.
    from: f64,
    /// How many slots the Job asks for here.
    slots: u64,
    name: String,
}

struct Rate<'a> {
    semaphore: &'a Semaphore,
    period: f64,
    bed: &'a [Record],
    requests: &'a Requests,
}

impl Rate<'_> {
    fn is_at(&self, job: &Job) -> bool {
        let here = &self.semaphore.prefix;
        self.requests.is_at(&job.uid, &job.prefix, here)
    }

    /// All starts here, in order.
    fn starts(&self) -> Vec<Started> {
        let mut versions: BTreeMap<&str, u64> = BTreeMap::new();
        let mut running: BTreeMap<&str, &str> = BTreeMap::new();
        let mut starts = Vec::new();
        for record in self.bed {
            let What::Job(job) = &record.what else {
                continue;
            };
            // A new listing may be older than what was seen before.
            let version = versions.entry(&job.uid).or_default();
            if !self.is_at(job) || job.rv <= *version {
                continue;
            }
            *version = job.rv;
            let Some(start) = &job.start else {
                running.remove(job.uid.as_str());
                continue;
            };
            if running.insert(&job.uid, &start.session) != Some(&start.session) {
                starts.push(Started {
                    from: record.t - start.ago,
                    slots: self.requests.slots(&job.uid, &self.semaphore.prefix) as u64,
                    name: job.name.clone(),
                });
            }
        }
        starts.sort_by(|a, b| a.from.total_cmp(&b.from));
        starts
    }

    /// Checks the period that begins with each start.
    fn judge_starts(&self, verdict: &mut Verdict) {
        let starts = self.starts();
        let (limits, exceptions) = (self.limits(), self.exceptions());
        for (at, first) in starts.iter().enumerate() {
            verdict.starts.0 += 1;
            let begin = first.from - START_WITHIN;
            if exceptions.touches(begin, first.from + self.period) {
                continue;
            }
            verdict.starts.1 += 1;
            let surely = |start: &&Started| start.from + SECOND + JITTER - first.from < self.period;
            let within: Vec<_> = starts[at..].iter().take_while(surely).collect();
            let slots: u64 = within.iter().map(|start| start.slots).sum();
            let limit = self.limit_between(&limits, begin, first.from + self.period);
            if slots > limit {
                let told = within.iter();
                let told = told.map(|start| format!("{} at {:.1} s", start.name, start.from));
                let text = format!(
                    "{slots} starts within {} s, and the limit is {limit}: {}",
                    self.period,
                    told.collect::<Vec<_>>().join(", ")
                );
                self.violate(verdict, first.from, Rule::OverRate, text);
            }
        }
    }

    /// Since when which limit is in force.
    fn limits(&self) -> Vec<(f64, u64)> {
        let limits = self.locks().map(|(t, writer, body)| match body.limit() {
            Some(limit) if writer != Writer::Fault => (t, limit),
            _ => (t, self.semaphore.limit),
        });
        std::iter::once((f64::MIN, self.semaphore.limit))
            .chain(limits)
            .collect()
    }

    /// The greatest limit that was in force at some time between.
    fn limit_between(&self, limits: &[(f64, u64)], from: f64, to: f64) -> u64 {
        let ends = limits.iter().skip(1).map(|(t, _)| *t);
        let in_force = limits.iter().zip(ends.chain([f64::MAX]));
        let in_force = in_force.filter(|((begin, _), end)| *begin <= to && *end >= from);
        let limits = in_force.map(|((_, limit), _)| *limit);
        limits.max().unwrap_or(self.semaphore.limit)
    }

    fn locks(&self) -> impl Iterator<Item = (f64, Writer, &Body)> {
        self.bed.iter().filter_map(|record| match &record.what {
            What::Lock {
                prefix,
                writer,
                body,
                ..
            } if *prefix == self.semaphore.prefix => Some((record.t, *writer, body)),
            _ => None,
        })
    }

    /// When something happened here for which a rate promises nothing. The Jobs that lost their slots may be started for a
    /// while.
    fn exceptions(&self) -> Spans {
        let mut begun: BTreeMap<usize, f64> = BTreeMap::new();
        let mut exceptions = Vec::new();
        for record in self.bed {
            match &record.what {
                What::Fault {
                    id,
                    kind,
                    prefix,
                    phase,
                    ..
                } if EXCEPTED.contains(&kind.as_str()) => {
                    let here = prefix
                        .as_ref()
                        .is_none_or(|at| *at == self.semaphore.prefix);
                    match phase {
                        Phase::Begins if here => {
                            begun.insert(*id, record.t);
                        }
                        Phase::Ends => {
                            let since = begun.remove(id);
                            exceptions.extend(since.map(|since| (since, record.t)));
                        }
                        Phase::Begins | Phase::Misses => {}
                    }
                }
                What::Lock { prefix, writer, .. }
                    if *writer == Writer::Fault && *prefix == self.semaphore.prefix =>
                {
                    exceptions.push((record.t - SECOND, record.t));
                }
                _ => {}
            }
        }
        exceptions.extend(begun.into_values().map(|since| (since, f64::MAX)));
        // Some faults are recorded only after they were injected.
        let exceptions = exceptions.into_iter();
        Spans::of(exceptions.map(|(from, to)| (from - SECOND, to)).collect())
    }

    /// Checks that each slot is free again some time after its stamp.
    fn judge_slots(&self, outages: &Outages, verdict: &mut Verdict) {
        let grants = Part::Grants(self.semaphore.prefix.clone());
        let parts = [
            Part::Operator,
            Part::Frozen,
            Part::Api,
            Part::Consul,
            grants.clone(),
        ];
        let away = parts.iter().map(|part| outages.with_recovery(part));
        let away = away.fold(Spans::default(), |all, one| all.and(&one));
        // After these the operator takes over slots that another process stamped, perhaps with another clock.
        let restarts = outages.of_part(&Part::Operator);
        let restarts = restarts.and(&outages.of_part(&grants));
        for slot in self.slots() {
            let stamp = match slot.started {
                Some(started) => started + self.period,
                None => slot.granted + START_WITHIN + self.period,
            };
            let restart = restarts.last_end(slot.granted, slot.freed);
            let stamp = match restart {
                Some(restart) => stamp.max(restart + START_WITHIN + self.period),
                None => stamp,
            };
            let late = away.clear(stamp, slot.freed);
            if late > CLOCKS_APART + RELEASE + self.semaphore.lock_delay {
                let text = format!(
                    "{} held a slot of a rate for {late:.1} s without an outage after its stamp",
                    slot.session
                );
                self.violate(verdict, stamp, Rule::SlotStuck, text);
            }
        }
    }

    /// The slots that were held.
    fn slots(&self) -> Vec<Slot> {
        let mut view = View::default();
        let mut held = Held::default();
        for record in self.bed {
            view.take(&record.what);
            match &record.what {
                What::Job(job) if job.start.is_some() && self.is_at(job) => {
                    held.started(record.t, job, &view);
                }
                What::Lock { prefix, body, .. }
                    if *prefix == self.semaphore.prefix && !matches!(body, Body::Unknown) =>
                {
                    held.changed(record.t, &body.holders(), &view);
                }
                _ => {}
            }
        }
        let end = self.bed.last().map_or(0.0, |record| record.t);
        held.changed(end, &BTreeSet::new(), &view);
        held.freed
    }

    fn violate(&self, verdict: &mut Verdict, t: f64, rule: Rule, text: String) {
        verdict.violations.push(Violation {
            t,
            rule,
            prefix: self.semaphore.prefix.clone(),
            text,
        });
    }
}

/// A slot from its grant until it was free.
struct Slot {
    session: String,
    granted: f64,
    /// When its Job was first seen running since then.
    started: Option<f64>,
    freed: f64,
}

/// The slots while the timeline is read.
#[derive(Default)]
struct Held {
    now: BTreeMap<String, Slot>,
    freed: Vec<Slot>,
}

impl Held {
    fn started(&mut self, t: f64, job: &Job, view: &View) {
        for slot in self.now.values_mut() {
            if view.sessions.get(&slot.session) == Some(&job.uid) {
                slot.started.get_or_insert(t);
            }
        }
    }

    /// These sessions hold slots from now on. One that takes over the slot of a dead one of its Job holds the same slot.
    fn changed(&mut self, t: f64, holders: &BTreeSet<String>, view: &View) {
        let gone = self
            .now
            .extract_if(.., |session, _| !holders.contains(session));
        let mut gone: Vec<Slot> = gone.map(|(_, slot)| slot).collect();
        for session in holders {
            if self.now.contains_key(session) {
                continue;
            }
            let uid = view.sessions.get(session);
            let same = |slot: &Slot| uid.is_some() && view.sessions.get(&slot.session) == uid;
            let old = gone.iter().position(same).map(|at| gone.swap_remove(at));
            let slot = Slot {
                session: session.clone(),
                granted: old.as_ref().map_or(t, |old| old.granted),
                started: old.and_then(|old| old.started),
                freed: t,
            };
            self.now.insert(session.clone(), slot);
        }
        let gone = gone.into_iter().map(|slot| Slot { freed: t, ..slot });
        self.freed.extend(gone);
    }
}
