//! Decides for one semaphore what concerns the queues of all its lock keys together: which limits are ours
//! (`status.appliedLimits`), which keys have a queue, which sessions have no owner, and when nothing is left of a
//! semaphore that is being deleted.

#![expect(
    clippy::ref_option,
    reason = "a semaphore without keys is found in the same maps, by None"
)]

use std::collections::BTreeMap;

use super::{
    Conclusion, Event, Now, Queue, QueueRef, SemaphoreRef, Stores, WatchedPrefix,
    finalizer::Finalizer, orphans::Orphans, watched::Concerned,
};
use crate::{
    Agreement, Blocked, Defence, Key, LastProof, OnSlotLost, Proved, SessionState, Settings, Uid,
    limit,
    plan::{Part, Stance},
};
use consul_client::{self as consul, Listing, Session, SessionId, clock::Moment};

/// The request of a semaphore.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The settings with the semaphore's own prefix, without a key.
    pub settings: Settings,
    /// The generation of the spec.
    pub generation: Option<i64>,
    /// Whether each key has a semaphore of its own below the prefix.
    pub keyed: bool,
}

/// Knowledge of a semaphore from before this process.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The limits that are ours, from `status.appliedLimits`.
    pub recorded: Vec<u32>,
    /// The history of the limit in Consul.
    pub defence: Defence,
    /// The greatest fencing token seen.
    pub fencing_token: Option<u64>,
    /// The times at which nothing could be granted.
    pub blocked: Blocked,
    /// The oldest of the last proofs that running workloads hold their slots; `None` if nothing was recorded.
    pub last_proof: Option<LastProof>,
}

/// The access of a semaphore to Consul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsulAccess {
    /// The semaphore may use Consul.
    Granted {
        /// The number of operations that Consul accepts in a transaction.
        operations: usize,
    },
    /// No token for the semaphore is known yet. This may change.
    Pending {
        /// The time since which no token is known.
        since: Moment,
    },
    /// The semaphore may not use its prefix, and never will: none of its data is in Consul.
    Refused {
        /// The time of the refusal.
        since: Moment,
    },
}

impl ConsulAccess {
    fn operations(self) -> Option<usize> {
        match self {
            Self::Granted { operations } => Some(operations),
            Self::Pending { .. } | Self::Refused { .. } => None,
        }
    }
}

/// The reason why Consul can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The time since which Consul can't be used.
    pub since: Moment,
    /// Whether the partition or namespace can't exist in this Consul.
    pub nowhere: bool,
    /// The error message.
    pub why: String,
}

impl Obstacle {
    fn new(error: &consul::Error, since: Moment) -> Self {
        Self {
            since,
            nowhere: matches!(error, consul::Error::Unsupported(_)),
            why: error.to_string(),
        }
    }
}

/// A task that concerns a semaphore as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Add the finalizer.
    AddFinalizer,
    /// Record these limits as ours, before one of them is written to Consul.
    RecordLimits(Vec<u32>),
    /// List the sessions of our node.
    ListSessions,
    /// List the prefix once more, without waiting for a change.
    ListPrefix,
    /// Destroy a session without a contender.
    EndSession(SessionId),
    /// Remove the finalizer, because nothing is left in Consul.
    RemoveFinalizer,
    /// Remove the finalizer although Consul can't be cleaned up, with an event that lists what is left.
    LeaveBehind,
}

/// The queue of one lock key, and the result of its last pass.
#[derive(Clone, Debug)]
pub struct QueueState {
    /// The queue.
    pub queue: Queue,
    /// The result of the last pass that was not merely waiting for an answer of Consul, and the generation of the spec
    /// that the result applies to.
    pub concluded: Option<(Conclusion, Option<i64>)>,
    /// The number of the last listing of the watch that the queue has taken over.
    last_read: u64,
}

impl QueueState {
    /// Returns the result of the last pass over the queue, if there was one.
    pub(crate) fn last(&self) -> Option<&Conclusion> {
        self.concluded.as_ref().map(|(conclusion, _)| conclusion)
    }

