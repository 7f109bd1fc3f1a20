//! Which lines have a contender of which Job. A Job that has changed its key since it was granted a
//! slot is looked after by the line of the new one; that of the old one must hear of it, too.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem,
};

use super::{Index, LineRef, State};
use crate::semaphore::Uid;

/// The lines that have a contender of each Job.
#[derive(Default)]
pub(super) struct Contenders {
    by_job: HashMap<Uid, BTreeSet<LineRef>>,
    by_line: HashMap<LineRef, HashSet<Uid>>,
}

impl Contenders {
    /// The Jobs that a line has contenders of, from now on.
    fn put(&mut self, line: &LineRef, jobs: HashSet<Uid>) {
        let known = self.by_line.get_mut(line);
        if known
            .as_deref()
            .map_or(jobs.is_empty(), |known| *known == jobs)
        {
            return;
        }
        let before = known.map(mem::take).unwrap_or_default();
        for gone in before.difference(&jobs) {
            if let Some(lines) = self.by_job.get_mut(gone) {
                lines.remove(line);
                if lines.is_empty() {
                    self.by_job.remove(gone);
                }
            }
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

    /// A line is gone.
    pub(super) fn forget(&mut self, line: &LineRef) {
        self.put(line, HashSet::new());
    }

    /// The lines that have a contender of a Job.
    pub(super) fn lines_of(&self, job: &Uid) -> impl Iterator<Item = &LineRef> {
        self.by_job.get(job).into_iter().flatten()
    }
}

impl Index {
    /// A line has contenders of these Jobs: its grantor is woken when one of them changes, whoever
    /// looks after it. To be called before the Jobs are looked at, so that no change is missed.
    pub(in crate::controller) fn has_contenders(&self, line: &LineRef, jobs: HashSet<Uid>) {
        self.state().contenders.put(line, jobs);
    }
}

impl State {
    /// Wakes all who have a contender of a Job.
    pub(super) fn wake_contenders(&self, job: &Uid) {
        for line in self.contenders.lines_of(job) {
            if let Some(line) = self.line(line) {
                line.wake.notify_one();
            }
        }
    }
}
