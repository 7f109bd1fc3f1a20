//! Records the times in which a semaphore could not grant anything, because they do not count as waiting.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Largest number of intervals that are remembered.
pub const MOST_INTERVALS: usize = 20;

/// Shortest time that is remembered, because deadlines have whole seconds.
const SHORTEST_INTERVAL: SignedDuration = SignedDuration::from_secs(1);

/// Interval in which a semaphore could grant nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    /// Time at which the interval began.
    pub from: Timestamp,
    /// Time at which the interval ended; `None` while it lasts.
    pub to: Option<Timestamp>,
}

/// The last intervals in which nothing could be granted, oldest first. There are at most [`MOST_INTERVALS`]: if there
/// are more, the two that are nearest to each other become one, so that a deadline comes rather too late than too
/// early.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked(Vec<Interval>);

impl Blocked {
    /// Returns what an operator that begins to work knows: the recorded intervals, and one from `counted_to` to now.
    /// Some operator counted up to `counted_to`, and nothing was granted after that.
    pub fn resumed(
        recorded: impl IntoIterator<Item = Interval>,
        counted_to: Timestamp,
        now: Timestamp,
    ) -> Self {
        let mut all: Vec<Interval> = recorded.into_iter().collect();
        if counted_to < now {
            all.push(Interval {
                from: counted_to,
                to: Some(now),
            });
        }
        // Other writers may have put anything into the record.
        all.retain(|interval| interval.from <= now);
        for interval in &mut all {
            let to = interval.to.unwrap_or(now).min(now);
            interval.to = Some(to.max(interval.from));
        }
        let mut blocked = Self(merged(all));
        blocked.forget();
        blocked
    }

    /// Returns the intervals of a status, as they are.
    pub fn recorded(intervals: impl IntoIterator<Item = Interval>) -> Self {
        Self(merged(intervals.into_iter().collect()))
    }

    /// Records whether something can be granted now. Returns whether that is new.
    pub fn note(&mut self, blocked: bool, now: Timestamp) -> bool {
        let last = self.0.last_mut();
        match last {
            // An interval that was over within a second is not worth a write of the status.
            Some(Interval { from, to: None })
                if !blocked && now.duration_since(*from) < SHORTEST_INTERVAL =>
            {
                self.0.pop();
            }
            Some(Interval { to: to @ None, .. }) if !blocked => *to = Some(now),
            // A time that lasts, or that follows the last one at once, is one interval with it.
            Some(Interval { to: None, .. }) => return false,
            Some(Interval { to, .. }) if blocked && *to >= Some(now) => *to = None,
            _ if blocked => self.0.push(Interval {
                from: now,
                to: None,
            }),
            _ => return false,
        }
        self.forget();
        true
    }

    /// Returns whether nothing can be granted now.
    pub fn lasts(&self) -> bool {
        self.0.last().is_some_and(|last| last.to.is_none())
    }

    /// Returns the intervals, oldest first.
    pub fn intervals(&self) -> &[Interval] {
        &self.0
    }

    /// Returns the time at which a workload that came at `since` has waited for `timeout`, not counting the intervals
    /// in which one of these semaphores could not grant anything. Returns `None` while one of them can't grant
    /// anything.
    pub fn deadline<'a>(
        all: impl IntoIterator<Item = &'a Self>,
        since: Timestamp,
        timeout: Duration,
    ) -> Option<Timestamp> {
        let all = all.into_iter().flat_map(|blocked| &blocked.0).copied();
        let (mut counted, mut left) = (since, timeout);
        for Interval { from, to } in merged(all.collect()) {
            let waited = Duration::try_from(from.duration_since(counted)).unwrap_or_default();
            if waited >= left {
                break;
            }
            left -= waited;
            counted = counted.max(to?);
        }
        let left = SignedDuration::try_from(left).ok()?;
        Some(counted.checked_add(left).unwrap_or(Timestamp::MAX))
    }

    fn forget(&mut self) {
        while self.0.len() > MOST_INTERVALS {
            let gap = |place: &usize| match (self.0.get(*place), self.0.get(place + 1)) {
                (Some(Interval { to: Some(to), .. }), Some(next)) => next.from.duration_since(*to),
                _ => SignedDuration::MAX,
            };
            let Some(place) = (0..self.0.len() - 1).min_by_key(gap) else {
                return;
            };
            let next = self.0.remove(place + 1);
            if let Some(interval) = self.0.get_mut(place) {
                interval.to = next.to;
            }
        }
    }
}

