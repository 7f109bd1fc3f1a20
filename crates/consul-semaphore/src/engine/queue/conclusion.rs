//! Draws the conclusion of a pass: what the engine and people learn of the queue.

use std::collections::{BTreeMap, BTreeSet};

use super::{Facts, Queue};
use crate::{
    Agreement, Plan, Reading, Uid,
    engine::Lookup,
    plan::{Part, Target},
};

/// Result of a pass.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each asked for by itself"
)]
pub struct Conclusion {
    /// Whether the pass knew what Consul says; if not, the other fields mean nothing.
    pub certain: bool,
    /// Value that `status.appliedLimits` must have before the limit can be written to Consul.
    pub record: Option<Vec<u32>>,
    /// Agreement of the spec and Consul on the limit; `None` while `.lock` can't be read.
    pub agreement: Option<Agreement>,
    /// Whether the semaphore is being deleted and nothing of it is left in Consul.
    pub finished: bool,
    /// Running workloads that continue without a slot.
    pub unheld: Vec<Target>,
    /// Whether no workload here runs in a slot or may have one.
    pub nothing_held: bool,
    /// Limit, if nothing in Consul still depends on another limit of ours.
    pub settled: Option<u32>,
    /// Whether there is no waiting workload and no holder, and nothing is left to do.
    pub idle: bool,
    /// State here of workloads that also ask for slots at other lock keys and have not been started.
    pub parts: BTreeMap<Uid, Part>,
    /// Whether slots are granted here now.
    pub open: bool,
    /// Waiting workloads that can have what they ask for here.
    pub in_reach: BTreeSet<Uid>,
    /// Number of slots that no workload is granted or kept which the pass has read; `None` if it is not certain what can
    /// be granted.
    pub spare: Option<usize>,
    /// Number of slots that others wait for before the first of the waiting workloads; `None` if none waits.
    pub before: Option<usize>,
}

impl Conclusion {
    /// Returns the conclusion from the facts of a pass, its plan, and what the queue is about to do.
    pub(super) fn of(queue: &Queue, facts: &Facts, plan: Plan, lookup: &impl Lookup) -> Self {
        let Queue {
            settings,
            knowledge,
            sessions,
            writes,
            calls,
            ..
        } = queue;
        let lock = knowledge.reading.as_ref().map(Reading::lock);
        let settles = lock.is_some_and(|lock| plan.settles(lock, settings));
        let Plan {
            record,
            agreement,
            finished,
            unheld,
            parts,
            open,
            in_reach,
            spare,
            before,
            ..
        } = plan;
        // Slots of a rate end with their sessions.
        let may_hold = !settings.is_rate() && sessions.any_may_hold(facts.now.moment, lookup);
        Self {
            certain: facts.certain,
            record,
            agreement,
            // A session that is being made has to be destroyed first.
            finished: finished && !sessions.is_making(),
            unheld,
            nothing_held: !facts.any_runs() && !may_hold,
            settled: settles.then_some(settings.limit),
            idle: facts.is_empty()
                && sessions.is_empty()
                && writes.is_empty()
                && !calls.awaits_consul()
                && knowledge.is_unused(),
            parts,
            open: open && !knowledge.troubles.writing_fails(),
            in_reach,
            spare,
            before,
        }
    }
}
