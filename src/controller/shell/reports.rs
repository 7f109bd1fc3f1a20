//! Decides when to refresh the status of each semaphore: at once, or an interval after the last time.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use consul_client::clock::Moment;
use consul_semaphore::engine::SemaphoreRef;

/// Shortest time between two refreshes of the status of a semaphore.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Semaphores whose status must be refreshed.
#[derive(Default)]
pub(super) struct Reports {
    /// Time of the last refresh for each semaphore.
    last: HashMap<SemaphoreRef, Moment>,
    due: BTreeSet<(Moment, SemaphoreRef)>,
}

impl Reports {
    /// Plans a refresh, because something has changed.
    pub(super) fn changed(&mut self, semaphore: SemaphoreRef) {
        let last = self.last.get(&semaphore);
        let due = last.map_or(Moment::default(), |last| *last + REFRESH_INTERVAL);
        self.due.insert((due, semaphore));
    }

    /// Plans a refresh at this time, whether or not something has changed by then.
    pub(super) fn schedule(&mut self, semaphore: SemaphoreRef, due: Moment) {
        self.due.insert((due, semaphore));
    }

    /// Plans a refresh at once, because somebody waits for it.
    pub(super) fn hurry(&mut self, semaphore: SemaphoreRef) {
        self.due.insert((Moment::default(), semaphore));
    }

    /// Notes that the status was refreshed.
    pub(super) fn made(&mut self, semaphore: &SemaphoreRef, now: Moment) {
        self.last.insert(semaphore.clone(), now);
    }

    /// Takes a semaphore whose refresh is due.
    pub(super) fn take_due(&mut self, now: Moment) -> Option<SemaphoreRef> {
        if self.next()? > now {
            return None;
        }
        self.due.pop_first().map(|(_, semaphore)| semaphore)
    }

    /// Returns when the next refresh is due.
    pub(super) fn next(&self) -> Option<Moment> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Forgets a semaphore that was removed.
    pub(super) fn forget(&mut self, semaphore: &SemaphoreRef) {
        self.last.remove(semaphore);
        self.due.retain(|(_, other)| other != semaphore);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_boot(Duration::from_millis(millis))
    }

    #[test]
    fn changes_are_collected_for_a_second_but_for_the_first_one() {
        let mut reports = Reports::default();
        let db = SemaphoreRef {
            namespace: "batch".into(),
            name: "db".into(),
        };
        reports.changed(db.clone());
        assert_eq!(reports.take_due(at(5_000)), Some(db.clone()));
        reports.made(&db, at(5_000));
        reports.changed(db.clone());
        reports.changed(db.clone());
        assert_eq!(reports.take_due(at(5_999)), None);
        assert_eq!(reports.next(), Some(at(6_000)));
        reports.hurry(db.clone());
        assert_eq!(reports.take_due(at(5_999)), Some(db.clone()));
        assert_eq!(reports.take_due(at(6_000)), Some(db.clone()));
        assert_eq!(reports.take_due(at(9_000)), None);
    }
}
