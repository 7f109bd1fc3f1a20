//! Safety: the limits, and no pods without a slot, at every revision of etcd and of each `.lock`.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Rule, Verdict, Violation,
    gaps::{Measure, Why},
    requests::Requests,
    spans::{Outages, Spans},
};
use crate::record::{Body, JobState, Part, Record, Semaphore, What, Writer};

/// What happens to one Job at a revision of etcd.
#[derive(Clone, Debug)]
enum Turn {
    PodComes {
        pod: String,
        grace: f64,
    },
    PodEnds {
        pod: String,
    },
    /// Its state changed.
    Is(JobState),
    ByHand,
    Granted,
    /// Its last session was removed from Holders by Consul or by another program.
    Lost,
    /// Its last session was removed from Holders by the operator.
    Released,
}

impl Turn {
    /// Within one revision, events of Kubernetes come before the reactions to them.
    fn class(&self) -> u8 {
        u8::from(matches!(self, Self::Granted | Self::Lost | Self::Released))
    }
}

/// The events of a Job, each with its revision and its second.
type Turns = Vec<(u64, f64, Turn)>;

pub(super) fn judge(bed: &[Record], outages: &Outages, requests: &Requests, verdict: &mut Verdict) {
    let mut turns: BTreeMap<(String, String), Turns> = BTreeMap::new();
    let api = outages.of_part(&Part::Api);
    pods(bed, requests, &mut turns);
    locks(bed, requests, &mut turns, verdict);
    let end = bed.last().map_or(0.0, |record| record.t);
    for record in bed {
        let What::Semaphore(semaphore) = &record.what else {
            continue;
        };
        // A Job that was started does not need its slot of a rate.
        if semaphore.period.is_some() {
            continue;
        }
        let measure = Measure::new(semaphore, outages);
        for ((_, uid), turns) in turns
            .iter_mut()
            .filter(|((prefix, _), _)| *prefix == semaphore.prefix)
        {
            // The sort is stable: events of the same revision keep the order in which they were recorded.
            turns.sort_by_key(|(revision, _, turn)| (*revision, turn.class()));
            let mut life = Life::new(semaphore, uid, &measure, &api, verdict);
            for (_, t, turn) in turns {
                life.take(*t, turn);
            }
            life.end(end);
        }
    }
}

/// What the API server's watch shows of pods and Jobs.
fn pods(bed: &[Record], requests: &Requests, turns: &mut BTreeMap<(String, String), Turns>) {
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    let mut prefixes: BTreeMap<&str, &str> = BTreeMap::new();
    for record in bed {
        let (prefix, uid, revision, turn) = match &record.what {
            What::Pod {
                pod,
                prefix,
                uid,
                rv,
                alive,
                grace,
            } => {
                let known = last.entry(pod).or_default();
                // A pod that is missing from a new listing ended after it was last seen.
                let rv = if *rv == 0 { *known } else { *rv };
                *known = rv;
                let pod = pod.clone();
                let turn = if *alive {
                    Turn::PodComes { pod, grace: *grace }
                } else {
                    Turn::PodEnds { pod }
                };
                (prefix.as_str(), uid, rv, turn)
            }
            What::Job(job) => {
                prefixes.insert(&job.uid, &job.prefix);
                if job.rv == 0 {
                    continue;
                }
                (job.prefix.as_str(), &job.uid, job.rv, Turn::Is(job.state))
            }
            What::ByHand { uid, rv } => {
                let Some(prefix) = prefixes.get(uid.as_str()) else {
                    continue;
                };
                (*prefix, uid, *rv, Turn::ByHand)
            }
            _ => continue,
        };
        for prefix in requests.prefixes(uid, prefix) {
            let key = (prefix.to_owned(), uid.clone());
            let turns = turns.entry(key).or_default();
            turns.push((revision, record.t, turn.clone()));
        }
    }
}

