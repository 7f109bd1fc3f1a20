//! Composes the status of a semaphore: the last known state of each of its lock keys, folded into one.

#![expect(
    clippy::ref_option,
    reason = "a semaphore without keys is found in the same maps, by None"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    StatusSources,
    conditions::{Need, Outlook, number, slots},
    queued::{Before, Facts},
    tenures::Tenures,
};
use crate::controller::index::{Index, Queued};
use consul_client::{SessionId, clock, text::one_line};
use consul_semaphore::{
    Agreement, ContenderBody, Key, Reading, Restrictions, SlotRequest, Uid,
    engine::{Conclusion, Owner, Queue, QueueRef, QueueState, SemaphoreRef, SemaphoreState},
    plan::Stance,
    windows::Opening,
};
use consul_semaphore_api::{
    HolderStatus, LISTED, NotStartedStatus, QueueStatus, WaiterStatus,
    conditions::{ConditionStatus, ConditionType, Finding, Reason},
};

/// Last reading from Consul. It stays in the status while Consul can't be read.
#[derive(Clone, Debug, Default)]
pub(super) struct ShownReading {
    pub(super) limit: Option<u32>,
    pub(super) held: usize,
    pub(super) held_here: usize,
    /// Oldest holders, each with the raft index of its grant.
    pub(super) holders: Vec<(Option<u64>, HolderStatus)>,
    /// Contenders that wait in other clusters and programs, each with the raft index of its contender key.
    pub(super) elsewhere: Vec<(u64, WaiterStatus)>,
}

impl ShownReading {
    /// Returns what a reading of a queue's prefix shows.
    pub(super) fn new(
        reference: &QueueRef,
        queue: &Queue,
        reading: &Reading,
        tenures: &mut Tenures,
        index: &Index,
    ) -> Self {
        tenures.observe(reading);
        let Some((limit, sessions)) = slots(reading.lock()) else {
            return Self::default();
        };
        let held = sessions.len();
        let mut holders: Vec<_> = sessions
            .into_iter()
            .map(|session| (session, reading.contender(session)))
            .collect();
        let here = holders
            .iter()
            .filter(|(session, _)| is_here(queue, session));
        let held_here = here.count();
        holders.sort_by_key(|(_, contender)| contender.map(|entry| entry.modify_index));
        let genuine = holders.iter().filter(|(session, _)| session.is_genuine());
        let named = genuine.take(LISTED).map(|(session, contender)| {
            let body = contender.and_then(|entry| ContenderBody::read(&entry.value));
            let cools_until = body.as_ref().and_then(|body| body.cools_until);
            let said = body.as_ref().map(ContenderBody::holder);
            let name = queue.holder_name(session).cloned();
            let since = match &body {
                Some(body) => Some(body.time),
                None => tenures.since(session),
            };
            let not_started = match queue.owner(session) {
                Some(Owner::Own(identity)) => index.not_started(&identity.uid),
                _ => None,
            };
            let status = HolderStatus {
                session: session.to_string(),
                key: reference.key.as_ref().map(ToString::to_string),
                holder: said.or(name).unwrap_or_default(),
                slot_index: body.as_ref().and_then(|body| body.slot_index),
                slot_name: body.as_ref().and_then(ContenderBody::shown_slot_name),
                never_expires: body.as_ref().is_some_and(|body| body.endless),
                cools_until: cools_until.and_then(whole_seconds).map(Time),
                since: since.and_then(whole_seconds).map(Time),
                not_started: not_started.map(|start| NotStartedStatus {
                    reason: start.reason.into(),
                    message: Some(start.message.into()).filter(|text: &String| !text.is_empty()),
                }),
            };
            (contender.map(|entry| entry.modify_index), status)
        });
        Self {
            limit: Some(limit),
            held,
            held_here,
            holders: named.collect(),
            elsewhere: elsewhere(reference, queue, reading),
        }
    }
}

/// Whether a session belongs to a workload of this cluster.
fn is_here(queue: &Queue, session: &SessionId) -> bool {
    matches!(queue.owner(session), Some(Owner::Own(_) | Owner::Neighbour))
}

