//! Liveness: slots of deleted Jobs become free again, and free slots are used.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Rule, Verdict, Violation,
    requests::Requests,
    spans::{Outages, Spans},
};
use crate::{
    record::{Body, JobState, Part, Record, Semaphore, What},
    timeline::View,
};

/// How long a slot may still be held after its Job is deleted while everything works, in seconds, besides the
/// lock-delay. This is many times what it takes.
const RELEASE: f64 = 15.0;

/// How long a Job may wait while a slot is free and everything works, in seconds.
const GRANT: f64 = 30.0;

/// The same while a Job that asks for more than one slot waits there: free slots are kept for it while others take
/// what it needs elsewhere. Programs such as `consul lock` can do that again and again.
const KEPT_FREE: f64 = 120.0;

pub(super) fn judge(bed: &[Record], outages: &Outages, requests: &Requests, verdict: &mut Verdict) {
    for record in bed {
        if let What::Semaphore(semaphore) = &record.what {
            let parts = [
                Part::Operator,
                Part::Frozen,
                Part::Api,
                Part::Consul,
                Part::Grants(semaphore.prefix.clone()),
                Part::Machine,
            ];
            let away = parts
                .iter()
                .map(|part| outages.with_recovery(part))
                .fold(Spans::default(), |all, one| all.and(&one));
            let unproved = away.and(&outages.with_recovery(&Part::Proofs));
            Watch::new(semaphore, away, unproved).judge(bed, requests, verdict);
        }
    }
    at_rest(bed, verdict);
}

/// The state of one semaphore at one point of the timeline.
struct Watch<'a> {
    semaphore: &'a Semaphore,
    /// When nothing could be granted.
    away: Spans,
    /// When nothing could be released.
    unproved: Spans,
    view: View,
    /// Since when a Job waits although a slot is free, and whether that may be kept for a larger request.
    unused: Option<(f64, bool)>,
    /// Since when a session holds a slot for a Job that is gone, and whether that was reported.
    idle: BTreeMap<String, (f64, bool)>,
}

impl<'a> Watch<'a> {
    fn new(semaphore: &'a Semaphore, away: Spans, unproved: Spans) -> Self {
        Self {
            semaphore,
            away,
            unproved,
            view: View::default(),
            unused: None,
            idle: BTreeMap::new(),
        }
    }

    fn judge(mut self, bed: &[Record], requests: &Requests, verdict: &mut Verdict) {
        // Only records of this semaphore: no other record changes anything here.
        for record in bed {
            let here = match &record.what {
                What::Job(job) => requests.is_at(&job.uid, &job.prefix, &self.semaphore.prefix),
                What::Pod { prefix, uid, .. } => {
                    requests.is_at(uid, prefix, &self.semaphore.prefix)
                }
                What::Contender { prefix, .. } | What::Lock { prefix, .. } => {
                    *prefix == self.semaphore.prefix
                }
                _ => false,
            };
            if here {
                self.view.take(&record.what);
                self.look(record.t, verdict);
            }
        }
        let end = bed.last().map_or(0.0, |record| record.t);
        self.close_unused(end, verdict);
        for (session, (since, _)) in std::mem::take(&mut self.idle) {
            self.close_idle(&session, since, end, verdict);
        }
    }

