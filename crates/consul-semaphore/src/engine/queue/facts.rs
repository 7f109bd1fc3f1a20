//! Collects the facts that a pass decides by.

use std::{collections::BTreeSet, sync::Arc};

use super::Queue;
use crate::{
    Excluded, Observed, OwnContender, Phase, Uid, Workload,
    engine::{
        Lookup, Owner,
        message::Now,
        waiting::{Reach, head},
    },
};
use consul_client::SessionId;

/// The facts of a pass, owned.
pub(super) struct Facts {
    pub(super) now: Now,
    /// Whether Consul's entries and their owners are known, and no write is under way.
    pub(super) certain: bool,
    /// Contenders of this process and the workloads that were started here, except the steady ones.
    pub(super) ours: Vec<OwnContender>,
    pub(super) bound: Vec<Arc<Workload>>,
    /// Number of workloads that are steady.
    pub(super) steady: usize,
    pub(super) waiting: Vec<Arc<Workload>>,
    pub(super) excluded: Excluded,
    /// Sessions of workloads that wait for a rate, if the sessions may end before a slot granted now does.
    pub(super) brief: BTreeSet<SessionId>,
    /// Whether nothing is known yet of the session of a workload that waits for a rate, so that nothing can be
    /// granted.
    pub(super) unsure: bool,
}

impl Facts {
    /// Gathers the facts for a pass over a queue, and requests those that are missing.
    pub(super) fn gather(queue: &mut Queue, now: Now, lookup: &impl Lookup) -> Self {
        Observation { queue, now, lookup }.facts()
    }

    /// Returns the facts for a pass that grants this workload its slots together with its other lock keys.
    pub(super) fn observed<'a>(&'a self, queue: &'a Queue, joint: Option<&'a Uid>) -> Observed<'a> {
        Observed {
            now: self.now.moment,
            time: self.now.time,
            settings: &queue.settings,
            applied: &queue.limits.recorded,
            defence: queue.limits.defence,
            fenced: queue.limits.fenced,
            reading: queue.knowledge.reading.as_ref().filter(|_| self.certain),
            memory: &queue.knowledge.memory,
            evidence: &queue.held.evidence,
            cooldowns: &queue.held.cooldowns,
            starts: &queue.held.starts,
            brief: &self.brief,
            ours: &self.ours,
            bound: &self.bound,
            queue: &self.waiting,
            sessions: &queue.sessions.ahead,
            unused: &queue.sessions.unused,
            excluded: &self.excluded,
            stances: &queue.joint.stances,
            longest_cooldowns: &queue.joint.longest_cooldowns,
            requests: &queue.joint.whole,
            closed: self.unsure || queue.writes.refusals.is_closed(self.now.moment),
            joint,
            operations: queue.operations().unwrap_or(0),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ours.is_empty() && self.bound.is_empty() && self.waiting.is_empty() && self.steady == 0
    }

    /// Whether a workload that was started in a slot has pods, or may have them.
    pub(super) fn any_runs(&self) -> bool {
        let mut bound = self.bound.iter();
        let has_pods = |workload: &Arc<Workload>| {
            workload.granted.is_some() && matches!(workload.phase, Phase::Running | Phase::Stopping)
        };
        self.steady > 0 || bound.any(has_pods)
    }
}

/// A pass that gathers its facts.
struct Observation<'a, L> {
    queue: &'a mut Queue,
    now: Now,
    lookup: &'a L,
}

