//! The accounts of all keys of a semaphore, and their sums. That of one key changes at the cost of that
//! one, however many there are.

#![expect(
    clippy::ref_option,
    reason = "a semaphore without keys is found in the same maps, by None"
)]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use super::branch::{Account, Obstacle, SpecOf};
use crate::controller::index::InLine;
use consul_semaphore::{Key, Uid};
use consul_semaphore_api::{
    HolderStatus, LISTED,
    conditions::{ConditionStatus, ConditionType, Finding, Reason},
};

type Keys = BTreeSet<Option<Key>>;

/// What was last heard of each lock key, with the sums of it.
#[derive(Default)]
pub(super) struct Sums {
    accounts: HashMap<Option<Key>, Account>,
    pub(super) held: usize,
    pub(super) held_here: usize,
    pub(super) waiting: usize,
    /// For how many of those who wait a slot of their key is free.
    pub(super) idle: usize,
    /// The Jobs in line that hold a slot already.
    pub(super) starting: BTreeSet<Uid>,
    /// The oldest holders of each key by their age, each as a place in the account of its key.
    holders: BTreeSet<(Option<u64>, Option<Key>, usize)>,
    limits: Counts<u32>,
    settled: Counts<u32>,
    specs: Counts<SpecOf>,
    waits: Counts<Duration>,
    used: Keys,
    awaiting: Keys,
    recording: Keys,
    holding: Keys,
    unfinished: Keys,
    hindered: Keys,
    /// Of which keys a condition says what.
    found: BTreeMap<(ConditionType, Standing, Reason), Keys>,
}

/// How many of each there are.
type Counts<T> = BTreeMap<T, usize>;

/// A condition's status, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    False,
    Unknown,
    True,
}

impl From<ConditionStatus> for Standing {
    fn from(status: ConditionStatus) -> Self {
        match status {
            ConditionStatus::False => Self::False,
            ConditionStatus::Unknown => Self::Unknown,
            ConditionStatus::True => Self::True,
        }
    }
}

fn count<T: Ord>(counts: &mut Counts<T>, what: T, more: bool) {
    let known = counts.entry(what);
    match known {
        std::collections::btree_map::Entry::Occupied(mut known) if more => *known.get_mut() += 1,
        std::collections::btree_map::Entry::Occupied(known) if *known.get() <= 1 => {
            known.remove();
        }
        std::collections::btree_map::Entry::Occupied(mut known) => *known.get_mut() -= 1,
        std::collections::btree_map::Entry::Vacant(new) if more => {
            new.insert(1);
        }
        std::collections::btree_map::Entry::Vacant(_) => {}
    }
}

fn mark<T: Ord + Clone>(set: &mut BTreeSet<T>, what: &T, is: bool) {
    if is {
        set.insert(what.clone());
    } else {
        set.remove(what);
    }
}

impl Sums {
    /// Takes an account in; it replaces the one before of the same key.
    pub(super) fn put(&mut self, account: Account) {
        self.remove(&account.key);
        self.add(&account, true);
        self.accounts.insert(account.key.clone(), account);
    }

    /// Forgets a key.
    pub(super) fn remove(&mut self, key: &Option<Key>) {
        if let Some(before) = self.accounts.remove(key) {
            self.add(&before, false);
        }
    }

