//! What a process stores for the engine, and how the engine looks it up.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::Flaw;
use crate::{
    AHEAD, Key, Phase, SessionState, Uid, Workload,
    engine::{Lookup, Overdue, QueueRef, Reach, RequestClass, SemaphoreRef, Stores, WaitingList},
    model::outside::Outside,
};
use consul_client::{SessionId, clock::Moment};

/// What a process stores for the engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    pub(super) workloads: Vec<Arc<Workload>>,
    /// When the last good renewal of each session was sent; `None` if Consul said that it is gone.
    pub(super) renewals: BTreeMap<SessionId, Option<Moment>>,
    /// The sessions that it renews.
    pub(super) kept: BTreeSet<SessionId>,
}

impl Store {
    /// A session is no longer renewed.
    pub(super) fn forget(&mut self, session: &SessionId) {
        self.kept.remove(session);
        self.renewals.remove(session);
    }
}

/// The store as the engine looks it up.
pub(super) struct View<'a> {
    pub(super) store: &'a Store,
    pub(super) outside: &'a Outside,
    pub(super) flaw: Option<Flaw>,
}

impl View<'_> {
    /// All waiting workloads, in order.
    fn queued(&self) -> Vec<Arc<Workload>> {
        let name = self.outside.settings.name.as_str();
        let workloads = self.store.workloads.iter().cloned();
        let mut waiting: Vec<_> = workloads
            .filter(|workload| workload.is_queued() && workload.asks_for(name, None).is_some())
            .collect();
        waiting.sort_by_key(|workload| workload.place());
        waiting
    }

    /// A contender's workload. Its contender is kept until it is seen that the workload no longer waits.
    fn of_contender(&self, uid: &Uid) -> Option<Arc<Workload>> {
        let workload = self.workload(uid)?;
        let next = AHEAD.min(usize::try_from(self.outside.settings.limit).unwrap_or(AHEAD));
        let overtaken = self.flaw == Some(Flaw::ShowsTheOvertaken)
            && self
                .queued()
                .iter()
                .skip(next)
                .any(|workload| workload.uid == *uid);
        if !overtaken {
            return Some(workload);
        }
        let workload = Workload {
            phase: Phase::Stopping,
            ..(*workload).clone()
        };
        Some(Arc::new(workload))
    }
}

impl Stores for View<'_> {
    type Of<'a>
        = &'a Self
    where
        Self: 'a;

    fn of<'a>(&'a self, _queue: &'a QueueRef) -> &'a Self {
        self
    }

    fn keys(&self, _semaphore: &SemaphoreRef) -> Vec<Option<Key>> {
        vec![None]
    }

    fn open(&self, _queue: &QueueRef) {}

    fn close(&self, _queue: &QueueRef) -> bool {
        false
    }

    fn keeps(&self, session: &SessionId) -> bool {
        self.store.kept.contains(session)
    }
}

impl Lookup for &View<'_> {
    fn bound(&self) -> Vec<Arc<Workload>> {
        let lock_key = self.outside.settings.prefix.lock_key();
        let unseen = |workload: &Workload| {
            let on_hold = workload.hold && workload.phase == Phase::Idle;
            on_hold && self.flaw == Some(Flaw::KeepsGrantOnHold)
        };
        let workloads = self.store.workloads.iter().cloned();
        let started = workloads.filter(|workload| workload.started_at(&lock_key));
        let bound = started.filter(|workload| workload.is_bound() && !unseen(workload));
        bound.collect()
    }

    fn waiting(&self, reach: &Reach<'_>) -> Vec<Arc<Workload>> {
        let settings = &self.outside.settings;
        let semaphore = SemaphoreRef {
            namespace: settings.namespace.as_str().into(),
            name: settings.name.as_str().into(),
        };
        let queue = QueueRef::new(&semaphore, None);
        let mut list = WaitingList::default();
        let mut workloads = BTreeMap::new();
        for workload in self.queued() {
            let class = RequestClass::of(&workload, &queue, std::slice::from_ref(&queue));
            list.insert(workload.place(), class);
            workloads.insert(workload.uid.clone(), workload);
        }
        let read = list.read(reach).into_iter();
        read.filter_map(|place| workloads.remove(place.uid()))
            .collect()
    }

    fn workload(&self, uid: &Uid) -> Option<Arc<Workload>> {
        let mut workloads = self.store.workloads.iter();
        workloads.find(|workload| workload.uid == *uid).cloned()
    }

    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Workload>>> {
        uids.iter().map(|uid| self.of_contender(uid)).collect()
    }

    fn overdue(&self, now: jiff::Timestamp, most: usize) -> Vec<Overdue> {
        let waiting = self.queued().into_iter();
        let overdue = waiting.filter_map(|workload| {
            let timeout = workload.wait.timeout?;
            let since = workload.waits_since()?;
            let ends = since.checked_add(i64::try_from(timeout.as_secs()).ok()?)?;
            (ends <= now.as_second()).then_some(Overdue { workload, timeout })
        });
        overdue.take(most).collect()
    }

    /// Leaves out the waits that do not end, because nobody needs to know when those began.
    fn unrecorded(&self, most: usize) -> Vec<Arc<Workload>> {
        let workloads = self.store.workloads.iter();
        let ending = workloads.filter(|workload| workload.wait.timeout.is_some());
        let unrecorded = ending.filter(|workload| workload.wait_to_record().is_some());
        unrecorded.take(most).cloned().collect()
    }

    /// Pods may have ended at any time.
    fn touched(&self) -> BTreeSet<Uid> {
        let contenders = self.outside.sight().contenders;
        contenders.into_values().flatten().collect()
    }

    fn life(&self, session: &SessionId) -> Option<SessionState> {
        if !self.store.kept.contains(session) {
            return None;
        }
        let outside = self.outside;
        let alive = outside.consul.is_alive(session);
        let Some(ttl) = outside.settings.ttl.filter(|_| outside.timed) else {
            return Some(if alive || outside.is_away() {
                SessionState::Endless
            } else {
                SessionState::Gone
            });
        };
        Some(match self.store.renewals.get(session) {
            Some(Some(sent)) => SessionState::Renewed { sent: *sent, ttl },
            Some(None) => SessionState::Gone,
            None => SessionState::Unknown,
        })
    }
}