/// What the revisions of each `.lock` show.
fn locks(
    bed: &[Record],
    requests: &Requests,
    turns: &mut BTreeMap<(String, String), Turns>,
    verdict: &mut Verdict,
) {
    let jobs: BTreeMap<&str, &str> = bed
        .iter()
        .filter_map(|record| match &record.what {
            What::Contender { session, uid, .. } => Some((session.as_str(), uid.as_str())),
            _ => None,
        })
        .collect();
    // The Jobs that hold all that they ask for here.
    let of = |prefix: &str, holders: &BTreeSet<String>| -> BTreeSet<String> {
        let mut held: BTreeMap<&str, usize> = BTreeMap::new();
        for session in holders {
            if let Some(uid) = jobs.get(session.as_str()) {
                *held.entry(uid).or_default() += 1;
            }
        }
        held.retain(|uid, held| *held >= requests.slots(uid, prefix));
        held.into_keys().map(str::to_owned).collect()
    };
    let mut now: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for record in bed {
        let What::Lock {
            prefix,
            writer,
            before,
            after,
            body,
            dead,
        } = &record.what
        else {
            continue;
        };
        verdict.revisions += 1;
        if matches!(body, Body::Unknown) {
            continue;
        }
        let holders = body.holders();
        let known = now.insert(prefix, holders.clone()).unwrap_or_default();
        let added: Vec<_> = holders.difference(&known).collect();
        let limit = body.limit().unwrap_or(u64::MAX);
        if *writer != Writer::Fault && !added.is_empty() && holders.len() as u64 > limit {
            verdict.violations.push(Violation {
                t: record.t,
                rule: Rule::OverLimit,
                prefix: prefix.clone(),
                text: format!(
                    "{writer:?} wrote {} holders into a limit of {limit}, and added {added:?}",
                    holders.len()
                ),
            });
        }
        if *writer != Writer::Fault {
            verdict.grants += added
                .iter()
                .filter(|session| jobs.contains_key(session.as_str()))
                .count();
            verdict.foreign_grants += added
                .iter()
                .filter(|session| !jobs.contains_key(session.as_str()))
                .count();
        }
        let (had, has) = (of(prefix, &known), of(prefix, &holders));
        let mut turn = |uid: &String, revision, turn| {
            let key = (prefix.clone(), uid.clone());
            turns
                .entry(key)
                .or_default()
                .push((revision, record.t, turn));
        };
        for uid in has.difference(&had) {
            turn(uid, *after, Turn::Granted);
        }
        for uid in had.difference(&has) {
            let mut sessions = known
                .difference(&holders)
                .filter(|session| jobs.get(session.as_str()) == Some(&uid.as_str()));
            // The transaction itself checked that the contender is absent or unlocked.
            let proved_dead = sessions.all(|session| dead.contains(session));
            let released = *writer == Writer::Operator && !proved_dead;
            turn(
                uid,
                *before,
                if released { Turn::Released } else { Turn::Lost },
            );
        }
    }
    unseen(bed, verdict);
}

/// Checks that the second source shows nothing that the first one lacks. It may show a revision first: the proxy
/// can't read while Consul has no leader, and records each revision before it lets another write through.
fn unseen(bed: &[Record], verdict: &mut Verdict) {
    let mut recorded: BTreeSet<(&str, u64)> = BTreeSet::new();
    let mut open: BTreeMap<&str, BTreeMap<u64, f64>> = BTreeMap::new();
    let mut close = |prefix: &str, seen: BTreeMap<u64, f64>| {
        for (index, t) in seen {
            verdict.violations.push(Violation {
                t,
                rule: Rule::Unseen,
                prefix: prefix.to_owned(),
                text: format!(
                    "a blocking query shows revision {index}, which the proxy has not recorded"
                ),
            });
        }
    };
    for record in bed {
        match &record.what {
            What::Lock { prefix, body, .. } => {
                let mut seen = open.remove(prefix.as_str()).unwrap_or_default();
                if let Some(index) = body.index() {
                    recorded.insert((prefix, index));
                    seen.remove(&index);
                }
                close(prefix, seen);
            }
            What::Seen { prefix, index } if !recorded.contains(&(prefix.as_str(), *index)) => {
                open.entry(prefix).or_default().insert(*index, record.t);
            }
            What::Rest { .. } => {
                for (prefix, seen) in std::mem::take(&mut open) {
                    close(prefix, seen);
                }
            }
            _ => {}
        }
    }
}

