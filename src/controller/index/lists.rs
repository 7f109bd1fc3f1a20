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
    /// While Jobs are listed anew: since when, and those that were seen.
    jobs: HashMap<WatchScope, (Moment, BTreeSet<Uid>)>,
    /// Where all semaphores are known: until then, that one is missing means nothing.
    semaphores: HashSet<WatchScope>,
}

impl Lists {
    /// A list of all Jobs there begins.
    pub(super) fn begin(&mut self, reach: &WatchScope) {
        let list = (Moment::now(), BTreeSet::new());
        self.jobs.insert(reach.clone(), list);
    }

    /// That list is complete; what was in it.
    pub(super) fn end(&mut self, reach: &WatchScope) -> Option<BTreeSet<Uid>> {
        let (_, listed) = self.jobs.remove(reach)?;
        Some(listed)
    }

    /// Takes note of a Job that a watch shows; says when the list began, if it shows it in one.
    pub(super) fn note(&mut self, namespace: &str, job: &Uid) -> Option<Moment> {
        let mut lists = self.jobs.iter_mut();
        let (_, (began, listed)) = lists.find(|(reach, _)| reach.covers(namespace))?;
        listed.insert(job.clone());
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
