//! The Jobs that concern the operator, by the semaphore that they are with.
//!
//! Watch events go in; each semaphore's grantor is woken and takes out its slice. An event costs
//! O(log n), and nothing ever looks through all Jobs but a change of the semaphores themselves.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::job::{Kept, Obstacle};
use crate::semaphore::{Job, Place, Standing, Uid, plan::Stop};

/// A `ConsulSemaphore` by its namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SemaphoreRef {
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
}

impl std::fmt::Display for SemaphoreRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a grantor takes out of the index for a pass.
#[derive(Debug, Default)]
pub(super) struct Slice {
    /// The Jobs that were started here and have not ended.
    pub(super) bound: Vec<Job>,
    /// The head of the line, in order.
    pub(super) line: Vec<Job>,
    /// How many are in line.
    pub(super) waiting: usize,
}

/// The index; clones share one.
#[derive(Clone, Default)]
pub(super) struct Index(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    strays_changed: Notify,
    ungranted_changed: Notify,
}

#[derive(Default)]
struct State {
    jobs: HashMap<Uid, Kept>,
    semaphores: HashMap<SemaphoreRef, Semaphore>,
    /// The semaphores by their namespace and lock key; two can name the same key.
    by_lock_key: HashMap<(Arc<str>, String), BTreeSet<SemaphoreRef>>,
    strays: BTreeSet<Uid>,
    /// The Jobs that run though no grant started them, and ask for a slot.
    ungranted: BTreeSet<Uid>,
    /// Whether all semaphores are known: until then, that one is missing means nothing.
    semaphores_known: bool,
    /// While the Jobs are listed anew: those that were seen.
    listed: Option<BTreeSet<Uid>>,
}

struct Semaphore {
    lock_key: String,
    wake: Arc<Notify>,
    line: BTreeMap<Place, Uid>,
    bound: BTreeSet<Uid>,
    /// Jobs that came in line since the grantor last asked.
    newcomers: BTreeSet<Uid>,
    /// Jobs of which a pod has ended since the grantor last asked.
    touched: BTreeSet<Uid>,
}

impl Index {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, so what is behind a poisoned one is whole.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A list of all Jobs begins; those that are not in it are gone when it ends.
    pub(super) fn list_begins(&self) {
        self.state().listed = Some(BTreeSet::new());
    }

    /// The list of all Jobs is complete.
    pub(super) fn list_ends(&self) {
        let mut state = self.state();
        if let Some(listed) = state.listed.take() {
            let gone: Vec<Uid> = state
                .jobs
                .keys()
                .filter(|uid| !listed.contains(uid))
                .cloned()
                .collect();
            for uid in &gone {
                state.remove(uid);
            }
        }
        drop(state);
        self.0.strays_changed.notify_one();
    }

    /// A Job as the watch shows it; `None` if it does not concern the operator (any more).
    pub(super) fn put(&self, uid: &Uid, kept: Option<Kept>) {
        let mut state = self.state();
        let listing = state
            .listed
            .as_mut()
            .map(|listed| listed.insert(uid.clone()))
            .is_some();
        match kept {
            Some(kept) => state.put(kept, !listing),
            None => state.remove(uid),
        }
        self.tell(&state, uid);
    }

    /// A Job as it was answered to a request. One that is gone since does not come back by it.
    pub(super) fn refresh(&self, kept: Kept) {
        let mut state = self.state();
        let uid = kept.job.uid.clone();
        if state.jobs.contains_key(&uid) {
            state.put(kept, true);
            self.tell(&state, &uid);
        }
    }

    /// A Job as it was read when it had changed in the meantime; `None` if it is gone.
    pub(super) fn reread(&self, uid: &Uid, now: Option<Kept>) {
        match now {
            Some(now) => self.refresh(now),
            None => self.remove(uid),
        }
    }

    /// A Job is gone.
    pub(super) fn remove(&self, uid: &Uid) {
        self.state().remove(uid);
    }

    fn tell(&self, state: &State, uid: &Uid) {
        if state.strays.contains(uid) {
            self.0.strays_changed.notify_one();
        }
        if state.ungranted.contains(uid) {
            self.0.ungranted_changed.notify_one();
        }
    }

    /// A pod of a Job has ended, or is gone.
    pub(super) fn pod_ended(&self, namespace: &str, lock_key: &str, job: &Uid) {
        let mut state = self.state();
        let State {
            semaphores,
            by_lock_key,
            ..
        } = &mut *state;
        for reference in by_lock_key
            .get(&(namespace.into(), lock_key.into()))
            .into_iter()
            .flatten()
        {
            if let Some(semaphore) = semaphores.get_mut(reference) {
                semaphore.touched.insert(job.clone());
                semaphore.wake.notify_one();
            }
        }
    }

