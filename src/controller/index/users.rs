//! Keeps which workloads a semaphore concerns: a change of the semaphore arranges these workloads again, and no
//! others.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use consul_client::id::IdSet;
use consul_semaphore::{Uid, engine::SemaphoreRef, lock_key_parts};
use consul_semaphore_workload::TrackedWorkload;

/// Workloads that use each semaphore.
#[derive(Default)]
pub(super) struct Users {
    /// Workloads that name a semaphore, by the number of its slots that they ask for. That number is the most at any
    /// key of the semaphore, and 0 if an obstacle keeps the workload from asking.
    naming: HashMap<SemaphoreRef, BTreeMap<u32, IdSet<Uid>>>,
    /// Workloads that were started in a slot of a lock key, by their namespace and the prefixes of the semaphores
    /// that may have that lock key.
    started: HashMap<(Arc<str>, String), IdSet<Uid>>,
}

impl Users {
    /// Adds a workload.
    pub(super) fn insert(&mut self, tracked: &TrackedWorkload) {
        let uid = &tracked.workload.uid;
        for (semaphore, slots) in named(tracked) {
            let naming = self.naming.entry(semaphore).or_default();
            naming.entry(slots).or_default().insert(uid.clone());
        }
        for at in started_at(tracked) {
            self.started.entry(at).or_default().insert(uid.clone());
        }
    }

    /// Removes a workload, as this version of it was added.
    pub(super) fn remove(&mut self, tracked: &TrackedWorkload) {
        let uid = &tracked.workload.uid;
        for (semaphore, slots) in named(tracked) {
            let Some(naming) = self.naming.get_mut(&semaphore) else {
                continue;
            };
            if let Some(users) = naming.get_mut(&slots) {
                users.remove(uid);
                if users.is_empty() {
                    naming.remove(&slots);
                }
            }
            if naming.is_empty() {
                self.naming.remove(&semaphore);
            }
        }
        for at in started_at(tracked) {
            if let Some(users) = self.started.get_mut(&at) {
                users.remove(uid);
                if users.is_empty() {
                    self.started.remove(&at);
                }
            }
        }
    }

    /// Returns the workloads that name a semaphore and ask for at least this many slots of it, each with the number
    /// of slots.
    pub(super) fn naming(
        &self,
        semaphore: &SemaphoreRef,
        least: u32,
    ) -> impl Iterator<Item = (u32, &Uid)> {
        let by_slots = self.naming.get(semaphore).into_iter();
        let naming = by_slots.flat_map(move |by_slots| by_slots.range(least..));
        naming.flat_map(|(slots, users)| users.iter().map(|uid| (*slots, uid)))
    }

    /// Returns the workloads of a namespace that were started in a slot of a semaphore at this prefix. If that
    /// semaphore is keyed, the slots of its keys count.
    pub(super) fn started(&self, namespace: &Arc<str>, prefix: &str) -> impl Iterator<Item = &Uid> {
        let at = (namespace.clone(), prefix.to_owned());
        self.started.get(&at).into_iter().flatten()
    }

    /// Whether no semaphore has users.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.naming.is_empty() && self.started.is_empty()
    }
}

/// Returns the semaphores that a workload names, each with the number of slots that it asks for.
fn named(tracked: &TrackedWorkload) -> BTreeMap<SemaphoreRef, u32> {
    let mut named = BTreeMap::new();
    let requests = tracked.workload.requests.iter();
    let asked = requests.map(|request| (&request.semaphore, request.slots.get()));
    let barred = tracked.barred_from.iter().map(|name| (name, 0));
    for (name, slots) in asked.chain(barred) {
        let semaphore = SemaphoreRef {
            namespace: tracked.namespace.clone(),
            name: name.clone(),
        };
        let most: &mut u32 = named.entry(semaphore).or_default();
        *most = slots.max(*most);
    }
    named
}

/// Returns the namespaces and prefixes that the semaphores may have in whose slots a workload was started.
fn started_at(tracked: &TrackedWorkload) -> impl Iterator<Item = (Arc<str>, String)> {
    let granted = tracked.workload.granted.iter();
    let slots = granted.flat_map(|granted| &granted.slots);
    let parts = slots.filter_map(|slot| lock_key_parts(&slot.lock_key));
    let prefixes = parts.flat_map(|(prefix, above)| {
        let above = above.map(|(prefix, _key)| prefix);
        [Some(prefix), above].into_iter().flatten()
    });
    prefixes.map(|prefix| (tracked.namespace.clone(), prefix.to_owned()))
}
