//! Jobs that ask for more than one slot: all of a request is granted at one raft index, or nothing; and who has lost a
//! part of it, and is not running, gives the others back.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Rule, Verdict, Violation,
    requests::Requests,
    spans::{Outages, Spans},
};
use crate::{
    record::{Body, JobState, Part, Record, What, Writer},
    timeline::View,
};

/// How long after it was seen running a Job may still be granted a part that it had lost, in seconds: the write may
/// be on its way, and the watch may be late.
const RUNNING: f64 = 15.0;

/// How late the rest of a transaction may be recorded, in seconds: the proxy reads each `.lock` for up to a minute.
const RECORDED: f64 = 70.0;

/// How long a part may be kept by a Job that is not running, while everything works, in seconds.
const KEPT: f64 = 20.0;

pub(super) fn judge(bed: &[Record], outages: &Outages, requests: &Requests, verdict: &mut Verdict) {
    let mut watch = Watch::new(requests, outages);
    for record in bed {
        watch.take(record);
    }
    watch.end(bed, verdict);
}

/// A slot that a Job was given.
struct Given {
    t: f64,
    prefix: String,
    /// The raft index of the grant, from its contender; none if that was gone already.
    index: Option<u64>,
    /// Whether the Job ran, so that this may replace a slot that it had lost.
    running: bool,
    /// Whether the Job's earlier slot of a rate is gone with the same revision of `.lock`: a dead session may be
    /// replaced, although the Job may be done, or the rate counts a new start of the Job.
    replaces: bool,
}

struct Watch<'a> {
    requests: &'a Requests,
    /// When nothing could be given back.
    away: Spans,
    /// The prefixes of rates, whose slots stay held whatever becomes of the Job.
    rates: BTreeSet<String>,
    view: View,
    /// When a Job was last seen running, or stopping.
    ran: BTreeMap<String, f64>,
    /// The raft indexes of grants and when they were recorded, by session: after somebody replaced a `.lock`, a session
    /// may be granted a slot again.
    indexes: BTreeMap<String, Vec<(f64, u64)>>,
    given: BTreeMap<String, Vec<(String, Given)>>,
    /// Since when a Job that is not running has only a part of its slots.
    partial: BTreeMap<String, f64>,
    kept: Vec<(f64, f64, String)>,
}

impl<'a> Watch<'a> {
    fn new(requests: &'a Requests, outages: &Outages) -> Self {
        let mut parts = vec![
            Part::Operator,
            Part::Frozen,
            Part::Api,
            Part::Consul,
            Part::Proofs,
        ];
        parts.extend(outages.grants());
        let away = parts.iter().map(|part| outages.with_recovery(part));
        Self {
            requests,
            away: away.fold(Spans::default(), |all, one| all.and(&one)),
            rates: BTreeSet::new(),
            view: View::default(),
            ran: BTreeMap::new(),
            indexes: BTreeMap::new(),
            given: BTreeMap::new(),
            partial: BTreeMap::new(),
            kept: Vec::new(),
        }
    }

    fn take(&mut self, record: &Record) {
        match &record.what {
            What::Semaphore(semaphore) if semaphore.period.is_some() => {
                self.rates.insert(semaphore.prefix.clone());
            }
            What::Granted { session, index, .. } => {
                let indexes = self.indexes.entry(session.clone()).or_default();
                indexes.push((record.t, *index));
            }
            What::Lock {
                prefix,
                writer,
                body,
                ..
            } if *writer != Writer::Fault && !matches!(body, Body::Unknown) => {
                self.give(record.t, prefix, body);
            }
            _ => {}
        }
        self.view.take(&record.what);
        if let What::Job(job) = &record.what
            && matches!(job.state, JobState::Running | JobState::Stopping)
        {
            self.ran.insert(job.uid.clone(), record.t);
        }
        let pods = self.view.pods.keys();
        for uid in pods.filter(|uid| self.requests.of_job(uid).is_some()) {
            self.ran.insert(uid.clone(), record.t);
        }
        if matches!(
            record.what,
            What::Job(_) | What::Pod { .. } | What::Lock { .. }
        ) {
            self.look_at_parts(record.t);
        }
    }

    /// Notes the slots that a revision of a `.lock` adds.
    fn give(&mut self, t: f64, prefix: &str, body: &Body) {
        let before = self.view.locks.get(prefix).map(Body::holders);
        let before = before.unwrap_or_default();
        let holders = body.holders();
        for session in holders.difference(&before) {
            let uid = self.view.sessions.get(session);
            let Some(uid) = uid.filter(|uid| self.requests.of_job(uid).is_some()) else {
                continue;
            };
            let mut gone = before.difference(&holders);
            let replaces = self.rates.contains(prefix)
                && gone.any(|gone| self.view.sessions.get(gone) == Some(uid));
            let ran = self.ran.get(uid).is_some_and(|ran| t - ran < RUNNING);
            let state = self.view.jobs.get(uid).map(|job| job.state);
            let runs = matches!(state, Some(JobState::Running | JobState::Stopping));
            let given = Given {
                t,
                prefix: prefix.to_owned(),
                index: None,
                running: ran || runs,
                replaces,
            };
            let all = self.given.entry(uid.clone()).or_default();
            all.push((session.clone(), given));
        }
    }

