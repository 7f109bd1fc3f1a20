//! What a process stores for the engine, and how the engine looks it up: the waiting workloads of a queue are those of
//! which each semaphore that they ask for could ever give what they ask for, as in the operator's index.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Flaw, Outside, queue};
use crate::{
    Key, Phase, SessionState, Settings, Uid, Workload,
    engine::{
        Located, Lookup, Overdue, QueueRef, Reach, RequestClass, SemaphoreRef, Stores, Superseded,
        WaitingList,
    },
};
use consul_client::SessionId;

/// What a process stores for the engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    pub(super) workloads: Vec<Arc<Workload>>,
    /// The sessions that it renews.
    pub(super) kept: BTreeSet<SessionId>,
    /// The workloads that have come since the process began, and were not admitted to their queues.
    pub(super) unadmitted: RefCell<BTreeSet<Uid>>,
}

impl Store {
    pub(super) fn workload(&self, uid: &Uid) -> Option<Arc<Workload>> {
        let mut workloads = self.workloads.iter();
        workloads.find(|workload| workload.uid == *uid).cloned()
    }

    /// The workloads that are in queues, as the observer counts them.
    pub(super) fn waiting(&self, outside: &Outside) -> Vec<Arc<Workload>> {
        let workloads = self.workloads.iter();
        let waiting = workloads.filter(|workload| {
            let asks = outside.asks(workload).into_iter().zip(&outside.places);
            let can_ever_start = asks
                .into_iter()
                .all(|(asks, place)| asks <= place.ever(workload.priority));
            workload.is_queued() && can_ever_start
        });
        waiting.cloned().collect()
    }
}

/// The store as the engine looks it up.
pub(super) struct View<'a> {
    pub(super) store: &'a Store,
    pub(super) outside: &'a Outside,
    pub(super) flaw: Option<Flaw>,
}

impl Stores for View<'_> {
    type Of<'a>
        = OfQueue<'a>
    where
        Self: 'a;

    fn of<'a>(&'a self, queue: &'a QueueRef) -> OfQueue<'a> {
        OfQueue { view: self, queue }
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

/// What one queue sees of it.
pub(super) struct OfQueue<'a> {
    view: &'a View<'a>,
    queue: &'a QueueRef,
}

impl<'a> OfQueue<'a> {
    fn settings(&self) -> &'a Settings {
        let outside: &'a Outside = self.view.outside;
        let place = outside.place_of(&self.queue.semaphore.name);
        &outside.places[place.expect("a semaphore")].settings
    }

    /// The workloads that ask for something here, as this flawed or correct process sees them.
    fn workloads(&self) -> impl Iterator<Item = Arc<Workload>> {
        let View {
            store,
            outside,
            flaw,
        } = self.view;
        let (outside, flaw): (&'a Outside, Option<Flaw>) = (outside, *flaw);
        let workloads: &'a [Arc<Workload>] = &store.workloads;
        workloads.iter().map(move |workload| match flaw {
            Some(Flaw::StartsInAPart) => Flaw::forget_what_is_lost(workload, outside),
            _ => workload.clone(),
        })
    }

    fn queued(&self) -> Vec<Arc<Workload>> {
        let name = &*self.queue.semaphore.name;
        let mut waiting: Vec<_> = self
            .workloads()
            .filter(|workload| workload.is_queued() && workload.asks_for(name, None).is_some())
            .filter(|workload| is_satisfiable(self.view.outside, workload))
            .collect();
        waiting.sort_by_key(|workload| workload.place());
        waiting
    }

    fn alike(&self, workload: &Workload) -> impl Iterator<Item = Arc<Workload>> {
        let requests = workload.requests.clone();
        self.workloads()
            .filter(move |other| other.requests == requests)
    }
}

/// Whether each semaphore could give a workload what it asks for in its largest window.
fn is_satisfiable(outside: &Outside, workload: &Workload) -> bool {
    workload.requests.iter().all(|request| {
        let place = outside.place_of(&request.semaphore);
        let settings = place.map(|place| &outside.places[place].settings);
        settings.is_some_and(|settings| {
            let most = settings
                .restrictions
                .most(settings.limit, workload.priority);
            request.slots.get() <= most
        })
    })
}

fn located(workload: Arc<Workload>) -> Located {
    Located {
        namespace: "n".into(),
        workload,
    }
}

