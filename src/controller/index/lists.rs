//! What the lists of the watches have shown so far. Each watch has its own list: of one kind, for the whole cluster or
//! for one namespace.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;

use crate::watch_scope::WatchScope;
use consul_client::clock::{self, Moment};
use consul_semaphore::{KindName, Uid, Workload};

/// How far the lists have come.
#[derive(Default)]
pub(super) struct Lists {
    /// Since when nobody said of new workloads that they wait, in seconds since 1970: an earlier operator was last at work
    /// then, or the first list began.
    unsaid_since: Option<i64>,
    /// While workloads are listed again: since when, and those that were seen.
    workloads: HashMap<(KindName, WatchScope), (Moment, BTreeSet<Uid>)>,
    /// The scopes whose semaphores are all known: before that, a missing one means nothing.
    semaphores: HashSet<WatchScope>,
}

impl Lists {
    /// The lists of an operator that follows another one, which was last at work at this time.
    pub(super) fn after(last_at_work: Timestamp) -> Self {
        Self {
            unsaid_since: Some(last_at_work.as_second()),
            ..Self::default()
        }
    }

    /// A list of all workloads of a kind there starts.
    pub(super) fn begin(&mut self, kind: &KindName, scope: &WatchScope) {
        let list = (Moment::now(), BTreeSet::new());
        self.unsaid_since.get_or_insert(clock::time().as_second());
        self.workloads.insert((kind.clone(), scope.clone()), list);
    }

    /// That list is complete; returns what was in it.
    pub(super) fn end(&mut self, kind: &KindName, scope: &WatchScope) -> Option<BTreeSet<Uid>> {
        let (_, listed) = self.workloads.remove(&(kind.clone(), scope.clone()))?;
        Some(listed)
    }

    /// Whether a workload was made when no earlier operator could say that it waits.
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

    /// All semaphores there have been listed. Returns whether that is news.
    pub(super) fn know_semaphores(&mut self, scope: &WatchScope) -> bool {
        self.semaphores.insert(scope.clone())
    }

    /// Whether all semaphores of a namespace are known.
    pub(super) fn knows_semaphores(&self, namespace: &Arc<str>) -> bool {
        let own = WatchScope::Namespace(namespace.clone());
        self.semaphores.contains(&WatchScope::Cluster) || self.semaphores.contains(&own)
    }
}
