//! Keeps the recent number of slots in use, in bounded memory however often it changes.

use std::collections::VecDeque;

use serde::Serialize;

/// Length of the time span that the samples cover, in seconds.
const SPAN: i64 = 900;

/// Least time between samples, in seconds. Of faster changes, only the last one is kept.
const STEP: i64 = 5;

/// The second from which on a number of slots was held, that number, and the number of slots in total, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Sample(i64, i32, Option<i32>);

/// The changes of the last quarter of an hour.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Trend(VecDeque<Sample>);

impl Trend {
    /// Adds the number of held slots and the total from `now` on. If the clock was set back, time counts as standing
    /// still.
    pub(super) fn add(&mut self, now: i64, held: i32, limit: Option<i32>) {
        let samples = &mut self.0;
        if let Some(Sample(_, last_held, last_limit)) = samples.back()
            && (*last_held, *last_limit) == (held, limit)
        {
            return;
        }
        match samples.back_mut() {
            Some(last) if now < last.0 + STEP => *last = Sample(last.0, held, limit),
            _ => samples.push_back(Sample(now, held, limit)),
        }
        // The last sample before the span gives its first value.
        while samples.get(1).is_some_and(|next| next.0 <= now - SPAN) {
            samples.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(trend: &Trend) -> String {
        serde_json::to_string(trend).unwrap()
    }

    #[test]
    fn it_keeps_what_has_changed() {
        let mut trend = Trend::default();
        for (now, held) in [(100, 0), (110, 2), (200, 2), (300, 3)] {
            trend.add(now, held, Some(3));
        }
        assert_eq!(shown(&trend), "[[100,0,3],[110,2,3],[300,3,3]]");
        trend.add(400, 3, None);
        assert!(shown(&trend).ends_with(",[400,3,null]]"));
    }

    #[test]
    fn of_what_changes_quickly_it_keeps_the_last() {
        let mut trend = Trend::default();
        for (now, held) in [(100, 1), (101, 2), (104, 3), (105, 4), (90, 5)] {
            trend.add(now, held, Some(5));
        }
        assert_eq!(shown(&trend), "[[100,3,5],[105,5,5]]");
    }

    #[test]
    fn it_forgets_what_is_long_ago_and_stays_small() {
        let mut trend = Trend::default();
        for now in 0..100_000 {
            trend.add(now, i32::try_from(now % 7).unwrap(), Some(7));
        }
        let (first, second) = (trend.0[0].0, trend.0[1].0);
        assert!(
            first <= 99_999 - SPAN && second > 99_999 - SPAN - STEP,
            "{first} {second}"
        );
        assert!(trend.0.len() <= usize::try_from(SPAN / STEP).unwrap() + 2);
    }
}