    /// How many slots a Job holds at each prefix of its request, and how many it asks for.
    fn parts(&self, uid: &str) -> Vec<(usize, usize)> {
        let request = self.requests.of_job(uid).into_iter().flatten();
        let request = request.filter(|(prefix, _)| !self.rates.contains(*prefix));
        let parts = request.map(|(prefix, slots)| {
            let held = self.view.held_here(prefix);
            let held = held.iter().filter(|(_, of)| of == uid).count();
            (held, *slots)
        });
        parts.collect()
    }

    fn look_at_parts(&mut self, t: f64) {
        let jobs = self.view.jobs.values();
        let partial: BTreeSet<String> = jobs
            .filter(|job| job.state == JobState::Waiting && !job.asks.is_empty())
            .filter(|job| !self.view.pods.contains_key(&job.uid))
            .filter(|job| {
                let parts = self.parts(&job.uid);
                let any = parts.iter().any(|(held, _)| *held > 0);
                any && parts.iter().any(|(held, slots)| held < slots)
            })
            .map(|job| job.uid.clone())
            .collect();
        for uid in &partial {
            self.partial.entry(uid.clone()).or_insert(t);
        }
        let over = self.partial.extract_if(.., |uid, _| !partial.contains(uid));
        self.kept.extend(over.map(|(uid, since)| (since, t, uid)));
    }

    fn end(mut self, bed: &[Record], verdict: &mut Verdict) {
        let end = bed.last().map_or(0.0, |record| record.t);
        let rest = bed
            .iter()
            .any(|record| matches!(record.what, What::Rest { .. }));
        for (uid, since) in std::mem::take(&mut self.partial) {
            self.kept.push((since, end, uid));
        }
        for (since, to, uid) in &self.kept {
            let clear = self.away.clear(*since, *to);
            if clear > KEPT {
                let text =
                    format!("it kept a part of its slots for {clear:.1} s without an outage");
                violate(verdict, *since, Rule::PartKept, uid, &text);
            }
        }
        for (uid, mut given) in std::mem::take(&mut self.given) {
            for (session, given) in &mut given {
                given.index = self.index_of(session, given.t);
            }
            let given: Vec<Given> = given.into_iter().map(|(_, given)| given).collect();
            self.check(
                &uid,
                &given,
                if rest { f64::MAX } else { end - RECORDED },
                verdict,
            );
        }
    }

    /// The raft index of the grant of a slot whose `.lock` was recorded then: the next one that is recorded, or the last.
    fn index_of(&self, session: &str, t: f64) -> Option<u64> {
        let indexes = self.indexes.get(session)?;
        let next = indexes.iter().find(|(recorded, _)| *recorded >= t);
        next.or(indexes.last()).map(|(_, index)| *index)
    }

    /// Checks that what a Job was given at one raft index, while it did not run, is all of its request.
    fn check(&self, uid: &str, given: &[Given], until: f64, verdict: &mut Verdict) {
        let Some(request) = self.requests.of_job(uid) else {
            return;
        };
        let mut grants: BTreeMap<u64, Vec<&Given>> = BTreeMap::new();
        for given in given {
            if let Some(index) = given.index {
                grants.entry(index).or_default().push(given);
            }
        }
        for (index, grant) in grants {
            let t = grant.iter().map(|given| given.t).fold(f64::MAX, f64::min);
            let only_replaces = grant.iter().all(|given| given.replaces);
            if t > until || only_replaces || grant.iter().any(|given| given.running) {
                continue;
            }
            verdict.requests += 1;
            for (prefix, slots) in request {
                let here = grant.iter().filter(|given| given.prefix == *prefix).count();
                let unread = given.iter().filter(|given| {
                    given.index.is_none()
                        && given.prefix == *prefix
                        && (given.t - t).abs() < RECORDED
                });
                if here + unread.count() < *slots {
                    let text = format!(
                        "at raft index {index} it was granted {here} of {slots} slots of {prefix}, and others of its \
                         request"
                    );
                    violate(verdict, t, Rule::GrantedInPart, uid, &text);
                }
            }
        }
    }
}

fn violate(verdict: &mut Verdict, t: f64, rule: Rule, uid: &str, text: &str) {
    verdict.violations.push(Violation {
        t,
        rule,
        prefix: String::new(),
        text: format!("Job {uid}: {text}"),
    });
}
