//! Gives each workload its place: in its queues, or among the unclaimed workloads.

use std::{sync::Arc, time::Duration};

use super::alike::SlotClaim;
use super::{
    IndexState, IndexedQueue, IndexedSemaphore, Manager, Offer, QueueRef, SemaphoreRef, Unclaimed,
};
use crate::watch_scope::WatchScope;
use consul_client::{
    clock::{self, Moment},
    id::IdSet,
};
use consul_semaphore::{
    Key, Phase, Prefix, SlotRequest, Uid, Workload, engine::RequestClass, lock_key_parts,
    plan::Stop,
};
use consul_semaphore_workload::{Kind, Obstacle, TrackedWorkload};

impl IndexState {
    /// Stores a workload, unless its known version is newer.
    pub(super) fn put(&mut self, tracked: TrackedWorkload, announce: bool, asked: Option<Moment>) {
        let uid = tracked.workload.uid.clone();
        let mut is_new = true;
        let known = self.workloads.get(&uid);
        if known.is_some_and(|known| !known.workload.is_replaced_by(&tracked.workload, asked)) {
            return;
        }
        let mut tracked = self.remnants.judge(tracked);
        let known = self.workloads.get(&uid).map(|known| &*known.workload);
        let kind = &tracked.workload.kind;
        let comes = known.is_none() && !self.lists.is_first(kind, &tracked.namespace);
        Arc::make_mut(&mut tracked.workload).note_wait(known, clock::time());
        self.note_start(&tracked.workload);
        if let Some(known) = self.workloads.get_mut(&uid)
            && known.says_the_same(&tracked)
        {
            *known = tracked.clone();
            return self.note_started(&tracked);
        }
        if comes {
            self.unadmitted.insert(uid.clone());
        }
        if !tracked.workload.hold {
            self.held_from_the_start.remove(&uid);
        } else if !self.workloads.contains(&uid) {
            self.held_from_the_start.insert(uid.clone());
        }
        if let Some(known) = self.workloads.get(&uid) {
            is_new = is_announced(&known.workload, &tracked.workload)
                || *self.workloads.queues_of(&uid) != *self.queues_for(&tracked);
            let known = known.clone();
            self.withdraw(&known);
            self.users.remove(&known);
        }
        let queues = self.arrange(&tracked, announce && is_new);
        self.users.insert(&tracked);
        self.workloads.insert(tracked, queues);
    }

    /// Notes whether a workload that is about to be stored has been started, or does not run any more.
    fn note_start(&mut self, workload: &Workload) {
        let known = self.workloads.get(&workload.uid);
        let ran = known.filter(|known| known.workload.phase == Phase::Running);
        let is_same = ran.is_some_and(|ran| {
            workload.phase == Phase::Running && ran.workload.granted == workload.granted
        });
        let is_new = known.is_none();
        if !is_same {
            self.pod_starts.forget(&workload.uid);
        }
        if workload.phase == Phase::Running && !is_same && !is_new {
            self.begin_start(workload);
        }
    }

    /// Notes that a workload runs and has shown no pod. This counts for Jobs alone, whose pods always have the labels of
    /// the template, because the operator does not see the pods of every other kind.
    pub(super) fn begin_start(&mut self, workload: &Workload) {
        if workload.granted.is_some() && workload.kind == Kind::Job.name() {
            self.pod_starts.begin(&workload.uid, clock::time());
        }
    }

    /// Makes a pass due in each queue of a workload.
    pub(super) fn mark_queues_of(&mut self, uid: &Uid) {
        for reference in self.workloads.queues_of(uid) {
            self.due.mark(reference.clone());
        }
    }

    pub(super) fn remove(&mut self, uid: &Uid) {
        if let Some(tracked) = self.workloads.get(uid).cloned() {
            self.withdraw(&tracked);
            self.users.remove(&tracked);
            self.workloads.remove(uid);
        }
        self.pod_starts.forget(uid);
        self.remnants.remove(uid);
        self.held_from_the_start.remove(uid);
        self.unadmitted.remove(uid);
    }

