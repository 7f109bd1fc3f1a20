//! The place of each workload: its queue there, or among the unclaimed ones.

use std::sync::Arc;

use super::{IndexedQueue, QueueRef, Semaphore, SemaphoreRef, State};
use consul_client::clock::Moment;
use consul_semaphore::{Key, Phase, Prefix, Uid, lock_key_parts, plan::Stop};
use consul_semaphore_workload::TrackedWorkload;

impl State {
    /// A workload as it is, unless what is known of it is newer.
    pub(super) fn put(&mut self, tracked: TrackedWorkload, announce: bool, asked: Option<Moment>) {
        let uid = tracked.workload.uid.clone();
        let mut is_new = true;
        if let Some(known) = self.workloads.get_mut(&uid) {
            if !known.workload.gives_way_to(&tracked.workload, asked) {
                return;
            }
            if known.says_the_same(&tracked) {
                *known = tracked.clone();
                return self.note_started(&tracked);
            }
        }
        if let Some(known) = self.workloads.get(&uid) {
            is_new = !known.workload.is_queued()
                || self.looks_after(known) != self.looks_after(&tracked);
            self.withdraw(&uid);
        }
        self.arrange(&tracked, announce && is_new);
        self.workloads.insert(uid, tracked);
    }

    pub(super) fn remove(&mut self, uid: &Uid) {
        self.withdraw(uid);
        self.workloads.remove(uid);
    }

    /// Takes a workload out of its place.
    fn withdraw(&mut self, uid: &Uid) {
        let Some(tracked) = self.workloads.get(uid) else {
            return;
        };
        self.unclaimed.remove(uid);
        self.ungranted.remove(uid);
        let tracked = tracked.clone();
        self.mark_concerned(&tracked);
        let Some(reference) = self.looks_after(&tracked) else {
            return;
        };
        let place = tracked.workload.place();
        if let Some(semaphore) = self.semaphores.get_mut(&reference.semaphore) {
            semaphore.waiting.remove(&place);
            if let Some(queue) = semaphore.queues.get_mut(&reference.key) {
                queue.bound.remove(uid);
                queue.waiting.remove(&place);
                queue.impatient.remove(&place);
            }
        }
    }

    /// Gives a workload its place; `announce` if it is to be told that it waits. Those of other operators
    /// have none here.
    fn arrange(&mut self, tracked: &TrackedWorkload, announce: bool) {
        self.mark_concerned(tracked);
        if self.belongs_to_others(tracked) {
            return;
        }
        let (workload, uid) = (&tracked.workload, &tracked.workload.uid);
        if !tracked.is_managed() && Stop::of(workload).is_some() {
            self.ungranted.insert(uid.clone());
        }
        let looks_after = self.looks_after(tracked);
        let known = |by: &QueueRef| self.semaphores.contains_key(&by.semaphore);
        let Some(reference) = looks_after.filter(known) else {
            if !workload.has_ended() {
                self.unclaimed.insert(uid.clone());
            }
            return;
        };
        let asks = workload.wants.as_ref() == Some(&reference.semaphore.name)
            && (reference.key.is_none() || reference.key == workload.key);
        if workload.is_queued() && asks {
            if let Some(semaphore) = self.semaphores.get_mut(&reference.semaphore) {
                semaphore.waiting.insert(workload.place(), uid.clone());
            }
            let Some(queue) = self.queue_entry(&reference) else {
                return;
            };
            queue.waiting.insert(workload.place(), uid.clone());
            if workload.is_impatient() {
                queue.impatient.insert(workload.place(), uid.clone());
            }
            if announce {
                queue.newcomers.insert(uid.clone());
            }
        } else if workload.granted.is_some()
            && !matches!(workload.phase, Phase::Finished { .. })
            && let Some(queue) = self.queue_entry(&reference)
        {
            queue.bound.insert(uid.clone());
        }
    }

    /// Marks whoever looks after a workload, and all who may hold a slot or have a contender for it.
    fn mark_concerned(&mut self, tracked: &TrackedWorkload) {
        for reference in self.concerned(tracked) {
            if let Some(queue) = self.queue_mut(&reference) {
                queue.note(&tracked.workload.uid);
                self.marks.mark(reference);
            }
        }
    }

