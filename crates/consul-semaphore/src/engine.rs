//! The engine grants, holds and releases slots, without IO and without a clock.
//!
//! The caller reports events. The engine returns each thing to be done as an [`Effect`], and the caller reports the
//! answer to each [`Call`] under the id of the call. The caller has the connections, the watches and the clock. It
//! carries out the effects concurrently, and decides nothing:
//!
//! ```text
//! loop {
//!     wait until something happens, or until engine.next_timeout()
//!     engine.listed(..), engine.answered(..), engine.touched(..), ...   // records it
//!     while let Some(passed) = engine.pass(now, &stores) {}             // decides what follows
//!     while let Some(effect) = engine.next_effect() { do it }
//! }
//! ```
//!
//! The design is that of quinn-proto and of other sans-IO protocols (<https://sans-io.readthedocs.io>): the same code
//! runs in the operator and under the model checker, which drops, duplicates, delays and reorders the events.
//!
//! An [`Engine`] has all semaphores of a process ([`SemaphoreState`]), and each semaphore has a [`Queue`] for each of
//! its lock keys. A program that waits for one slot uses an engine with a single semaphore of its own
//! ([`Engine::add_standalone`]).

mod active;
mod admission;
mod agenda;
mod calls;
mod capacity;
mod finalizer;
mod held;
mod holders;
mod joint;
mod knowledge;
mod lookup;
mod message;
mod orphans;
mod outcomes;
mod own_writes;
mod proofs;
mod queue;
mod refs;
mod refusals;
mod semaphore;
mod sessions;
mod troubles;
mod waiting;
mod waits;
mod watched;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use self::{
    agenda::{Agenda, DueWork},
    joint::{Joint, JointShare, JointStep, LastPass, LastPasses, QueueReport},
    watched::Concerned,
};
pub use self::{
    lookup::{Changes, Lookup},
    message::{Action, Answer, Call, CallId, Event, Moved, News, Now, Outcome, Write, Written},
    proofs::START_SETTLE_TIME,
    queue::{Conclusion, IDLE, Queue},
    refs::{QueueRef, SemaphoreRef},
    semaphore::{ConsulAccess, Duty, Known, Obstacle, QueueState, SemaphoreState, Spec},
    sessions::Owner,
    troubles::ConsulTrouble,
    waiting::{Reach, RequestClass, WaitingList, head},
    waits::{HEARTBEAT, Located, Overdue, Superseded},
    watched::WatchedPrefix,
};
use crate::{
    Asked, Key, Settings, SlotRequest, Uid, Workload, lock_key_of,
    plan::{HeldSlot, Stance, Start},
};
use consul_client::{self as consul, Listing, Session, SessionId, clock::Moment};

/// Shortest time between two reviews of a whole semaphore that are caused only by the passing of time.
const MIN_REVIEW_INTERVAL: Duration = Duration::from_millis(10);

/// Largest number of workloads asking for several semaphores for which a queue that frees slots makes other queues
/// decide at once.
const MOST_JOINT_WORKLOADS_TRIED: usize = 8;

/// Data that the caller stores anyway and the engine reads: see [`Lookup`].
pub trait Stores {
    /// Type of the data that a queue reads.
    type Of<'a>: Lookup
    where
        Self: 'a;

    /// Returns the data that a queue reads.
    fn of<'a>(&'a self, queue: &'a QueueRef) -> Self::Of<'a>;

    /// Returns the keys of a semaphore that have workloads. The only key of a semaphore that is not keyed is `None`.
    fn keys(&self, semaphore: &SemaphoreRef) -> Vec<Option<Key>>;

    /// Opens a queue that becomes active: the caller must report what concerns the queue from now on.
    fn open(&self, queue: &QueueRef);

    /// Closes a queue that becomes inactive, if it has no workloads. Returns whether it had none.
    fn close(&self, queue: &QueueRef) -> bool;

    /// Returns whether this process renews a session.
    fn keeps(&self, session: &SessionId) -> bool;
}

/// Work for the caller to do.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all effects are actions of queues"
)]
pub enum Effect {
    /// An action of a queue.
    Queue(QueueRef, Action),
    /// The engine removed a queue because nobody used it.
    Closed(QueueRef),
    /// The caller has a duty for a semaphore as a whole.
    Semaphore(SemaphoreRef, Duty),
}

/// Report of a pass over a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Queue that the pass was over.
    pub queue: QueueRef,
    /// Whether the pass knew what Consul says.
    pub certain: bool,
}

/// All semaphores of a process, with the queues of all their lock keys.
///
/// Each event marks the queues that it concerns, and [`Self::pass`] handles one of them, so the work is proportional
/// to what changed. Namespaces take turns.
#[derive(Clone, Debug, Default)]
pub struct Engine {
    semaphores: BTreeMap<SemaphoreRef, SemaphoreState>,
    agenda: Agenda,
    /// Queues by the number in their calls.
    by_number: BTreeMap<u64, QueueRef>,
    last_number: u64,
    effects: VecDeque<Effect>,
    /// Queues that were unused at their last pass.
    unused: Vec<QueueRef>,
    /// Passes that were made together with the last one and are still to be reported.
    passed: VecDeque<Passed>,
    /// Semaphores that may have changed since they were last taken.
    changed: BTreeSet<SemaphoreRef>,
    /// State that concerns several queues at once.
    joint: Joint,
}