/// Returns the contenders that wait in other clusters and programs, the longest wait first, as many as the status
/// lists.
fn elsewhere(reference: &QueueRef, queue: &Queue, reading: &Reading) -> Vec<(u64, WaiterStatus)> {
    let mut waiting: Vec<_> = reading
        .waiting()
        .filter(|(session, _)| session.is_genuine() && !is_here(queue, session))
        .collect();
    waiting.sort_by_key(|(_, contender)| contender.create_index);
    let listed = waiting.into_iter().take(LISTED);
    let status = listed.map(|(session, contender)| {
        let body = ContenderBody::read(&contender.value);
        let waiter = WaiterStatus {
            session: session.to_string(),
            key: reference.key.as_ref().map(ToString::to_string),
            waiter: body.map(|body| body.holder()).unwrap_or_default(),
        };
        (contender.create_index, waiter)
    });
    status.collect()
}

/// Returns the workloads that are queued, including those that the last pass granted a slot.
pub(super) fn queued(index: &Index, reference: &QueueRef, queue: &Queue) -> Queued {
    let holders = queue.reading().into_iter().flat_map(|reading| {
        let (_, held) = slots(reading.lock()).unwrap_or_default();
        // A holder without a contender is dead, and its workload may wait for another slot.
        let lives = |session: &&SessionId| reading.contender(session).is_some();
        held.into_iter().filter(lives)
    });
    let own = holders.filter_map(|session| match queue.owner(session) {
        Some(Owner::Own(identity)) => Some(&identity.uid),
        _ => None,
    });
    index.queued(reference, own)
}

/// Whether the actions of others in Consul matter to a waiting workload, because others take part or nothing can be
/// granted at the moment. If all contenders are ours, this operator is the first to know when their slots become
/// free. In fair order, though, a contender may have come that goes before the next workload, if the watch has not
/// shown our own writes yet (`seen` is false).
pub(super) fn depends_on_others(queue: &Queue, conclusion: &Conclusion, seen: bool) -> bool {
    if queue.settings().fair.is_some() && !seen {
        return true;
    }
    let Some(reading) = queue.reading() else {
        return true;
    };
    let Some((_, holders)) = slots(reading.lock()) else {
        return true;
    };
    let contenders = reading.contenders().map(|(session, _)| session);
    let mut sessions = holders.into_iter().chain(contenders);
    conclusion.agreement != Some(Agreement::Agreed)
        || sessions.any(|session| !matches!(queue.owner(session), Some(Owner::Own(_))))
}

/// Spec that a statement applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SpecOf {
    pub(super) generation: Option<i64>,
    /// Limit in the spec.
    pub(super) limit: u32,
}

/// Last known state of one lock key.
#[derive(Debug)]
pub(super) struct KeyStatus {
    pub(super) spec: SpecOf,
    pub(super) shown: ShownReading,
    pub(super) queued: Queued,
    pub(super) findings: Vec<Finding>,
    /// Whether slots are granted, or will be in the next window.
    pub(super) open: bool,
    /// Limit in force for a waiting workload of the lowest priority.
    pub(super) in_force: u32,
    /// Workloads that ask for several slots and can't have all of them yet.
    pub(super) several: Several,
    /// Whether a workload waits for others there, or may have to let a new contender go first.
    pub(super) awaits_others: bool,
    /// Time that the watch may wait for changes.
    pub(super) wait: Duration,
}

impl KeyStatus {
    /// Whether the key has a holder or a waiting workload.
    fn is_in_use(&self) -> bool {
        self.shown.held + self.queued.waiting > 0
    }
}

/// Workloads in a queue that ask for several slots and can't have all of them yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Several {
    /// Number of these workloads.
    pub(super) waiting: usize,
    /// Number of slots that are kept for these workloads.
    pub(super) kept: usize,
}

impl Several {
    pub(super) fn of(index: &Index, state: &QueueState) -> Self {
        let (mut several, queue) = (Self::default(), &state.queue);
        for (workload, stance) in state.stances() {
            several.waiting += 1;
            if stance == Stance::Keeps
                && let Some(workload) = index.workload(workload)
            {
                let request = queue.settings().request(&workload);
                several.kept += request.map_or(0, slots_of);
            }
        }
        several
    }
}

/// State of each lock key of a semaphore, as it was last seen.
#[derive(Debug, Default)]
pub(super) struct StatusByKey(BTreeMap<Option<Key>, KeyStatus>);

