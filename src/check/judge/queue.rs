//! Says why the first workload in the queue does not run: the decision of the operator, in words.
//!
//! Nothing is decided twice: the facts are passed to [`decide`](consul_semaphore::decide()), as in the operator, and
//! the resulting plan is never carried out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{ALIVE, holder, named};
use crate::{check::report::Outcome, controller::defence};
use consul_client::{Entry, Session, SessionId, clock::Moment};
use consul_semaphore::{
    Agreement, Cooldowns, Defence, Evidence, Excluded, Identity, Lock, Memory, Observed,
    OwnContender, Phase, Plan, Reading, Settings, SlotId, Starts, Turns, Uid, Workload, decide,
    windows::Opening,
};
use consul_semaphore_api::ConsulSemaphore;
use consul_semaphore_workload::TrackedWorkload;
use jiff::Timestamp;

/// The facts about one lock key.
pub(super) struct LockKeyFacts {
    pub(super) settings: Settings,
    pub(super) reading: Reading,
    /// The queued workloads, in order.
    pub(super) waiting: Vec<Arc<Workload>>,
    /// The limits that are ours.
    applied: Vec<u32>,
    defence: Defence,
    /// Our live contenders.
    ours: Vec<OwnContender>,
    /// The workloads that were started in its slots, and are neither queued again nor finished.
    bound: Vec<Arc<Workload>>,
    /// A session for each slot that a queued workload asks for and has no contender for.
    sessions: BTreeMap<SlotId, SessionId>,
}

impl LockKeyFacts {
    pub(super) fn new(
        semaphore: &ConsulSemaphore,
        settings: Settings,
        reading: Reading,
        sessions: &[Session],
        workloads: &[TrackedWorkload],
    ) -> Self {
        let status = semaphore.status.as_ref();
        let reported = status.iter().flat_map(|status| &status.applied_limits);
        let applied = reported.filter_map(|limit| u32::try_from(*limit).ok());
        let workloads = || workloads.iter().map(|workload| &workload.workload);
        let lock_key = settings.prefix.lock_key();
        let asks = |workload: &&Arc<Workload>| settings.request(workload).is_some();
        let mut waiting: Vec<Arc<Workload>> = workloads()
            .filter(|workload| workload.is_queued() && asks(workload))
            .cloned()
            .collect();
        waiting.sort_by_key(|workload| workload.place());
        let over = |workload: &Workload| matches!(workload.phase, Phase::Finished { .. });
        let started = workloads().filter(|workload| {
            workload.started_at(&lock_key) && !workload.is_queued() && !over(workload)
        });
        let bound: Vec<Arc<Workload>> = started.cloned().collect();
        let by_uid: BTreeMap<&Uid, &Arc<Workload>> = workloads()
            .map(|workload| (&workload.uid, workload))
            .collect();

        // Each of these sessions stands for the one that the operator would create for a workload.
        let unmade = waiting.iter().flat_map(|workload| {
            let request = settings.request(workload);
            let slots = request.map_or(1, |request| request.slots.get());
            (0..slots).map(|ordinal| {
                let slot = SlotId {
                    workload: workload.uid.clone(),
                    ordinal,
                };
                let session = format!("to-be-made-{}-{ordinal}", workload.uid);
                (slot, session.into())
            })
        });
        let mut ahead: BTreeMap<SlotId, SessionId> = unmade.collect();
        let mut ours = Vec::new();
        for session in sessions {
            let identity = Identity::parse(&session.name);
            let Some(identity) = identity.filter(|identity| settings.owns(identity)) else {
                continue;
            };
            let workload = by_uid.get(&identity.uid);
            if reading.contender(&session.id).is_some() {
                ahead.remove(&identity.slot());
                ours.push(OwnContender {
                    session: session.id.clone(),
                    workload: workload.copied().cloned(),
                    identity: Arc::new(identity),
                    pods_gone: false,
                });
            } else if let Some(made) = ahead.get_mut(&identity.slot()) {
                *made = session.id.clone();
            }
        }
        Self {
            applied: applied.collect(),
            defence: defence(semaphore),
            ours,
            bound,
            sessions: ahead,
            waiting,
            settings,
            reading,
        }
    }

    /// Returns what the operator would do now, with only this knowledge.
    pub(super) fn decide(&self, now: Moment, time: jiff::Timestamp, operations: usize) -> Plan {
        let mut memory = Memory {
            turns: Turns::new(self.settings.fair),
            ..Memory::default()
        };
        let Settings {
            limit,
            restrictions,
            ..
        } = &self.settings;
        memory.turns.restrict(*limit, restrictions);
        memory.observe(&self.reading, now, time);
        let mut cooldowns = Cooldowns::default();
        let mut starts = Starts::default();
        if let Some(period) = self.settings.period {
            starts.observe(&self.reading, &self.ours, period, (now, time));
            cooldowns.take(starts.ends());
        } else {
            cooldowns.observe(&self.reading, &self.ours, now, time);
        }
        decide(&Observed {
            now,
            time,
            settings: &self.settings,
            applied: &self.applied,
            defence: self.defence,
            fenced: true,
            reading: Some(&self.reading),
            memory: &memory,
            cooldowns: &cooldowns,
            starts: &starts,
            brief: &BTreeSet::new(),
            evidence: &Evidence::default(),
            ours: &self.ours,
            bound: &self.bound,
            queue: &self.waiting,
            sessions: &self.sessions,
            unused: &consul_client::id::IdSet::default(),
            excluded: &Excluded::default(),
            stances: &BTreeMap::new(),
            longest_cooldowns: &BTreeMap::new(),
            requests: &BTreeMap::new(),
            closed: false,
            joint: None,
            operations,
        })
    }