/// Events that the caller reports.
impl Engine {
    /// Records that a semaphore was created or has changed: its spec, and whether it has our finalizer. `known`
    /// returns what is known of the semaphore from before, if it is new here.
    pub fn put(
        &mut self,
        semaphore: &SemaphoreRef,
        spec: Spec,
        finalizer: bool,
        known: impl FnOnce() -> (Known, ConsulAccess),
        now: Now,
        stores: &impl Stores,
    ) {
        let deleted = spec.settings.terminating;
        let news = if let Some(state) = self.semaphores.get_mut(semaphore) {
            state.respec(spec, now, stores)
        } else {
            let (known, access) = known();
            let state = SemaphoreState::new(semaphore.clone(), spec, known, access);
            self.semaphores.insert(semaphore.clone(), state);
            true
        };
        let Some(state) = self.semaphores.get_mut(semaphore) else {
            return;
        };
        let began = state.has_begun();
        state.finalizer.observe(finalizer, deleted);
        if news || began != state.has_begun() {
            for key in stores.keys(semaphore) {
                self.mark(&QueueRef::new(semaphore, key), now, stores);
            }
            self.mark_all(semaphore);
        }
        self.review(semaphore, now, stores);
    }

    /// Adds a semaphore that this process uses for itself. Such a semaphore has no object with a finalizer or
    /// recorded limits, and no controller acts on its workload by an older state. `operations` is the number of
    /// operations that Consul accepts in a transaction.
    pub fn add_standalone(
        &mut self,
        semaphore: &SemaphoreRef,
        settings: Settings,
        operations: usize,
        now: Now,
        stores: &impl Stores,
    ) {
        let state = SemaphoreState::standalone(semaphore.clone(), settings, operations);
        self.semaphores.insert(semaphore.clone(), state);
        for key in stores.keys(semaphore) {
            self.mark(&QueueRef::new(semaphore, key), now, stores);
        }
    }

    /// Stops serving a semaphore, but leaves its data in Consul. Returns the sessions that were made ahead: they have
    /// no contender, so nobody could find them.
    pub fn remove(
        &mut self,
        semaphore: &SemaphoreRef,
        now: Now,
        stores: &impl Stores,
    ) -> Vec<(QueueRef, SessionId)> {
        self.abandon_joint(semaphore, now, stores);
        let Some(state) = self.semaphores.remove(semaphore) else {
            return Vec::new();
        };
        let mut ahead = Vec::new();
        for (key, QueueState { queue, .. }) in &state.queues {
            let reference = QueueRef::new(semaphore, key.clone());
            let sessions = queue.sessions_ahead().cloned();
            ahead.extend(sessions.map(|session| (reference.clone(), session)));
            self.forget(&reference, queue.calls.queue_number);
        }
        self.agenda.set(DueWork::Semaphore(semaphore.clone()), None);
        self.changed.remove(semaphore);
        ahead
    }

    /// Records that a semaphore's access to Consul has changed or ended.
    pub fn set_access(
        &mut self,
        semaphore: &SemaphoreRef,
        access: ConsulAccess,
        now: Now,
        stores: &impl Stores,
    ) {
        self.abandon_joint(semaphore, now, stores);
        if let Some(state) = self.semaphores.get_mut(semaphore) {
            state.set_access(access, now, stores);
            self.mark_all(semaphore);
            self.review(semaphore, now, stores);
        }
    }

    /// Takes over a listing of a semaphore's prefix by a watch, or the failure of the watch.
    pub fn listed(
        &mut self,
        semaphore: &SemaphoreRef,
        listing: Result<Listing, consul::Error>,
        now: Now,
        stores: &impl Stores,
    ) {
        let Some(state) = self.semaphores.get_mut(semaphore) else {
            return;
        };
        let (concerned, all) = match state.listed(listing, now) {
            Concerned::Keys(keys) => (keys, false),
            Concerned::All(keys) => (keys, true),
        };
        // The semaphore is marked as changed even if it has no queue, because then no pass would report the change.
        if all {
            self.mark_all(semaphore);
        }
        for key in concerned {
            let state = self.semaphores.get(semaphore);
            let in_use = state.is_some_and(|state| state.watched.shows_use(&key));
            let reference = QueueRef::new(semaphore, key);
            if in_use || self.queue(&reference).is_some() {
                self.mark(&reference, now, stores);
            }
        }
        self.review(semaphore, now, stores);
    }

    /// Records that nobody follows the prefix of a queue for a while. A contender that waits there before the queue's
    /// workloads has not let its turn pass in that time.
    pub fn unfollowed(&mut self, queue: &QueueRef, now: Moment) {
        if let Some(queue) = self.existing(queue) {
            queue.knowledge.memory.turns.interrupt(now);
        }
    }

