//! The first part of a pass: gathers the facts that it decides on.

use std::sync::Arc;

use super::{Grantor, refusals::Withheld, sessions::Whose};
use crate::controller::patch;
use consul_client::clock::{self, Moment};
use consul_semaphore::{Job, Observed, Ours, Standing};

/// The facts of one round, owned.
pub(super) struct Facts {
    pub(super) now: Moment,
    ours: Vec<Ours>,
    bound: Vec<Arc<Job>>,
    line: Vec<Arc<Job>>,
    withheld: Withheld,
    closed: bool,
}

impl Facts {
    /// These facts with the grantor's own knowledge.
    pub(super) fn observed<'a>(&'a self, grantor: &'a Grantor, applied: &'a [u32]) -> Observed<'a> {
        Observed {
            now: self.now,
            time: clock::time(),
            settings: &grantor.settings,
            applied,
            defence: grantor.defence,
            fenced: grantor.fenced,
            reading: grantor.view.reading.as_ref(),
            deaths: &grantor.view.deaths,
            mutex: &grantor.view.mutex,
            turns: &grantor.view.turns,
            evidence: &grantor.evidence,
            coolings: &grantor.coolings,
            ours: &self.ours,
            bound: &self.bound,
            line: &self.line,
            sessions: &grantor.sessions.ahead,
            busy: &self.withheld.busy,
            barred: &self.withheld.barred,
            immovable: &self.withheld.immovable,
            closed: self.closed,
            operations: grantor.view.capacity(),
        }
    }

    /// Whether no Job is there at all.
    pub(super) fn is_empty(&self) -> bool {
        self.ours.is_empty() && self.bound.is_empty() && self.line.is_empty()
    }

    /// Whether a Job that was started in a slot has pods, or may have.
    pub(super) fn any_runs(&self) -> bool {
        self.bound.iter().any(|job| {
            job.granted.is_some() && matches!(job.standing, Standing::Running | Standing::Stopping)
        })
    }
}

impl Grantor {
    /// Gathers the facts.
    pub(super) async fn observe(&mut self) -> Facts {
        let now = Moment::now();
        self.view.rouse(now, self.settings.patience());
        self.view.look().await;
        self.sessions.forget_dead();
        let reading = self.view.reading.as_ref();
        if reading.is_some_and(|reading| self.sessions.outlive(reading)) {
            // The watch has not brought yet what a renewal was told.
            self.view.doubt();
            self.view.look().await;
        }
        if let Some(reading) = &self.view.reading {
            self.tenures.observe(reading);
        }
        self.identify().await;
        self.adopt();
        self.acquaint();
        let withheld = self.writes.withheld(now);
        let ours = self.ours(&withheld);
        if let Some(reading) = &self.view.reading {
            // Both clocks at once: what was asked for in between may have taken long.
            let (time, now) = (clock::time(), Moment::now());
            self.coolings.observe(reading, &ours, now, time);
        }
        if self.writes.refusals.is_to_ask(now) && self.writes.asked.is_empty() {
            let (client, namespace) = (
                self.context.client.clone(),
                self.reference.namespace.clone(),
            );
            let asked = async move { patch::may_write(&client, &namespace).await };
            self.writes.asked.spawn(asked);
        }
        let capacity = self.view.capacity();
        let head = super::head(self.settings.limit, capacity, passed(&ours, &withheld));
        let slice = self.context.index.slice(&self.reference, head);
        self.weigh(now, &slice.bound, &ours);
        Facts {
            now,
            ours,
            bound: slice.bound,
            line: slice.line,
            withheld,
            closed: self.writes.refusals.is_closed(now),
        }
    }

    /// Brings the evidence for the slots of running Jobs up to date.
    fn weigh(&mut self, now: Moment, bound: &[Arc<Job>], ours: &[Ours]) {
        let lock_key = self.settings.prefix.lock_key();
        let runs = |job: &&Job| job.standing == Standing::Running && job.started_at(&lock_key);
        let running: Vec<&Job> = bound.iter().map(AsRef::as_ref).filter(runs).collect();
        let reading = self.view.reading.as_ref();
        self.evidence
            .observe(now, &self.settings, &running, reading, ours, |session| {
                let own = self.sessions.life(session);
                own.or_else(|| self.context.keeper.life(session))
            });
    }

    /// Our contenders, each with its Job, and with a proof where what happens to it depends on one.
    fn ours(&mut self, withheld: &Withheld) -> Vec<Ours> {
        let Some(reading) = &self.view.reading else {
            return Vec::new();
        };
        let contenders = reading.contenders().map(|(session, _)| session);
        let own = contenders.filter_map(|session| match self.sessions.whose(session) {
            Some(Whose::Own(identity)) => Some((session, identity)),
            _ => None,
        });
        let own: Vec<_> = own.collect();
        let uids: Vec<_> = own.iter().map(|(_, identity)| &identity.uid).collect();
        let jobs = self.context.index.jobs_of(&self.reference, &uids);
        let ours = own
            .into_iter()
            .zip(jobs)
            .map(|((session, identity), job)| Ours {
                session: session.clone(),
                identity: identity.clone(),
                job,
                pods_gone: false,
            });
        let mut ours: Vec<Ours> = ours.collect();
        self.proofs
            .retain(|session| reading.contender(session).is_some());
        // A session has one start, so those that are gone are forgotten many at once.
        if self.starts.len() > 2 * ours.len() {
            self.starts
                .retain(|session, _| reading.contender(session).is_some());
        }
        self.prove(&mut ours, withheld);
        ours
    }
}

/// How many of those in line a pass may have to pass by.
fn passed(ours: &[Ours], withheld: &Withheld) -> usize {
    let in_line = |ours: &&Ours| ours.job.as_ref().is_some_and(|job| job.in_line());
    ours.iter().filter(in_line).count() + withheld.busy.len() + withheld.barred.len()
}