    /// Notes that a workload was admitted to its queues, by a pass over this queue.
    pub(super) fn admit(&mut self, queue: &QueueRef, uid: &Uid) {
        if !self.unadmitted.remove(uid) {
            return;
        }
        let Some(workload) = self.workload(uid) else {
            return;
        };
        for reference in self.workloads.queues_of(uid).to_vec() {
            if let Some(known) = self.queue_mut(&reference) {
                known.unadmitted.remove(&workload.arrival());
                if reference != *queue {
                    self.due.mark(reference);
                }
            }
        }
    }

    /// Takes a workload out of its place. The current state of its semaphores does not matter for that.
    fn withdraw(&mut self, tracked: &TrackedWorkload) {
        let uid = &tracked.workload.uid;
        self.unclaimed.remove(uid);
        self.ungranted.remove(uid);
        self.mark_concerned(tracked);
        self.alike.forget(&tracked.workload);
        let (place, arrival) = (tracked.workload.place(), tracked.workload.arrival());
        for reference in self.workloads.take_queues(uid) {
            if let Some(queue) = self.queue_mut(&reference) {
                queue.bound.remove(uid);
                queue.waiting.remove(&place);
                queue.unadmitted.remove(&arrival);
                queue.since.forget(uid);
                queue.deadlines.forget(uid);
                queue.superseded.remove(uid);
                queue.unrecorded.remove(uid);
            }
        }
    }

    /// Gives a workload its place; `announce` says that an event should report that the workload waits or is on hold.
    /// Workloads of other operators have no place here. Returns the queues that the workload is in, which the caller
    /// stores.
    fn arrange(&mut self, tracked: &TrackedWorkload, announce: bool) -> Vec<QueueRef> {
        self.mark_concerned(tracked);
        if self.belongs_to_others(tracked) {
            return Vec::new();
        }
        let (workload, uid) = (&tracked.workload, &tracked.workload.uid);
        if !tracked.is_managed() && Stop::of(workload).is_some() {
            self.ungranted.insert(uid);
        }
        let queues = self.queues_for(tracked);
        if queues.is_empty() && !workload.has_ended() {
            self.unclaimed.insert(uid);
        }
        if announce && workload.is_held_back() && !queues.is_empty() {
            self.held_back.mark(uid.clone());
        }
        if workload.wait_to_record().is_some()
            && let Some(first) = queues.first()
            && let Some(queue) = self.queue_entry(first)
        {
            queue.unrecorded.insert(uid.clone());
        }
        for reference in &queues {
            let asks = workload.asks_for(&reference.semaphore.name, reference.key.as_ref());
            if workload.is_queued() && asks.is_some() {
                self.enqueue(workload, reference, &queues, announce);
            } else if workload.is_bound()
                && let Some(queue) = self.queue_entry(reference)
            {
                queue.bound.insert(uid.clone());
            }
        }
        self.arrange_alike(tracked, &queues);
        queues
    }

    /// Notes a workload that replaces others that ask for the same slots, and marks the workload that is superseded
    /// by this.
    fn arrange_alike(&mut self, tracked: &TrackedWorkload, queues: &[QueueRef]) {
        let workload = &tracked.workload;
        let runs = workload.granted.is_some()
            && workload.phase == Phase::Running
            && workload.on_contention.replaces();
        if !(runs || workload.is_replaceable()) || queues.is_empty() {
            return;
        }
        let asked = queues.iter().map(|queue| {
            let asked = self.asked(workload, queue)?;
            Some((queue.semaphore.clone(), asked))
        });
        let Some(asked) = asked.collect::<Option<Vec<_>>>() else {
            return;
        };
        if runs {
            return self.alike.runs(&workload.uid, asked);
        }
        let Some(superseded) = self.alike.waits(workload, asked) else {
            return;
        };
        let queues = if superseded == workload.uid {
            queues.to_vec()
        } else {
            let older = self.workloads.get(&superseded);
            older.map_or_else(Vec::new, |older| self.queues_for(older))
        };
        for reference in queues {
            if let Some(queue) = self.queue_mut(&reference) {
                queue.superseded.insert(superseded.clone());
                self.due.mark(reference);
            }
        }
    }