/// State of all keys together.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) held: usize,
    pub(super) held_here: usize,
    pub(super) waiting: usize,
    /// Number of waiting workloads for which a slot of their key is free.
    pub(super) idle: usize,
    /// Number of keys that have a holder or a queued workload.
    pub(super) in_use: usize,
    /// Queued workloads that already hold a slot.
    pub(super) starting: BTreeSet<Uid>,
    /// Limit in Consul, if it is the same for all keys.
    pub(super) limit: Option<u32>,
    /// Oldest spec that any of these values applies to.
    pub(super) spec: Option<SpecOf>,
    /// Whether a workload of any key waits for others.
    pub(super) awaits_others: bool,
    /// Time that the watch may wait for changes: the shortest wait of all keys.
    pub(super) wait: Option<Duration>,
}

impl StatusByKey {
    /// Stores the state of a key, which replaces the earlier state.
    pub(super) fn put(&mut self, key: Option<Key>, status: KeyStatus) {
        self.0.insert(key, status);
    }

    /// Forgets a key.
    pub(super) fn remove(&mut self, key: &Option<Key>) {
        self.0.remove(key);
    }

    /// Returns the last known state of a key.
    pub(super) fn get(&self, key: &Option<Key>) -> Option<&KeyStatus> {
        self.0.get(key)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = Option<Key>> {
        self.0.keys().cloned()
    }

    /// Returns the state of all keys together.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let mut limits = BTreeSet::new();
        for key in self.0.values() {
            let (shown, Queued { waiting, starting }) = (&key.shown, &key.queued);
            totals.held += shown.held;
            totals.held_here += shown.held_here;
            totals.waiting += waiting;
            totals.in_use += usize::from(key.is_in_use());
            let limit = shown.limit.and_then(|limit| limit.try_into().ok());
            let in_force = usize::try_from(key.in_force).unwrap_or(usize::MAX);
            let free = limit
                .map_or(0, |limit: usize| limit.min(in_force))
                .saturating_sub(shown.held + key.several.kept);
            totals.idle += free.min(waiting.saturating_sub(key.several.waiting));
            totals.starting.extend(starting.iter().cloned());
            limits.extend(shown.limit);
            let spec = totals.spec.map_or(key.spec, |spec| spec.min(key.spec));
            totals.spec = Some(spec);
            totals.awaits_others |= key.awaits_others;
            let wait = totals.wait.map_or(key.wait, |wait| wait.min(key.wait));
            totals.wait = Some(wait);
        }
        totals.limit = limits.first().copied().filter(|_| limits.len() == 1);
        totals
    }

    /// Returns the holders, the oldest first, as many as the status lists.
    pub(super) fn holders(&self) -> Vec<HolderStatus> {
        let keys = self.0.values();
        let mut holders: Vec<_> = keys.flat_map(|key| &key.shown.holders).collect();
        holders.sort_by_key(|(age, _)| *age);
        let oldest = holders.into_iter().take(LISTED);
        oldest.map(|(_, holder)| holder.clone()).collect()
    }

    /// Returns the contenders that wait elsewhere, the longest wait first, as many as the status lists.
    pub(super) fn elsewhere(&self) -> Vec<WaiterStatus> {
        let keys = self.0.values();
        let mut waiting: Vec<_> = keys.flat_map(|key| &key.shown.elsewhere).collect();
        waiting.sort_by_key(|(age, _)| *age);
        let longest = waiting.into_iter().take(LISTED);
        longest.map(|(_, waiter)| waiter.clone()).collect()
    }

    /// Returns the conditions of all keys together.
    pub(super) fn findings(&self, limit: u32) -> Vec<Finding> {
        match self.0.get(&None) {
            Some(only) => only.findings.clone(),
            None => Together::new(&self.0).findings(limit),
        }
    }
}

