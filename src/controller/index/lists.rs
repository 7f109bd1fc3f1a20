//! What the lists of the watches have shown so far. Each watch has its own: of the whole cluster, or of
//! one namespace.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use crate::watch_scope::WatchScope;
use consul_client::clock::Moment;
use consul_semaphore::Uid;

/// How far the lists have come.
#[derive(Default)]
pub(super) struct Lists {
    /// While workloads are listed anew: since when, and those that were seen.
    workloads: HashMap<WatchScope, (Moment, BTreeSet<Uid>)>,
    /// Where all semaphores are known: until then, that one is missing means nothing.
    semaphores: HashSet<WatchScope>,
}

impl Lists {
    /// A list of all workloads there begins.
    pub(super) fn begin(&mut self, reach: &WatchScope) {
        let list = (Moment::now(), BTreeSet::new());
        self.workloads.insert(reach.clone(), list);
    }

    /// That list is complete; what was in it.
    pub(super) fn end(&mut self, reach: &WatchScope) -> Option<BTreeSet<Uid>> {
        let (_, listed) = self.workloads.remove(reach)?;
        Some(listed)
    }

    /// Takes note of a workload that a watch shows; says when the list began, if it shows it in one.
    pub(super) fn note(&mut self, namespace: &str, workload: &Uid) -> Option<Moment> {
        let mut lists = self.workloads.iter_mut();
        let (_, (began, listed)) = lists.find(|(reach, _)| reach.covers(namespace))?;
        listed.insert(workload.clone());
        Some(*began)
    }

    /// All semaphores there have been listed.
    pub(super) fn know_semaphores(&mut self, reach: &WatchScope) {
        self.semaphores.insert(reach.clone());
    }

    /// Whether all semaphores of a namespace are known.
    pub(super) fn knows_semaphores(&self, namespace: &Arc<str>) -> bool {
        let own = WatchScope::Namespace(namespace.clone());
        self.semaphores.contains(&WatchScope::Cluster) || self.semaphores.contains(&own)
    }
}
