//! The place of each workload: its line there, or among the unclaimed ones.

use std::sync::Arc;

use super::{Line, QueueRef, Semaphore, SemaphoreRef, State};
use consul_client::clock::Moment;
use consul_semaphore::{
    Key, Phase, Prefix, SlotRequest, Uid, Workload, lock_key_parts, plan::Stop,
};
use consul_semaphore_workload::TrackedWorkload;

impl State {
    /// A workload as it is, unless what is known of it is newer.
    pub(super) fn put(&mut self, kept: TrackedWorkload, announce: bool, asked: Option<Moment>) {
        let uid = kept.workload.uid.clone();
        let mut new_in_line = true;
        if let Some(known) = self.workloads.get_mut(&uid) {
            if !known.workload.gives_way_to(&kept.workload, asked) {
                return;
            }
            if known.says_the_same(&kept) {
                *known = kept.clone();
                return self.note_started(&kept);
            }
        }
        if let Some(known) = self.workloads.get(&uid) {
            new_in_line =
                !known.workload.is_queued() || self.queues_for(known) != self.queues_for(&kept);
            self.withdraw(&uid);
        }
        self.arrange(&kept, announce && new_in_line);
        self.workloads.insert(uid, kept);
    }

    pub(super) fn remove(&mut self, uid: &Uid) {
        self.withdraw(uid);
        self.workloads.remove(uid);
    }

    /// Takes a workload out of its place.
    fn withdraw(&mut self, uid: &Uid) {
        let Some(kept) = self.workloads.get(uid) else {
            return;
        };
        self.unclaimed.remove(uid);
        self.ungranted.remove(uid);
        let kept = kept.clone();
        self.mark_concerned(&kept);
        let place = kept.workload.place();
        for reference in self.queues_for(&kept) {
            let Some(semaphore) = self.semaphores.get_mut(&reference.semaphore) else {
                continue;
            };
            semaphore.queue.remove(&place);
            if let Some(line) = semaphore.lines.get_mut(&reference.key) {
                line.bound.remove(uid);
                line.waiting.remove(&place);
                line.impatient.remove(&place);
            }
        }
    }

    /// Gives a workload its place; `announce` if it is to be told that it waits. Those of other operators
    /// have none here.
    fn arrange(&mut self, kept: &TrackedWorkload, announce: bool) {
        self.mark_concerned(kept);
        if self.belongs_to_others(kept) {
            return;
        }
        let (workload, uid) = (&kept.workload, &kept.workload.uid);
        if !kept.is_managed() && Stop::of(workload).is_some() {
            self.ungranted.insert(uid.clone());
        }
        let queues = self.queues_for(kept);
        if queues.is_empty() && !workload.has_ended() {
            self.unclaimed.insert(uid.clone());
        }
        for reference in &queues {
            let asks = workload.asks_for(&reference.semaphore.name, reference.key.as_ref());
            if workload.is_queued() && asks.is_some() {
                self.await_slots(workload, reference, announce);
            } else if workload.granted.is_some()
                && !matches!(workload.phase, Phase::Finished { .. })
                && let Some(line) = self.line_for(reference)
            {
                line.bound.insert(uid.clone());
            }
        }
    }

    /// A workload waits in a line; `announce` if it is to be told so.
    fn await_slots(&mut self, workload: &Workload, reference: &QueueRef, announce: bool) {
        let (place, uid) = (workload.place(), &workload.uid);
        if let Some(semaphore) = self.semaphores.get_mut(&reference.semaphore) {
            semaphore.queue.insert(place.clone(), uid.clone());
        }
        let Some(line) = self.line_for(reference) else {
            return;
        };
        line.waiting.insert(place.clone(), uid.clone());
        if workload.is_skippable() {
            line.impatient.insert(place, uid.clone());
        }
        if announce {
            line.newcomers.insert(uid.clone());
        }
    }

    /// Marks whoever looks after a workload, and all who may hold a slot or have a contender for it.
    fn mark_concerned(&mut self, kept: &TrackedWorkload) {
        for queue in self.concerned(kept) {
            if let Some(line) = self.line_mut(&queue) {
                line.note(&kept.workload.uid);
                self.marks.mark(queue);
            }
        }
    }

    /// There is another version of a workload that says nothing else: who writes to it next is to name that one.
    fn note_started(&mut self, kept: &TrackedWorkload) {
        if kept.workload.granted.is_none() {
            return;
        }
        for queue in self.concerned(kept) {
            if let Some(line) = self.line_mut(&queue) {
                line.note(&kept.workload.uid);
            }
        }
    }

    fn concerned(&self, kept: &TrackedWorkload) -> Vec<QueueRef> {
        let started = kept
            .workload
            .granted
            .iter()
            .flat_map(|granted| &granted.slots);
        let started = started.flat_map(|by| self.lines_at(&kept.namespace, &by.lock_key));
        let concerned = self.queues_for(kept).into_iter().chain(started);
        let contenders = self.contenders.lines_of(&kept.workload.uid);
        concerned.chain(contenders.cloned()).collect()
    }

