//! Remembers how long slots were held lately, to estimate when a waiting workload is likely to start. The estimate is
//! only shown, and decides nothing.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

/// Number of holds that are remembered.
const MOST_HOLDS_REMEMBERED: usize = 20;

/// Number of holds that are needed for an estimate.
const LEAST_HOLDS_FOR_ESTIMATE: usize = 5;

/// Durations for which the last slots of one lock key were held.
#[derive(Debug, Default)]
pub(super) struct Holds(VecDeque<SignedDuration>);

impl Holds {
    /// Notes that a slot was given back.
    pub(super) fn note(&mut self, granted: Timestamp, released: Timestamp) {
        let held = released.duration_since(granted).max(SignedDuration::ZERO);
        self.0.push_back(held);
        if self.0.len() > MOST_HOLDS_REMEMBERED {
            self.0.pop_front();
        }
    }

    fn median(&self) -> Option<SignedDuration> {
        let mut holds: Vec<_> = self.0.iter().copied().collect();
        holds.sort();
        let middle = holds.get(holds.len() / 2).copied();
        middle.filter(|_| holds.len() >= LEAST_HOLDS_FOR_ESTIMATE)
    }

    /// Returns when a slot is likely to be free for a workload, if `before` other slots have to become free first.
    /// `since` has the time since which each slot is held, the longest first. Returns `None` if the time is unknown,
    /// or if a holder has its slot for longer than is usual.
    pub(super) fn expected(
        &self,
        before: usize,
        since: &[Timestamp],
        now: Timestamp,
    ) -> Option<Timestamp> {
        let median = self.median()?;
        // Each slot is expected to be free one median after it was granted, and again after each further median.
        let rounds = before.checked_div(since.len())?;
        let since = since.get(before % since.len())?;
        let rounds = i32::try_from(rounds).ok()?.checked_add(1)?;
        let free = since.checked_add(median.checked_mul(rounds)?).ok()?;
        (free > now).then_some(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn holds(lengths: &[i64]) -> Holds {
        let mut holds = Holds::default();
        for length in lengths {
            holds.note(second(0), second(*length));
        }
        holds
    }

    #[test]
    fn each_slot_is_expected_to_be_free_once_in_each_median() {
        let holds = holds(&[10, 1000, 9, 11, 1]);
        let since = [second(100), second(104)];
        let expected = |before| holds.expected(before, &since, second(105));
        let free = [110, 114, 120, 124].map(|at| Some(second(at)));
        assert_eq!([0, 1, 2, 3].map(expected), free);
    }

    #[test]
    fn nothing_is_said_before_enough_is_known() {
        let few = holds(&[10; LEAST_HOLDS_FOR_ESTIMATE - 1]);
        assert_eq!(few.expected(0, &[second(100)], second(100)), None);
        let enough = holds(&[10; LEAST_HOLDS_FOR_ESTIMATE]);
        assert_eq!(enough.expected(0, &[], second(100)), None);
        let expected = |now| enough.expected(0, &[second(100)], second(now));
        assert_eq!(expected(109), Some(second(110)));
        assert_eq!(expected(110), None, "it is held for longer than is usual");
    }

    #[test]
    fn only_the_last_ones_count() {
        let mut holds = holds(&[1000; MOST_HOLDS_REMEMBERED]);
        for _ in 0..MOST_HOLDS_REMEMBERED {
            holds.note(second(0), second(10));
        }
        assert_eq!(
            holds.expected(0, &[second(100)], second(100)),
            Some(second(110))
        );
        // The clock may have been set.
        holds.note(second(100), second(0));
        assert_eq!(holds.0.len(), MOST_HOLDS_REMEMBERED);
    }
}