impl<L: Lookup> Observation<'_, L> {
    /// Gathers the facts in the order in which they depend on each other.
    fn facts(mut self) -> Facts {
        let (now, lookup) = (self.now, self.lookup);
        self.queue.give_up(now);
        let patience = self.queue.settings.patience();
        self.queue.knowledge.detect_sleep(now.moment, patience);
        let Queue {
            sessions, calls, ..
        } = &mut *self.queue;
        sessions.forget_dead(lookup, calls);
        let may_settle = self.note_changes();
        let certain = !self.queue.is_blocked() && self.knows_all();
        if certain {
            self.note_contenders();
        }
        let excluded = self.queue.writes.excluded(now.moment);
        let mut ours = Vec::new();
        if certain {
            ours = self.ours(&excluded);
        }
        if self.queue.writes.refusals.is_to_ask(now.moment) {
            self.queue.calls.ask_access();
        }
        let waiting = self.waiting(&ours, &excluded);
        let Queue {
            settings,
            knowledge,
            sessions,
            held,
            active,
            ..
        } = self.queue;
        let reading = knowledge.reading.as_ref().filter(|_| certain);
        let started = active.decided_about(settings);
        held.update_evidence(started, &ours, reading, settings, now, lookup);
        if let Some(reading) = reading.filter(|_| may_settle) {
            active.settle(&mut ours, held, reading, settings, &excluded);
        }
        let ahead = sessions.ahead.values();
        Facts {
            now,
            certain,
            bound: active.decided_about(settings).cloned().collect(),
            unsure: held.is_unsure(&ours, settings, lookup),
            brief: held.brief(&ours, ahead, settings, now, lookup),
            ours,
            steady: held.evidence.count_of_steady(),
            waiting,
            excluded,
        }
    }

    /// Adds the workloads that have changed, that are being written to or whose evidence becomes old to those that
    /// the pass checks. Returns whether it is known what has changed, so that the others need no check.
    fn note_changes(&mut self) -> bool {
        let Queue {
            settings,
            knowledge,
            sessions,
            held,
            active,
            writes,
            ..
        } = &mut *self.queue;
        let busy = writes.excluded(self.now.moment).busy;
        let life = |session: &SessionId| self.lookup.life(session);
        let aged = held.evidence.aged(self.now.moment, settings, life);
        let due = aged.into_iter().chain(busy);
        let evidence = &mut held.evidence;
        active.note_changes(due, evidence, knowledge, sessions, self.lookup)
    }

    /// Requests the prefix and the owners of the contenders. Returns whether all of that is known already.
    fn knows_all(&mut self) -> bool {
        let Queue {
            knowledge,
            sessions,
            active,
            calls,
            ..
        } = &mut *self.queue;
        knowledge.request_missing(sessions, &active.gone, calls, self.now, self.lookup)
    }

    /// Adds the contenders that have changed in the reading to those that the pass checks, and asks for the names of
    /// foreign holders. The sessions of our contenders are renewed before anything else.
    fn note_contenders(&mut self) {
        let Queue {
            knowledge,
            sessions,
            held,
            active,
            writes,
            calls,
            ..
        } = &mut *self.queue;
        if let Some(reading) = &knowledge.reading {
            sessions.adopt(reading, calls, self.lookup);
        }
        active.note_contenders(&mut held.evidence, knowledge, sessions, self.lookup);
        writes.refusals.contend(|uid| active.contends(uid));
        if let Some(reading) = &knowledge.reading {
            let foreign = active.foreign.iter();
            held.foreign.ask(foreign, reading, calls, self.now.moment);
        }
        let is_neighbour = |session: &SessionId| sessions.owner(session) == Some(&Owner::Neighbour);
        knowledge.memory.turns.note_neighbours(is_neighbour);
    }

    /// Returns the contenders of ours to check, each with its workload, and with a proof where its fate depends on
    /// one.
    fn ours(&mut self, excluded: &Excluded) -> Vec<OwnContender> {
        let Queue {
            settings,
            knowledge,
            held,
            active,
            calls,
            ..
        } = &mut *self.queue;
        let Some(reading) = &knowledge.reading else {
            return Vec::new();
        };
        let mut ours = active.ours(self.lookup);
        held.observe_pods(reading, &ours, self.now, self.lookup);
        let questions = held.prove(&mut ours, reading, settings, excluded, self.now);
        calls.ask_for_proofs(questions);
        held.observe(reading, &ours, settings, self.now);
        ours
    }

    /// Returns the waiting workloads that the pass decides about. A workload that can't be granted its slots now and
    /// keeps nothing does not count against how far the pass reads.
    fn waiting(&self, ours: &[OwnContender], excluded: &Excluded) -> Vec<Arc<Workload>> {
        let contend: BTreeSet<&Uid> = ours.iter().map(|ours| &ours.identity.uid).collect();
        let limit = self.queue.settings.limit;
        let operations = self.queue.operations().unwrap_or(0);
        self.lookup.waiting(&Reach {
            most: head(limit, operations),
            apart: &|uid| {
                contend.contains(uid)
                    || excluded.busy.contains(uid)
                    || excluded.barred.contains(uid)
            },
            passed_over: &|uid| self.queue.joint.is_passed_over(uid),
        })
    }
}