    /// Returns the live contenders that wait and are not ours.
    pub(super) fn others(&self) -> impl Iterator<Item = (&SessionId, &Entry)> {
        let ours: BTreeSet<&SessionId> = self.ours.iter().map(|ours| &ours.session).collect();
        let waiting = self.reading.waiting();
        waiting.filter(move |(session, _)| !ours.contains(session))
    }
}

/// Returns why the first workload in the queue does not run yet at this time, and what to do. `all_known` says that the
/// owner of each contender is known.
pub(super) fn why_it_waits(
    place: &LockKeyFacts,
    plan: &Plan,
    first: &Workload,
    time: Timestamp,
    all_known: bool,
) -> (Outcome, String, Option<String>) {
    let settings = &place.settings;
    let ok = |why: String| (Outcome::Ok, why, None);
    let stays = |why: &str| {
        let todo = format!("if this lasts, {ALIVE}");
        (Outcome::Warning, why.to_owned(), Some(todo))
    };
    if plan.skips.iter().any(|skip| skip.workload.uid == first.uid) {
        return stays("on-contention is Skip and all slots are held: the operator deletes it");
    }
    if plan.fails.iter().any(|fail| fail.workload.uid == first.uid) {
        return stays("on-contention is Fail and all slots are held: the operator makes it fail");
    }
    let granted = plan
        .transaction
        .iter()
        .flat_map(|transaction| &transaction.grants);
    let mut started = plan
        .starts
        .iter()
        .map(|start| &start.workload)
        .chain(granted.map(|grant| &grant.workload));
    if started.any(|workload| workload.uid == first.uid) {
        return stays(
            "a slot is free and this Job is next: the operator starts the Job as soon as it sees the free slot",
        );
    }
    if settings.terminating {
        let todo =
            "create the ConsulSemaphore again after its deletion, or remove the Job's annotation";
        let why = "the ConsulSemaphore is being deleted: no slot is granted";
        return (Outcome::Warning, why.to_owned(), Some(todo.to_owned()));
    }
    if matches!(place.reading.lock(), Lock::Unreadable(_)) {
        return ok("the lock can't be used: see above".to_owned());
    }
    if let Some(Agreement::Conflict { .. }) = plan.agreement {
        return ok("the limits don't agree: see above".to_owned());
    }
    if settings.paused {
        let todo = "set spec.paused to false to grant slots again";
        let why = "spec.paused is true: no slot is granted";
        return (Outcome::Warning, why.to_owned(), Some(todo.to_owned()));
    }
    if plan.record.is_some() {
        return stays(
            "the operator has not recorded the limit yet, which it does before the first grant",
        );
    }
    let restrictions = &settings.restrictions;
    let opening = restrictions.windows.at(time);
    if let Opening::Closed { until } = opening {
        return match until {
            Some(until) => ok(format!(
                "outside spec.windows: no slot is granted before {until:.0}"
            )),
            None => stays("no window of spec.windows ever opens: see above"),
        };
    }
    let asks = settings
        .request(first)
        .map_or(1, |request| request.slots.get());
    let most = restrictions.limit(settings.limit, opening, first.priority);
    let needed = asks.saturating_add(settings.limit - most);
    let lacks = |room: usize| u32::try_from(room).is_ok_and(|room| room < needed);
    let mut words = match asks {
        1 => "no slot is free".to_owned(),
        asks => format!("it asks for {asks} slots, and fewer are free"),
    };
    if most < settings.limit {
        let limit = settings.limit;
        words = format!(
            "{words} for it: spec.windows or spec.reserved allows only {most} of {limit} slots to be held"
        );
    }
    let taken: Vec<&SessionId> = match place.reading.lock() {
        Lock::Semaphore { body, .. } if lacks(body.room()) => body.holders().collect(),
        Lock::Mutex { holder, .. } => holder.iter().collect(),
        _ => Vec::new(),
    };
    if !taken.is_empty() {
        let holders = taken.iter().map(|session| holder(&place.reading, session));
        return ok(format!("{words}: held by {}", named(holders)));
    }
    let others = place.others().count();
    if others > 0 && !all_known {
        let why = format!(
            "a slot is free, but other contenders wait ({others}), and it is unknown whether they belong to this \
             cluster: see above"
        );
        return (Outcome::Unknown, why, None);
    }
    if others > 0 {
        return ok(format!(
            "a slot is free, but contenders of other clusters or programs wait ({others}): contenders that were \
             queued earlier come first"
        ));
    }
    stays("a slot is free, but kept for a Job that had it before or whose pods have not ended")
}