    /// Returns the number of slots that are left to others, who have waited longer than the first workload here.
    pub fn left_to_others(&self) -> u32 {
        let left = self.last().and_then(|last| last.before).unwrap_or(0);
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    /// Returns the workloads that ask for several slots and can't have all of them yet, with what the queue does for
    /// each. A workload for which slots are kept is included only while it is the first in the queue.
    pub fn stances(&self) -> impl Iterator<Item = (&Uid, Stance)> {
        let is_first = |workload: &Uid| {
            let part = self.last().and_then(|last| last.parts.get(workload));
            matches!(part, Some(Part::Waits(waits)) if waits.first)
        };
        let stances = self.queue.joint.stances();
        stances.filter(move |(workload, stance)| match stance {
            Stance::Grants => false,
            Stance::Keeps => is_first(workload),
            Stance::PassedOver | Stance::Stopped => true,
        })
    }
}

/// The limits that are ours.
#[derive(Clone, Debug, Default)]
struct OurLimits {
    /// The limits known to be recorded.
    recorded: Vec<u32>,
    /// The limits about to be recorded.
    asked: Option<Vec<u32>>,
    /// The limits that each key needs recorded before the key can continue.
    wanted: BTreeMap<Option<Key>, Vec<u32>>,
}

/// A semaphore with all its keys.
#[derive(Clone, Debug)]
pub struct SemaphoreState {
    reference: SemaphoreRef,
    spec: Spec,
    access: ConsulAccess,
    /// Whether this process uses the semaphore for itself, without an object.
    standalone: bool,
    limits: OurLimits,
    defence: Defence,
    fencing_token: Option<u64>,
    blocked: Blocked,
    last_proof: Option<LastProof>,
    pub(super) watched: WatchedPrefix,
    pub(super) queues: BTreeMap<Option<Key>, QueueState>,
    orphans: Orphans,
    pub(super) finalizer: Finalizer,
}

/// Facts that other modules read.
impl SemaphoreState {
    /// Returns the request of the semaphore.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns the queues of the semaphore, by key.
    pub fn queues(&self) -> &BTreeMap<Option<Key>, QueueState> {
        &self.queues
    }

    /// Returns what the watch of the prefix shows.
    pub fn watched(&self) -> &WatchedPrefix {
        &self.watched
    }

    /// Whether the work has begun and not ended: nothing is written to Consul before the finalizer has been added.
    pub fn has_begun(&self) -> bool {
        self.finalizer.is_active()
    }

    /// Whether the queue of a key has taken over the last listing of the watch.
    pub fn is_seen_by(&self, key: &Option<Key>) -> bool {
        let reading = self.queues.get(key).and_then(|state| state.queue.reading());
        reading.is_some_and(|reading| reading.shows(&self.watched.entries(key)))
    }

    /// Returns the limits that the status of the semaphore must list as ours.
    pub fn applied_limits(&self) -> &[u32] {
        let OurLimits {
            recorded, asked, ..
        } = &self.limits;
        asked.as_ref().unwrap_or(recorded)
    }

    /// Returns the limits that are recorded, and the limits that are about to be.
    #[cfg(test)]
    pub(crate) fn limits_now(&self) -> (&[u32], Option<&[u32]>) {
        (&self.limits.recorded, self.limits.asked.as_deref())
    }

    /// Returns the greatest fencing token seen.
    pub fn fencing_token(&self) -> Option<u64> {
        self.fencing_token
    }

    /// Returns the times at which nothing could be granted.
    pub fn blocked(&self) -> &Blocked {
        &self.blocked
    }

    /// Whether nothing can be granted now. Such time does not count as waiting. Trouble at one key counts for all keys,
    /// because a wait may end too late, but not too early.
    fn cannot_grant(&self, now: Now) -> bool {
        let Settings {
            paused,
            terminating,
            restrictions,
            ..
        } = &self.spec.settings;
        let stuck = |state: &QueueState| {
            let last = state.last();
            let certain = last.filter(|last| last.certain);
            let at_odds = certain.is_some_and(|last| {
                matches!(last.agreement, None | Some(Agreement::Conflict { .. }))
            });
            at_odds || state.queue.trouble().is_some() || state.queue.refusal().is_some()
        };
        *paused
            || *terminating
            || !restrictions.windows.at(now.time).is_open()
            || !self.has_begun()
            || self.access.operations().is_none()
            || self.queues.values().any(stuck)
    }

    /// Records whether something can be granted.
    fn note_blocked(&mut self, now: Now) {
        self.spec.settings.restrictions.windows.refresh(now.time);
        let blocked = self.cannot_grant(now);
        self.blocked.note(blocked, now.time);
    }

