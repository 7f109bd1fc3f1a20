//! Keeps what the lists of the watches have shown so far. Each watch has its own list: of one kind, for the whole
//! cluster or for one namespace.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;

use crate::watch_scope::WatchScope;
use consul_client::clock::{self, Moment};
use consul_semaphore::{KindName, Uid, Workload};

/// Progress of the lists of all watches.
#[derive(Default)]
pub(super) struct Lists {
    /// Time since which no operator has said of new workloads that they wait, in seconds since 1970. An earlier
    /// operator was last at work at that time, or else the first list began then.
    unsaid_since: Option<i64>,
    /// Lists of workloads that are being received: when each of them began, and the workloads that were seen in it.
    workloads: HashMap<(KindName, WatchScope), (Moment, BTreeSet<Uid>)>,
    /// Lists that were received before. Each of them showed all workloads of its kind and scope.
    received: HashSet<(KindName, WatchScope)>,
    /// Scopes whose semaphores are all known. In other scopes a missing semaphore means nothing.
    semaphores: HashSet<WatchScope>,
}

impl Lists {
    /// Creates the lists of an operator that follows another one, which was last at work at this time.
    pub(super) fn after(last_at_work: Timestamp) -> Self {
        Self {
            unsaid_since: Some(last_at_work.as_second()),
            ..Self::default()
        }
    }

    /// Notes that a list of all workloads of a kind in a scope starts.
    pub(super) fn begin(&mut self, kind: &KindName, scope: &WatchScope) {
        let list = (Moment::now(), BTreeSet::new());
        self.unsaid_since.get_or_insert(clock::time().as_second());
        self.workloads.insert((kind.clone(), scope.clone()), list);
    }

    /// Notes that the list of a kind in a scope is complete; returns the workloads that were in it.
    pub(super) fn end(&mut self, kind: &KindName, scope: &WatchScope) -> Option<BTreeSet<Uid>> {
        let list = (kind.clone(), scope.clone());
        let (_, listed) = self.workloads.remove(&list)?;
        self.received.insert(list);
        Some(listed)
    }

    /// Returns whether the first list of a kind in a namespace has not been received to its end.
    pub(super) fn is_first(&self, kind: &KindName, namespace: &str) -> bool {
        let mut received = self.received.iter();
        !received.any(|(of, scope)| of == kind && scope.covers(namespace))
    }

    /// Returns whether workloads of a namespace are being listed anew, so that some of the known ones may be gone.
    pub(super) fn are_anew(&self, namespace: &str) -> bool {
        let mut lists = self.workloads.keys();
        lists.any(|list| list.1.covers(namespace) && self.received.contains(list))
    }

    /// Returns whether a workload was made when no earlier operator could say that it waits.
    pub(super) fn is_unsaid(&self, workload: &Workload) -> bool {
        self.unsaid_since
            .is_some_and(|since| workload.since >= since)
    }

    /// Records a workload from a watch; returns when the list began, if it is part of one.
    pub(super) fn note(
        &mut self,
        kind: &KindName,
        namespace: &str,
        workload: &Uid,
    ) -> Option<Moment> {
        let mut lists = self.workloads.iter_mut();
        let its_list = |(of, scope): &(KindName, WatchScope)| of == kind && scope.covers(namespace);
        let (_, (began, listed)) = lists.find(|(list, _)| its_list(list))?;
        listed.insert(workload.clone());
        Some(*began)
    }

    /// Notes that all semaphores of a scope have been listed. Returns whether that was unknown before.
    pub(super) fn know_semaphores(&mut self, scope: &WatchScope) -> bool {
        self.semaphores.insert(scope.clone())
    }

    /// Whether all semaphores of a namespace are known.
    pub(super) fn knows_semaphores(&self, namespace: &Arc<str>) -> bool {
        let own = WatchScope::Namespace(namespace.clone());
        self.semaphores.contains(&WatchScope::Cluster) || self.semaphores.contains(&own)
    }
}