    /// Discards what a queue knows of its prefix, because it may be too old for a write to succeed. The next pass reads
    /// the prefix again.
    pub fn read_again(&mut self, queue: &QueueRef) {
        if let Some(queue) = self.existing(queue) {
            queue.knowledge.invalidate();
        }
    }

    /// Records that something has changed about a workload, a pod or a session of a queue.
    pub fn touched(&mut self, queue: &QueueRef, now: Now, stores: &impl Stores) {
        self.mark(queue, now, stores);
    }

    /// Takes over the answer to a call of a queue.
    pub fn answered(&mut self, call: CallId, answer: Answer, now: Now, stores: &impl Stores) {
        self.tell_of_start(call, &answer);
        let Some(parts) = self.joint.answered(call, &answer) else {
            return self.show(call, Event::Answered(call, answer), now, stores);
        };
        for (call, answer) in parts {
            self.show(call, Event::Answered(call, answer), now, stores);
        }
    }

    /// Takes over the number of operations that Consul accepts in a transaction, as the caller of this call learned
    /// it.
    pub fn capacity(&mut self, call: CallId, operations: usize, now: Now, stores: &impl Stores) {
        self.show(call, Event::Capacity(operations), now, stores);
    }

    /// Notes that the status has these limits as ours, as [`Duty::RecordLimits`] asked. Returns whether the engine
    /// awaited that.
    pub fn recorded(
        &mut self,
        semaphore: &SemaphoreRef,
        limits: &[u32],
        now: Now,
        stores: &impl Stores,
    ) -> bool {
        let state = self.semaphores.get_mut(semaphore);
        let news = state.is_some_and(|state| state.recorded(limits, now, stores));
        if news {
            self.mark_all(semaphore);
            self.review(semaphore, now, stores);
        }
        news
    }

    /// Takes over limits that another operator recorded as ours in the status. The caller has already reported the
    /// spec that they were written for, or a newer one. Returns whether any limit was unknown.
    pub fn found_limits(
        &mut self,
        semaphore: &SemaphoreRef,
        limits: &[u32],
        now: Now,
        stores: &impl Stores,
    ) -> bool {
        let state = self.semaphores.get_mut(semaphore);
        let news = state.is_some_and(|state| state.found_limits(limits, now, stores));
        if news {
            self.mark_all(semaphore);
            self.review(semaphore, now, stores);
        }
        news
    }

    /// Takes over the answer to [`Duty::ListSessions`].
    pub fn listed_sessions(
        &mut self,
        semaphore: &SemaphoreRef,
        sessions: Result<Vec<Session>, consul::Error>,
        now: Now,
        stores: &impl Stores,
    ) {
        if let Some(state) = self.semaphores.get_mut(semaphore) {
            let (ends, is_last) = state.listed_sessions(sessions, now, stores);
            for session in ends {
                let duty = Duty::EndSession(session);
                let effect = Effect::Semaphore(semaphore.clone(), duty);
                self.effects.push_back(effect);
            }
            if is_last {
                self.mark_all(semaphore);
            }
            self.review(semaphore, now, stores);
        }
    }

    /// Notes whether [`Duty::AddFinalizer`] was done or failed.
    pub fn added_finalizer(
        &mut self,
        semaphore: &SemaphoreRef,
        done: bool,
        now: Now,
        stores: &impl Stores,
    ) {
        if let Some(state) = self.semaphores.get_mut(semaphore) {
            state.finalizer.added(done, now);
            self.mark_all(semaphore);
            self.review(semaphore, now, stores);
        }
    }

    /// Notes whether [`Duty::RemoveFinalizer`] or [`Duty::LeaveBehind`] was done or failed.
    pub fn removed_finalizer(
        &mut self,
        semaphore: &SemaphoreRef,
        done: bool,
        now: Now,
        stores: &impl Stores,
    ) {
        if let Some(state) = self.semaphores.get_mut(semaphore) {
            state.finalizer.removed(done, now);
            self.review(semaphore, now, stores);
        }
    }
}

/// Passes over queues, and the effects that follow from them.
impl Engine {
    /// Runs one pass over a queue that is due, if any is.
    pub fn pass(&mut self, now: Now, stores: &impl Stores) -> Option<Passed> {
        if self.passed.is_empty() {
            self.find_due(now, stores);
        }
        while self.passed.is_empty() {
            let queue = self.agenda.next()?;
            self.pass_and_send(&queue, now, stores);
        }
        let passed = self.passed.pop_front()?;
        // The semaphore is marked as changed only now, because the caller takes over the result of a pass when it is
        // told of the pass.
        self.changed.insert(passed.queue.semaphore.clone());
        Some(passed)
    }