    /// Returns what a workload asks for in a queue; `None` if the semaphore of the queue may not use Consul.
    fn asked(&self, workload: &Workload, queue: &QueueRef) -> Option<SlotClaim> {
        let offer = &self.semaphores.get(&queue.semaphore)?.offer;
        let credential = offer.credential.clone()?;
        let request = workload.asks_for(&queue.semaphore.name, queue.key.as_ref())?;
        let prefix = match &queue.key {
            Some(key) => offer.prefix.of_key(key),
            None => offer.prefix.clone(),
        };
        let consul = offer.consul.as_ref();
        let slots = request.slots.get();
        Some(SlotClaim::new(credential, consul, prefix.lock_key(), slots))
    }

    /// Returns how long a workload may wait in a queue.
    pub(super) fn wait_timeout(&self, workload: &Workload, queue: &QueueRef) -> Option<Duration> {
        let semaphore = self.semaphores.get(&queue.semaphore);
        let default = semaphore.and_then(|semaphore| semaphore.offer.wait_timeout);
        workload.wait.timeout.or(default)
    }

    /// Puts a workload into a queue, which is one of the `queues` that the workload waits in; `announce` says that an
    /// event should report this.
    fn enqueue(
        &mut self,
        workload: &Workload,
        reference: &QueueRef,
        queues: &[QueueRef],
        announce: bool,
    ) {
        let (place, uid) = (workload.place(), &workload.uid);
        let timeout = self.wait_timeout(workload, reference);
        let seconds = timeout.and_then(|timeout| i64::try_from(timeout.as_secs()).ok());
        let wait = workload.waits_since().zip(seconds);
        let ends = wait.map(|(since, seconds)| since.saturating_add(seconds));
        let is_admitted = !self.unadmitted.contains(uid);
        let Some(queue) = self.queue_entry(reference) else {
            return;
        };
        let class = RequestClass::of(workload, reference, queues);
        queue.waiting.insert(place, class);
        queue.since.set(uid, workload.since);
        if let Some(ends) = ends {
            queue.deadlines.set(uid, ends);
        }
        if announce {
            queue.newcomers.insert(uid.clone());
        }
        if !is_admitted {
            queue.unadmitted.insert(workload.arrival());
        }
    }

    /// Marks the queues of a workload, and all queues that may have a slot or a contender for it.
    fn mark_concerned(&mut self, tracked: &TrackedWorkload) {
        for reference in self.concerned(tracked) {
            if let Some(queue) = self.queue_mut(&reference) {
                queue.note(&tracked.workload.uid);
                self.due.mark(reference);
            }
        }
    }

    /// Notes a started workload that has a new version but no other change, because the next write must name that
    /// version.
    fn note_started(&mut self, tracked: &TrackedWorkload) {
        if tracked.workload.granted.is_none() {
            return;
        }
        for reference in self.concerned(tracked) {
            if let Some(queue) = self.queue_mut(&reference) {
                queue.note(&tracked.workload.uid);
            }
        }
    }

    fn concerned(&self, tracked: &TrackedWorkload) -> Vec<QueueRef> {
        let granted = tracked.workload.granted.iter();
        let slots = granted.flat_map(|granted| &granted.slots);
        let started = slots.flat_map(|slot| self.queues_at(&tracked.namespace, &slot.lock_key));
        let concerned = self.queues_for(tracked).into_iter().chain(started);
        let uid = &tracked.workload.uid;
        let arranged = self.workloads.queues_of(uid).iter();
        let others = arranged.chain(self.contenders.queues_of(uid));
        concerned.chain(others.cloned()).collect()
    }

    /// Returns a queue of an existing semaphore, which is created if necessary.
    pub(super) fn queue_entry(&mut self, reference: &QueueRef) -> Option<&mut IndexedQueue> {
        let semaphore = self.semaphores.get_mut(&reference.semaphore)?;
        if !semaphore.queues.contains_key(&reference.key) {
            self.due.mark(reference.clone());
        }
        Some(semaphore.queues.entry(reference.key.clone()).or_default())
    }

    pub(super) fn queue(&self, reference: &QueueRef) -> Option<&IndexedQueue> {
        let semaphore = self.semaphores.get(&reference.semaphore)?;
        semaphore.queues.get(&reference.key)
    }

    pub(super) fn queue_mut(&mut self, reference: &QueueRef) -> Option<&mut IndexedQueue> {
        let semaphore = self.semaphores.get_mut(&reference.semaphore)?;
        semaphore.queues.get_mut(&reference.key)
    }

