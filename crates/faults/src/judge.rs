//! The three safety sentences of the design as checks over a timeline, and nothing else. The judge is a pure function
//! from records to a verdict.
//!
//! | rule | sentence |
//! |---|---|
//! | [`Rule::OverLimit`] | no write ever adds a holder to a body that then has more holders than its limit |
//! | [`Rule::GrantedInPart`], [`Rule::PartKept`] | all slots of a request are granted at once, or none |
//! | [`Rule::WithoutSlot`], [`Rule::ReleasedTooEarly`], [`Rule::GapTooLong`], [`Rule::StartedTooLate`] | no Job has running pods without its session in Holders, except for the allowed gaps |
//! | [`Rule::OverRate`] | at most `limit` starts in any period |
//! | [`Rule::SlotStuck`] | every slot of a Job that is gone is free again, and so is every slot of a rate some time after its stamp |
//! | [`Rule::JobStuck`] | no Job waits for ever while there is a free slot and Consul is reachable |
//! | [`Rule::CopyActs`] | an operator that finds its identity in use by another API server grants, releases, suspends and ends nothing |
//! | [`Rule::Unseen`] | the observer missed nothing: what a blocking query shows, the proxy has recorded |

mod copies;
mod gaps;
mod liveness;
mod rates;
mod requests;
mod several;
mod slots;
mod spans;

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{ForeignState, JobState, Phase, Record, What, WorkloadKind};

pub use gaps::GAPS;

/// What was found in a timeline.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The violations, in the order of time.
    pub violations: Vec<Violation>,
    /// For each kind of fault, how often it was injected, and how often it found nothing to hit.
    pub faults: BTreeMap<String, (usize, usize)>,
    /// How often a Job was given a slot.
    pub grants: usize,
    /// How many workloads ran, by kind.
    pub ran: BTreeMap<WorkloadKind, usize>,
    /// How often a Job that asks for more than one slot was given all of them.
    pub requests: usize,
    /// In how many slots of rates Jobs were started, and in how many of them no fault excuses what comes next.
    pub starts: (usize, usize),
    /// How often a `consul lock` was given a slot.
    pub foreign_grants: usize,
    /// How many revisions of `.lock`s were seen.
    pub revisions: usize,
    /// How often running pods were without a slot for an allowed reason.
    pub gaps: usize,
    /// The longest time that a free slot was unused while a Job waited, in seconds, while nothing that a grant needs
    /// was down.
    pub unused: f64,
    /// The same, outages included.
    pub unused_at_all: f64,
    /// The longest time that a `consul lock` waited, in seconds.
    pub foreign_wait: f64,
    /// Seconds from the first record to the last.
    pub seconds: f64,
}

impl Verdict {
    /// How many violations of a rule there are.
    pub fn count(&self, rule: Rule) -> usize {
        self.violations
            .iter()
            .filter(|violation| violation.rule == rule)
            .count()
    }

    /// How many violations are neither a stuck slot nor a stuck Job.
    pub fn unsafe_count(&self) -> usize {
        self.violations.len() - self.count(Rule::SlotStuck) - self.count(Rule::JobStuck)
    }
}

/// A violation.
#[derive(Clone, Debug)]
pub struct Violation {
    /// When, in seconds since the campaign began.
    pub t: f64,
    /// What.
    pub rule: Rule,
    /// Where the semaphore is in Consul.
    pub prefix: String,
    /// The details, for people.
    pub text: String,
}

/// The rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A write added a holder beyond the limit.
    OverLimit,
    /// Pods ran without a slot, and nothing allows it.
    WithoutSlot,
    /// A slot was given back while pods ran in it.
    ReleasedTooEarly,
    /// Pods ran without a slot for longer than is allowed.
    GapTooLong,
    /// A Job was started in a slot that had been lost long before.
    StartedTooLate,
    /// A Job that did not run was granted a part of the slots that it asks for.
    GrantedInPart,
    /// A Job that did not run, and had lost a part of its slots, kept the others.
    PartKept,
    /// More Jobs were started in a period than the limit of a rate.
    OverRate,
    /// A slot was not free again after its Job was gone.
    SlotStuck,
    /// A Job waited though there was a free slot.
    JobStuck,
    /// The operator of a copy of the cluster wrote to Consul, or to something in its own cluster that is not only said.
    CopyActs,
    /// A revision of a `.lock` that the proxy has no record of, so the record is not complete.
    Unseen,
}

/// Judges a timeline. Records younger than `until` are not judged yet, because watches are late.
pub fn judge(records: &[Record], until: f64) -> Verdict {
    let mut verdict = Verdict::default();
    let starts: Vec<usize> = records
        .iter()
        .enumerate()
        .filter(|(_, record)| matches!(record.what, What::Bed { .. }))
        .map(|(at, _)| at)
        .collect();
    for (number, start) in starts.iter().enumerate() {
        let end = starts.get(number + 1).copied().unwrap_or(records.len());
        let bed = &records[*start..end];
        let unwatched = |record: &Record| matches!(record.what, What::Unwatched);
        let watched = bed.iter().position(unwatched).unwrap_or(bed.len());
        let bed = &bed[..watched];
        let outages = spans::Outages::of(bed);
        let requests = requests::Requests::of(bed);
        slots::judge(bed, &outages, &requests, &mut verdict);
        several::judge(bed, &outages, &requests, &mut verdict);
        rates::judge(bed, &outages, &requests, &mut verdict);
        liveness::judge(bed, &outages, &requests, &mut verdict);
        copies::judge(bed, &mut verdict);
    }
    count(records, &mut verdict);
    verdict.violations.retain(|violation| violation.t <= until);
    verdict.violations.sort_by(|a, b| a.t.total_cmp(&b.t));
    verdict
}

fn count(records: &[Record], verdict: &mut Verdict) {
    let mut waits = BTreeMap::new();
    let mut ran = BTreeSet::new();
    for record in records {
        match &record.what {
            What::Job(job) if job.state == JobState::Running && ran.insert(&job.uid) => {
                *verdict.ran.entry(job.kind).or_default() += 1;
            }
            What::Fault { kind, phase, .. } => {
                let (hits, misses) = verdict.faults.entry(kind.clone()).or_default();
                match phase {
                    Phase::Begins => *hits += 1,
                    Phase::Misses => *misses += 1,
                    Phase::Ends => {}
                }
            }
            What::Foreign { id, state, .. } => {
                if *state == ForeignState::Waits {
                    waits.insert(*id, record.t);
                } else if let Some(since) = waits.remove(id) {
                    verdict.foreign_wait = verdict.foreign_wait.max(record.t - since);
                }
            }
            _ => {}
        }
    }
    verdict.seconds = records.last().map_or(0.0, |record| record.t);
}

#[cfg(test)]
mod tests;
