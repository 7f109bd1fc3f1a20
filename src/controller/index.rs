//! Keeps the workloads that concern the operator in queues. A semaphore has one queue, and a keyed semaphore has one
//! for each key.
//!
//! Watch events update the index and mark the queues that they concern, and a pass takes its slice of a queue. An
//! event costs O(log n). A change of a semaphore visits the workloads that it concerns, some at a time. Nothing that
//! one tenant writes visits the workloads of all tenants, because everybody waits for the one lock meanwhile.

mod alike;
mod contenders;
mod dirty_set;
mod known;
mod lists;
mod places;
mod pod_starts;
mod remnants;
mod users;
mod work_set;

use std::{
    collections::{BTreeSet, HashMap},
    mem,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};

pub(super) use self::alike::Credential;
pub(super) use self::pod_starts::SLOW_START;
use self::{
    alike::Alike, contenders::Contenders, dirty_set::DirtySet, known::KnownWorkloads, lists::Lists,
    pod_starts::PodStarts, remnants::Remnants, users::Users, work_set::WorkSet,
};
use super::due_times::DueTimes;
use crate::watch_scope::WatchScope;
use consul_client::{
    clock::{self, Moment},
    id::IdSet,
};
use consul_semaphore::{
    Blocked, Key, KindName, Phase, Place, Prefix, Restrictions, Uid, WaitTimeout, Workload,
    engine::{Changes, Located, Overdue, QueueRef, Reach, SemaphoreRef, Superseded, WaitingList},
};
use consul_semaphore_api::{ConsulSemaphore, ConsulSpec, tenancy::Tenancy};
use consul_semaphore_workload::{NotStarted, Obstacle, TrackedWorkload, pods::OwnPod};

/// Maximum number of newer workloads that are named for a workload that waits for the same.
const MOST_NEWER_NAMED: usize = 16;

/// Number of workloads that are arranged again before the lock is given to others.
const ARRANGED_AT_ONCE: usize = 128;

/// Workloads that are in a queue.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Queued {
    /// Number of workloads that wait for a slot.
    pub(super) waiting: usize,
    /// Workloads that have a slot, but were not seen to start yet.
    pub(super) starting: Vec<Uid>,
}

/// Index of the workloads. Clones share one index.
#[derive(Clone, Default)]
pub(super) struct Index(Arc<IndexInner>);

#[derive(Default)]
struct IndexInner {
    state: Mutex<IndexState>,
}

#[derive(Default)]
struct IndexState {
    workloads: KnownWorkloads,
    semaphores: HashMap<SemaphoreRef, IndexedSemaphore>,
    /// Semaphores by their namespace and prefix. Two semaphores can have the same prefix.
    by_prefix: HashMap<(Arc<str>, String), BTreeSet<SemaphoreRef>>,
    /// Workloads that use each semaphore.
    users: Users,
    unclaimed: WorkSet,
    /// Workloads that run without a grant, and ask for a slot.
    ungranted: WorkSet,
    /// Workloads of which pods may be left, and the grants that are known to have no pods left.
    remnants: Remnants,
    /// Started workloads that have no pod that runs yet.
    pod_starts: PodStarts,
    /// Workloads that were put on hold since this set was last taken.
    held_back: DirtySet<Uid>,
    contenders: Contenders,
    /// Workloads that ask for the same slots and replace each other.
    alike: Alike,
    /// Workloads that have been on hold since they were first seen.
    held_from_the_start: BTreeSet<Uid>,
    /// Workloads that have come and were not admitted to their queues, whether they are in a queue yet or not. Workloads
    /// that the first list shows are not among them.
    unadmitted: IdSet<Uid>,
    lists: Lists,
    /// Queues that are due a pass.
    due: DirtySet<QueueRef>,
}

/// Part of a `ConsulSemaphore` that decides which workloads are in its queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) prefix: Prefix,
    pub(super) keyed: bool,
    /// Part of Consul that the semaphore is in.
    pub(super) consul: Option<ConsulSpec>,
    /// Credential with which the semaphore uses Consul; `None` if it may not use Consul.
    pub(super) credential: Option<Credential>,
    /// Number of slots.
    pub(super) limit: u32,
    /// Maximum wait of a workload that has no `wait-timeout` of its own.
    pub(super) wait_timeout: Option<Duration>,
    /// Restrictions that say when slots are granted, and to which workloads.
    pub(super) restrictions: Restrictions,
}

impl Offer {
    pub(super) fn of(semaphore: &ConsulSemaphore, tenancy: &Tenancy) -> Self {
        Self {
            prefix: semaphore.prefix(),
            keyed: semaphore.spec.keyed,
            consul: semaphore.spec.consul.clone(),
            credential: Credential::of(semaphore, tenancy),
            limit: u32::try_from(semaphore.spec.limit).unwrap_or(1),
            wait_timeout: semaphore.spec.wait_timeout.map(WaitTimeout::get),
            restrictions: semaphore.restrictions(clock::time()),
        }
    }