/// The life of one Job.
struct Life<'a> {
    semaphore: &'a Semaphore,
    uid: &'a str,
    measure: &'a Measure<'a>,
    api: &'a Spans,
    verdict: &'a mut Verdict,
    state: JobState,
    held: bool,
    pods: BTreeMap<String, f64>,
    /// It was started, and has had no pod since.
    expected: bool,
    /// Why its pods may be without a slot, and since when.
    excuse: Option<(Why, f64)>,
    /// Why, and since when, a running Job has no slot.
    gap: Option<(Why, f64)>,
    grace: f64,
}

impl<'a> Life<'a> {
    fn new(
        semaphore: &'a Semaphore,
        uid: &'a str,
        measure: &'a Measure<'a>,
        api: &'a Spans,
        verdict: &'a mut Verdict,
    ) -> Self {
        Self {
            semaphore,
            uid,
            measure,
            api,
            verdict,
            state: JobState::Waiting,
            held: false,
            pods: BTreeMap::new(),
            expected: false,
            excuse: None,
            gap: None,
            grace: 0.0,
        }
    }

    fn take(&mut self, t: f64, turn: &Turn) {
        match turn {
            Turn::PodComes { pod, grace } => {
                self.expected = false;
                self.pods.insert(pod.clone(), *grace);
                self.grace = *grace;
            }
            Turn::PodEnds { pod } => {
                self.pods.remove(pod);
                // A JobSet waits while its last pods end.
                self.rests();
            }
            Turn::Is(state) => {
                self.starts(t, *state);
                self.state = *state;
                self.rests();
            }
            Turn::ByHand if !self.held => self.excuse = Some((Why::ByHand, t)),
            Turn::ByHand => {}
            Turn::Granted => {
                self.held = true;
                self.excuse = None;
            }
            Turn::Lost => {
                self.held = false;
                self.excuse = Some((Why::Lost, t));
            }
            Turn::Released => {
                self.held = false;
                self.excuse = None;
                if !self.pods.is_empty() {
                    let text = format!("its slot was given back while {:?} ran", self.pods.keys());
                    self.violate(t, Rule::ReleasedTooEarly, &text);
                    self.excuse = Some((Why::Lost, t));
                }
            }
        }
        self.settle(t);
    }

    /// Ends the excuse of one that waits without pods. Its controller may act late on a start that has since been undone.
    fn rests(&mut self) {
        if self.state == JobState::Waiting && self.pods.is_empty() && !self.expected {
            self.excuse = None;
        }
    }

    fn starts(&mut self, t: f64, state: JobState) {
        if self.state == JobState::Running || state != JobState::Running {
            return;
        }
        self.expected = true;
        if self.held {
            return;
        }
        if let Some((Why::Lost, since)) = self.excuse
            && self.measure.started_too_late(since, t, self.api)
        {
            let text = format!("it was started {:.1} s after its slot was lost", t - since);
            self.violate(t, Rule::StartedTooLate, &text);
        }
    }

    /// Begins or ends a gap. A gap lasts until its Job has a slot again or is suspended. After that, Kubernetes gives
    /// the pods their grace period.
    fn settle(&mut self, t: f64) {
        let bare = !self.held && !self.pods.is_empty();
        if bare && self.excuse.is_none() {
            let text = format!("{:?} run without a slot", self.pods.keys());
            self.violate(t, Rule::WithoutSlot, &text);
            self.excuse = Some((Why::Lost, t));
        }
        match (bare && self.state == JobState::Running, self.gap) {
            (true, None) => {
                self.gap = Some((self.excuse.map_or(Why::Lost, |(why, _)| why), t));
                self.verdict.gaps += 1;
            }
            (false, Some((why, since))) => {
                self.gap = None;
                self.check(why, since, t);
            }
            _ => {}
        }
    }

    fn check(&mut self, why: Why, since: f64, t: f64) {
        if let Some((length, bound)) = self.measure.excess(why, since, t, self.grace) {
            let text = format!(
                "it was not suspended for {length:.1} s that count, {bound:.1} s are allowed ({why:?})"
            );
            self.violate(since, Rule::GapTooLong, &text);
        }
    }

    fn end(&mut self, t: f64) {
        if let Some((why, since)) = self.gap {
            self.check(why, since, t);
        }
    }

    fn violate(&mut self, t: f64, rule: Rule, text: &str) {
        self.verdict.violations.push(Violation {
            t,
            rule,
            prefix: self.semaphore.prefix.clone(),
            text: format!("Job {}: {text}", self.uid),
        });
    }
}