    fn add(&mut self, account: &Account, more: bool) {
        let Account {
            key,
            pass: _,
            spec,
            conclusion,
            shown,
            in_line: InLine { waiting, starting },
            awaits_others,
            findings,
            obstacle,
            wait,
            heard: _,
            fencing_token: _,
            left: _,
            moved: _,
        } = account;
        let sum = |sum: &mut usize, part: usize| {
            *sum = if more {
                *sum + part
            } else {
                sum.saturating_sub(part)
            };
        };
        sum(&mut self.held, shown.held);
        sum(&mut self.held_here, shown.held_here);
        sum(&mut self.waiting, *waiting);
        let limit = shown.limit.and_then(|limit| limit.try_into().ok());
        let free = limit.unwrap_or(0_usize).saturating_sub(shown.held);
        sum(&mut self.idle, free.min(*waiting));
        for uid in starting {
            mark(&mut self.starting, uid, more);
        }
        for (place, (age, _)) in shown.holders.iter().enumerate() {
            mark(&mut self.holders, &(*age, key.clone(), place), more);
        }
        if let Some(limit) = shown.limit {
            count(&mut self.limits, limit, more);
        }
        if let Some(limit) = conclusion.settled {
            count(&mut self.settled, limit, more);
        }
        count(&mut self.waits, *wait, more);
        count(&mut self.specs, *spec, more);
        mark(&mut self.used, key, more && shown.held + waiting > 0);
        mark(&mut self.awaiting, key, more && *awaits_others);
        mark(
            &mut self.recording,
            key,
            more && conclusion.record.is_some(),
        );
        mark(&mut self.holding, key, more && !conclusion.nothing_held);
        mark(&mut self.unfinished, key, more && !conclusion.finished);
        mark(&mut self.hindered, key, more && obstacle.is_some());
        for finding in findings {
            let what = (finding.type_, finding.status.into(), finding.reason);
            let keys = self.found.entry(what).or_default();
            mark(keys, key, more);
            if keys.is_empty() {
                self.found.remove(&what);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.accounts.len()
    }

    /// How many keys have a holder or somebody in line.
    pub(super) fn in_use(&self) -> usize {
        self.used.len()
    }

    /// Whether a Job of any key waits for what others may do.
    pub(super) fn awaits_others(&self) -> bool {
        !self.awaiting.is_empty()
    }

    /// The limit in Consul, where all keys have the same.
    pub(super) fn limit(&self) -> Option<u32> {
        let (limit, _) = self.limits.first_key_value()?;
        (self.limits.len() == 1).then_some(*limit)
    }

    /// The oldest spec that any of this is true of.
    pub(super) fn oldest_spec(&self) -> Option<SpecOf> {
        self.specs.first_key_value().map(|(spec, _)| *spec)
    }

    /// Whether every one of so many keys has the limit of this spec, and nothing of another one of ours
    /// is left. What was said under an earlier spec tells nothing of what has been written since.
    pub(super) fn all_settled(&self, spec: SpecOf, keys: usize) -> bool {
        keys > 0
            && self.settled.get(&spec.limit) == Some(&keys)
            && self.specs.get(&spec) == Some(&keys)
    }

    /// The limits that some key needs to have recorded as ours.
    pub(super) fn record(&self) -> Option<&Vec<u32>> {
        let first = self.accounts.get(self.recording.first()?)?;
        first.conclusion.record.as_ref()
    }

    /// Whether Jobs here run in slots, or may have one.
    pub(super) fn anything_held(&self) -> bool {
        !self.holding.is_empty()
    }

    /// Whether all keys of a semaphore that is being deleted are done.
    pub(super) fn all_finished(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// What is in the way of using Consul, at some key.
    pub(super) fn obstacle(&self) -> Option<&Obstacle> {
        let key = self.hindered.first()?;
        self.accounts.get(key)?.obstacle.as_ref()
    }

    /// How long the watch may wait for news, for those who need them most.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.waits.first_key_value().map(|(wait, _)| *wait)
    }

    /// The keys whose `.lock` is left to others, and why.
    pub(super) fn left(&self) -> impl Iterator<Item = (&Option<Key>, &str)> {
        let accounts = self.accounts.values();
        accounts.filter_map(|account| Some((&account.key, account.left.as_deref()?)))
    }

    /// Who holds, the oldest first.
    pub(super) fn holders(&self) -> Vec<HolderStatus> {
        let oldest = self.holders.iter().take(LISTED);
        let holders = oldest.filter_map(|(_, key, place)| {
            let holders = &self.accounts.get(key)?.shown.holders;
            Some(holders.get(*place)?.1.clone())
        });
        holders.collect()
    }

    /// What the conditions say of the one lock key of a semaphore that is not keyed.
    pub(super) fn findings_of_one(&self) -> Option<Vec<Finding>> {
        Some(self.accounts.get(&None)?.findings.clone())
    }

    /// What the conditions say of all keys together.
    pub(super) fn findings(&self, limit: u32) -> Vec<Finding> {
        vec![
            self.ready(),
            self.worst(ConditionType::ConsulReachable, ""),
            self.worst(
                ConditionType::LimitAgreed,
                &format!("Consul's limit is the spec's for every key that is in use: {limit}"),
            ),
            self.slots_available(limit),
        ]
    }

    /// False only if it is so for all keys: what stops one stops no other.
    fn ready(&self) -> Finding {
        let bad = self.count_of(ConditionType::Ready, Standing::False);
        if bad == 0 || bad == self.len() {
            return self.worst(ConditionType::Ready, "slots are granted and released");
        }
        let mut finding = self.worst(ConditionType::Ready, "");
        finding.message = format!(
            "slots are granted and released, but not those of {}",
            finding.message
        );
        finding.status = ConditionStatus::True;
        finding
    }

    /// What is worst of a condition; `fine` is the message if nothing is, or else that of some key.
    fn worst(&self, type_: ConditionType, fine: &str) -> Finding {
        let mut found = self.of_type(type_);
        let some = found.next();
        // A key that has just come to be used says nothing against the others.
        let starting = |what: &(ConditionType, Standing, Reason)| {
            what.1 == Standing::Unknown && what.2 == Reason::Starting
        };
        let worst = match some {
            Some((what, _)) if starting(what) => found.next().or(some),
            // Of those that are well, the one with something to say.
            Some(((_, Standing::True, _), _)) => self.of_type(type_).last(),
            some => some,
        };
        let Some(((_, standing, reason), keys)) = worst else {
            return Finding::new(type_, ConditionStatus::Unknown, Reason::Starting, "");
        };
        let first = keys.first().and_then(|key| self.accounts.get(key));
        let mut findings = first.iter().flat_map(|account| &account.findings);
        let Some(finding) = findings.find(|finding| finding.type_ == type_) else {
            return Finding::new(type_, ConditionStatus::Unknown, Reason::Starting, "");
        };
        let message = match standing {
            Standing::True if !fine.is_empty() => fine.to_owned(),
            Standing::False if keys.len() < self.len() || is_of_a_key(*reason) => {
                format!("{}: {}", named(keys), finding.message)
            }
            _ => finding.message.clone(),
        };
        Finding {
            message,
            ..finding.clone()
        }
    }

    /// That all slots of one key are held says nothing about others.
    pub(super) fn slots_available(&self, limit: u32) -> Finding {
        let type_ = ConditionType::SlotsAvailable;
        let full = (type_, Standing::False, Reason::AllSlotsHeld);
        let running = (type_, Standing::False, Reason::RunningWithoutSlot);
        if self.found.contains_key(&running)
            || self.count_of(type_, Standing::Unknown) == self.len()
        {
            let mut others = self.of_type(type_).filter(|(what, _)| **what != full);
            if let Some((_, keys)) = others.next()
                && let Some(account) = keys.first().and_then(|key| self.accounts.get(key))
                && let Some(finding) = account.findings.iter().find(|f| f.type_ == type_)
            {
                let message = format!("{}: {}", named(keys), finding.message);
                return Finding {
                    message,
                    ..finding.clone()
                };
            }
        }
        let full = self.found.get(&full).map_or(0, BTreeSet::len);
        let message = format!("each key has a limit of its own: {limit}; it is reached by {full}");
        Finding::new(type_, true, Reason::SlotsFree, message)
    }

    fn of_type(
        &self,
        type_: ConditionType,
    ) -> impl Iterator<Item = (&(ConditionType, Standing, Reason), &Keys)> {
        let found = self.found.iter();
        found.filter(move |((of, ..), _)| *of == type_)
    }

    fn count_of(&self, type_: ConditionType, standing: Standing) -> usize {
        let found = self.of_type(type_);
        let found = found.filter(|((_, is, _), _)| *is == standing);
        found.map(|(_, keys)| keys.len()).sum()
    }
}

/// Whether each key has that for itself.
fn is_of_a_key(reason: Reason) -> bool {
    matches!(reason, Reason::LimitConflict | Reason::LockConflict)
}

/// A key, and how many there are beside it.
fn named(keys: &Keys) -> String {
    let first = keys.first().cloned().flatten();
    let first = first.map(|key| format!("key {key}")).unwrap_or_default();
    match keys.len() {
        0 | 1 => first,
        count => format!("{first} and {} more", count - 1),
    }
}

#[cfg(test)]
mod tests;