    /// Marks what is due by now.
    fn find_due(&mut self, now: Now, stores: &impl Stores) {
        for queue in std::mem::take(&mut self.unused) {
            self.close_if_unused(&queue, stores);
        }
        for queue in self.joint.take_due(now.moment) {
            self.agenda.mark(&queue);
        }
        while let Some(due) = self.agenda.take_due(now.moment) {
            match due {
                DueWork::Queue(queue) => self.agenda.mark(&queue),
                DueWork::Semaphore(semaphore) => self.review(&semaphore, now, stores),
            }
        }
    }

    /// Decides what follows for a queue, sends the effects, and decides what follows for other queues.
    fn pass_and_send(&mut self, queue: &QueueRef, now: Now, stores: &impl Stores) {
        let mut passed = Vec::from_iter(self.pass_over(queue, now, stores));
        let known = self.queue(queue);
        if known.is_some_and(|known| known.calls.is_to_free_slots()) {
            self.grant_what_comes_free(queue, &mut passed, now, stores);
        }
        for Passed { queue, .. } in &passed {
            if let Some(queue) = self.existing(queue) {
                queue.transact(now);
            }
            self.drain(queue);
        }
        for Passed { queue, .. } in &passed {
            self.join(queue, now, stores);
            self.end_waits(queue, now, stores);
            let state = self.semaphores.get(&queue.semaphore);
            if state.is_some_and(|state| state.is_unused(&queue.key)) {
                self.unused.push(queue.clone());
            }
            self.review(&queue.semaphore, now, stores);
        }
        self.passed.extend(passed);
    }

    /// Makes a pass over a queue, unless there is nothing to decide now. The transaction of the pass is not sent yet.
    fn pass_over(&mut self, queue: &QueueRef, now: Now, stores: &impl Stores) -> Option<Passed> {
        self.note_longest_cooldowns(queue, stores);
        let state = self.semaphores.get_mut(&queue.semaphore);
        let Some(state) = state.filter(|state| state.may_pass()) else {
            self.agenda.set(DueWork::Queue(queue.clone()), None);
            self.join(queue, now, stores);
            return None;
        };
        let passed = state.pass(&queue.key, now, stores);
        self.drain(queue);
        passed.map(|certain| Passed {
            queue: queue.clone(),
            certain,
        })
    }

    /// Returns the next thing to do.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns when to call [`Self::pass`] if nothing happens before.
    pub fn next_timeout(&self, now: Moment) -> Option<Moment> {
        if !self.passed.is_empty() {
            return Some(now);
        }
        let times = self.agenda.next_time(now).into_iter();
        times.chain(self.joint.next_due()).min()
    }

    /// Takes one of the semaphores that may have changed since it was last taken.
    pub fn take_changed(&mut self) -> Option<SemaphoreRef> {
        self.changed.pop_first()
    }

    /// Returns a semaphore.
    pub fn semaphore(&self, semaphore: &SemaphoreRef) -> Option<&SemaphoreState> {
        self.semaphores.get(semaphore)
    }

    /// Returns a queue.
    pub fn queue(&self, queue: &QueueRef) -> Option<&Queue> {
        let state = self.semaphores.get(&queue.semaphore)?;
        state.queues.get(&queue.key).map(|state| &state.queue)
    }

    #[cfg(test)]
    pub(crate) fn queue_mut(&mut self, queue: &QueueRef) -> Option<&mut Queue> {
        let state = self.semaphores.get_mut(&queue.semaphore)?;
        state
            .queues
            .get_mut(&queue.key)
            .map(|state| &mut state.queue)
    }

    /// Replaces the stances of the queues towards workloads that can't have all their slots yet.
    #[cfg(test)]
    pub(crate) fn distort_stances(&mut self, distort: fn(Stance) -> Stance) {
        self.joint.distort = Some(distort);
    }

    /// Returns the queue that made a call, or `None` if the queue was removed.
    pub fn queue_of(&self, call: CallId) -> Option<&QueueRef> {
        self.by_number.get(&call.queue)
    }

    /// Returns all queues.
    pub fn queues(&self) -> impl Iterator<Item = (QueueRef, &Queue)> {
        self.semaphores.iter().flat_map(|(semaphore, state)| {
            let queues = state.queues.iter();
            queues.map(|(key, state)| (QueueRef::new(semaphore, key.clone()), &state.queue))
        })
    }

    /// Returns the queues in which a workload asks for slots, in the order of its requests.
    pub fn queues_for(&self, namespace: &Arc<str>, workload: &Workload) -> Vec<QueueRef> {
        let requests = workload.requests.iter();
        let queues = requests.map(|request| {
            let semaphore = SemaphoreRef {
                namespace: namespace.clone(),
                name: request.semaphore.clone(),
            };
            let state = self.semaphores.get(&semaphore);
            let keyed = state.is_some_and(|state| state.spec().keyed);
            let key = request.key.clone().filter(|_| keyed);
            QueueRef { semaphore, key }
        });
        queues.collect()
    }