    /// There is another version of a workload that says nothing else: who writes to it next is to name that one.
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
        let started = tracked.workload.granted.iter();
        let started = started.flat_map(|by| self.queues_at(&tracked.namespace, &by.lock_key));
        let concerned = self.looks_after(tracked).into_iter().chain(started);
        let contenders = self.contenders.queues_of(&tracked.workload.uid);
        concerned.chain(contenders.cloned()).collect()
    }

    /// A queue of a semaphore that is there; it is made if it is not.
    pub(super) fn queue_entry(&mut self, reference: &QueueRef) -> Option<&mut IndexedQueue> {
        let semaphore = self.semaphores.get_mut(&reference.semaphore)?;
        if !semaphore.queues.contains_key(&reference.key) {
            self.marks.mark(reference.clone());
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

    /// The queues whose slots stand in this lock key: of the semaphores at its prefix, and of the keyed
    /// ones above it.
    pub(super) fn queues_at(&self, namespace: &Arc<str>, lock_key: &str) -> Vec<QueueRef> {
        let Some((prefix, above)) = lock_key_parts(lock_key) else {
            return Vec::new();
        };
        let at = |prefix: &str, key: Option<Key>| {
            let semaphores = self.by_prefix.get(&(namespace.clone(), prefix.to_owned()));
            let semaphores = semaphores.into_iter().flatten();
            let keyed = key.is_some();
            let alike = semaphores.filter(move |reference| {
                let semaphore = self.semaphores.get(reference);
                semaphore.is_some_and(|semaphore| semaphore.keyed == keyed)
            });
            alike.map(move |reference| QueueRef::new(reference, key.clone()))
        };
        let below = above.map(|(prefix, key)| at(prefix, Some(key)));
        at(prefix, None)
            .chain(below.into_iter().flatten())
            .collect()
    }

    /// Finds the places of a namespace's workloads anew, because its semaphores have changed.
    pub(super) fn rearrange(&mut self, namespace: &str) {
        for (reference, semaphore) in &mut self.semaphores {
            if reference.namespace.as_ref() == namespace {
                semaphore.waiting.clear();
                for queue in semaphore.queues.values_mut() {
                    queue.waiting.clear();
                    queue.impatient.clear();
                    queue.bound.clear();
                    queue.changes = None;
                }
            }
        }
        let workloads: Vec<TrackedWorkload> = self
            .workloads
            .values()
            .filter(|tracked| tracked.namespace.as_ref() == namespace)
            .cloned()
            .collect();
        for tracked in workloads {
            let uid = &tracked.workload.uid;
            self.ungranted.remove(uid);
            let known = self.lists.knows_semaphores(&tracked.namespace);
            let waited_for_it = self.unclaimed.remove(uid) && known;
            self.arrange(&tracked, waited_for_it);
        }
    }

    /// The queue that looks after a workload: the one that started it, until its grant is cleared, else the
    /// one that it asks for.
    fn looks_after(&self, tracked: &TrackedWorkload) -> Option<QueueRef> {
        let wanted = self.wanted(tracked).and_then(|semaphore| {
            let key = if semaphore.keyed {
                Some(tracked.workload.key.clone()?)
            } else {
                None
            };
            let (namespace, name) = (tracked.namespace.clone(), tracked.workload.wants.clone()?);
            let semaphore = SemaphoreRef { namespace, name };
            Some(QueueRef { semaphore, key })
        });
        let Some(granted) = &tracked.workload.granted else {
            return wanted;
        };
        let started = self.queues_at(&tracked.namespace, &granted.lock_key);
        if started.is_empty() || wanted.as_ref().is_some_and(|queue| started.contains(queue)) {
            return wanted;
        }
        started.into_iter().next()
    }

    /// Whether another operator looks after a workload, or after the semaphore that it names.
    fn belongs_to_others(&self, tracked: &TrackedWorkload) -> bool {
        let queue = self.looks_after(tracked);
        let semaphore = queue.map(|queue| queue.semaphore).or_else(|| {
            Some(SemaphoreRef {
                namespace: tracked.namespace.clone(),
                name: tracked.semaphore.clone()?,
            })
        });
        let semaphore = semaphore.and_then(|reference| self.semaphores.get(&reference));
        semaphore.is_some_and(|semaphore| !semaphore.ours)
    }

    /// A workload whose place is final for now: all semaphores of its namespace are known.
    pub(super) fn placed(&self, uid: &Uid) -> Option<&TrackedWorkload> {
        let tracked = self.workloads.get(uid)?;
        self.lists
            .knows_semaphores(&tracked.namespace)
            .then_some(tracked)
    }

    /// Whether a semaphore is known to be another operator's, and as it is described.
    pub(super) fn is_others(&self, reference: &SemaphoreRef, prefix: &Prefix, keyed: bool) -> bool {
        let known = self.semaphores.get(reference);
        known.is_some_and(|known| !known.ours && known.prefix == *prefix && known.keyed == keyed)
    }

    /// Forgets a semaphore and its queues. Its workloads are to be arranged anew.
    pub(super) fn forget_semaphore(&mut self, reference: &SemaphoreRef) {
        let Some(semaphore) = self.semaphores.remove(reference) else {
            return;
        };
        for key in semaphore.queues.into_keys() {
            self.contenders.forget(&QueueRef::new(reference, key));
        }
        let prefix = semaphore.prefix.as_str().to_owned();
        let place = (reference.namespace.clone(), prefix);
        if let Some(references) = self.by_prefix.get_mut(&place) {
            references.remove(reference);
            if references.is_empty() {
                self.by_prefix.remove(&place);
            }
        }
    }

    /// The semaphore that a workload asks for, if it is there.
    pub(super) fn wanted(&self, tracked: &TrackedWorkload) -> Option<&Semaphore> {
        let wanted = tracked
            .workload
            .wants
            .clone()
            .filter(|_| tracked.obstacle.is_none())?;
        let reference = SemaphoreRef {
            namespace: tracked.namespace.clone(),
            name: wanted,
        };
        self.semaphores.get(&reference)
    }
}