    /// A semaphore has a grantor from now on, which is woken by `wake`.
    pub(super) fn add_semaphore(
        &self,
        reference: SemaphoreRef,
        lock_key: String,
        wake: Arc<Notify>,
    ) {
        let mut state = self.state();
        let namespace = reference.namespace.clone();
        let by_lock_key = state
            .by_lock_key
            .entry((namespace.clone(), lock_key.clone()));
        by_lock_key.or_default().insert(reference.clone());
        let semaphore = Semaphore {
            lock_key,
            wake,
            line: BTreeMap::new(),
            bound: BTreeSet::new(),
            newcomers: BTreeSet::new(),
            touched: BTreeSet::new(),
        };
        state.semaphores.insert(reference, semaphore);
        state.rearrange(&namespace);
        drop(state);
        self.0.strays_changed.notify_one();
    }

    /// All semaphores that there are have been added.
    pub(super) fn semaphores_are_known(&self) {
        self.state().semaphores_known = true;
    }

    /// A semaphore is gone.
    pub(super) fn remove_semaphore(&self, reference: &SemaphoreRef) {
        let mut state = self.state();
        if let Some(semaphore) = state.semaphores.remove(reference) {
            let key = (reference.namespace.clone(), semaphore.lock_key);
            if let Some(references) = state.by_lock_key.get_mut(&key) {
                references.remove(reference);
                if references.is_empty() {
                    state.by_lock_key.remove(&key);
                }
            }
        }
        state.rearrange(&reference.namespace);
        drop(state);
        self.0.strays_changed.notify_one();
    }

    /// A semaphore's Jobs, with at most `head` of its line.
    pub(super) fn slice(&self, reference: &SemaphoreRef, head: usize) -> Slice {
        let state = self.state();
        let Some(semaphore) = state.semaphores.get(reference) else {
            return Slice::default();
        };
        let job = |uid| state.jobs.get(uid).map(|kept| kept.job.clone());
        Slice {
            bound: semaphore.bound.iter().filter_map(job).collect(),
            line: semaphore.line.values().take(head).filter_map(job).collect(),
            waiting: semaphore.line.len(),
        }
    }

    /// A Job by its uid.
    pub(super) fn job(&self, uid: &Uid) -> Option<Job> {
        self.state().jobs.get(uid).map(|kept| kept.job.clone())
    }

    /// The Jobs that came in line since this was last asked and that are in it still.
    pub(super) fn newcomers(&self, reference: &SemaphoreRef) -> Vec<Job> {
        let mut state = self.state();
        let Some(semaphore) = state.semaphores.get_mut(reference) else {
            return Vec::new();
        };
        let newcomers = std::mem::take(&mut semaphore.newcomers);
        let jobs = newcomers.iter().filter_map(|uid| state.jobs.get(uid));
        jobs.map(|kept| kept.job.clone())
            .filter(Job::in_line)
            .collect()
    }

    /// The Jobs of which a pod has ended since this was last asked.
    pub(super) fn touched(&self, reference: &SemaphoreRef) -> BTreeSet<Uid> {
        let mut state = self.state();
        let semaphore = state.semaphores.get_mut(reference);
        semaphore
            .map(|semaphore| std::mem::take(&mut semaphore.touched))
            .unwrap_or_default()
    }

    /// The first in line of a semaphore, at most so many.
    pub(super) fn head(&self, reference: &SemaphoreRef, most: usize) -> Vec<Job> {
        let state = self.state();
        let semaphore = state.semaphores.get(reference);
        let line = semaphore
            .into_iter()
            .flat_map(|semaphore| semaphore.line.values().take(most));
        let jobs = line.filter_map(|uid| state.jobs.get(uid));
        jobs.map(|kept| kept.job.clone()).collect()
    }

    /// All in line of a semaphore, in order.
    pub(super) fn line(&self, reference: &SemaphoreRef) -> Vec<Job> {
        self.head(reference, usize::MAX)
    }

    /// The Jobs that no grantor looks after.
    pub(super) fn strays(&self) -> Vec<Kept> {
        let state = self.state();
        let strays = state.strays.iter().filter_map(|uid| state.jobs.get(uid));
        strays.cloned().collect()
    }

    /// Some of the Jobs that run though no grant started them, whether a grantor looks after them or
    /// not: at most so many, of those whose turn it is.
    pub(super) fn ungranted(&self, most: usize, its_turn: impl Fn(&Uid) -> bool) -> Vec<Kept> {
        let state = self.state();
        let due = state.ungranted.iter().filter(|uid| its_turn(uid));
        let kept = due.take(most).filter_map(|uid| state.jobs.get(uid));
        kept.cloned().collect()
    }

    /// Whether a Job runs though no grant started it.
    pub(super) fn is_ungranted(&self, uid: &Uid) -> bool {
        self.state().ungranted.contains(uid)
    }

    /// Waits until there may be other strays.
    pub(super) async fn strays_changed(&self) {
        self.0.strays_changed.notified().await;
    }

