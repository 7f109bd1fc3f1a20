//! All semaphores of a process, and what is due for them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{
    CallId, Conclusion, Duty, Effect, Event, Now, Queue, QueueRef, QueueState, SemaphoreRef,
    SemaphoreState, Stores,
    agenda::{Agenda, DueWork},
    joint::LastPass,
};
use crate::{Uid, Workload};
use consul_client::clock::Moment;

/// Shortest time between two reviews of a whole semaphore that are caused only by the passing of time.
const MIN_REVIEW_INTERVAL: Duration = Duration::from_millis(10);

/// All semaphores of a process with their queues, the work that is due for them, and the effects to be carried out.
#[derive(Clone, Debug, Default)]
pub(super) struct Semaphores {
    pub(super) states: BTreeMap<SemaphoreRef, SemaphoreState>,
    pub(super) agenda: Agenda,
    /// Queues by the number in their calls.
    by_number: BTreeMap<u64, QueueRef>,
    last_number: u64,
    pub(super) effects: VecDeque<Effect>,
    /// Semaphores that may have changed since they were last taken.
    pub(super) changed: BTreeSet<SemaphoreRef>,
}

impl Semaphores {
    /// Returns a queue.
    pub(super) fn queue(&self, queue: &QueueRef) -> Option<&Queue> {
        self.queue_state(queue).map(|state| &state.queue)
    }

    /// Returns a queue with the result of its last pass.
    pub(super) fn queue_state(&self, queue: &QueueRef) -> Option<&QueueState> {
        let state = self.states.get(&queue.semaphore)?;
        state.queues.get(&queue.key)
    }

    /// Returns a queue that is to be changed.
    pub(super) fn queue_mut(&mut self, queue: &QueueRef) -> Option<&mut Queue> {
        let semaphore = self.states.get_mut(&queue.semaphore)?;
        let state = semaphore.queues.get_mut(&queue.key)?;
        Some(&mut state.queue)
    }

    /// Returns the queue that made a call, or `None` if the queue was removed.
    pub(super) fn queue_of(&self, call: CallId) -> Option<&QueueRef> {
        self.by_number.get(&call.queue)
    }

    /// Returns all queues.
    pub(super) fn queues(&self) -> impl Iterator<Item = (QueueRef, &Queue)> {
        self.states.iter().flat_map(|(semaphore, state)| {
            let queues = state.queues.iter();
            queues.map(|(key, state)| (QueueRef::new(semaphore, key.clone()), &state.queue))
        })
    }

    /// Returns the queues in which a workload asks for slots, in the order of its requests.
    pub(super) fn queues_for(&self, namespace: &Arc<str>, workload: &Workload) -> Vec<QueueRef> {
        let requests = workload.requests.iter();
        let queues = requests.map(|request| {
            let semaphore = SemaphoreRef {
                namespace: namespace.clone(),
                name: request.semaphore.clone(),
            };
            let state = self.states.get(&semaphore);
            let keyed = state.is_some_and(|state| state.spec().keyed);
            let key = request.key.clone().filter(|_| keyed);
            QueueRef { semaphore, key }
        });
        queues.collect()
    }

    /// Returns the result of the last pass over a queue, if nothing has happened since and no request to Consul is
    /// pending.
    pub(super) fn concluded(&self, queue: &QueueRef) -> Option<&Conclusion> {
        let state = self.queue_state(queue)?;
        let conclusion = state.last()?;
        let changes = state.queue.is_blocked() || self.agenda.is_marked(queue);
        (!changes).then_some(conclusion)
    }

    /// Returns what the last pass over a queue says.
    pub(super) fn last_pass(&self, queue: &QueueRef) -> LastPass<'_> {
        let state = self.states.get(&queue.semaphore);
        if !state.is_some_and(SemaphoreState::may_pass) {
            return LastPass::Uncertain;
        }
        match self.concluded(queue) {
            None => LastPass::Outdated,
            Some(conclusion) if conclusion.certain => LastPass::Certain(conclusion),
            Some(_) => LastPass::Uncertain,
        }
    }

    /// Whether a workload can have what it asks for in this queue now, which is also assumed before the first result of
    /// a pass.
    pub(super) fn reaches(&self, queue: &QueueRef, workload: &Uid) -> bool {
        let last = self.queue_state(queue).and_then(QueueState::last);
        last.is_none_or(|conclusion| conclusion.in_reach.contains(workload))
    }

    /// Marks a queue as due for a pass. A missing queue is created.
    pub(super) fn mark(&mut self, queue: &QueueRef, now: Now, stores: &impl Stores) {
        let Some(state) = self.states.get_mut(&queue.semaphore) else {
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

    /// Marks all queues of a semaphore as due for a pass, and the semaphore as changed.
    pub(super) fn mark_all(&mut self, semaphore: &SemaphoreRef) {
        self.changed.insert(semaphore.clone());
        let Some(state) = self.states.get(semaphore) else {
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
    pub(super) fn show(&mut self, call: CallId, event: Event, now: Now, stores: &impl Stores) {
        let Some(queue) = self.by_number.get(&call.queue).cloned() else {
            return;
        };
        if let Some(state) = self.states.get_mut(&queue.semaphore) {
            state.show(&queue.key, event, now, stores);
            self.drain(&queue);
            self.agenda.mark(&queue);
        }
    }

    /// Collects the actions of a queue, and the time of its next pass.
    pub(super) fn drain(&mut self, queue: &QueueRef) {
        let state = self.states.get_mut(&queue.semaphore);
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

    /// Reviews a whole semaphore, and schedules the next review.
    pub(super) fn review(&mut self, semaphore: &SemaphoreRef, now: Now, stores: &impl Stores) {
        let Some(state) = self.states.get_mut(semaphore) else {
            return;
        };
        let (duties, settled) = state.review(now, stores);
        let next = state
            .next_review(now)
            .map(|next| next.max(now.moment + MIN_REVIEW_INTERVAL));
        if !duties.is_empty() {
            self.changed.insert(semaphore.clone());
        }
        self.assign(semaphore, duties);
        if settled {
            self.mark_all(semaphore);
        }
        self.agenda.set(DueWork::Semaphore(semaphore.clone()), next);
    }

    /// Asks the caller to do these duties for a semaphore.
    pub(super) fn assign(&mut self, semaphore: &SemaphoreRef, duties: Vec<Duty>) {
        let duties = duties.into_iter();
        let effects = duties.map(|duty| Effect::Semaphore(semaphore.clone(), duty));
        self.effects.extend(effects);
    }

    /// Forgets a queue that no longer exists, with the number in its calls.
    pub(super) fn forget(&mut self, queue: &QueueRef, number: u64) {
        self.agenda.forget(queue);
        self.by_number.remove(&number);
    }
}