    /// Marks a queue as due for a pass. A missing queue is created.
    fn mark(&mut self, queue: &QueueRef, now: Now, stores: &impl Stores) {
        let Some(state) = self.semaphores.get_mut(&queue.semaphore) else {
            return;
        };
        let number = self.last_number + 1;
        if state.open(&queue.key, number, now, stores) {
            self.last_number = number;
            self.by_number.insert(number, queue.clone());
            stores.open(queue);
            self.drain(queue);
        }
        if self.queue(queue).is_some() {
            self.agenda.mark(queue);
        }
    }

    fn mark_all(&mut self, semaphore: &SemaphoreRef) {
        self.changed.insert(semaphore.clone());
        let Some(state) = self.semaphores.get(semaphore) else {
            return;
        };
        let keys: Vec<_> = state.queues.keys().cloned().collect();
        for key in keys {
            let queue = QueueRef::new(semaphore, key);
            self.agenda.mark(&queue);
            self.drain(&queue);
        }
    }

    /// Shows an event to the queue that made a call.
    fn show(&mut self, call: CallId, event: Event, now: Now, stores: &impl Stores) {
        let Some(queue) = self.by_number.get(&call.queue).cloned() else {
            return;
        };
        if let Some(state) = self.semaphores.get_mut(&queue.semaphore) {
            state.show(&queue.key, event, now, stores);
            self.drain(&queue);
            self.agenda.mark(&queue);
        }
    }

    /// Collects the actions of a queue, and the time of its next pass.
    fn drain(&mut self, queue: &QueueRef) {
        let state = self.semaphores.get_mut(&queue.semaphore);
        let Some(state) = state.and_then(|state| state.queues.get_mut(&queue.key)) else {
            return;
        };
        while let Some(action) = state.queue.next_action() {
            let effect = Effect::Queue(queue.clone(), action);
            self.effects.push_back(effect);
        }
        // A queue that had no pass yet waits for its first one.
        let time = Some(state.queue.next_timeout()).filter(|time| *time > Moment::default());
        self.agenda.set(DueWork::Queue(queue.clone()), time);
    }

    /// Removes the queue of a key that is no longer used, unless something has happened since its last pass.
    fn close_if_unused(&mut self, queue: &QueueRef, stores: &impl Stores) {
        if self.agenda.is_marked(queue) {
            return;
        }
        let Some(state) = self.semaphores.get_mut(&queue.semaphore) else {
            return;
        };
        if state.is_unused(&queue.key)
            && stores.close(queue)
            && let Some(QueueState { queue: closed, .. }) = state.close(&queue.key)
        {
            self.forget(queue, closed.calls.queue_number);
            self.effects.push_back(Effect::Closed(queue.clone()));
            self.changed.insert(queue.semaphore.clone());
        }
    }

    fn forget(&mut self, queue: &QueueRef, number: u64) {
        self.agenda.forget(queue);
        self.joint.closed(queue);
        self.by_number.remove(&number);
    }

    /// Reviews a whole semaphore, and schedules the next review.
    fn review(&mut self, semaphore: &SemaphoreRef, now: Now, stores: &impl Stores) {
        let Some(state) = self.semaphores.get_mut(semaphore) else {
            return;
        };
        let (duties, settled) = state.review(now, stores);
        let next = state
            .next_review(now)
            .map(|next| next.max(now.moment + MIN_REVIEW_INTERVAL));
        if !duties.is_empty() {
            self.changed.insert(semaphore.clone());
        }
        let effects = duties
            .into_iter()
            .map(|duty| Effect::Semaphore(semaphore.clone(), duty));
        self.effects.extend(effects);
        if settled {
            self.mark_all(semaphore);
        }
        self.agenda.set(DueWork::Semaphore(semaphore.clone()), next);
    }
}

/// Decisions that concern several queues at once: see [`joint`].
impl Engine {
    /// Decides what follows for the workloads that ask for several slots, after a pass over one of their queues.
    fn join(&mut self, queue: &QueueRef, now: Now, stores: &impl Stores) {
        // As long as an answer is awaited, nothing new is known.
        if self.queue(queue).is_some_and(Queue::is_blocked) {
            return;
        }
        let undecided = self.undecided(queue, now, stores);
        for (workload, queues) in self.joint_workloads(queue, undecided, stores) {
            self.join_one(&workload, &queues, now, stores);
        }
    }

    /// Returns the workloads about which this queue's part may decide.
    fn joint_at(&self, queue: &QueueRef) -> impl Iterator<Item = &Uid> {
        let known = self.joint.of(queue);
        let new = self
            .concluded(queue)
            .into_iter()
            .flat_map(|conclusion| conclusion.parts.keys())
            .filter(move |uid| known.is_none_or(|known| !known.contains(*uid)));
        known.into_iter().flatten().chain(new)
    }