    /// Returns the queues that use this lock key: of the semaphores at its prefix, and of the keyed semaphores above
    /// it.
    pub(super) fn queues_at(&self, namespace: &Arc<str>, lock_key: &str) -> Vec<QueueRef> {
        let Some((prefix, above)) = lock_key_parts(lock_key) else {
            return Vec::new();
        };
        let at = |prefix: &str, key: Option<Key>| {
            let place = (namespace.clone(), prefix.to_owned());
            let semaphores = self.by_prefix.get(&place).into_iter().flatten();
            let keyed = key.is_some();
            let alike = semaphores.filter(move |reference| {
                let semaphore = self.semaphores.get(reference);
                semaphore.is_some_and(|semaphore| semaphore.offer.keyed == keyed)
            });
            alike.map(move |reference| QueueRef::new(reference, key.clone()))
        };
        let below = above.map(|(prefix, key)| at(prefix, Some(key)));
        at(prefix, None)
            .chain(below.into_iter().flatten())
            .collect()
    }

    /// Returns the workloads that an added or removed semaphore concerns: those that name the semaphore, and those
    /// that were started in its slots.
    pub(super) fn users_of(&self, reference: &SemaphoreRef) -> IdSet<Uid> {
        let semaphore = self.semaphores.get(reference).into_iter();
        let started = semaphore.flat_map(|semaphore| {
            let prefix = semaphore.offer.prefix.as_str();
            self.users.started(&reference.namespace, prefix)
        });
        let naming = self.users.naming(reference, 0).map(|(_, uid)| uid);
        naming.chain(started).cloned().collect()
    }

    /// Returns the workloads that are affected because a semaphore offered something else before.
    pub(super) fn users_of_change(&self, reference: &SemaphoreRef, before: &Offer) -> Vec<Uid> {
        let Some(semaphore) = self.semaphores.get(reference) else {
            return Vec::new();
        };
        let now = &semaphore.offer;
        let is_elsewhere = before.consul != now.consul || before.credential != now.credential;
        let ends_otherwise = before.wait_timeout != now.wait_timeout;
        let least = if is_elsewhere || ends_otherwise {
            0
        } else {
            before
                .most_for_all()
                .min(now.most_for_all())
                .saturating_add(1)
        };
        let concerns = |slots: u32, uid: &Uid| {
            let Some(tracked) = self.workloads.get(uid) else {
                return false;
            };
            let workload = &tracked.workload;
            let most = [before, now].map(|offer| offer.most(workload.priority));
            is_elsewhere
                || ends_otherwise && workload.wait.timeout.is_none()
                || most[0] != most[1] && slots > most[0].min(most[1])
        };
        let naming = self.users.naming(reference, least);
        let concerned = naming.filter(|(slots, uid)| concerns(*slots, uid));
        concerned.map(|(_, uid)| uid.clone()).collect()
    }

    /// Gives a workload its place again, because its semaphores have changed. If `is_decided`, it was undecided until
    /// now who manages one of these semaphores, so the workload had no place before, unless it was there when this
    /// operator started.
    pub(super) fn rearrange(&mut self, uid: &Uid, is_decided: bool) {
        let Some(tracked) = self.workloads.get(uid).cloned() else {
            return;
        };
        let announce = self.lists.knows_semaphores(&tracked.namespace)
            || self.lists.is_unsaid(&tracked.workload);
        let is_new = is_decided && self.lists.is_unsaid(&tracked.workload);
        let waited_for_it = self.unclaimed.contains(uid) || is_new;
        self.withdraw(&tracked);
        let queues = self.arrange(&tracked, announce && waited_for_it);
        self.workloads.set_queues(uid, queues);
        // The workload may belong to another operator than before.
        self.remnants.mark(uid);
    }