    /// Whether the work has begun and every lock key is known. Until then the status of the semaphore stays as it was,
    /// because keys or workloads that seem to be missing may exist.
    pub fn is_known(&self) -> bool {
        let all_keys =
            !self.spec.keyed || self.access.operations().is_none() || !self.watched.is_silent();
        self.has_begun() && all_keys && self.queues.values().all(|state| state.concluded.is_some())
    }

    /// Returns the oldest proof of the running workloads of the semaphore; `None` if no workload is judged by a proof.
    /// `life` returns the state of the sessions that this process renews.
    ///
    /// Workloads that continue without a slot don't count, because their proofs only become older.
    pub fn oldest_proof(
        &self,
        life: impl Fn(&SessionId) -> Option<SessionState>,
    ) -> Option<Proved> {
        if self.spec.settings.on_slot_lost == OnSlotLost::Continue {
            return None;
        }
        let queues = self.queues.values();
        let proofs = queues.filter_map(|state| state.queue.held.evidence.oldest(&life));
        proofs.reduce(Proved::and)
    }

    /// Returns why Consul can't be used for some key or for all keys.
    pub fn obstacle(&self) -> Option<Obstacle> {
        let mut troubles = self.queues.values().filter_map(|state| {
            let since = state.queue.knowledge.troubles.since()?;
            let trouble = state.queue.trouble()?;
            Some(Obstacle::new(&trouble.error, since))
        });
        troubles
            .next()
            .or_else(|| {
                let (error, since) = self.watched.failure()?;
                Some(Obstacle::new(error, since))
            })
            .or_else(|| self.orphans.obstacle.clone())
    }

    /// Returns why something may be left in Consul of a semaphore that can't clean up there; `None` if nothing can be
    /// left. `problem` says why the semaphore may not use Consul.
    pub fn why_left_behind(&self, problem: Option<String>) -> Option<String> {
        if let Some(obstacle) = self.obstacle() {
            return (!obstacle.nowhere).then_some(obstacle.why);
        }
        // A semaphore that ever recorded a limit had access to Consul once.
        problem.filter(|_| !self.limits.recorded.is_empty())
    }
}

/// Events that concern the semaphore.
impl SemaphoreState {
    pub(super) fn new(
        reference: SemaphoreRef,
        spec: Spec,
        known: Known,
        access: ConsulAccess,
    ) -> Self {
        Self {
            reference,
            spec,
            access,
            standalone: false,
            limits: OurLimits {
                recorded: known.recorded,
                ..OurLimits::default()
            },
            defence: known.defence,
            fencing_token: known.fencing_token,
            blocked: known.blocked,
            last_proof: known.last_proof,
            watched: WatchedPrefix::default(),
            queues: BTreeMap::new(),
            orphans: Orphans::default(),
            finalizer: Finalizer::default(),
        }
    }

    /// Makes a semaphore for this process alone. Nothing has to come before the work, and the limit that the settings
    /// ask for is ours.
    pub(super) fn standalone(
        reference: SemaphoreRef,
        settings: Settings,
        operations: usize,
    ) -> Self {
        let known = Known {
            recorded: vec![settings.limit],
            ..Known::default()
        };
        let spec = Spec {
            settings,
            generation: None,
            keyed: false,
        };
        let access = ConsulAccess::Granted { operations };
        Self {
            standalone: true,
            finalizer: Finalizer::not_needed(),
            ..Self::new(reference, spec, known, access)
        }
    }

    /// Makes the queue of a key, with this number for its calls, unless there is one already or the semaphore has no
    /// such keys. Returns whether it did.
    pub(super) fn open(
        &mut self,
        key: &Option<Key>,
        number: u64,
        now: Now,
        stores: &impl Stores,
    ) -> bool {
        if self.queues.contains_key(key) || key.is_some() != self.spec.keyed {
            return false;
        }
        let recorded = self.limits.recorded.clone();
        let mut queue = Queue::new(self.settings_of(key), recorded, self.defence);
        queue.recall(self.last_proof);
        if self.standalone {
            queue.held.proofs.believe_at_once();
        }
        queue.calls.queue_number = number;
        let state = QueueState {
            queue,
            concluded: None,
            last_read: 0,
        };
        self.queues.insert(key.clone(), state);
        let access = Event::Access(self.access.operations());
        self.show(key, access, now, stores);
        true
    }