    /// Returns the joint workloads of a queue about which something is to be decided. The others go on waiting: while
    /// one workload is granted its slots, hundreds may wait for theirs.
    fn undecided(&self, queue: &QueueRef, now: Now, stores: &impl Stores) -> Vec<Uid> {
        let mut last_passes = LastPasses::new(|queue| self.last_pass(queue));
        let lookup = stores.of(queue);
        let mut waits = |uid: &Uid| {
            let basis = self.joint.basis(uid)?;
            let due = self.joint.is_due(uid, now.moment);
            let workload = lookup.workload(uid)?;
            Some(basis.holds(&workload, queue, due, &mut last_passes))
        };
        let undecided = self.joint_at(queue).filter(|uid| waits(uid) != Some(true));
        undecided.cloned().collect()
    }

    /// Returns these workloads in the order of the queue, each with its queues. Workloads that do not ask for slots
    /// in this queue any more are forgotten.
    fn joint_workloads(
        &mut self,
        queue: &QueueRef,
        uids: Vec<Uid>,
        stores: &impl Stores,
    ) -> Vec<(Arc<Workload>, Vec<QueueRef>)> {
        let mut workloads = Vec::new();
        for uid in uids {
            let workload = stores.of(queue).workload(&uid);
            let queues = workload.as_ref().map_or_else(Vec::new, |workload| {
                self.queues_for(&queue.semaphore.namespace, workload)
            });
            if let Some(workload) = workload.filter(|_| queues.contains(queue)) {
                workloads.push((workload, queues));
            } else {
                self.joint.note(&uid, std::slice::from_ref(queue), false);
                self.joint.forget(&uid);
                self.take_stance(&uid, queue, None);
                self.tell_request(&uid, std::slice::from_ref(queue), None);
                self.note_lacking(&uid, queue, &[]);
            }
        }
        workloads.sort_by_cached_key(|(workload, _)| workload.place());
        workloads
    }

    /// Grants a whole request in the transaction with which this queue is about to free slots. The request is that of
    /// the first workload for which these slots are enough. Queues of the workload that are due have their pass
    /// first, so that they decide about slots that come free at the same time; these passes are added to `passed`.
    ///
    /// After a failure the queue sends alone what it has decided, because elsewhere another client may always be
    /// faster.
    fn grant_what_comes_free(
        &mut self,
        queue: &QueueRef,
        passed: &mut Vec<Passed>,
        now: Now,
        stores: &impl Stores,
    ) {
        let all = self.joint_at(queue).cloned().collect();
        let workloads = self.joint_workloads(queue, all, stores).into_iter();
        let several = workloads.filter(|(workload, _)| workload.asks_for_several());
        for (workload, queues) in several.take(MOST_JOINT_WORKLOADS_TRIED) {
            let uid = &workload.uid;
            let is_hopeless = |queue: &QueueRef| {
                let known = self.queue(queue);
                let doubts = known.is_none_or(|known| known.calls.is_in_doubt());
                doubts || !self.agenda.is_marked(queue) && !self.report(queue, uid).is_grantable()
            };
            if queues.iter().any(is_hopeless) {
                continue;
            }
            for other in &queues {
                if self.agenda.take(other) {
                    passed.extend(self.pass_over(other, now, stores));
                }
            }
            let reports = self.reports(&queues, uid);
            if joint::next(&reports) == JointStep::Grant {
                if self
                    .grant_jointly(&workload, &queues, now, stores)
                    .is_some()
                {
                    for queue in &queues {
                        self.drain(queue);
                    }
                }
                return;
            }
        }
    }

    fn join_one(
        &mut self,
        workload: &Arc<Workload>,
        queues: &[QueueRef],
        now: Now,
        stores: &impl Stores,
    ) {
        let uid = &workload.uid;
        let reports = self.reports(queues, uid);
        if reports.contains(&QueueReport::Later) {
            return self.joint.note(uid, queues, true);
        }
        let is_due = self.joint.is_due(uid, now.moment);
        let any = reports.iter().any(QueueReport::is_concerned);
        let next = joint::next(&reports);
        let waits = any && next == JointStep::Wait;
        let first = reports.iter().position(QueueReport::is_first);
        let stances = joint::stances(&reports, is_due);
        let lacking = if waits {
            joint::lacking(&workload.requests, &reports)
        } else {
            Vec::new()
        };
        let basis = waits
            .then(|| joint::Basis::of(workload, queues, &reports, is_due))
            .flatten();
        // Queues that were removed are left out, because they have no more pass in which the workload could be
        // forgotten.
        let existing: Vec<QueueRef> = queues
            .iter()
            .filter(|queue| self.queue(queue).is_some())
            .cloned()
            .collect();
        self.joint.note(uid, &existing, any);
        self.joint.note_basis(uid, basis);
        if let Some(first) = first.map(|first| &queues[first]) {
            let pass_over = self.queue(first).map(|queue| queue.settings().pass_over);
            let due = now.moment + pass_over.unwrap_or_default();
            self.joint.note_head(uid, first, due);
        }
        if !any {
            self.joint.forget(uid);
        }
        let several = any && workload.asks_for_several();
        let asked = several.then(|| self.asked_for(workload, queues)).flatten();
        self.tell_request(uid, queues, asked.as_ref());
        for queue in queues {
            self.note_lacking(uid, queue, &lacking);
        }
        match next {
            JointStep::Grant => drop(self.grant_jointly(workload, queues, now, stores)),
            JointStep::Start(slots) => self.start_jointly(workload, slots, queues, now, stores),
            JointStep::GiveBack => self.give_back_jointly(workload, queues),
            JointStep::Wait => {
                for (queue, stance) in queues.iter().zip(stances) {
                    self.take_stance(uid, queue, stance);
                }
                return;
            }
        }
        for queue in queues {
            self.drain(queue);
        }
    }