    /// Marks the workloads of a scope that a task handles, because it is known from then on which operator manages
    /// them.
    pub(super) fn mark_all(&mut self, scope: &WatchScope) {
        let there = |uid: &&Uid| {
            let known = self.workloads.get(uid);
            known.is_some_and(|tracked| scope.covers(&tracked.namespace))
        };
        let [unclaimed, ungranted] = [&self.unclaimed, &self.ungranted]
            .map(|set| set.iter().filter(there).cloned().collect::<Vec<_>>());
        let all_unproved = self.remnants.iter();
        let covered = all_unproved.filter(|(_, tracked)| scope.covers(&tracked.namespace));
        let unproved: Vec<_> = covered.map(|(uid, _)| uid.clone()).collect();
        for uid in &unclaimed {
            self.unclaimed.insert(uid);
        }
        for uid in &ungranted {
            self.ungranted.insert(uid);
        }
        for uid in &unproved {
            self.remnants.mark(uid);
        }
    }

    /// Returns the queues that manage a workload: until its grant is cleared, those that started it, and otherwise
    /// those that it asks for.
    fn queues_for(&self, tracked: &TrackedWorkload) -> Vec<QueueRef> {
        let wanted = self.wanted(tracked);
        let granted = tracked.workload.granted.iter();
        let mut started: Vec<QueueRef> = Vec::new();
        for slot in granted.flat_map(|granted| &granted.slots) {
            let at = self.queues_at(&tracked.namespace, &slot.lock_key);
            let asked = at.iter().find(|queue| wanted.contains(queue));
            let queue = asked.or(at.first()).cloned();
            started.extend(queue.filter(|queue| !started.contains(queue)));
        }
        if started.is_empty() { wanted } else { started }
    }

    /// Whether another operator manages a workload, or manages the semaphore that the workload names.
    fn belongs_to_others(&self, tracked: &TrackedWorkload) -> bool {
        let queue = self.queues_for(tracked).into_iter().next();
        let reference = queue.map(|queue| queue.semaphore).or_else(|| {
            Some(SemaphoreRef {
                namespace: tracked.namespace.clone(),
                name: tracked.semaphores().next()?.clone(),
            })
        });
        let semaphore = reference.and_then(|reference| self.semaphores.get(&reference));
        semaphore.is_some_and(|semaphore| semaphore.manager != Manager::ThisOperator)
    }

    /// Returns a workload whose place is final for now, because all semaphores of its namespace are known.
    pub(super) fn placed(&self, uid: &Uid) -> Option<&TrackedWorkload> {
        let tracked = self.workloads.get(uid)?;
        self.lists
            .knows_semaphores(&tracked.namespace)
            .then_some(tracked)
    }

    /// Whether a workload is known to belong to this operator.
    pub(super) fn is_ours(&self, uid: &Uid) -> bool {
        let placed = self.placed(uid);
        placed.is_some_and(|tracked| !self.belongs_to_others(tracked))
    }

    /// Forgets a semaphore and its queues. Its workloads must be arranged again.
    pub(super) fn forget_semaphore(&mut self, reference: &SemaphoreRef) {
        let Some(semaphore) = self.semaphores.remove(reference) else {
            return;
        };
        for key in semaphore.queues.into_keys() {
            self.contenders.forget(&QueueRef::new(reference, key));
        }
        let prefix = semaphore.offer.prefix.as_str().to_owned();
        let place = (reference.namespace.clone(), prefix);
        if let Some(references) = self.by_prefix.get_mut(&place) {
            references.remove(reference);
            if references.is_empty() {
                self.by_prefix.remove(&place);
            }
        }
    }

    /// Returns the queues that a workload asks for, or none if it can't have a place in all of them.
    pub(super) fn wanted(&self, tracked: &TrackedWorkload) -> Vec<QueueRef> {
        self.resolve(tracked).unwrap_or_default()
    }

    /// Returns the reason why no queue has a workload; `None` if a queue has it.
    pub(super) fn why_unclaimed(&self, tracked: &TrackedWorkload) -> Option<Unclaimed> {
        match self.resolve(tracked) {
            // The workload asks for nothing, and was started by a semaphore that is gone.
            Ok(queues) if queues.is_empty() => Some(Unclaimed::Missing(Vec::new())),
            Ok(_) => None,
            Err(why) => Some(why),
        }
    }

