//! Groups the workloads that ask for the same slots and replace each other. Of those that wait, only the newest goes
//! on.
//!
//! Workloads replace each other only if they use the same credential of Consul. Whoever may create a
//! `ConsulSemaphore` may name any lock key, so by the lock key alone a namespace could end the workloads of another
//! one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use consul_semaphore::{Uid, Workload, engine::SemaphoreRef};
use consul_semaphore_api::{ConsulSemaphore, ConsulSpec, TokenSecretRef, tenancy::Tenancy};

/// Credential that a semaphore shows to Consul.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::controller) enum Credential {
    /// The operator's own token.
    Operator,
    /// The token in a Secret of this namespace. If another namespace has the same text in a Secret, it still has
    /// another credential: its sessions are on another node, and Consul's ACL decides by node who may make sessions.
    Secret {
        namespace: Arc<str>,
        secret: String,
        key: String,
    },
}

impl Credential {
    /// Returns the credential of a semaphore; `None` if the semaphore may not use the operator's token, and has none
    /// of its own.
    pub(in crate::controller) fn of(
        semaphore: &ConsulSemaphore,
        tenancy: &Tenancy,
    ) -> Option<Self> {
        let namespace = semaphore.metadata.namespace.as_deref().unwrap_or_default();
        let consul = semaphore.spec.consul.as_ref();
        if let Some(TokenSecretRef { name, key }) =
            consul.and_then(|consul| consul.token_secret_ref.as_ref())
        {
            return Some(Self::Secret {
                namespace: namespace.into(),
                secret: name.clone(),
                key: key.clone(),
            });
        }
        let allowed = tenancy.check(namespace, &semaphore.prefix()).is_ok();
        allowed.then_some(Self::Operator)
    }
}

/// Slots at a lock key, and the credential with which they are asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SlotClaim {
    credential: Credential,
    /// Datacenter, namespace and partition of Consul.
    place: [Option<String>; 3],
    lock_key: String,
    slots: u32,
}

impl SlotClaim {
    pub(super) fn new(
        credential: Credential,
        consul: Option<&ConsulSpec>,
        lock_key: String,
        slots: u32,
    ) -> Self {
        let consul = consul.cloned().unwrap_or_default();
        Self {
            credential,
            place: [consul.datacenter, consul.namespace, consul.partition],
            lock_key,
            slots,
        }
    }
}

/// Workloads that ask for the same slots.
#[derive(Default)]
struct ReplacementGroup {
    /// Workloads that wait for these slots and were never granted them, by the semaphores that they name: the newest
    /// last.
    waiting: BTreeMap<Arc<[SemaphoreRef]>, BTreeSet<Age>>,
    running: BTreeSet<Uid>,
}

/// Age of a workload: ages sort in the order of creation.
type Age = (i64, Arc<str>, Uid);

impl ReplacementGroup {
    /// Returns the newest of all workloads that wait in the group.
    fn newest(&self) -> Option<&Age> {
        self.waiting.values().filter_map(BTreeSet::last).max()
    }
}

/// Membership of a workload: its group, and the semaphores that it names there.
#[derive(Clone)]
struct Member {
    asked: Arc<[SlotClaim]>,
    semaphores: Arc<[SemaphoreRef]>,
}

/// Groups of all workloads that replace each other.
#[derive(Default)]
pub(super) struct Alike {
    groups: HashMap<Arc<[SlotClaim]>, ReplacementGroup>,
    members: HashMap<Uid, Member>,
}

impl Alike {
    /// Adds a workload that waits for slots of these semaphores. Returns the workload that is superseded by this and
    /// was not before: an older one, or this one.
    pub(super) fn waits(
        &mut self,
        workload: &Workload,
        asked: Vec<(SemaphoreRef, SlotClaim)>,
    ) -> Option<Uid> {
        let (member, group) = self.join(&workload.uid, asked);
        let newest = group.newest().cloned();
        let own = workload.age();
        let waiting = group.waiting.entry(member.semaphores).or_default();
        waiting.insert(own.clone());
        let (.., superseded) = newest.map(|newest| newest.min(own))?;
        Some(superseded)
    }

    /// Adds a workload that runs in its slots of these semaphores.
    pub(super) fn runs(&mut self, workload: &Uid, asked: Vec<(SemaphoreRef, SlotClaim)>) {
        let (_, group) = self.join(workload, asked);
        group.running.insert(workload.clone());
    }

    fn join(
        &mut self,
        workload: &Uid,
        mut asked: Vec<(SemaphoreRef, SlotClaim)>,
    ) -> (Member, &mut ReplacementGroup) {
        asked.sort_by(|(_, a), (_, b)| a.cmp(b));
        let (semaphores, asked): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
        let member = Member {
            asked: asked.into(),
            semaphores: semaphores.into(),
        };
        self.members.insert(workload.clone(), member.clone());
        let group = self.groups.entry(member.asked.clone()).or_default();
        (member, group)
    }

    /// Removes a workload that neither waits nor runs any more.
    pub(super) fn forget(&mut self, workload: &Workload) {
        let Some(member) = self.members.remove(&workload.uid) else {
            return;
        };
        let Some(group) = self.groups.get_mut(&member.asked) else {
            return;
        };
        if let Some(waiting) = group.waiting.get_mut(&member.semaphores) {
            waiting.remove(&workload.age());
            if waiting.is_empty() {
                group.waiting.remove(&member.semaphores);
            }
        }
        group.running.remove(&workload.uid);
        if group.waiting.is_empty() && group.running.is_empty() {
            self.groups.remove(&member.asked);
        }
    }

    /// Returns newer workloads that wait for the same as this one: the newest of each semaphore, in the order from
    /// new to old, at most this many.
    pub(super) fn newer(&self, than: &Workload, most: usize) -> Vec<&Uid> {
        let group = self.group_of(&than.uid).into_iter();
        let waiting = group.flat_map(|group| group.waiting.values());
        let newest = waiting.filter_map(BTreeSet::last);
        let mut newer: Vec<_> = newest.filter(|newest| **newest > than.age()).collect();
        newer.sort_unstable_by(|a, b| b.cmp(a));
        newer.truncate(most);
        newer.into_iter().map(|(.., uid)| uid).collect()
    }

    /// Returns the workloads that run in the same slots as this one asks for.
    pub(super) fn running(&self, workload: &Uid) -> impl Iterator<Item = &Uid> {
        let group = self.group_of(workload).into_iter();
        group.flat_map(|group| &group.running)
    }

    fn group_of(&self, workload: &Uid) -> Option<&ReplacementGroup> {
        self.groups.get(&self.members.get(workload)?.asked)
    }
}