    /// Tells a queue the longest cooldowns of its workloads that ask for several semaphores and must not wait. These
    /// cooldowns decide whether such a workload is too late.
    fn note_longest_cooldowns(&mut self, queue: &QueueRef, stores: &impl Stores) {
        if self.semaphores.len() < 2 {
            return;
        }
        let waiting = stores.of(queue).waiting(&Reach::first(1)).into_iter();
        let hasty = waiting.filter(|workload| {
            let scheduled = workload.cron_job.is_some();
            scheduled && workload.is_skippable() && workload.asks_for_several()
        });
        let longest = hasty.filter_map(|workload| {
            let queues = self.queues_for(&queue.semaphore.namespace, &workload);
            let semaphores = queues.iter().map(|queue| self.semaphore(&queue.semaphore));
            let cooldowns = semaphores
                .flatten()
                .map(|known| known.spec().settings.cooldown);
            Some((workload.uid.clone(), cooldowns.max()?))
        });
        let longest = longest.collect();
        if let Some(queue) = self.existing(queue) {
            queue.joint.set_longest_cooldowns(longest);
        }
    }

    /// Tells a queue its stance towards a workload. A queue whose stance changes decides anew.
    fn take_stance(&mut self, workload: &Uid, queue: &QueueRef, stance: Option<Stance>) {
        #[cfg(test)]
        let stance = match self.joint.distort {
            Some(distort) => stance.map(distort),
            None => stance,
        };
        let known = self.existing(queue);
        if known.is_some_and(|known| known.joint.set_stance(workload, stance)) {
            self.agenda.mark(queue);
        }
    }

    /// Returns all that a workload asks for, by the lock keys of its queues, or `None` if one of the queues is not
    /// known.
    fn asked_for(&self, workload: &Workload, queues: &[QueueRef]) -> Option<Asked> {
        let parts = workload
            .requests
            .iter()
            .zip(queues)
            .map(|(request, queue)| {
                let lock_key = self.queue(queue)?.settings().prefix.lock_key();
                Some((lock_key, request.slots.get()))
            });
        Some(Asked::of(parts.collect::<Option<Vec<_>>>()?))
    }

    /// Tells the queues of a workload all that it asks for.
    fn tell_request(&mut self, workload: &Uid, queues: &[QueueRef], asked: Option<&Asked>) {
        for queue in queues {
            if let Some(known) = self.existing(queue) {
                known.joint.set_whole(workload, asked);
            }
        }
    }

    /// Tells a queue what a workload lacks. This is only reported, so the queue does not decide anew.
    fn note_lacking(&mut self, workload: &Uid, queue: &QueueRef, lacking: &[SlotRequest]) {
        let known = self.existing(queue);
        if known.is_some_and(|known| known.joint.set_lacking(workload, lacking)) {
            self.changed.insert(queue.semaphore.clone());
        }
    }