    /// Returns the queues that a workload asks for, or the reason why it can't be in them.
    pub(super) fn resolve(&self, tracked: &TrackedWorkload) -> Result<Vec<QueueRef>, Unclaimed> {
        if let Some(obstacle) = &tracked.obstacle {
            return Err(Unclaimed::Obstacle(obstacle.clone()));
        }
        let requests = &tracked.workload.requests;
        let found = requests
            .iter()
            .map(|request| self.requested(tracked, request));
        let Some(found) = found.clone().collect::<Option<Vec<_>>>() else {
            let unmatched = requests
                .iter()
                .zip(found)
                .filter(|(_, found)| found.is_none());
            let mut missing: Vec<_> = unmatched
                .map(|(request, _)| request.semaphore.clone())
                .collect();
            missing.dedup();
            return Err(Unclaimed::Missing(missing));
        };
        let mut parts: Vec<QueueRequest<'_>> = Vec::new();
        for (request, (reference, semaphore)) in requests.iter().zip(found) {
            let priority = tracked.workload.priority;
            let part = QueueRequest::new(request, reference, semaphore, priority);
            let obstacle = tracked
                .obstacle_in(&request.semaphore, semaphore.offer.keyed)
                .or_else(|| part.obstacle())
                .or_else(|| parts.iter().find_map(|other| other.conflict(&part)));
            if let Some(obstacle) = obstacle {
                return Err(Unclaimed::Obstacle(obstacle));
            }
            parts.push(part);
        }
        Ok(parts.into_iter().map(|part| part.queue).collect())
    }

    /// Returns a semaphore that a workload asks for, if the semaphore exists.
    pub(super) fn requested(
        &self,
        tracked: &TrackedWorkload,
        request: &SlotRequest,
    ) -> Option<(SemaphoreRef, &IndexedSemaphore)> {
        let reference = SemaphoreRef {
            namespace: tracked.namespace.clone(),
            name: request.semaphore.clone(),
        };
        let semaphore = self.semaphores.get(&reference)?;
        Some((reference, semaphore))
    }
}

/// Whether an event should report that a workload waits or is on hold, because its earlier version did not. If the
/// operator put the workload on hold, because its user suspended it while it held a slot, another event reports that.
fn is_announced(earlier: &Workload, later: &Workload) -> bool {
    let held_a_slot = earlier.granted.is_some() && !earlier.lost() && !earlier.hold;
    if later.hold {
        !earlier.is_held_back() && !held_a_slot
    } else {
        !earlier.is_queued()
    }
}

/// Part of a workload's request: the slots of one queue.
struct QueueRequest<'a> {
    queue: QueueRef,
    request: &'a SlotRequest,
    semaphore: &'a IndexedSemaphore,
    priority: i32,
}

impl<'a> QueueRequest<'a> {
    fn new(
        request: &'a SlotRequest,
        reference: SemaphoreRef,
        semaphore: &'a IndexedSemaphore,
        priority: i32,
    ) -> Self {
        let key = request.key.clone().filter(|_| semaphore.offer.keyed);
        let queue = QueueRef {
            semaphore: reference,
            key,
        };
        Self {
            queue,
            request,
            semaphore,
            priority,
        }
    }

    /// Returns the reason why this part can never be granted.
    fn obstacle(&self) -> Option<Obstacle> {
        let slots = self.request.slots.get();
        let most = self.semaphore.offer.most(self.priority);
        (slots > most).then(|| Obstacle::Unsatisfiable {
            semaphore: self.queue.title(),
            slots,
            most,
        })
    }

    /// Returns the reason why two parts can never be granted together.
    fn conflict(&self, other: &Self) -> Option<Obstacle> {
        let names = || {
            (
                self.queue.semaphore.name.clone(),
                other.queue.semaphore.name.clone(),
            )
        };
        let (ours, theirs) = (&self.semaphore.offer, &other.semaphore.offer);
        if self.semaphore.manager != other.semaphore.manager {
            let (a, b) = names();
            return Some(Obstacle::TwoOperators(a, b));
        }
        if ours.consul != theirs.consul {
            let (a, b) = names();
            return Some(Obstacle::Apart(a, b));
        }
        let same = self.prefix() == other.prefix();
        same.then(|| Obstacle::SameLockKey(self.queue.title(), other.queue.title()))
    }

    fn prefix(&self) -> Prefix {
        let prefix = &self.semaphore.offer.prefix;
        match &self.queue.key {
            Some(key) => prefix.of_key(key),
            None => prefix.clone(),
        }
    }
}
