//! Which lines have a contender of which workload. A workload that has changed its key since it was granted a
//! slot is looked after by the line of the new one; that of the old one must hear of it, too.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
    sync::Arc,
};

use super::Index;
use consul_client::id::{IdMap, IdSet};
use consul_semaphore::{Uid, Workload, engine::QueueRef};

/// The lines that have a contender of each workload.
#[derive(Default)]
pub(super) struct Contenders {
    by_workload: IdMap<Uid, BTreeSet<QueueRef>>,
    by_line: HashMap<QueueRef, IdSet<Uid>>,
}

impl Contenders {
    /// The workloads that a line has contenders of, from now on.
    fn put(&mut self, line: &QueueRef, workloads: &[&Uid]) {
        let known = self.by_line.get_mut(line);
        // Of two contenders for one workload, whose workload stays known too long is woken in vain at the most.
        let same = known.as_deref().map_or(workloads.is_empty(), |known| {
            known.len() == workloads.len()
                && workloads.iter().all(|workload| known.contains(*workload))
        });
        if same {
            return;
        }
        let before = known.map(mem::take).unwrap_or_default();
        let workloads: IdSet<Uid> = workloads.iter().copied().cloned().collect();
        for gone in before.difference(&workloads) {
            self.forget_workload(gone, line);
        }
        for new in workloads.difference(&before) {
            let lines = self.by_workload.entry(new.clone()).or_default();
            lines.insert(line.clone());
        }
        if workloads.is_empty() {
            self.by_line.remove(line);
        } else {
            self.by_line.insert(line.clone(), workloads);
        }
    }

    /// A line has a contender of one more workload from now on, or of one less.
    fn set(&mut self, line: &QueueRef, workload: &Uid, has: bool) {
        if has {
            let workloads = self.by_line.entry(line.clone()).or_default();
            if workloads.insert(workload.clone()) {
                let lines = self.by_workload.entry(workload.clone()).or_default();
                lines.insert(line.clone());
            }
            return;
        }
        if let Some(workloads) = self.by_line.get_mut(line) {
            workloads.remove(workload);
            if workloads.is_empty() {
                self.by_line.remove(line);
            }
        }
        self.forget_workload(workload, line);
    }

    fn forget_workload(&mut self, workload: &Uid, line: &QueueRef) {
        if let Some(lines) = self.by_workload.get_mut(workload) {
            lines.remove(line);
            if lines.is_empty() {
                self.by_workload.remove(workload);
            }
        }
    }

    /// A line is gone.
    pub(super) fn forget(&mut self, line: &QueueRef) {
        self.put(line, &[]);
    }

    /// The lines that have a contender of a workload.
    pub(super) fn lines_of(&self, workload: &Uid) -> impl Iterator<Item = &QueueRef> {
        self.by_workload.get(workload).into_iter().flatten()
    }
}

impl Index {
    /// The workloads that a line has contenders of, each if it is there: from now on the line is
    /// marked when one of them changes, whoever looks after it.
    pub(in crate::controller) fn workloads_of(
        &self,
        line: &QueueRef,
        uids: &[&Uid],
    ) -> Vec<Option<Arc<Workload>>> {
        let mut state = self.state();
        state.contenders.put(line, uids);
        let workloads = uids.iter().map(|uid| state.workloads.get(*uid));
        workloads
            .map(|kept| kept.map(|kept| kept.workload.clone()))
            .collect()
    }

    /// A line has a contender of one more workload, or of one less: the same as for all of them.
    pub(in crate::controller) fn contends(
        &self,
        line: &QueueRef,
        uid: &Uid,
        does: bool,
    ) -> Option<Arc<Workload>> {
        let mut state = self.state();
        state.contenders.set(line, uid, does);
        state.workload(uid).filter(|_| does)
    }
}
