//! The workloads that ask for the same slots and replace each other: of those that wait only the newest goes on.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use consul_semaphore::{Uid, Workload};
use consul_semaphore_api::ConsulSpec;

/// Slots at a lock key, wherever their semaphore is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Asked {
    /// The datacenter, the namespace and the partition of Consul.
    place: [Option<String>; 3],
    lock_key: String,
    slots: u32,
}

impl Asked {
    pub(super) fn new(consul: Option<&ConsulSpec>, lock_key: String, slots: u32) -> Self {
        let consul = consul.cloned().unwrap_or_default();
        Self {
            place: [consul.datacenter, consul.namespace, consul.partition],
            lock_key,
            slots,
        }
    }
}

/// Those that ask for the same.
#[derive(Default)]
struct Group {
    /// Those that wait and were never granted it, the newest last.
    waiting: BTreeSet<(i64, Arc<str>, Uid)>,
    running: BTreeSet<Uid>,
}

/// All such workloads.
#[derive(Default)]
pub(super) struct Alike {
    groups: HashMap<Arc<[Asked]>, Group>,
    group_of: HashMap<Uid, Arc<[Asked]>>,
}

impl Alike {
    /// A workload waits. Returns the one that is superseded now and was not before: an older one, or this one.
    pub(super) fn waits(&mut self, workload: &Workload, asked: Vec<Asked>) -> Option<Uid> {
        let group = self.group(&workload.uid, asked);
        let newest = group.waiting.last().cloned();
        let own = workload.age();
        group.waiting.insert(own.clone());
        let (.., superseded) = newest.map(|newest| newest.min(own))?;
        Some(superseded)
    }

    /// A workload runs in its slots.
    pub(super) fn runs(&mut self, workload: &Uid, asked: Vec<Asked>) {
        let group = self.group(workload, asked);
        group.running.insert(workload.clone());
    }

    fn group(&mut self, workload: &Uid, mut asked: Vec<Asked>) -> &mut Group {
        asked.sort();
        let asked: Arc<[Asked]> = asked.into();
        self.group_of.insert(workload.clone(), asked.clone());
        self.groups.entry(asked).or_default()
    }

    /// A workload neither waits nor runs any more.
    pub(super) fn forget(&mut self, workload: &Workload) {
        let Some(asked) = self.group_of.remove(&workload.uid) else {
            return;
        };
        let Some(group) = self.groups.get_mut(&asked) else {
            return;
        };
        group.waiting.remove(&workload.age());
        group.running.remove(&workload.uid);
        if group.waiting.is_empty() && group.running.is_empty() {
            self.groups.remove(&asked);
        }
    }

    /// The newest of those that wait for the same as this one.
    pub(super) fn newest(&self, workload: &Uid) -> Option<&Uid> {
        let (.., newest) = self.of(workload)?.waiting.last()?;
        Some(newest)
    }

    /// Those that run in the same slots as this one asks for.
    pub(super) fn running(&self, workload: &Uid) -> impl Iterator<Item = &Uid> {
        self.of(workload)
            .into_iter()
            .flat_map(|group| &group.running)
    }

    fn of(&self, workload: &Uid) -> Option<&Group> {
        self.groups.get(self.group_of.get(workload)?)
    }
}