/// Merges intervals that overlap or touch.
fn merged(mut all: Vec<Interval>) -> Vec<Interval> {
    all.sort();
    let mut merged: Vec<Interval> = Vec::new();
    for interval in all {
        match merged.last_mut() {
            Some(Interval { to: None, .. }) => {}
            Some(last) if last.to >= Some(interval.from) => {
                last.to = interval.to.and_then(|to| last.to.map(|last| last.max(to)));
            }
            _ => merged.push(interval),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn interval(from: i64, to: Option<i64>) -> Interval {
        Interval {
            from: at(from),
            to: to.map(at),
        }
    }

    fn blocked(intervals: &[(i64, Option<i64>)]) -> Blocked {
        Blocked(
            intervals
                .iter()
                .map(|(from, to)| interval(*from, *to))
                .collect(),
        )
    }

    fn deadline(all: &[&Blocked], since: i64, timeout: u64) -> Option<i64> {
        let deadline =
            Blocked::deadline(all.iter().copied(), at(since), Duration::from_secs(timeout));
        deadline.map(Timestamp::as_second)
    }

    #[test]
    fn times_in_which_nothing_could_be_granted_do_not_count() {
        let one = blocked(&[(10, Some(20)), (30, Some(40))]);
        assert_eq!(deadline(&[&Blocked::default()], 0, 15), Some(15));
        assert_eq!(deadline(&[&one], 0, 5), Some(5));
        assert_eq!(deadline(&[&one], 0, 10), Some(10));
        assert_eq!(deadline(&[&one], 0, 15), Some(25));
        assert_eq!(deadline(&[&one], 0, 25), Some(45));
        assert_eq!(deadline(&[&one], 15, 5), Some(25));
        assert_eq!(deadline(&[&one], 50, 5), Some(55));
        let two = blocked(&[(15, Some(35))]);
        assert_eq!(deadline(&[&one, &two], 0, 15), Some(45));
        let lasting = blocked(&[(12, None)]);
        assert_eq!(deadline(&[&one, &lasting], 0, 15), None);
        assert_eq!(deadline(&[&one, &lasting], 0, 9), Some(9));
    }

    #[test]
    fn what_follows_at_once_is_one_interval() {
        let mut noted = Blocked::default();
        assert!(!noted.note(false, at(1)));
        assert!(noted.note(true, at(2)));
        assert!(!noted.note(true, at(3)));
        assert!(noted.lasts());
        assert!(noted.note(false, at(4)));
        assert!(!noted.lasts());
        assert!(noted.note(true, at(4)));
        assert_eq!(noted, blocked(&[(2, None)]));
        noted.note(false, at(9));
        let brief = at(9) + SignedDuration::from_millis(999);
        noted.note(true, at(9) + SignedDuration::from_millis(1));
        noted.note(false, brief);
        assert_eq!(noted, blocked(&[(2, Some(9))]));
    }

    #[test]
    fn a_restart_neither_forgets_nor_counts_the_time_without_an_operator() {
        let recorded = [interval(10, Some(20)), interval(50, None)];
        let resumed = Blocked::resumed(recorded, at(60), at(100));
        assert_eq!(resumed, blocked(&[(10, Some(20)), (50, Some(100))]));
        let resumed = Blocked::resumed([interval(10, Some(20))], at(60), at(100));
        assert_eq!(resumed, blocked(&[(10, Some(20)), (60, Some(100))]));
        assert_eq!(deadline(&[&resumed], 0, 60), Some(110));
        let hostile = [interval(500, None), interval(30, Some(20))];
        let resumed = Blocked::resumed(hostile, at(100), at(100));
        assert_eq!(resumed, blocked(&[(30, Some(30))]));
    }

    proptest! {
        /// Frequent changes leave only a few intervals, and a deadline never comes too early.
        #[test]
        fn a_deadline_is_too_late_rather_than_too_early(
            steps in prop::collection::vec((1..50_i64, any::<bool>()), 0..120),
            timeout in 1..2000_i64,
        ) {
            let (mut now, mut is_blocked, mut waited, mut due) = (0, false, 0, None);
            let mut noted = Blocked::default();
            for (seconds, blocks) in steps {
                if !is_blocked {
                    if waited < timeout && waited + seconds >= timeout {
                        due = Some(now + timeout - waited);
                    }
                    waited += seconds;
                }
                now += seconds;
                is_blocked = blocks;
                noted.note(blocks, at(now));
            }
            prop_assert!(noted.intervals().len() <= MOST_INTERVALS);
            let said = deadline(&[&noted], 0, timeout.unsigned_abs());
            let exact = due.or_else(|| (!is_blocked).then(|| now + timeout - waited));
            if let (Some(said), Some(exact)) = (said, exact) {
                prop_assert!(said >= exact, "{} before {}", said, exact);
            }
        }
    }
}