    fn settings_of(&self, key: &Option<Key>) -> Settings {
        match key {
            Some(key) => self.spec.settings.clone().of_key(key),
            None => self.spec.settings.clone(),
        }
    }

    /// Shows an event to a queue.
    pub(super) fn show(&mut self, key: &Option<Key>, event: Event, now: Now, stores: &impl Stores) {
        if let Some(state) = self.queues.get_mut(key) {
            let queue = QueueRef::new(&self.reference, key.clone());
            state.queue.handle(event, now, &stores.of(&queue));
        }
    }

    /// Shows an event to all queues.
    fn show_all(
        &mut self,
        event: impl Fn(&Self, &Option<Key>) -> Event,
        now: Now,
        stores: &impl Stores,
    ) {
        let keys: Vec<_> = self.queues.keys().cloned().collect();
        for key in keys {
            let event = event(self, &key);
            self.show(&key, event, now, stores);
        }
    }

    /// Sets the spec. Returns whether it has changed.
    pub(super) fn respec(&mut self, spec: Spec, now: Now, stores: &impl Stores) -> bool {
        if self.spec == spec {
            return false;
        }
        let changed = self.spec.generation != spec.generation;
        if changed {
            self.defence = Defence::default();
            // What a key needed for an earlier limit must not undo what the others need now; while the key waits for
            // Consul it may not say anything newer.
            self.limits.wanted.clear();
        }
        self.spec = spec;
        let event = |this: &Self, key: &Option<Key>| Event::Spec {
            settings: Box::new(this.settings_of(key)),
            changed,
        };
        self.show_all(event, now, stores);
        true
    }

    /// Changes the access of the semaphore to Consul, or ends it.
    pub(super) fn set_access(&mut self, access: ConsulAccess, now: Now, stores: &impl Stores) {
        self.access = access;
        if matches!(access, ConsulAccess::Refused { .. }) {
            self.show_all(|_, _| Event::Abandoned, now, stores);
        }
        self.show_all(|_, _| Event::Access(access.operations()), now, stores);
    }

    /// Records that these limits are now recorded as ours, if they are the ones that were requested. Returns whether
    /// they are.
    pub(super) fn recorded(&mut self, limits: &[u32], now: Now, stores: &impl Stores) -> bool {
        let asked = self.limits.asked.take_if(|asked| *asked == limits);
        let news = asked.is_some();
        if let Some(recorded) = asked {
            self.apply_recorded_limits(recorded, now, stores);
        }
        news
    }

    /// Records that these limits are recorded as ours, some of them by another operator of this semaphore, which may
    /// have written them to Consul. Returns whether any limit was unknown here.
    pub(super) fn found_limits(&mut self, limits: &[u32], now: Now, stores: &impl Stores) -> bool {
        let found = limit::with_found(&self.limits.recorded, limits);
        let news = found != self.limits.recorded;
        if news {
            self.limits.recorded = found;
            // The found limits stay ours, so what was requested is requested anew, together with them.
            self.limits.asked = None;
            for wanted in self.limits.wanted.values_mut() {
                *wanted = limit::with_found(wanted, limits);
            }
            // No pass has made sure yet that writes of the found limits fail.
            for QueueState { concluded, .. } in self.queues.values_mut() {
                if let Some((conclusion, _)) = concluded {
                    conclusion.settled = None;
                }
            }
            let event = |this: &Self, _: &Option<Key>| Event::Found(this.limits.recorded.clone());
            self.show_all(event, now, stores);
        }
        news
    }

    fn apply_recorded_limits(&mut self, recorded: Vec<u32>, now: Now, stores: &impl Stores) {
        self.limits.recorded = recorded;
        let event = |this: &Self, _: &Option<Key>| Event::Recorded(this.limits.recorded.clone());
        self.show_all(event, now, stores);
    }

    /// Takes over what the watch brought, and returns the keys that it concerns.
    pub(super) fn listed(
        &mut self,
        listing: Result<Listing, consul::Error>,
        now: Now,
    ) -> Concerned {
        let (prefix, keyed) = (&self.spec.settings.prefix, self.spec.keyed);
        self.watched.bring(prefix, keyed, listing, now.moment)
    }