    /// Waits until there may be other Jobs that run without a grant.
    pub(super) async fn ungranted_changed(&self) {
        self.0.ungranted_changed.notified().await;
    }
}

impl State {
    fn put(&mut self, kept: Kept, announce: bool) {
        let uid = kept.job.uid.clone();
        let mut new_in_line = true;
        if let Some(known) = self.jobs.get(&uid) {
            if is_older(&kept.job.version, &known.job.version) {
                return;
            }
            new_in_line = !known.job.in_line();
            self.withdraw(&uid);
        }
        self.arrange(&kept, announce && new_in_line);
        self.jobs.insert(uid, kept);
    }

    fn remove(&mut self, uid: &Uid) {
        self.withdraw(uid);
        self.jobs.remove(uid);
    }

    /// Takes a Job out of its place.
    fn withdraw(&mut self, uid: &Uid) {
        let Some(kept) = self.jobs.get(uid) else {
            return;
        };
        self.strays.remove(uid);
        self.ungranted.remove(uid);
        self.wake(kept);
        let looks_after = self.looks_after(kept);
        if let Some(semaphore) = looks_after.and_then(|by| self.semaphores.get_mut(&by)) {
            semaphore.bound.remove(uid);
            semaphore.line.remove(&kept.job.place());
        }
    }

    /// Gives a Job its place; `announce` if it is to be told that it waits.
    fn arrange(&mut self, kept: &Kept, announce: bool) {
        self.wake(kept);
        let (job, uid) = (&kept.job, &kept.job.uid);
        let managed = matches!(kept.obstacle, Some(Obstacle::Managed(_)));
        if !managed && Stop::of(job).is_some() {
            self.ungranted.insert(uid.clone());
        }
        let ended = matches!(job.standing, Standing::Finished { .. } | Standing::Deleting);
        let looks_after = self.looks_after(kept);
        let Some((reference, semaphore)) = looks_after.and_then(|by| {
            let semaphore = self.semaphores.get_mut(&by)?;
            Some((by, semaphore))
        }) else {
            if !ended {
                self.strays.insert(uid.clone());
            }
            return;
        };
        if job.in_line() && job.wants.as_ref() == Some(&reference.name) {
            semaphore.line.insert(job.place(), uid.clone());
            if announce {
                semaphore.newcomers.insert(uid.clone());
            }
        } else if job.granted.is_some() && !matches!(job.standing, Standing::Finished { .. }) {
            semaphore.bound.insert(uid.clone());
        }
    }

    /// Wakes whoever looks after a Job, and all who may hold a slot for it.
    fn wake(&self, kept: &Kept) {
        let started = kept.job.granted.iter().flat_map(|granted| {
            let key = (kept.namespace.clone(), granted.lock_key.clone());
            self.by_lock_key.get(&key).into_iter().flatten().cloned()
        });
        for reference in self.looks_after(kept).into_iter().chain(started) {
            if let Some(semaphore) = self.semaphores.get(&reference) {
                semaphore.wake.notify_one();
            }
        }
    }

    /// Finds the places of a namespace's Jobs anew, because its semaphores have changed.
    fn rearrange(&mut self, namespace: &str) {
        for (reference, semaphore) in &mut self.semaphores {
            if reference.namespace.as_ref() == namespace {
                semaphore.line.clear();
                semaphore.bound.clear();
            }
        }
        let jobs: Vec<Kept> = self
            .jobs
            .values()
            .filter(|kept| kept.namespace.as_ref() == namespace)
            .cloned()
            .collect();
        for kept in jobs {
            let waited_for_it = self.strays.remove(&kept.job.uid) && self.semaphores_known;
            self.arrange(&kept, waited_for_it);
        }
    }

    /// The semaphore that looks after a Job: the one that started it, until its grant is cleared,
    /// else the one that it asks for.
    fn looks_after(&self, kept: &Kept) -> Option<SemaphoreRef> {
        let Kept {
            namespace,
            job,
            obstacle,
        } = kept;
        let named = |name: &Arc<str>| SemaphoreRef {
            namespace: namespace.clone(),
            name: name.clone(),
        };
        let wanted = job.wants.as_ref().filter(|_| obstacle.is_none()).map(named);
        let wanted = wanted.filter(|reference| self.semaphores.contains_key(reference));
        let Some(granted) = &job.granted else {
            return wanted;
        };
        let started = self
            .by_lock_key
            .get(&(namespace.clone(), granted.lock_key.clone()));
        let Some(started) = started else {
            return wanted;
        };
        wanted
            .filter(|wanted| started.contains(wanted))
            .or_else(|| started.first().cloned())
    }
}

/// Whether a version is older than another: the API server's versions of one object grow, and may
/// be compared as numbers where they are numbers (KEP-5504).
fn is_older(version: &str, known: &str) -> bool {
    match (version.parse::<u64>(), known.parse::<u64>()) {
        (Ok(version), Ok(known)) => version < known,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