impl Lookup for OfQueue<'_> {
    fn bound(&self) -> Vec<Arc<Workload>> {
        let lock_key = self.settings().prefix.lock_key();
        let bound = self
            .workloads()
            .filter(|workload| workload.is_bound() && workload.started_at(&lock_key));
        bound.collect()
    }

    fn waiting(&self, reach: &Reach<'_>) -> Vec<Arc<Workload>> {
        let mut list = WaitingList::default();
        let mut workloads = BTreeMap::new();
        for workload in self.queued() {
            let requests = workload.requests.iter();
            let queues = requests.filter_map(|request| {
                let place = self.view.outside.place_of(&request.semaphore)?;
                Some(queue(self.view.outside, place))
            });
            let queues: Vec<QueueRef> = queues.collect();
            let class = RequestClass::of(&workload, self.queue, &queues);
            list.insert(workload.place(), class);
            workloads.insert(workload.uid.clone(), workload);
        }
        let read = list.read(reach).into_iter();
        read.filter_map(|place| workloads.remove(place.uid()))
            .collect()
    }

    fn workload(&self, uid: &Uid) -> Option<Arc<Workload>> {
        self.workloads().find(|workload| workload.uid == *uid)
    }

    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Workload>>> {
        uids.iter().map(|uid| self.workload(uid)).collect()
    }

    /// Pods may have ended at any time.
    fn touched(&self) -> BTreeSet<Uid> {
        let workloads = self.view.store.workloads.iter();
        let known = workloads.map(|workload| workload.uid.clone());
        let sights = self.view.outside.sights();
        let contenders = sights.into_iter().flat_map(|sight| sight.contenders);
        known.chain(contenders.filter_map(|(_, uid)| uid)).collect()
    }

    fn life(&self, session: &SessionId) -> Option<SessionState> {
        let View { store, outside, .. } = self.view;
        store.kept.contains(session).then(|| {
            if outside.consul.is_alive(session) {
                SessionState::Endless
            } else {
                SessionState::Gone
            }
        })
    }

    fn overdue(&self, now: jiff::Timestamp, most: usize) -> Vec<Overdue> {
        let waiting = self.queued().into_iter();
        let overdue = waiting.filter_map(|workload| {
            let timeout = workload.wait.timeout?;
            let since = workload.waits_since()?;
            let ends = since + i64::try_from(timeout.as_secs()).ok()?;
            (ends <= now.as_second()).then_some(Overdue { workload, timeout })
        });
        overdue.take(most).collect()
    }

    fn unrecorded(&self, most: usize) -> Vec<Arc<Workload>> {
        let name = &*self.queue.semaphore.name;
        let unrecorded = self.workloads().filter(|workload| {
            let first = workload.requests.first();
            first.is_some_and(|first| *first.semaphore == *name)
                && workload.wait_to_record().is_some()
        });
        unrecorded.take(most).collect()
    }

    fn superseded(&self, most: usize) -> Vec<Superseded> {
        let waiting = self.queued().into_iter();
        let superseded = waiting.filter_map(|workload| {
            workload.is_replaceable().then_some(())?;
            let alike = self
                .alike(&workload)
                .filter(|other| other.is_replaceable() && is_satisfiable(self.view.outside, other));
            let newer = alike.max_by_key(|other| other.age())?;
            (newer.uid != workload.uid).then(|| Superseded {
                workload,
                newer: vec![located(newer)],
            })
        });
        superseded.take(most).collect()
    }

    fn unadmitted(&self, most: usize) -> Vec<Arc<Workload>> {
        let unadmitted = self.view.store.unadmitted.borrow();
        let mut newcomers = self.queued();
        newcomers.retain(|workload| unadmitted.contains(&workload.uid));
        newcomers.sort_by_key(|workload| workload.arrival());
        newcomers.truncate(most);
        newcomers
    }

    fn admit(&self, workload: &Uid) {
        if self.view.flaw != Some(Flaw::ForgetsTheAdmitted) {
            self.view.store.unadmitted.borrow_mut().remove(workload);
        }
    }

    fn count_waiting(&self) -> usize {
        self.queued().len()
    }

    fn count_admitted(&self, apart: &BTreeSet<Uid>) -> Option<usize> {
        let unadmitted = self.view.store.unadmitted.borrow();
        let mut admitted = self.queued();
        admitted.retain(|workload| {
            let counts = !apart.contains(&workload.uid);
            let counts = counts || self.view.flaw == Some(Flaw::CountsHolders);
            counts && !unadmitted.contains(&workload.uid)
        });
        Some(admitted.len())
    }

    fn replaceable(&self, by: &Workload) -> Vec<Located> {
        let running = self
            .alike(by)
            .filter(|other| other.phase == Phase::Running && other.on_contention.replaces());
        running.map(located).collect()
    }
}