    /// Returns how many slots a workload of this priority can have at most.
    fn most(&self, priority: i32) -> u32 {
        self.restrictions.most(self.limit, priority)
    }

    /// Returns how many slots a workload of any priority can have.
    fn most_for_all(&self) -> u32 {
        self.most(i32::MIN)
    }
}

/// Reason why no queue has a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unclaimed {
    /// The semaphores that the workload was started by, or asks for, don't exist.
    Missing(Vec<Arc<str>>),
    /// Something about the workload keeps it out of the queues.
    Obstacle(Obstacle),
}

impl Unclaimed {
    /// Whether a workload waits for this reason to change, so that its wait may time out.
    pub(super) fn ends_waits(&self) -> bool {
        match self {
            Self::Missing(_) => true,
            Self::Obstacle(obstacle) => obstacle.is_unsatisfiable(),
        }
    }
}

/// Operator that manages a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manager {
    ThisOperator,
    /// No operator manages the semaphore yet. This operator may do so soon.
    Undecided,
    /// Another operator manages the semaphore, or nobody does.
    Others,
}

struct IndexedSemaphore {
    offer: Offer,
    manager: Manager,
    queues: HashMap<Option<Key>, IndexedQueue>,
    /// Times in which the semaphore could grant nothing; `None` until they are known.
    blocked: Option<Blocked>,
}

impl IndexedSemaphore {
    /// Returns the first waiting workloads of all queues of the semaphore. A workload that asks for several keys
    /// counts once.
    fn head(&self, most: usize) -> BTreeSet<&Place> {
        let mut first = BTreeSet::new();
        for queue in self.queues.values() {
            for place in queue.waiting.places().take(most) {
                let is_behind = first.last().is_some_and(|last| place > *last);
                if first.len() == most && is_behind {
                    break;
                }
                first.insert(place);
                if first.len() > most {
                    first.pop_last();
                }
            }
        }
        first
    }
}

#[derive(Default)]
struct IndexedQueue {
    waiting: WaitingList,
    /// Times since which workloads wait, in seconds since 1970.
    since: DueTimes<i64>,
    /// Times at which the waits of workloads may end, in seconds since 1970. Waits that never end are not in it.
    deadlines: DueTimes<i64>,
    /// Waiting workloads that a newer one supersedes. Some of the newer ones may be gone by now.
    superseded: BTreeSet<Uid>,
    /// Waiting workloads that were not admitted, in the order in which they came.
    unadmitted: BTreeSet<Place>,
    /// Workloads that have this queue as their first, and whose start of the wait is still to be recorded.
    unrecorded: BTreeSet<Uid>,
    bound: BTreeSet<Uid>,
    /// Workloads that were queued since this set was last taken.
    newcomers: BTreeSet<Uid>,
    /// Workloads with a pod that has ended since this set was last taken.
    touched: BTreeSet<Uid>,
    /// Changes since this field was last taken; `None` if anything may have changed.
    changes: Option<Changes>,
}

impl IndexedQueue {
    /// Notes a change of a workload that was started here or has a contender here.
    fn note(&mut self, uid: &Uid) {
        if let Some(changes) = &mut self.changes {
            changes.workloads.insert(uid.clone());
        }
    }
}

impl IndexState {
    fn workload(&self, uid: &Uid) -> Option<Arc<Workload>> {
        self.workloads
            .get(uid)
            .map(|tracked| tracked.workload.clone())
    }

    fn located(&self, uid: &Uid) -> Option<Located> {
        let tracked = self.workloads.get(uid)?;
        Some(Located {
            namespace: tracked.namespace.clone(),
            workload: tracked.workload.clone(),
        })
    }

    /// Returns a waiting workload with the newer ones that wait for the same; `None` if there are no newer ones.
    fn superseded(&self, uid: &Uid) -> Option<Superseded> {
        let workload = self.workload(uid)?;
        let uids = self.alike.newer(&workload, MOST_NEWER_NAMED).into_iter();
        let newer: Vec<_> = uids.filter_map(|uid| self.located(uid)).collect();
        (!newer.is_empty()).then_some(Superseded { workload, newer })
    }

    fn bound(&self, queue: &IndexedQueue) -> Vec<Arc<Workload>> {
        let bound = queue.bound.iter();
        bound.filter_map(|uid| self.workload(uid)).collect()
    }

    fn waiting(&self, queue: &IndexedQueue, reach: &Reach<'_>) -> Vec<Arc<Workload>> {
        let read = queue.waiting.read(reach).into_iter();
        read.filter_map(|place| self.workload(place.uid()))
            .collect()
    }
}

impl Index {
    /// Creates an empty index for an operator that follows another one, which was last at work at this time.
    pub(super) fn after(last_at_work: Timestamp) -> Self {
        let index = Self::default();
        index.state().lists = Lists::after(last_at_work);
        index
    }

