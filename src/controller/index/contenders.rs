//! Which lines have a contender of which Job. A Job that has changed its key since it was granted a
//! slot is looked after by the line of the new one; that of the old one must hear of it, too.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
    sync::Arc,
};

use super::Index;
use consul_client::id::{IdMap, IdSet};
use consul_semaphore::{Job, Uid, engine::QueueRef};

/// The lines that have a contender of each Job.
#[derive(Default)]
pub(super) struct Contenders {
    by_job: IdMap<Uid, BTreeSet<QueueRef>>,
    by_line: HashMap<QueueRef, IdSet<Uid>>,
}

impl Contenders {
    /// The Jobs that a line has contenders of, from now on.
    fn put(&mut self, line: &QueueRef, jobs: &[&Uid]) {
        let known = self.by_line.get_mut(line);
        // Of two contenders for one Job, whose Job stays known too long is woken in vain at the most.
        let same = known.as_deref().map_or(jobs.is_empty(), |known| {
            known.len() == jobs.len() && jobs.iter().all(|job| known.contains(*job))
        });
        if same {
            return;
        }
        let before = known.map(mem::take).unwrap_or_default();
        let jobs: IdSet<Uid> = jobs.iter().copied().cloned().collect();
        for gone in before.difference(&jobs) {
            self.forget_job(gone, line);
        }
        for new in jobs.difference(&before) {
            let lines = self.by_job.entry(new.clone()).or_default();
            lines.insert(line.clone());
        }
        if jobs.is_empty() {
            self.by_line.remove(line);
        } else {
            self.by_line.insert(line.clone(), jobs);
        }
    }

    /// A line has a contender of one more Job from now on, or of one less.
    fn set(&mut self, line: &QueueRef, job: &Uid, has: bool) {
        if has {
            let jobs = self.by_line.entry(line.clone()).or_default();
            if jobs.insert(job.clone()) {
                let lines = self.by_job.entry(job.clone()).or_default();
                lines.insert(line.clone());
            }
            return;
        }
        if let Some(jobs) = self.by_line.get_mut(line) {
            jobs.remove(job);
            if jobs.is_empty() {
                self.by_line.remove(line);
            }
        }
        self.forget_job(job, line);
    }

    fn forget_job(&mut self, job: &Uid, line: &QueueRef) {
        if let Some(lines) = self.by_job.get_mut(job) {
            lines.remove(line);
            if lines.is_empty() {
                self.by_job.remove(job);
            }
        }
    }

    /// A line is gone.
    pub(super) fn forget(&mut self, line: &QueueRef) {
        self.put(line, &[]);
    }

    /// The lines that have a contender of a Job.
    pub(super) fn lines_of(&self, job: &Uid) -> impl Iterator<Item = &QueueRef> {
        self.by_job.get(job).into_iter().flatten()
    }
}

impl Index {
    /// The Jobs that a line has contenders of, each if it is there: from now on the line is
    /// marked when one of them changes, whoever looks after it.
    pub(in crate::controller) fn jobs_of(
        &self,
        line: &QueueRef,
        uids: &[&Uid],
    ) -> Vec<Option<Arc<Job>>> {
        let mut state = self.state();
        state.contenders.put(line, uids);
        let jobs = uids.iter().map(|uid| state.jobs.get(*uid));
        jobs.map(|kept| kept.map(|kept| kept.job.clone())).collect()
    }

    /// A line has a contender of one more Job, or of one less: the same as for all of them.
    pub(in crate::controller) fn contends(
        &self,
        line: &QueueRef,
        uid: &Uid,
        does: bool,
    ) -> Option<Arc<Job>> {
        let mut state = self.state();
        state.contenders.set(line, uid, does);
        state.job(uid).filter(|_| does)
    }
}
