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
mod queue_pass;
mod refs;
mod refusals;
mod semaphore;
mod semaphores;
mod sessions;
mod troubles;
mod waiting;
mod waits;
mod watched;

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc};

use self::{
    agenda::DueWork, joint::Joint, queue_pass::QueuePass, semaphores::Semaphores, waits::WaitPass,
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
#[cfg(test)]
use crate::plan::Stance;
use crate::{Key, Settings, Workload};
use consul_client::{self as consul, Listing, Session, SessionId, clock::Moment};

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
    semaphores: Semaphores,
    /// Queues that were unused at their last pass.
    unused: Vec<QueueRef>,
    /// Passes that were made together with the last one and are still to be reported.
    passed: VecDeque<Passed>,
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
        let news = if let Some(state) = self.semaphores.states.get_mut(semaphore) {
            state.respec(spec, now, stores)
        } else {
            let (known, access) = known();
            let state = SemaphoreState::new(semaphore.clone(), spec, known, access);
            self.semaphores.states.insert(semaphore.clone(), state);
            true
        };
        let Some(state) = self.semaphores.states.get_mut(semaphore) else {
            return;
        };
        let began = state.has_begun();
        state.finalizer.observe(finalizer, deleted);
        if news || began != state.has_begun() {
            for key in stores.keys(semaphore) {
                self.semaphores
                    .mark(&QueueRef::new(semaphore, key), now, stores);
            }
            self.semaphores.mark_all(semaphore);
        }
        self.semaphores.review(semaphore, now, stores);
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
        self.semaphores.states.insert(semaphore.clone(), state);
        for key in stores.keys(semaphore) {
            self.semaphores
                .mark(&QueueRef::new(semaphore, key), now, stores);
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
        let Some(state) = self.semaphores.states.remove(semaphore) else {
            return Vec::new();
        };
        let mut ahead = Vec::new();
        for (key, QueueState { queue, .. }) in &state.queues {
            let reference = QueueRef::new(semaphore, key.clone());
            let sessions = queue.sessions_ahead().cloned();
            ahead.extend(sessions.map(|session| (reference.clone(), session)));
            self.forget(&reference, queue.calls.queue_number);
        }
        self.semaphores
            .agenda
            .set(DueWork::Semaphore(semaphore.clone()), None);
        self.semaphores.changed.remove(semaphore);
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
        if let Some(state) = self.semaphores.states.get_mut(semaphore) {
            state.set_access(access, now, stores);
            self.semaphores.mark_all(semaphore);
            self.semaphores.review(semaphore, now, stores);
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
        let Some(state) = self.semaphores.states.get_mut(semaphore) else {
            return;
        };
        let (concerned, all) = match state.listed(listing, now) {
            Concerned::Keys(keys) => (keys, false),
            Concerned::All(keys) => (keys, true),
        };
        // The semaphore is marked as changed even if it has no queue, because then no pass would report the change.
        if all {
            self.semaphores.mark_all(semaphore);
        }
        for key in concerned {
            let state = self.semaphores.states.get(semaphore);
            let in_use = state.is_some_and(|state| state.watched.shows_use(&key));
            let reference = QueueRef::new(semaphore, key);
            if in_use || self.queue(&reference).is_some() {
                self.semaphores.mark(&reference, now, stores);
            }
        }
        self.semaphores.review(semaphore, now, stores);
    }

    /// Records that nobody follows the prefix of a queue for a while. A contender that waits there before the queue's
    /// workloads has not let its turn pass in that time.
    pub fn unfollowed(&mut self, queue: &QueueRef, now: Moment) {
        if let Some(queue) = self.semaphores.queue_mut(queue) {
            queue.knowledge.memory.turns.interrupt(now);
        }
    }

    /// Discards what a queue knows of its prefix, because it may be too old for a write to succeed. The next pass reads
    /// the prefix again.
    pub fn read_again(&mut self, queue: &QueueRef) {
        if let Some(queue) = self.semaphores.queue_mut(queue) {
            queue.knowledge.invalidate();
        }
    }

    /// Records that something has changed about a workload, a pod or a session of a queue.
    pub fn touched(&mut self, queue: &QueueRef, now: Now, stores: &impl Stores) {
        self.semaphores.mark(queue, now, stores);
    }

    /// Takes over the answer to a call of a queue.
    pub fn answered(&mut self, call: CallId, answer: Answer, now: Now, stores: &impl Stores) {
        self.tell_of_start(call, &answer);
        let Some(parts) = self.joint.answered(call, &answer) else {
            return self
                .semaphores
                .show(call, Event::Answered(call, answer), now, stores);
        };
        for (call, answer) in parts {
            self.semaphores
                .show(call, Event::Answered(call, answer), now, stores);
        }
    }

    /// Takes over the number of operations that Consul accepts in a transaction, as the caller of this call learned
    /// it.
    pub fn capacity(&mut self, call: CallId, operations: usize, now: Now, stores: &impl Stores) {
        self.semaphores
            .show(call, Event::Capacity(operations), now, stores);
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
        let state = self.semaphores.states.get_mut(semaphore);
        let news = state.is_some_and(|state| state.recorded(limits, now, stores));
        if news {
            self.semaphores.mark_all(semaphore);
            self.semaphores.review(semaphore, now, stores);
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
        let state = self.semaphores.states.get_mut(semaphore);
        let news = state.is_some_and(|state| state.found_limits(limits, now, stores));
        if news {
            self.semaphores.mark_all(semaphore);
            self.semaphores.review(semaphore, now, stores);
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
        if let Some(state) = self.semaphores.states.get_mut(semaphore) {
            let duties = state.listed_sessions(sessions, now, stores);
            self.semaphores.assign(semaphore, duties);
            self.semaphores.review(semaphore, now, stores);
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
        if let Some(state) = self.semaphores.states.get_mut(semaphore) {
            state.finalizer.added(done, now);
            self.semaphores.mark_all(semaphore);
            self.semaphores.review(semaphore, now, stores);
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
        if let Some(state) = self.semaphores.states.get_mut(semaphore) {
            state.finalizer.removed(done, now);
            self.semaphores.review(semaphore, now, stores);
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
            let queue = self.semaphores.agenda.next()?;
            let passed = self.pass_over(&queue, now, stores);
            self.passed.extend(passed);
        }
        let passed = self.passed.pop_front()?;
        // The semaphore is marked as changed only now, because the caller takes over the result of a pass when it is
        // told of the pass.
        self.semaphores
            .changed
            .insert(passed.queue.semaphore.clone());
        Some(passed)
    }

    /// Marks what is due by now.
    fn find_due(&mut self, now: Now, stores: &impl Stores) {
        for queue in std::mem::take(&mut self.unused) {
            self.close_if_unused(&queue, stores);
        }
        for queue in self.joint.take_due(now.moment) {
            self.semaphores.agenda.mark(&queue);
        }
        while let Some(due) = self.semaphores.agenda.take_due(now.moment) {
            match due {
                DueWork::Queue(queue) => self.semaphores.agenda.mark(&queue),
                DueWork::Semaphore(semaphore) => self.semaphores.review(&semaphore, now, stores),
            }
        }
    }

    /// Makes a pass over a queue, and decides what follows for other queues. Returns the passes that were made.
    fn pass_over(&mut self, queue: &QueueRef, now: Now, stores: &impl Stores) -> Vec<Passed> {
        let mut pass = QueuePass {
            semaphores: &mut self.semaphores,
            joint: &mut self.joint,
            now,
            stores,
        };
        let passed = pass.run(queue);
        for Passed { queue, .. } in &passed {
            pass.join(queue);
            let semaphores = &mut *pass.semaphores;
            let mut waits = WaitPass {
                semaphores,
                now,
                stores,
            };
            waits.run(queue);
            let state = pass.semaphores.states.get(&queue.semaphore);
            if state.is_some_and(|state| state.is_unused(&queue.key)) {
                self.unused.push(queue.clone());
            }
            pass.semaphores.review(&queue.semaphore, now, stores);
        }
        passed
    }

    /// Returns the next thing to do.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.semaphores.effects.pop_front()
    }

    /// Returns when to call [`Self::pass`] if nothing happens before.
    pub fn next_timeout(&self, now: Moment) -> Option<Moment> {
        if !self.passed.is_empty() {
            return Some(now);
        }
        let times = self.semaphores.agenda.next_time(now).into_iter();
        times.chain(self.joint.next_due()).min()
    }

    /// Takes one of the semaphores that may have changed since it was last taken.
    pub fn take_changed(&mut self) -> Option<SemaphoreRef> {
        self.semaphores.changed.pop_first()
    }

    /// Returns a semaphore.
    pub fn semaphore(&self, semaphore: &SemaphoreRef) -> Option<&SemaphoreState> {
        self.semaphores.states.get(semaphore)
    }

    /// Returns a queue.
    pub fn queue(&self, queue: &QueueRef) -> Option<&Queue> {
        self.semaphores.queue(queue)
    }

    #[cfg(test)]
    pub(crate) fn queue_mut(&mut self, queue: &QueueRef) -> Option<&mut Queue> {
        self.semaphores.queue_mut(queue)
    }

    /// Returns the queue that made a call, or `None` if the queue was removed.
    pub fn queue_of(&self, call: CallId) -> Option<&QueueRef> {
        self.semaphores.queue_of(call)
    }

    /// Returns all queues.
    pub fn queues(&self) -> impl Iterator<Item = (QueueRef, &Queue)> {
        self.semaphores.queues()
    }

    /// Returns the queues in which a workload asks for slots, in the order of its requests.
    pub fn queues_for(&self, namespace: &Arc<str>, workload: &Workload) -> Vec<QueueRef> {
        self.semaphores.queues_for(namespace, workload)
    }

    /// Replaces the stances of the queues towards workloads that can't have all their slots yet.
    #[cfg(test)]
    pub(crate) fn distort_stances(&mut self, distort: fn(Stance) -> Stance) {
        self.joint.distort = Some(distort);
    }

    /// Removes the queue of a key that is no longer used, unless something has happened since its last pass.
    fn close_if_unused(&mut self, queue: &QueueRef, stores: &impl Stores) {
        if self.semaphores.agenda.is_marked(queue) {
            return;
        }
        let Some(state) = self.semaphores.states.get_mut(&queue.semaphore) else {
            return;
        };
        if state.is_unused(&queue.key)
            && stores.close(queue)
            && let Some(QueueState { queue: closed, .. }) = state.close(&queue.key)
        {
            self.forget(queue, closed.calls.queue_number);
            self.semaphores
                .effects
                .push_back(Effect::Closed(queue.clone()));
            self.semaphores.changed.insert(queue.semaphore.clone());
        }
    }

    fn forget(&mut self, queue: &QueueRef, number: u64) {
        self.semaphores.forget(queue, number);
        self.joint.closed(queue);
    }

    /// Stops waiting for the joint transactions that a semaphore's queues sent. The other queues treat these
    /// transactions as lost.
    fn abandon_joint(&mut self, semaphore: &SemaphoreRef, now: Now, stores: &impl Stores) {
        let numbers: Vec<u64> = self
            .semaphores
            .states
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
                self.semaphores
                    .show(call, Event::Answered(call, answer), now, stores);
            }
        }
    }

    /// Tells the queues of rates the result of a start in slots of several queues, because only the queue that sent the
    /// start has the answer.
    fn tell_of_start(&mut self, call: CallId, answer: &Answer) {
        let queue = self.semaphores.queue_of(call);
        let started = queue.and_then(|queue| self.queue(queue)?.calls.started_by(call, answer));
        let Some((start, answer)) = started.filter(|(start, _)| !start.others.is_empty()) else {
            return;
        };
        for state in self.semaphores.states.values_mut() {
            let queues = state.queues.values_mut().map(|state| &mut state.queue);
            for queue in queues.filter(|queue| queue.settings().is_rate()) {
                queue.held.starts.answered(start.sessions(), answer);
            }
        }
    }
}
