//! Keeps the time at which something is to be done about each workload.

use std::collections::{BTreeMap, BTreeSet};

use consul_semaphore::Uid;

/// Workloads in the order of the times at which they are due. All workloads may be here at once, for example when the
/// operator starts, so this type keeps no memory for those that were removed.
pub(super) struct DueTimes<T> {
    by_time: BTreeSet<(T, Uid)>,
    times: BTreeMap<Uid, T>,
}

impl<T> Default for DueTimes<T> {
    fn default() -> Self {
        Self {
            by_time: BTreeSet::new(),
            times: BTreeMap::new(),
        }
    }
}

impl<T: Copy + Ord> DueTimes<T> {
    /// Sets the time of a workload.
    pub(super) fn set(&mut self, workload: &Uid, time: T) {
        self.forget(workload);
        self.by_time.insert((time, workload.clone()));
        self.times.insert(workload.clone(), time);
    }

    /// Sets the time of a workload that already has one.
    pub(super) fn postpone(&mut self, workload: &Uid, time: T) {
        if self.times.contains_key(workload) {
            self.set(workload, time);
        }
    }

    /// Sets the time of a workload, unless it has an earlier one.
    pub(super) fn set_by(&mut self, workload: &Uid, latest: T) {
        if self.times.get(workload).is_none_or(|time| *time > latest) {
            self.set(workload, latest);
        }
    }

    /// Removes the time of a workload.
    pub(super) fn forget(&mut self, workload: &Uid) {
        if let Some(time) = self.times.remove(workload) {
            self.by_time.remove(&(time, workload.clone()));
        }
    }

    /// Returns the workloads that are due, the earliest first.
    pub(super) fn due(&self, now: T) -> impl Iterator<Item = &Uid> {
        let due = self
            .by_time
            .iter()
            .take_while(move |(time, _)| *time <= now);
        due.map(|(_, workload)| workload)
    }

    /// Takes the workload that became due first.
    pub(super) fn take_due(&mut self, now: T) -> Option<Uid> {
        let due = self.due(now).next().cloned()?;
        self.forget(&due);
        Some(due)
    }

    /// Returns the earliest time.
    pub(super) fn next(&self) -> Option<T> {
        self.by_time.first().map(|(time, _)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_has_one_time_and_the_earliest_is_taken_first() {
        let mut times = DueTimes::default();
        let [a, b, c] = ["a", "b", "c"].map(Uid::from);
        times.set(&a, 5);
        times.set(&b, 3);
        times.set_by(&b, 4);
        times.set_by(&a, 2);
        times.postpone(&c, 1);
        assert_eq!(times.next(), Some(2));
        times.postpone(&a, 6);
        assert_eq!(times.due(6).collect::<Vec<_>>(), [&b, &a]);
        assert_eq!(times.take_due(5), Some(b));
        assert_eq!(times.take_due(5), None);
        times.forget(&a);
        assert_eq!(times.next(), None);
    }
}