    /// Takes over the list of our node's sessions, and returns what follows. Sessions without a contender are destroyed.
    /// Once the final search has found none, the prefix is listed once more, because a transaction without an answer may
    /// have been applied after the last listing, while its session still existed.
    pub(super) fn listed_sessions(
        &mut self,
        sessions: Result<Vec<Session>, consul::Error>,
        now: Now,
        stores: &impl Stores,
    ) -> Vec<Duty> {
        let searched = self.orphans.done.is_some();
        let locking = self.watched.sessions();
        let in_use = |id: &SessionId| locking.contains(id) || stores.keeps(id);
        let settings = &self.spec.settings;
        let ends = self.orphans.answered(settings, sessions, now, in_use);
        let is_last = self.orphans.done.is_some() && !searched;
        let list = is_last.then_some(Duty::ListPrefix);
        ends.into_iter().map(Duty::EndSession).chain(list).collect()
    }
}

/// Passes and reviews.
impl SemaphoreState {
    /// Whether the queues may have passes. If not, a later event marks them once they may.
    pub(super) fn may_pass(&self) -> bool {
        // The queue of one key does not request what the watch is about to bring for all keys.
        let awaits_watch = self.spec.keyed && self.watched.is_silent();
        self.has_begun() && !(awaits_watch && self.access.operations().is_some())
    }

    /// Runs a pass over the queue of a key. Returns whether the pass knew what Consul says; `None` if there is nothing
    /// to decide yet.
    pub(super) fn pass(
        &mut self,
        key: &Option<Key>,
        now: Now,
        stores: &impl Stores,
    ) -> Option<bool> {
        let reference = QueueRef::new(&self.reference, key.clone());
        let lookup = stores.of(&reference);
        let state = self.queues.get_mut(key)?;
        if let Some(news) = self.watched.news(key, &mut state.last_read) {
            state.queue.handle(Event::Listed(news), now, &lookup);
        }
        let conclusion = state.queue.pass(now, &lookup);
        if !state.queue.schedule.has_passed(now) {
            return None;
        }
        self.fencing_token = self.fencing_token.max(state.queue.held.fencing_token());
        // While an answer is pending, the earlier result is still the latest knowledge.
        let certain = conclusion.certain;
        if certain || !state.queue.is_blocked() {
            self.conclude(key, conclusion);
        }
        self.note_blocked(now);
        Some(certain)
    }

    fn conclude(&mut self, key: &Option<Key>, conclusion: Conclusion) {
        match &conclusion.record {
            Some(record) => self.limits.wanted.insert(key.clone(), record.clone()),
            None => self.limits.wanted.remove(key),
        };
        if let Some(state) = self.queues.get_mut(key) {
            state.concluded = Some((conclusion, self.spec.generation));
        }
    }

    /// Whether a key is no longer used, so that it needs no queue.
    pub(super) fn is_unused(&self, key: &Option<Key>) -> bool {
        let Some(state) = self.queues.get(key).filter(|_| key.is_some()) else {
            return false;
        };
        state
            .last()
            .is_some_and(|last| last.idle && (!self.spec.settings.terminating || last.finished))
            && !state.queue.is_blocked()
            && self.is_seen_by(key)
            && !self.watched.has_changed(key, state.last_read)
    }

    pub(super) fn close(&mut self, key: &Option<Key>) -> Option<QueueState> {
        self.limits.wanted.remove(key);
        self.queues.remove(key)
    }

    /// Returns what to do for all keys together, and whether queues are concerned.
    pub(super) fn review(&mut self, now: Now, stores: &impl Stores) -> (Vec<Duty>, bool) {
        self.note_blocked(now);
        let mut duties = Vec::new();
        if self.finalizer.due().is_some_and(|due| due <= now.moment) {
            self.finalizer.ask();
            duties.push(Duty::AddFinalizer);
        }
        if !self.has_begun() {
            return (duties, false);
        }
        let settled = self.review_limits(&mut duties, now, stores);
        if self.orphans_due().is_some_and(|due| due <= now.moment) {
            self.orphans.ask(now, self.is_cleaned_up());
            duties.push(Duty::ListSessions);
        }
        // A listing from before the last session had ended says nothing of what that session wrote.
        let is_shown = |searched| self.watched.was_asked_after(searched);
        let cleaned_up = self.is_cleaned_up() && self.orphans.done.is_some_and(is_shown);
        let hopeless = self.hopeless_from().is_some_and(|from| from <= now.moment);
        if (cleaned_up || hopeless) && self.finalizer.may_be_removed(now.moment).is_ok() {
            self.finalizer.ask();
            duties.push(if cleaned_up {
                Duty::RemoveFinalizer
            } else {
                Duty::LeaveBehind
            });
        }
        (duties, settled)
    }