    fn state(&self) -> MutexGuard<'_, IndexState> {
        self.0.state.lock()
    }

    /// Notes that a list of all workloads of a kind in a scope starts. Workloads that are not in the list when it
    /// ends were deleted.
    pub(super) fn list_begins(&self, kind: &KindName, scope: &WatchScope) {
        self.state().lists.begin(kind, scope);
    }

    /// Notes that the list of all workloads of a kind in a scope is complete, and removes the workloads that are not
    /// in it.
    pub(super) fn list_ends(&self, kind: &KindName, scope: &WatchScope) {
        let mut state = self.state();
        if let Some(listed) = state.lists.end(kind, scope) {
            let known = state.workloads.iter();
            let in_scope = known.filter(|(_, tracked)| {
                tracked.workload.kind == *kind && scope.covers(&tracked.namespace)
            });
            let uids = in_scope.map(|(uid, _)| uid.clone());
            let gone: Vec<Uid> = uids.filter(|uid| !listed.contains(uid)).collect();
            for uid in &gone {
                state.remove(uid);
            }
        }
    }

    /// Stores a workload from the watch; `None` if the workload does not concern the operator, or does so no more.
    pub(super) fn put(&self, uid: &Uid, tracked: Option<TrackedWorkload>) {
        let mut state = self.state();
        match tracked {
            Some(tracked) => {
                let kind = &tracked.workload.kind;
                let listing = state.lists.note(kind, &tracked.namespace, uid);
                let announce = listing.is_none() || state.lists.is_unsaid(&tracked.workload);
                state.put(tracked, announce, listing);
            }
            None => state.remove(uid),
        }
    }

    /// Stores a workload from the answer to a write; `None` if the workload was deleted.
    pub(super) fn written(&self, uid: &Uid, now: Option<TrackedWorkload>) {
        self.answered(uid, now, None);
    }

    /// Stores a workload as it was read; `None` if the workload was deleted.
    pub(super) fn reread(&self, uid: &Uid, now: Option<TrackedWorkload>) {
        let asked = now.as_ref().map(|now| now.workload.seen);
        self.answered(uid, now, asked);
    }

    /// Stores a workload from an answer, if it is still known. So a late answer does not bring back a deleted
    /// workload.
    fn answered(&self, uid: &Uid, now: Option<TrackedWorkload>, asked: Option<Moment>) {
        let Some(now) = now else {
            return self.remove(uid);
        };
        let mut state = self.state();
        if state.workloads.contains(uid) {
            state.put(now, true, asked);
        }
    }

    /// Removes a workload of this kind that was deleted, or does not concern the operator any more.
    pub(super) fn forget(&self, kind: &KindName, uid: &Uid) {
        let mut state = self.state();
        let known = state.workloads.get(uid);
        if known.is_some_and(|known| known.workload.kind == *kind) {
            state.remove(uid);
        }
    }

    /// Removes a workload that was deleted.
    pub(super) fn remove(&self, uid: &Uid) {
        self.state().remove(uid);
    }

    /// Notes what a pod shows about the start of its workload; a pod that was `deleted` is none. Pods of an earlier
    /// grant say nothing.
    pub(super) fn pod_seen(&self, pod: &OwnPod, deleted: bool) {
        let mut state = self.state();
        let known = state.workloads.get(&pod.workload);
        let is_current = known.is_some_and(|tracked| {
            let workload = &tracked.workload;
            *tracked.namespace == *pod.namespace
                && workload.phase == Phase::Running
                && workload.granted.is_some()
                && workload.granted == pod.granted
        });
        let start = match &pod.not_started {
            Some(_) if deleted => Some(NotStarted::without_pod()),
            start => start.clone(),
        };
        if is_current && state.pod_starts.note(&pod.workload, start, clock::time()) {
            state.mark_queues_of(&pod.workload);
        }
    }

    /// Notes that all pods in a scope have been listed. A workload that runs and has shown no pod has none.
    pub(super) fn pods_listed(&self, scope: &WatchScope) {
        let mut state = self.state();
        let running = state.workloads.iter().filter(|(_, tracked)| {
            tracked.workload.phase == Phase::Running && scope.covers(&tracked.namespace)
        });
        let running: Vec<_> = running
            .map(|(_, tracked)| tracked.workload.clone())
            .collect();
        for workload in running {
            state.begin_start(&workload);
        }
    }

    /// Marks the queues of workloads that have had no pod that runs for [`SLOW_START`], so that the status reports them.
    pub(super) fn mark_slow_starts(&self) {
        let mut state = self.state();
        for workload in state.pod_starts.take_slow(clock::time()) {
            state.mark_queues_of(&workload);
        }
    }

    /// Returns why a workload that holds a slot has no pod that runs, if something fails or its start is slow.
    pub(super) fn not_started(&self, workload: &Uid) -> Option<NotStarted> {
        let state = self.state();
        let reported = state.pod_starts.reported(workload, clock::time());
        reported.cloned()
    }

    /// Notes that a pod of a workload has ended, or was deleted. While the workload runs, that proves nothing,
    /// because the workload itself shows its end.
    pub(super) fn pod_ended(&self, namespace: &str, lock_key: &str, workload: &Uid) {
        let mut state = self.state();
        let known = state.workloads.get(workload);
        let here = known.filter(|tracked| *tracked.namespace == *namespace);
        if here.is_some_and(|tracked| tracked.workload.phase == Phase::Running) {
            return;
        }
        state.remnants.touch(namespace, workload);
        for reference in state.queues_at(&namespace.into(), lock_key) {
            if let Some(queue) = state.queue_mut(&reference) {
                queue.touched.insert(workload.clone());
                state.due.mark(reference);
            }
        }
    }

    /// Waits until queues are due a pass.
    pub(super) async fn marked(&self) {
        let wake = self.state().due.wake();
        wake.notified().await;
    }

    /// Takes the queues that are due a pass.
    pub(super) fn take_marked(&self) -> BTreeSet<QueueRef> {
        self.state().due.take()
    }

    /// Returns a callback for changes of a queue's session, except for renewals. The callback makes a pass due. A
    /// session may be renewed for longer than this index exists, so the callback does not own the index.
    pub(super) fn on_session_change(&self, queue: QueueRef) -> impl Fn() + Send + Sync + 'static {
        let shared = Arc::downgrade(&self.0);
        move || {
            if let Some(shared) = shared.upgrade() {
                let mut state = shared.state.lock();
                let known = state.queue_mut(&queue);
                if let Some(changes) = known.and_then(|known| known.changes.as_mut()) {
                    changes.sessions = true;
                }
                state.due.mark(queue.clone());
            }
        }
    }

    /// Takes the changes of a queue since the last call; `None` if anything may have changed.
    pub(super) fn changes(&self, queue: &QueueRef) -> Option<Changes> {
        let mut state = self.state();
        state.queue_mut(queue)?.changes.replace(Changes::default())
    }

    /// Returns the other queues in the namespace that use this lock key.
    pub(super) fn neighbours(&self, queue: &QueueRef, lock_key: &str) -> Vec<QueueRef> {
        let namespace = &queue.semaphore.namespace;
        let mut there = self.state().queues_at(namespace, lock_key);
        there.retain(|other| other != queue);
        there
    }

    /// Adds a semaphore, with the operator that manages it.
    pub(super) async fn add_semaphore(
        &self,
        reference: &SemaphoreRef,
        offer: Offer,
        manager: Manager,
    ) {
        let (users, is_decided) = self.replace_semaphore(reference, offer, manager);
        self.rearrange(users, is_decided).await;
    }

    /// Stores a semaphore in place of the earlier one of its name. Returns the workloads that this concerns, and
    /// whether it was undecided until then that this operator manages the semaphore.
    fn replace_semaphore(
        &self,
        reference: &SemaphoreRef,
        offer: Offer,
        manager: Manager,
    ) -> (IdSet<Uid>, bool) {
        let mut state = self.state();
        let ours = manager == Manager::ThisOperator;
        let before = state.semaphores.get(reference);
        if !ours && before.is_some_and(|before| before.manager == manager && before.offer == offer)
        {
            return (IdSet::default(), false);
        }
        let is_decided = ours && before.is_some_and(|before| before.manager == Manager::Undecided);
        let mut users = state.users_of(reference);
        state.forget_semaphore(reference);
        let prefix = offer.prefix.as_str().to_owned();
        let by_prefix = state.by_prefix.entry((reference.namespace.clone(), prefix));
        by_prefix.or_default().insert(reference.clone());
        let keyed = offer.keyed;
        let semaphore = IndexedSemaphore {
            offer,
            manager,
            queues: HashMap::new(),
            blocked: None,
        };
        state.semaphores.insert(reference.clone(), semaphore);
        if ours && !keyed {
            state.queue_entry(&QueueRef::new(reference, None));
        }
        users.extend(state.users_of(reference));
        (users, is_decided)
    }

    /// Updates what a semaphore offers. Its prefix, and whether it is keyed, must be as before.
    pub(super) async fn update_semaphore(&self, reference: &SemaphoreRef, offer: Offer) {
        let users = self.replace_offer(reference, offer);
        self.rearrange(users, false).await;
    }

    /// Stores what a semaphore offers. Returns the workloads that this concerns.
    fn replace_offer(&self, reference: &SemaphoreRef, offer: Offer) -> Vec<Uid> {
        let mut state = self.state();
        let known = state.semaphores.get_mut(reference);
        let Some(known) = known.filter(|known| known.offer != offer) else {
            return Vec::new();
        };
        let before = mem::replace(&mut known.offer, offer);
        for queue in known.queues.values_mut() {
            queue.changes = None;
        }
        state.users_of_change(reference, &before)
    }

    /// Returns the keys of a semaphore that have a queue. The queue of a semaphore that is not keyed has the key
    /// `None`.
    pub(super) fn keys(&self, reference: &SemaphoreRef) -> Vec<Option<Key>> {
        let state = self.state();
        let semaphore = state.semaphores.get(reference);
        semaphore.map_or_else(Vec::new, |semaphore| {
            semaphore.queues.keys().cloned().collect()
        })
    }

    /// Opens a queue. From then on, the queue is marked when something that concerns it changes.
    pub(super) fn open(&self, queue: &QueueRef) {
        let mut state = self.state();
        if let Some(semaphore) = state.semaphores.get_mut(&queue.semaphore) {
            semaphore.queues.entry(queue.key.clone()).or_default();
        }
    }

    /// Forgets a queue if it has no workloads; returns whether it had none.
    pub(super) fn close(&self, queue: &QueueRef) -> bool {
        let mut state = self.state();
        let Some(semaphore) = state.semaphores.get_mut(&queue.semaphore) else {
            state.contenders.forget(queue);
            return true;
        };
        let workloads = semaphore.queues.get(&queue.key);
        let empty = workloads.is_none_or(|queue| {
            queue.waiting.is_empty() && queue.bound.is_empty() && queue.unrecorded.is_empty()
        });
        if empty {
            semaphore.queues.remove(&queue.key);
            state.contenders.forget(queue);
        }
        empty
    }

    /// Notes that all existing semaphores of a scope have been added.
    pub(super) fn semaphores_are_known(&self, scope: &WatchScope) {
        let mut state = self.state();
        if state.lists.know_semaphores(scope) {
            state.mark_all(scope);
        }
    }

    /// Removes a semaphore that was deleted.
    pub(super) async fn remove_semaphore(&self, reference: &SemaphoreRef) {
        let users = self.forget_semaphore(reference);
        self.rearrange(users, false).await;
    }

    /// Forgets a semaphore. Returns the workloads that this concerns.
    fn forget_semaphore(&self, reference: &SemaphoreRef) -> IdSet<Uid> {
        let mut state = self.state();
        let users = state.users_of(reference);
        state.forget_semaphore(reference);
        users
    }

    /// Gives these workloads their places again. If `is_decided`, it was undecided until now who manages their
    /// semaphore, so some of the workloads get their first place. Others have the lock and this thread in between,
    /// but each workload is in some place all the time.
    async fn rearrange(&self, workloads: impl IntoIterator<Item = Uid>, is_decided: bool) {
        let mut workloads = workloads.into_iter().peekable();
        while workloads.peek().is_some() {
            self.rearrange_some(workloads.by_ref().take(ARRANGED_AT_ONCE), is_decided);
            if workloads.peek().is_some() {
                tokio::task::yield_now().await;
            }
        }
    }

    fn rearrange_some(&self, workloads: impl Iterator<Item = Uid>, is_decided: bool) {
        let mut state = self.state();
        workloads.for_each(|uid| state.rearrange(&uid, is_decided));
        MutexGuard::unlock_fair(state);
    }

    /// Returns the workloads that were started in a queue and have not ended.
    pub(super) fn bound(&self, queue: &QueueRef) -> Vec<Arc<Workload>> {
        let state = self.state();
        let queue = state.queue(queue);
        queue.map_or_else(Vec::new, |queue| state.bound(queue))
    }

    /// Returns the waiting workloads that are within reach of a pass.
    pub(super) fn waiting(&self, queue: &QueueRef, reach: &Reach<'_>) -> Vec<Arc<Workload>> {
        let state = self.state();
        let queue = state.queue(queue);
        queue.map_or_else(Vec::new, |queue| state.waiting(queue, reach))
    }

    /// Returns the waiting workloads whose wait may be over.
    pub(super) fn overdue(&self, queue: &QueueRef, now: Timestamp, most: usize) -> Vec<Overdue> {
        let state = self.state();
        let queues = state.queue(queue).into_iter();
        let due = queues.flat_map(|queue| queue.deadlines.due(now.as_second()));
        let overdue = due.take(most).filter_map(|uid| {
            let workload = state.workload(uid)?;
            Some(Overdue {
                timeout: state.wait_timeout(&workload, queue)?,
                workload,
            })
        });
        overdue.collect()
    }

    /// Returns the workloads whose start of the wait is still to be recorded.
    pub(super) fn unrecorded(&self, queue: &QueueRef, most: usize) -> Vec<Arc<Workload>> {
        let state = self.state();
        let queues = state.queue(queue).into_iter();
        let unrecorded = queues.flat_map(|queue| &queue.unrecorded);
        let workloads = unrecorded.filter_map(|uid| state.workload(uid));
        workloads.take(most).collect()
    }

    /// Returns whether the wait of any workload in the queues of a semaphore ends.
    pub(super) fn any_deadline(&self, reference: &SemaphoreRef) -> bool {
        let state = self.state();
        let semaphore = state.semaphores.get(reference).into_iter();
        let mut queues = semaphore.flat_map(|semaphore| semaphore.queues.values());
        queues.any(|queue| queue.deadlines.next().is_some())
    }

    /// Returns since when the workload waits that has waited longest for the semaphore, whatever its place in the queue.
    pub(super) fn longest_wait_since(&self, reference: &SemaphoreRef) -> Option<Timestamp> {
        let state = self.state();
        let queues = state.semaphores.get(reference)?.queues.values();
        let since = queues.filter_map(|queue| queue.since.next()).min()?;
        Timestamp::from_second(since).ok()
    }

    /// Returns when the wait of the next workload may be over.
    pub(super) fn next_overdue(&self, queue: &QueueRef) -> Option<Timestamp> {
        let next = self.state().queue(queue)?.deadlines.next()?;
        Timestamp::from_second(next).ok()
    }

    /// Notes that the wait of a workload is not over before this time.
    pub(super) fn postpone(&self, queue: &QueueRef, workload: &Uid, until: Timestamp) {
        if let Some(queue) = self.state().queue_mut(queue) {
            queue.deadlines.postpone(workload, until.as_second());
        }
    }

    /// Returns the waiting workloads that a newer one supersedes.
    pub(super) fn superseded(&self, queue: &QueueRef, most: usize) -> Vec<Superseded> {
        let mut state = self.state();
        let Some(known) = state.queue(queue) else {
            return Vec::new();
        };
        let (mut superseded, mut newest) = (Vec::new(), Vec::new());
        for uid in &known.superseded {
            if superseded.len() == most {
                break;
            }
            match state.superseded(uid) {
                Some(found) => superseded.push(found),
                None => newest.push(uid.clone()),
            }
        }
        if let Some(queue) = state.queue_mut(queue) {
            queue.superseded.retain(|uid| !newest.contains(uid));
        }
        superseded
    }

    /// Returns the first waiting workloads that were not admitted, in the order in which they came.
    pub(super) fn unadmitted(&self, queue: &QueueRef, most: usize) -> Vec<Arc<Workload>> {
        let state = self.state();
        let queues = state.queue(queue).into_iter();
        let unadmitted = queues.flat_map(|queue| queue.unadmitted.iter().take(most));
        unadmitted
            .filter_map(|place| state.workload(place.uid()))
            .collect()
    }

    /// Notes that a workload was admitted to its queues, as the pass over one of them decided. Passes over the others
    /// are due, because they may have to report that the workload waits.
    pub(super) fn admit(&self, queue: &QueueRef, workload: &Uid) {
        self.state().admit(queue, workload);
    }

    /// Returns how many workloads wait in a queue.
    pub(super) fn count_waiting(&self, queue: &QueueRef) -> usize {
        let state = self.state();
        state.queue(queue).map_or(0, |queue| queue.waiting.len())
    }

    /// Returns how many workloads wait in a queue and were admitted, without those in `apart`. Returns `None` while
    /// workloads are listed anew.
    pub(super) fn count_admitted(&self, queue: &QueueRef, apart: &BTreeSet<Uid>) -> Option<usize> {
        let state = self.state();
        if state.lists.are_anew(&queue.semaphore.namespace) {
            return None;
        }
        let known = state.queue(queue)?;
        let is_counted = |uid: &&Uid| {
            let workload = state.workloads.get(uid).map(|tracked| &tracked.workload);
            workload.is_some_and(|workload| {
                known.waiting.contains(&workload.place()) && !state.unadmitted.contains(*uid)
            })
        };
        let left_out = apart.iter().filter(is_counted).count();
        let admitted = known.waiting.len().checked_sub(known.unadmitted.len())?;
        admitted.checked_sub(left_out)
    }

    /// Returns the running workloads that this workload may replace.
    pub(super) fn replaceable(&self, by: &Uid) -> Vec<Located> {
        let state = self.state();
        let running = state.alike.running(by);
        running.filter_map(|uid| state.located(uid)).collect()
    }

    /// Returns a workload, if it was started in this queue.
    pub(super) fn started(&self, queue: &QueueRef, uid: &Uid) -> Option<Arc<Workload>> {
        let state = self.state();
        let there = state.queue(queue)?.bound.contains(uid);
        state.workload(uid).filter(|_| there)
    }

    /// Returns the workload with this uid.
    pub(super) fn workload(&self, uid: &Uid) -> Option<Arc<Workload>> {
        self.state().workload(uid)
    }

    /// Returns all that is known of a workload.
    pub(super) fn tracked(&self, uid: &Uid) -> Option<TrackedWorkload> {
        self.state().workloads.get(uid).cloned()
    }

    /// Returns the workloads that were queued since the last call and still are. Workloads that were not admitted yet are
    /// returned once they are, because they may fail instead of waiting.
    pub(super) fn newcomers(&self, reference: &QueueRef) -> Vec<TrackedWorkload> {
        let mut state = self.state();
        let Some(queue) = state.queue_mut(reference) else {
            return Vec::new();
        };
        let newcomers = std::mem::take(&mut queue.newcomers).into_iter();
        let (later, newcomers) = newcomers.partition(|uid| state.unadmitted.contains(uid));
        let Some(queue) = state.queue_mut(reference) else {
            return Vec::new();
        };
        queue.newcomers = later;
        let newcomers: BTreeSet<Uid> = newcomers;
        let Some(queue) = state.queue(reference) else {
            return Vec::new();
        };
        let workloads = newcomers.iter().filter_map(|uid| state.workloads.get(uid));
        workloads
            .filter(|tracked| queue.waiting.contains(&tracked.workload.place()))
            .cloned()
            .collect()
    }

    /// Takes the workloads with a pod that has ended since the last call.
    pub(super) fn touched(&self, queue: &QueueRef) -> BTreeSet<Uid> {
        let mut state = self.state();
        let queue = state.queue_mut(queue);
        queue
            .map(|queue| std::mem::take(&mut queue.touched))
            .unwrap_or_default()
    }

    /// Returns the first waiting workloads of all queues of a semaphore, at most this many.
    pub(super) fn head(&self, reference: &SemaphoreRef, most: usize) -> Vec<Arc<Workload>> {
        let state = self.state();
        let semaphore = state.semaphores.get(reference);
        let head = semaphore.map(|semaphore| semaphore.head(most));
        let workloads = head.into_iter().flatten().map(Place::uid);
        workloads.filter_map(|uid| state.workload(uid)).collect()
    }

    /// Returns the workloads that are in a queue, given the workloads that hold slots.
    pub(super) fn queued<'a>(
        &self,
        queue: &QueueRef,
        holding: impl Iterator<Item = &'a Uid>,
    ) -> Queued {
        let state = self.state();
        let Some(queue) = state.queue(queue) else {
            return Queued::default();
        };
        // The check of the phase comes first, because there are many holders and nearly all of them run.
        let is_in_it = |uid: &&Uid| {
            let workload = state.workloads.get(uid).map(|tracked| &tracked.workload);
            workload.is_some_and(|workload| {
                workload.is_queued() && queue.waiting.contains(&workload.place())
            })
        };
        let starting: Vec<_> = holding.filter(is_in_it).cloned().collect();
        Queued {
            waiting: queue.waiting.len().saturating_sub(starting.len()),
            starting,
        }
    }

    /// Returns all waiting workloads of a queue, in order.
    pub(super) fn all_waiting(&self, queue: &QueueRef) -> Vec<Arc<Workload>> {
        let state = self.state();
        let queues = state.queue(queue).into_iter();
        let places = queues.flat_map(|queue| queue.waiting.places());
        places
            .filter_map(|place| state.workload(place.uid()))
            .collect()
    }

    /// Returns whether a workload has the annotation with a key although none of its semaphores is keyed.
    pub(super) fn ignores_key(&self, tracked: &TrackedWorkload) -> bool {
        let requests = &tracked.workload.requests;
        let names_key =
            tracked.bad_key.is_some() || requests.iter().any(|request| request.key.is_some());
        let state = self.state();
        let mut semaphores = requests
            .iter()
            .filter_map(|request| state.requested(tracked, request));
        names_key && !semaphores.any(|(_, semaphore)| semaphore.offer.keyed)
    }

    /// Takes the workloads that are newly unclaimed, have changed, or are not unclaimed any more.
    pub(super) fn take_unclaimed(&self) -> BTreeSet<Uid> {
        self.state().unclaimed.take_changed()
    }

    /// Returns a workload and why no semaphore claims it; `None` if a semaphore claims it, or if the semaphores of
    /// its namespace are not all known.
    pub(super) fn unclaimed(&self, uid: &Uid) -> Option<(TrackedWorkload, Unclaimed)> {
        let state = self.state();
        let is_unclaimed = state.unclaimed.contains(uid);
        let tracked = state.placed(uid).filter(|_| is_unclaimed)?;
        Some((tracked.clone(), state.why_unclaimed(tracked)?))
    }

    /// Notes the times in which a semaphore could grant nothing.
    pub(super) fn note_blocked(&self, reference: &SemaphoreRef, blocked: &Blocked) {
        let mut state = self.state();
        if let Some(semaphore) = state.semaphores.get_mut(reference)
            && semaphore.blocked.as_ref() != Some(blocked)
        {
            semaphore.blocked = Some(blocked.clone());
        }
    }

    /// Returns when the wait of a workload ends that no semaphore claims, because its semaphores don't exist or don't
    /// suffice, and how long the workload may wait. Returns `None` if the wait does not end. The time is unknown
    /// while nothing can be granted, and while the workload may hold a slot. `started` is when this operator began to
    /// count for semaphores that don't exist.
    pub(super) fn unclaimed_ends(
        &self,
        tracked: &TrackedWorkload,
        started: Timestamp,
    ) -> Option<(Option<Timestamp>, Duration)> {
        let (state, workload) = (self.state(), &tracked.workload);
        if !workload.is_queued() {
            return None;
        }
        let since = Timestamp::from_second(workload.waits_since()?).ok()?;
        let requests = workload.requests.iter();
        let semaphores: Vec<Option<&IndexedSemaphore>> = requests
            .map(|request| Some(state.requested(tracked, request)?.1))
            .collect();
        let known = semaphores.iter().flatten();
        let defaults = known.clone().filter_map(|known| known.offer.wait_timeout);
        let timeout = workload.wait.timeout.or(defaults.min())?;
        if state.contenders.queues_of(&workload.uid).next().is_some() {
            return Some((None, timeout));
        }
        let blocked: Option<Vec<&Blocked>> = known.map(|known| known.blocked.as_ref()).collect();
        let since = if semaphores.iter().any(Option::is_none) {
            since.max(started)
        } else {
            since
        };
        let ends = blocked.and_then(|blocked| {
            let blocked = blocked.into_iter().chain([&workload.wait.kept_out]);
            Blocked::deadline(blocked, since, timeout)
        });
        Some((ends, timeout))
    }

    /// Takes the workloads that were put on hold since the last call and still are.
    pub(super) fn take_held_back(&self) -> Vec<TrackedWorkload> {
        let mut state = self.state();
        let held_back = state.held_back.take();
        let tracked = held_back.iter().filter_map(|uid| state.workloads.get(uid));
        let still = tracked.filter(|tracked| tracked.workload.is_held_back());
        still.cloned().collect()
    }

    /// Whether a workload has been on hold since it was first seen.
    pub(super) fn is_held_from_the_start(&self, uid: &Uid) -> bool {
        self.state().held_from_the_start.contains(uid)
    }

    /// Takes the workloads that have begun or ceased to run without a grant, or do so and have changed.
    pub(super) fn take_ungranted(&self) -> BTreeSet<Uid> {
        self.state().ungranted.take_changed()
    }

    /// Returns a workload that runs without a grant, whether a semaphore claims it or not; `None` if it does not, or
    /// if the semaphores of its namespace are not all known.
    pub(super) fn ungranted(&self, uid: &Uid) -> Option<TrackedWorkload> {
        let state = self.state();
        let is_ungranted = state.ungranted.contains(uid);
        state.placed(uid).filter(|_| is_ungranted).cloned()
    }

    /// Takes the workloads that count as stopping until it is proved that no pod of them is left, and that are new,
    /// have changed, or of which a pod has ended.
    pub(super) fn take_unproved(&self) -> BTreeSet<Uid> {
        self.state().remnants.take_changed()
    }

    /// Returns a workload that counts as stopping until it is proved that no pod of it is left, as its status shows
    /// it. The caller asks about its pods, so the note that a pod has ended is cleared. Returns `None` if the
    /// workload is not one of these, or is not known to be of this operator.
    pub(super) fn unproved(&self, uid: &Uid) -> Option<TrackedWorkload> {
        let mut state = self.state();
        if !state.is_ours(uid) {
            return None;
        }
        state.remnants.take(uid)
    }

    /// Returns whether a pod of such an unproved workload has ended since the workload was last asked about.
    pub(super) fn is_touched(&self, uid: &Uid) -> bool {
        self.state().remnants.is_touched(uid)
    }

    /// Returns whether a workload counts as stopping until it is proved that no pod of it is left.
    #[cfg(test)]
    fn is_unproved(&self, uid: &Uid) -> bool {
        self.state().remnants.contains(uid)
    }

    /// Returns the time from which the absence of pods proves that no pod of a workload is left; `None` if it proves
    /// that at once.
    pub(super) fn proof_counts_from(&self, tracked: &TrackedWorkload) -> Option<Moment> {
        self.state().remnants.counts_from(tracked)
    }

    /// Notes that no pod of a workload is left from the grant that this version of the workload names.
    pub(super) fn proved(&self, tracked: &TrackedWorkload) {
        let mut state = self.state();
        if let Some(now) = state.remnants.proved(tracked) {
            state.put(now, true, None);
        }
    }

    /// Frees the slots of a workload that has no pod left, although that can't be written to the workload.
    pub(super) fn let_slots_go(&self, tracked: &TrackedWorkload) {
        let mut state = self.state();
        if let Some(now) = state.remnants.let_slots_go(&tracked.workload) {
            state.put(now, true, None);
        }
    }

    /// Waits until [`take_unproved`](Self::take_unproved) has workloads.
    pub(super) async fn unproved_changed(&self) {
        let wake = self.state().remnants.wake();
        wake.notified().await;
    }

    /// Waits until [`take_unclaimed`](Self::take_unclaimed) has workloads.
    pub(super) async fn unclaimed_changed(&self) {
        let wake = self.state().unclaimed.wake();
        wake.notified().await;
    }

    /// Waits until [`take_held_back`](Self::take_held_back) has workloads.
    pub(super) async fn held_back_changed(&self) {
        let wake = self.state().held_back.wake();
        wake.notified().await;
    }

    /// Waits until [`take_ungranted`](Self::take_ungranted) has workloads.
    pub(super) async fn ungranted_changed(&self) {
        let wake = self.state().ungranted.wake();
        wake.notified().await;
    }
}

#[cfg(test)]
mod tests;