    /// A line of a semaphore that is there; it is made if it is not.
    pub(super) fn line_for(&mut self, reference: &QueueRef) -> Option<&mut Line> {
        let semaphore = self.semaphores.get_mut(&reference.semaphore)?;
        if !semaphore.lines.contains_key(&reference.key) {
            self.marks.mark(reference.clone());
        }
        Some(semaphore.lines.entry(reference.key.clone()).or_default())
    }

    pub(super) fn line(&self, reference: &QueueRef) -> Option<&Line> {
        let semaphore = self.semaphores.get(&reference.semaphore)?;
        semaphore.lines.get(&reference.key)
    }

    pub(super) fn line_mut(&mut self, reference: &QueueRef) -> Option<&mut Line> {
        let semaphore = self.semaphores.get_mut(&reference.semaphore)?;
        semaphore.lines.get_mut(&reference.key)
    }

    /// The lines whose slots stand in this lock key: of the semaphores at its prefix, and of the keyed
    /// ones above it.
    pub(super) fn lines_at(&self, namespace: &Arc<str>, lock_key: &str) -> Vec<QueueRef> {
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
                semaphore.queue.clear();
                for line in semaphore.lines.values_mut() {
                    line.waiting.clear();
                    line.impatient.clear();
                    line.bound.clear();
                    line.changes = None;
                }
            }
        }
        let workloads: Vec<TrackedWorkload> = self
            .workloads
            .values()
            .filter(|kept| kept.namespace.as_ref() == namespace)
            .cloned()
            .collect();
        for kept in workloads {
            let uid = &kept.workload.uid;
            self.ungranted.remove(uid);
            let known = self.lists.knows_semaphores(&kept.namespace);
            let waited_for_it = self.unclaimed.remove(uid) && known;
            self.arrange(&kept, waited_for_it);
        }
    }

    /// The lines that look after a workload: those that started it, until its grant is cleared, else those that it asks
    /// for.
    fn queues_for(&self, kept: &TrackedWorkload) -> Vec<QueueRef> {
        let wanted = self.wanted(kept);
        let slots = kept
            .workload
            .granted
            .iter()
            .flat_map(|granted| &granted.slots);
        let mut started: Vec<QueueRef> = Vec::new();
        for slot in slots {
            let at = self.lines_at(&kept.namespace, &slot.lock_key);
            let asked = at.iter().find(|line| wanted.contains(line));
            let line = asked.or(at.first()).cloned();
            started.extend(line.filter(|line| !started.contains(line)));
        }
        if started.is_empty() { wanted } else { started }
    }

    /// Whether another operator looks after a workload, or after the semaphore that it names.
    fn belongs_to_others(&self, kept: &TrackedWorkload) -> bool {
        let line = self.queues_for(kept).into_iter().next();
        let semaphore = line.map(|line| line.semaphore).or_else(|| {
            Some(SemaphoreRef {
                namespace: kept.namespace.clone(),
                name: kept.semaphore.clone()?,
            })
        });
        let semaphore = semaphore.and_then(|reference| self.semaphores.get(&reference));
        semaphore.is_some_and(|semaphore| !semaphore.ours)
    }

    /// A workload whose place is final for now: all semaphores of its namespace are known.
    pub(super) fn placed(&self, uid: &Uid) -> Option<&TrackedWorkload> {
        let kept = self.workloads.get(uid)?;
        self.lists.knows_semaphores(&kept.namespace).then_some(kept)
    }

    /// Whether a semaphore is known to be another operator's, and as it is described.
    pub(super) fn is_others(&self, reference: &SemaphoreRef, prefix: &Prefix, keyed: bool) -> bool {
        let known = self.semaphores.get(reference);
        known.is_some_and(|known| !known.ours && known.prefix == *prefix && known.keyed == keyed)
    }

    /// Forgets a semaphore and its lines. Its workloads are to be arranged anew.
    pub(super) fn forget_semaphore(&mut self, reference: &SemaphoreRef) {
        let Some(semaphore) = self.semaphores.remove(reference) else {
            return;
        };
        for key in semaphore.lines.into_keys() {
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

    /// The lines that a workload asks for slots of; none, unless all of their semaphores are there.
    fn wanted(&self, kept: &TrackedWorkload) -> Vec<QueueRef> {
        if kept.obstacle.is_some() {
            return Vec::new();
        }
        let lines = kept.workload.requests.iter().map(|request| {
            let (reference, semaphore) = self.requested(kept, request)?;
            let key = if semaphore.keyed {
                Some(request.key.clone()?)
            } else {
                None
            };
            Some(QueueRef {
                semaphore: reference,
                key,
            })
        });
        lines.collect::<Option<_>>().unwrap_or_default()
    }

    /// A semaphore that a workload asks for, if it is there.
    pub(super) fn requested(
        &self,
        kept: &TrackedWorkload,
        request: &SlotRequest,
    ) -> Option<(SemaphoreRef, &Semaphore)> {
        let reference = SemaphoreRef {
            namespace: kept.namespace.clone(),
            name: request.semaphore.clone(),
        };
        let semaphore = self.semaphores.get(&reference)?;
        Some((reference, semaphore))
    }
}