    fn look(&mut self, t: f64, verdict: &mut Verdict) {
        // What asks for several slots may wait for others. Pods of a JobSet may be left while it waits.
        let waits = self
            .view
            .jobs
            .values()
            .filter(|job| !self.view.pods.contains_key(&job.uid))
            .any(|job| job.state == JobState::Waiting && job.asks.is_empty());
        let free = match self.view.locks.get(&self.semaphore.prefix) {
            Some(Body::Semaphore { limit, holders, .. }) => (holders.len() as u64) < *limit,
            Some(Body::Absent) | None => true,
            Some(Body::Other { .. } | Body::Unknown) => false,
        };
        match (waits && free, self.unused) {
            (true, None) => self.unused = Some((t, self.larger_waits())),
            (true, Some((since, kept))) => {
                self.unused = Some((since, kept || self.larger_waits()));
            }
            (false, Some(_)) => self.close_unused(t, verdict),
            (false, None) => {}
        }
        let held = self.view.held_here(&self.semaphore.prefix);
        let idle: BTreeSet<String> = held
            .into_iter()
            .filter(|(_, uid)| self.is_gone(uid))
            .map(|(session, _)| session)
            .collect();
        for session in &idle {
            self.idle.entry(session.clone()).or_insert((t, false));
        }
        let over: Vec<_> = self
            .idle
            .keys()
            .filter(|session| !idle.contains(*session))
            .cloned()
            .collect();
        for session in over {
            if let Some((since, _)) = self.idle.remove(&session) {
                self.close_idle(&session, since, t, verdict);
            }
        }
    }

    /// Whether a Job waits that asks for more than one slot.
    fn larger_waits(&self) -> bool {
        let mut jobs = self.view.jobs.values();
        jobs.any(|job| job.state == JobState::Waiting && !job.asks.is_empty())
    }

    /// Whether a Job is done, deleted or on hold, and none of its pods is left.
    fn is_gone(&self, uid: &str) -> bool {
        // A slot of a rate stays held, whatever its Job does.
        if self.semaphore.period.is_some() {
            return false;
        }
        let state = self.view.jobs.get(uid).map(|job| job.state);
        let done = matches!(state, None | Some(JobState::Finished | JobState::Held));
        done && !self.view.pods.contains_key(uid)
    }

    fn close_unused(&mut self, t: f64, verdict: &mut Verdict) {
        let Some((since, kept)) = self.unused.take() else {
            return;
        };
        let bound = if kept { KEPT_FREE } else { GRANT };
        let clear = self.away.clear(since, t);
        verdict.unused = verdict.unused.max(clear);
        verdict.unused_at_all = verdict.unused_at_all.max(t - since);
        if clear > bound {
            verdict.violations.push(Violation {
                t: since,
                rule: Rule::JobStuck,
                prefix: self.semaphore.prefix.clone(),
                text: format!("a Job waited beside a free slot for {clear:.1} s without an outage"),
            });
        }
    }

    fn close_idle(&self, session: &str, since: f64, t: f64, verdict: &mut Verdict) {
        let clear = self.unproved.clear(since, t);
        if clear > RELEASE + self.semaphore.lock_delay {
            verdict.violations.push(Violation {
                t: since,
                rule: Rule::SlotStuck,
                prefix: self.semaphore.prefix.clone(),
                text: format!("{session} held a slot for {clear:.1} s without an outage after its Job was gone"),
            });
        }
    }
}

/// What is left after everything had time to settle.
fn at_rest(bed: &[Record], verdict: &mut Verdict) {
    let mut view = View::default();
    let rest = bed.iter().find_map(|record| {
        view.take(&record.what);
        match &record.what {
            What::Rest {
                sessions,
                contenders,
            } => Some((record.t, *sessions, *contenders)),
            _ => None,
        }
    });
    let Some((t, sessions, contenders)) = rest else {
        return;
    };
    let mut violate = |rule, prefix: &str, text: String| {
        verdict.violations.push(Violation {
            t,
            rule,
            prefix: prefix.to_owned(),
            text,
        });
    };
    for job in view
        .jobs
        .values()
        .filter(|job| job.state != JobState::Finished)
    {
        violate(
            Rule::JobStuck,
            &job.prefix,
            format!("the Job {} is {:?} at the end", job.name, job.state),
        );
    }
    for (prefix, body) in &view.locks {
        let holders = body.holders();
        if !holders.is_empty() {
            violate(
                Rule::SlotStuck,
                prefix,
                format!("{holders:?} hold slots at the end"),
            );
        }
    }
    if contenders > 0 || sessions > 0 {
        violate(
            Rule::SlotStuck,
            "",
            format!("{contenders} contenders and {sessions} sessions are left"),
        );
    }
}