    /// Returns the reports of these queues about a workload.
    fn reports(&self, queues: &[QueueRef], workload: &Uid) -> Vec<QueueReport<'_>> {
        let reports = queues.iter().map(|queue| self.report(queue, workload));
        reports.collect()
    }

    /// Returns the report of a queue about a workload.
    fn report(&self, queue: &QueueRef, workload: &Uid) -> QueueReport<'_> {
        self.last_pass(queue).report(workload)
    }

    fn last_pass(&self, queue: &QueueRef) -> LastPass<'_> {
        let state = self.semaphores.get(&queue.semaphore);
        if !state.is_some_and(SemaphoreState::may_pass) {
            return LastPass::Uncertain;
        }
        match self.concluded(queue) {
            None => LastPass::Outdated,
            Some(conclusion) if conclusion.certain => LastPass::Certain(conclusion),
            Some(_) => LastPass::Uncertain,
        }
    }

    /// Returns the result of the last pass over a queue, if nothing has happened since and no request to Consul is
    /// pending.
    fn concluded(&self, queue: &QueueRef) -> Option<&Conclusion> {
        let semaphore = self.semaphores.get(&queue.semaphore)?;
        let state = semaphore.queues.get(&queue.key)?;
        let conclusion = state.last()?;
        let changes = state.queue.is_blocked() || self.agenda.is_marked(queue);
        (!changes).then_some(conclusion)
    }

    fn existing(&mut self, queue: &QueueRef) -> Option<&mut Queue> {
        let semaphore = self.semaphores.get_mut(&queue.semaphore)?;
        let state = semaphore.queues.get_mut(&queue.key)?;
        Some(&mut state.queue)
    }

    /// Stops waiting for the joint transactions that a semaphore's queues sent. The other queues treat these
    /// transactions as lost.
    fn abandon_joint(&mut self, semaphore: &SemaphoreRef, now: Now, stores: &impl Stores) {
        let numbers: Vec<u64> = self
            .semaphores
            .get(semaphore)
            .into_iter()
            .flat_map(|state| state.queues.values())
            .map(|state| state.queue.calls.queue_number)
            .collect();
        for number in numbers {
            for call in self.joint.abandon(number) {
                let answer = Answer::Transacted {
                    sent: now.moment,
                    result: Err(consul::Error::Unreachable {
                        message: "the access to Consul has changed".into(),
                        undecided: true,
                    }),
                };
                self.show(call, Event::Answered(call, answer), now, stores);
            }
        }
    }

    /// Grants a workload everything that it asks for, in one transaction. Returns `None` if that is not possible now.
    fn grant_jointly(
        &mut self,
        workload: &Workload,
        queues: &[QueueRef],
        now: Now,
        stores: &impl Stores,
    ) -> Option<()> {
        let operations = queues.iter().map(|queue| self.queue(queue)?.operations());
        let mut left = operations.collect::<Option<Vec<_>>>()?.into_iter().min()?;
        let needed: Vec<usize> = workload.requests.iter().map(joint::operations).collect();
        let mut transactions = Vec::new();
        for (place, queue) in queues.iter().enumerate() {
            let others: usize = needed.iter().skip(place + 1).sum();
            let most = left.checked_sub(others)?;
            let lookup = stores.of(queue);
            let share = self
                .existing(queue)?
                .share(&workload.uid, most, now, &lookup)?;
            left = left.checked_sub(share.operations.len())?;
            transactions.push(share);
        }
        let mut shares = Vec::new();
        let mut not_after: Option<Moment> = None;
        for (queue, transaction) in queues.iter().zip(transactions) {
            let (id, until) = self.existing(queue)?.await_transaction(&transaction, now);
            not_after = not_after.into_iter().chain(until).min();
            shares.push(JointShare { id, transaction });
        }
        let first = shares.first()?.id;
        let transaction = Arc::new(joint::combined(&shares));
        let call = Call::Transact {
            transaction,
            not_after,
        };
        self.joint.sent(first, shares);
        self.existing(queues.first()?)?.calls.send(first, call);
        Some(())
    }

    /// Starts a workload in all its slots, unless the evidence for one of the slots may end before the write is
    /// answered.
    fn start_jointly(
        &mut self,
        workload: &Workload,
        slots: Vec<HeldSlot>,
        queues: &[QueueRef],
        now: Now,
        stores: &impl Stores,
    ) {
        let (mut not_after, mut timeout) = (Moment::END, Duration::MAX);
        for queue in queues {
            let lookup = stores.of(queue);
            let Some(queue) = self.existing(queue) else {
                return;
            };
            let prefix = queue.settings().prefix.clone();
            let here = slots
                .iter()
                .filter(|slot| lock_key_of(slot.key()) == prefix.lock_key());
            match queue.evidence_for(&workload.uid, here, now, &lookup) {
                Some(end) => not_after = not_after.min(end),
                None => return,
            }
            timeout = timeout.min(queue.settings().write_timeout());
        }
        let start = Start::new(workload.into(), slots);
        let Some((first, start)) = queues.first().zip(start) else {
            return;
        };
        let was_sent = self
            .existing(first)
            .is_some_and(|queue| queue.start_by(&start, timeout, not_after));
        for queue in queues.iter().filter(|_| was_sent) {
            if let Some(queue) = self.existing(queue) {
                queue.held.starts.sent(start.sessions());
            }
        }
    }

    /// Tells the queues of rates the result of a start in slots of several queues, because only the queue that sent the
    /// start has the answer.
    fn tell_of_start(&mut self, call: CallId, answer: &Answer) {
        let queue = self.by_number.get(&call.queue);
        let started = queue.and_then(|queue| self.queue(queue)?.calls.started_by(call, answer));
        let Some((start, answer)) = started.filter(|(start, _)| !start.others.is_empty()) else {
            return;
        };
        for state in self.semaphores.values_mut() {
            let queues = state.queues.values_mut().map(|state| &mut state.queue);
            for queue in queues.filter(|queue| queue.settings().is_rate()) {
                queue.held.starts.answered(start.sessions(), answer);
            }
        }
    }

    /// Makes a workload give back everything that it holds, because it lost a part of it.
    fn give_back_jointly(&mut self, workload: &Workload, queues: &[QueueRef]) {
        for queue in queues {
            let held = match self.report(queue, &workload.uid) {
                QueueReport::Held(slots) => Some(slots.to_vec()),
                _ => None,
            };
            if let Some((queue, slots)) = self.existing(queue).zip(held) {
                queue.write(Write::GiveBack(joint::give_back(workload, &slots)));
            }
        }
    }
}