impl StatusSources {
    /// Returns the first waiting workloads of a semaphore, in order, as many as the status lists. Workloads that are
    /// `starting` are left out, because nobody is both a holder and in the queue. `outlook` returns what a workload
    /// with this need can expect of a key.
    pub(super) fn queue(
        &self,
        index: &Index,
        reference: &SemaphoreRef,
        starting: &BTreeSet<Uid>,
        semaphore: &SemaphoreState,
        outlook: impl Fn(&Option<Key>, Need) -> Option<Outlook>,
    ) -> Vec<QueueStatus> {
        let (spec, now) = (semaphore.spec(), clock::time());
        let (restrictions, keyed) = (&spec.settings.restrictions, spec.keyed);
        let head = index.head(reference, LISTED + starting.len());
        let waiting = head
            .iter()
            .filter(|workload| !starting.contains(&workload.uid));
        let mut before: BTreeMap<Option<Key>, (Ahead, Before<'_>)> = BTreeMap::new();
        let mut outlooks = BTreeMap::new();
        let listed = waiting.take(LISTED).map(|workload| {
            let request = workload.asks_for(&reference.name, None);
            let named_key = request.and_then(|request| request.key.clone());
            let key = named_key.filter(|_| keyed);
            let slots = request.map(|request| request.slots.get());
            let asks = Asks {
                slots: request.map_or(1, slots_of),
                priority: workload.priority,
            };
            let (ahead, before) = before.entry(key.clone()).or_default();
            let expected = self.expected(&key, ahead, asks, restrictions, now);
            let state = semaphore.queues().get(&key);
            let queue = state.map(|state| &state.queue);
            let several = workload.asks_for_several();
            let lacks = queue.map_or(&[][..], |queue| queue.lacking(&workload.uid));
            let why = state.and_then(|state| {
                let need = Need::of(state.queue.settings(), workload);
                let outlook = outlooks
                    .entry((key.clone(), need))
                    .or_insert_with(|| outlook(&key, need));
                let facts = Facts::of(state, &workload.uid, need, outlook.as_ref()?);
                Some(before.next(&workload.name, &facts))
            });
            QueueStatus {
                kind: workload.kind.to_string(),
                name: workload.name.to_string(),
                since: Timestamp::from_second(workload.since).ok().map(Time),
                expected: expected.map(Time),
                slots: slots.filter(|slots| *slots > 1).map(number),
                asks_for: several.then(|| brief(&workload.requests)),
                lacks: (several && !lacks.is_empty()).then(|| brief(lacks)),
                reason: why.as_ref().map(|why| why.reason.to_string()),
                message: why.map(|why| one_line(&why.message, LONGEST_MESSAGE)),
                key: key.as_ref().map(ToString::to_string),
            }
        });
        listed.collect()
    }

    /// Returns when a workload that asks for these slots is likely to start.
    fn expected(
        &self,
        key: &Option<Key>,
        ahead: &mut Ahead,
        asks: Asks,
        restrictions: &Restrictions,
        now: Timestamp,
    ) -> Option<Timestamp> {
        ahead.slots = ahead.slots.saturating_add(asks.slots);
        let status = self.keys.get(key).filter(|key| key.open)?;
        let shown = &status.shown;
        let (opening, limit) = (restrictions.windows.at(now), shown.limit?);
        let most = |at: Timestamp| {
            let opening = restrictions.windows.at(at);
            let most = restrictions.limit(limit, opening, asks.priority);
            usize::try_from(most).unwrap_or(usize::MAX)
        };
        let opens = match opening {
            Opening::Closed { until } => Some(until?),
            Opening::Always | Opening::Open { .. } => None,
        };
        // The number of held slots that have to become free before the workload can start.
        let needed = (ahead.slots + shown.held).saturating_sub(most(opens.unwrap_or(now)));
        let free = match needed.checked_sub(1) {
            Some(before) => self.free(key, shown, before, now)?,
            // Without a window to wait for, nothing is expected: the workload starts at once, or something other than
            // slots is missing.
            None => opens?,
        };
        let opens = match restrictions.windows.at(free) {
            Opening::Closed { until } => Some(until?),
            Opening::Always | Opening::Open { .. } => None,
        };
        let expected = match opens {
            Some(opens) => {
                // As many workloads start when the window opens as there are slots. It is unknown how soon their
                // slots are free again.
                ahead.postponed = ahead.postponed.saturating_add(asks.slots);
                Some(opens).filter(|opens| ahead.postponed <= most(*opens))?
            }
            None => free,
        };
        whole_seconds(expected)
    }

    /// Returns when a slot of a key is likely to be free again, after this many others have become free.
    fn free(
        &self,
        key: &Option<Key>,
        shown: &ShownReading,
        before: usize,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let starts = shown
            .holders
            .iter()
            .map(|(_, holder)| holder.since.as_ref());
        let mut since: Vec<Timestamp> =
            starts.map(|since| Some(since?.0)).collect::<Option<_>>()?;
        since.sort();
        // Only the longest holders are listed. All others are expected to end after them.
        let known = since.len() == shown.held || before < since.len();
        let free = self.holds.get(key)?.expected(before, &since, now);
        free.filter(|_| known)
    }
}

/// Slots that a workload asks for in a queue, and its priority.
#[derive(Clone, Copy, Debug)]
struct Asks {
    slots: usize,
    priority: i32,
}

/// Workloads that are ahead of another one in a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    /// Number of slots that these workloads and the other one ask for.
    slots: usize,
    /// Number of these slots that are likely to be granted only when a window opens.
    postponed: usize,
}

