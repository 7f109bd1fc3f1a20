//! Collects the facts that a pass decides by.

use std::{collections::BTreeSet, sync::Arc};

use super::Queue;
use crate::{
    Excluded, Observed, OwnContender, Phase, Uid, Workload,
    engine::{knowledge::Memory, message::Now},
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
    /// Returns the facts for a pass that grants this workload its slots together with its other lock keys.
    pub(super) fn observed<'a>(&'a self, queue: &'a Queue, joint: Option<&'a Uid>) -> Observed<'a> {
        let Memory {
            deaths,
            mutex,
            turns,
        } = &queue.knowledge.memory;
        Observed {
            now: self.now.moment,
            time: self.now.time,
            settings: &queue.settings,
            applied: &queue.limits.recorded,
            defence: queue.limits.defence,
            fenced: queue.limits.fenced,
            reading: queue.knowledge.reading.as_ref().filter(|_| self.certain),
            deaths,
            mutex,
            turns,
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
            stances: &queue.stances,
            longest_cooldowns: &queue.longest_cooldowns,
            requests: &queue.requests,
            closed: self.unsure || queue.writes.refusals.is_closed(self.now.moment),
            joint,
            operations: queue.operations.unwrap_or(0),
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
