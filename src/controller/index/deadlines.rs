//! When the waiting workloads of a queue may have waited for too long.

use std::collections::{BTreeSet, HashMap};

use consul_semaphore::Uid;

/// The waiting workloads whose wait ends, by the time at which that may be so, in seconds since 1970.
#[derive(Default)]
pub(super) struct Deadlines {
    by_time: BTreeSet<(i64, Uid)>,
    times: HashMap<Uid, i64>,
}

impl Deadlines {
    /// A workload's wait does not end before this.
    pub(super) fn set(&mut self, workload: &Uid, time: i64) {
        self.forget(workload);
        self.by_time.insert((time, workload.clone()));
        self.times.insert(workload.clone(), time);
    }

    /// The same, for a workload that is known here.
    pub(super) fn postpone(&mut self, workload: &Uid, time: i64) {
        if self.times.contains_key(workload) {
            self.set(workload, time);
        }
    }

    pub(super) fn forget(&mut self, workload: &Uid) {
        if let Some(time) = self.times.remove(workload) {
            self.by_time.remove(&(time, workload.clone()));
        }
    }

    pub(super) fn clear(&mut self) {
        self.by_time.clear();
        self.times.clear();
    }

    /// Those whose time has come, the earliest first.
    pub(super) fn due(&self, now: i64) -> impl Iterator<Item = &Uid> {
        let due = self
            .by_time
            .iter()
            .take_while(move |(time, _)| *time <= now);
        due.map(|(_, workload)| workload)
    }

    /// The earliest time.
    pub(super) fn next(&self) -> Option<i64> {
        self.by_time.first().map(|(time, _)| *time)
    }
}
