//! Computes the pauses between attempts of something that fails.

use std::time::Duration;

/// Pauses that double up to a longest one. A random share is added to each, so that clients that failed together do
/// not try again together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    shortest: Duration,
    longest: Duration,
    tries: u32,
}

impl Default for Backoff {
    /// Makes pauses from 200 ms to 30 s.
    fn default() -> Self {
        Self::new(Duration::from_millis(200), Duration::from_secs(30))
    }
}

impl Backoff {
    /// Makes pauses from the shortest to the longest, both before their jitter.
    pub const fn new(shortest: Duration, longest: Duration) -> Self {
        Self {
            shortest,
            longest,
            tries: 0,
        }
    }

    /// Counts one more failure, and returns the pause after it.
    pub fn pause(&mut self) -> Duration {
        self.pause_with(fastrand::f64())
    }

    /// Counts one more failure, and returns the pause after it with this share of the pause added: from 0 to 1.
    pub fn pause_with(&mut self, jitter: f64) -> Duration {
        let doubled = self.shortest.saturating_mul(1 << self.tries.min(16));
        self.tries = self.tries.saturating_add(1);
        doubled.min(self.longest).mul_f64(1.0 + jitter)
    }

    /// Sleeps for the pause after one more failure.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.pause()).await;
    }

    /// Returns all following pauses, as an iterator without end.
    pub fn pauses(mut self) -> impl Iterator<Item = Duration> {
        std::iter::repeat_with(move || self.pause())
    }

    /// Returns the number of failures in a row that have not been forgotten.
    pub const fn tries(&self) -> u32 {
        self.tries
    }

    /// Forgets all failures but this many.
    pub fn rewind(&mut self, tries: u32) {
        self.tries = self.tries.min(tries);
    }

    /// Forgets all failures: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.rewind(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: Duration = Duration::from_millis(200);
    const LONGEST: Duration = Duration::from_secs(2);

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new(SHORTEST, LONGEST);
        let pauses: Vec<_> = (0..6)
            .map(|_| backoff.pause_with(0.0).as_millis())
            .collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(backoff.tries(), 6);
        backoff.rewind(3);
        assert_eq!(backoff.pause_with(0.0).as_millis(), 1600);
        backoff.reset();
        assert_eq!(backoff.pause_with(0.5).as_millis(), 300);
    }

    #[test]
    fn jitter_makes_them_longer_by_up_to_as_much_again() {
        for (number, pause) in Backoff::new(SHORTEST, LONGEST)
            .pauses()
            .take(99)
            .enumerate()
        {
            let least = if number == 0 { SHORTEST } else { SHORTEST * 2 };
            assert!(
                (least..=LONGEST * 2).contains(&pause),
                "{number}: {pause:?}"
            );
        }
    }
}