/// Length of a list of slots, in bytes. A list of eight names may have 2,500.
const LONGEST_SLOT_LIST: usize = 500;

/// Largest length of the message of a workload in the queue, in characters. A condition has the whole message of what
/// stops all workloads.
const LONGEST_MESSAGE: usize = 400;

/// Returns slots as in the annotation, as many as fit.
pub(super) fn brief(requests: &[SlotRequest]) -> String {
    let mut text = String::new();
    for request in requests {
        let next = request.to_string();
        let comma = if text.is_empty() { "" } else { ", " };
        if text.len() + comma.len() + next.len() > LONGEST_SLOT_LIST {
            text.push_str(", …");
            break;
        }
        text.push_str(comma);
        text.push_str(&next);
    }
    text
}

fn slots_of(request: &SlotRequest) -> usize {
    usize::try_from(request.slots.get()).unwrap_or(usize::MAX)
}

/// Returns a finding that counts the slots of all keys. It does not say that no slot is free, because that all slots
/// of one key are held says nothing about other keys.
pub(super) fn each_key_has_its_limit(limit: u32, used: Use) -> Finding {
    let Use { held, keys, full } = used;
    let plural = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    };
    let message = format!(
        "{} held across {}, limit {limit} for each key; {} full",
        plural(held, "slot"),
        plural(keys, "key"),
        match full {
            0 => "no key is".to_owned(),
            1 => "1 key is".to_owned(),
            full => format!("{full} keys are"),
        }
    );
    Finding::new(
        ConditionType::SlotsAvailable,
        true,
        Reason::SlotsFree,
        message,
    )
}

/// Use of the slots of all keys.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    held: usize,
    /// Number of keys with a holder or a waiting workload.
    keys: usize,
    /// Number of keys whose slots are all held.
    full: usize,
}

/// Type, status and reason of a condition.
type ConditionSummary = (ConditionType, ConditionRank, Reason);

/// Keys, by what their conditions say.
struct Together<'a> {
    keys: &'a BTreeMap<Option<Key>, KeyStatus>,
    found: BTreeMap<ConditionSummary, BTreeSet<&'a Option<Key>>>,
}

impl<'a> Together<'a> {
    fn new(keys: &'a BTreeMap<Option<Key>, KeyStatus>) -> Self {
        let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (key, status) in keys {
            for finding in &status.findings {
                let what = (finding.type_, finding.status.into(), finding.reason);
                found.entry(what).or_default().insert(key);
            }
        }
        Self { keys, found }
    }

    /// Returns the conditions of all keys together.
    fn findings(&self, limit: u32) -> Vec<Finding> {
        vec![
            self.ready(),
            self.worst(ConditionType::ConsulReachable, ""),
            self.worst(
                ConditionType::LimitAgreed,
                &format!("Consul has the limit of the spec for every key in use: {limit}"),
            ),
            self.slots_available(limit),
        ]
    }

    /// Returns the condition Ready. It is False only if it is False for all keys, because a problem of one key does
    /// not stop the others.
    fn ready(&self) -> Finding {
        let bad = self.count_of(ConditionType::Ready, ConditionRank::False);
        if bad == 0 || bad == self.keys.len() {
            return self.worst(ConditionType::Ready, "slots are granted and released");
        }
        let mut finding = self.worst(ConditionType::Ready, "");
        finding.message = format!(
            "slots are granted and released, except the slots of {}",
            finding.message
        );
        finding.status = ConditionStatus::True;
        finding
    }