    /// Requests recording of the limits that some key needs to be ours. If no key needs any, drops the limits that are
    /// no longer ours, and returns whether it did.
    fn review_limits(&mut self, duties: &mut Vec<Duty>, now: Now, stores: &impl Stores) -> bool {
        let OurLimits {
            recorded,
            asked,
            wanted,
        } = &mut self.limits;
        let wanted = wanted.values().find(|wanted| *wanted != recorded);
        if let Some(wanted) = wanted {
            if asked.as_ref() != Some(wanted) {
                *asked = Some(wanted.clone());
                duties.push(Duty::RecordLimits(wanted.clone()));
            }
            return false;
        }
        *asked = None;
        let limit = self.spec.settings.limit;
        let left = limit::settled(&self.limits.recorded, limit);
        let settled = left != self.limits.recorded && self.has_settled(limit);
        if settled {
            self.apply_recorded_limits(left, now, stores);
        }
        settled
    }

    /// Whether nothing in Consul depends on a limit of ours other than this one, at any key, including the keys that
    /// only the watch shows. The result of a pass under an earlier spec does not count, because it says nothing about
    /// later writes.
    fn has_settled(&self, limit: u32) -> bool {
        let generation = self.spec.generation;
        let settled = |state: &QueueState| {
            let concluded = state.concluded.as_ref();
            concluded.is_some_and(|(conclusion, of)| {
                *of == generation && conclusion.settled == Some(limit)
            })
        };
        self.watched.is_known() && !self.queues.is_empty() && self.queues.values().all(settled)
    }

    /// Whether the semaphore is being deleted and nothing of it is left at any lock key, as the watch last showed it.
    fn is_cleaned_up(&self) -> bool {
        let finished = |(key, state): (&Option<Key>, &QueueState)| {
            state.last().is_some_and(|last| last.finished)
                && !state.queue.is_blocked()
                && !self.watched.has_changed(key, state.last_read)
        };
        self.spec.settings.terminating
            && self.watched.is_known()
            && self.queues.iter().all(finished)
    }

    /// Returns when to search for sessions without a contender. There is no search while the contenders are not known.
    fn orphans_due(&self) -> Option<Moment> {
        if self.access.operations().is_none() || !self.watched.is_known() {
            return None;
        }
        let settings = &self.spec.settings;
        self.orphans.due(settings, self.is_cleaned_up())
    }

    /// Returns when it becomes useless to wait: the semaphore is being deleted, nothing here depends on it any more,
    /// and Consul can't be used to clean up. The time is a TTL after the trouble began, so that all sessions of the
    /// semaphore may have expired. There is no need to wait if the partition or namespace in Consul does not exist, or
    /// if the semaphore may not use its prefix.
    fn hopeless_from(&self) -> Option<Moment> {
        let free = |state: &QueueState| state.last().is_some_and(|last| last.nothing_held);
        if !self.spec.settings.terminating || !self.queues.values().all(free) {
            return None;
        }
        let span = self.spec.settings.span();
        match self.access {
            ConsulAccess::Refused { since } => Some(since),
            ConsulAccess::Pending { since } => Some(since + span),
            ConsulAccess::Granted { .. } => {
                let Obstacle { since, nowhere, .. } = self.obstacle()?;
                Some(if nowhere { since } else { since + span })
            }
        }
    }

    /// Returns when to review the semaphore again, if nothing happens before.
    pub(super) fn next_review(&self, now: Now) -> Option<Moment> {
        let (finalizer, begun) = (self.finalizer.due(), self.has_begun());
        let later = |time: &Moment| *time > now.moment;
        let removal = match self.finalizer.may_be_removed(now.moment) {
            Err(again) => again,
            Ok(()) => self.hopeless_from().filter(later),
        };
        let rest = [self.orphans_due(), removal].into_iter().flatten();
        finalizer.into_iter().chain(rest.filter(|_| begun)).min()
    }
}