    /// Returns the worst finding for a condition. If all keys are well, its message is `fine`, or the message of one
    /// of the keys if `fine` is empty.
    fn worst(&self, type_: ConditionType, fine: &str) -> Finding {
        let mut found = self.of_type(type_);
        let some = found.next();
        // A key that has just come into use does not count against the others.
        let starting = |what: &ConditionSummary| {
            what.1 == ConditionRank::Unknown && what.2 == Reason::Starting
        };
        let worst = match some {
            Some((what, _)) if starting(what) => found.next().or(some),
            // If all keys are well, the last finding is the one with something to say.
            Some(((_, ConditionRank::True, _), _)) => self.of_type(type_).last(),
            some => some,
        };
        let Some(((_, rank, reason), keys)) = worst else {
            return Finding::new(type_, ConditionStatus::Unknown, Reason::Starting, "");
        };
        let first = keys.first().and_then(|key| self.keys.get(*key));
        let mut findings = first.iter().flat_map(|account| &account.findings);
        let Some(finding) = findings.find(|finding| finding.type_ == type_) else {
            return Finding::new(type_, ConditionStatus::Unknown, Reason::Starting, "");
        };
        let message = match rank {
            ConditionRank::True if !fine.is_empty() && *reason == Reason::Reconciled => {
                fine.to_owned()
            }
            ConditionRank::False if keys.len() < self.keys.len() || is_of_a_key(*reason) => {
                format!("{}: {}", named(keys), finding.message)
            }
            _ => finding.message.clone(),
        };
        Finding {
            message,
            ..finding.clone()
        }
    }

    /// Returns the condition `SlotsAvailable`. If all slots of one key are held, that says nothing about other keys.
    fn slots_available(&self, limit: u32) -> Finding {
        let type_ = ConditionType::SlotsAvailable;
        let full = (type_, ConditionRank::False, Reason::AllSlotsHeld);
        let running = (type_, ConditionRank::False, Reason::RunningWithoutSlot);
        if self.found.contains_key(&running)
            || self.count_of(type_, ConditionRank::Unknown) == self.keys.len()
        {
            let mut others = self.of_type(type_).filter(|(what, _)| **what != full);
            if let Some((_, keys)) = others.next()
                && let Some(account) = keys.first().and_then(|key| self.keys.get(*key))
                && let Some(finding) = account.findings.iter().find(|f| f.type_ == type_)
            {
                let message = format!("{}: {}", named(keys), finding.message);
                return Finding {
                    message,
                    ..finding.clone()
                };
            }
        }
        let mut found = self.of_type(type_);
        if found.any(|((_, _, reason), _)| reason.is_intended()) {
            return self.worst(type_, "");
        }
        let used = Use {
            held: self.keys.values().map(|key| key.shown.held).sum(),
            keys: self.keys.values().filter(|key| key.is_in_use()).count(),
            full: self.found.get(&full).map_or(0, BTreeSet::len),
        };
        each_key_has_its_limit(limit, used)
    }

    fn of_type(
        &self,
        type_: ConditionType,
    ) -> impl Iterator<Item = (&ConditionSummary, &BTreeSet<&'a Option<Key>>)> {
        let found = self.found.iter();
        found.filter(move |((of, ..), _)| *of == type_)
    }

    fn count_of(&self, type_: ConditionType, rank: ConditionRank) -> usize {
        let of_type = self.of_type(type_);
        let of_rank = of_type.filter(|((_, is, _), _)| *is == rank);
        of_rank.map(|(_, keys)| keys.len()).sum()
    }
}

/// Status of a condition, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ConditionRank {
    False,
    Unknown,
    True,
}

impl From<ConditionStatus> for ConditionRank {
    fn from(status: ConditionStatus) -> Self {
        match status {
            ConditionStatus::False => Self::False,
            ConditionStatus::Unknown => Self::Unknown,
            ConditionStatus::True => Self::True,
        }
    }
}

/// Whether a reason is about a single key.
fn is_of_a_key(reason: Reason) -> bool {
    matches!(reason, Reason::LimitConflict | Reason::LockConflict)
}

/// Returns a key, and how many others there are.
fn named(keys: &BTreeSet<&Option<Key>>) -> String {
    let first = keys.first().copied().and_then(Option::as_ref);
    let named = first.map(|key| format!("key {key}")).unwrap_or_default();
    match keys.len() {
        0 | 1 => named,
        count => format!("{named} and {} more", count - 1),
    }
}

/// Returns a time in whole seconds, as the times in a status have them. The API server accepts no time before the
/// year 0.
fn whole_seconds(time: Timestamp) -> Option<Timestamp> {
    const YEAR_0: i64 = -62_167_219_200;
    Timestamp::from_second(time.as_second().max(YEAR_0)).ok()
}

#[cfg(test)]
mod tests;
