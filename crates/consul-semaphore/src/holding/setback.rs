//! Decides when to retry after a failure.

use consul_client::{Backoff, clock::Moment};

/// Number of lost races after which the pauses stop growing.
const LOST_RACES_UNTIL_LONGEST_PAUSE: u32 = 3;

/// The failures in a row, and the time at which the next attempt is due.
#[derive(Clone, Copy, Debug)]
pub struct Setback {
    backoff: Backoff,
    /// Time at which the next attempt is due.
    pub until: Moment,
}

impl Setback {
    /// Records one more failure: the pause grows from 200 ms to half a minute, with jitter. Failures during a pause
    /// count as one failure, because all of them began before the pause.
    pub fn after(before: Option<&Self>, now: Moment) -> Self {
        Self::with_jitter(before, now, fastrand::f64())
    }

    /// Records one more failure like [`Self::after`], with a given jitter from 0 to 1: the share by which the pause
    /// is longer.
    pub fn with_jitter(before: Option<&Self>, now: Moment, jitter: f64) -> Self {
        if let Some(before) = before.filter(|before| before.until > now) {
            return *before;
        }
        let mut backoff = before.map_or_else(Backoff::default, |before| before.backoff);
        let until = now + backoff.pause_with(jitter);
        Self { backoff, until }
    }

    /// Records a lost race: the next attempt is due at once the first time, then after pauses that grow to a few
    /// seconds. The pauses stay short because each time another client got something done.
    pub fn outrun(before: Option<&Self>, now: Moment) -> Self {
        Self::outrun_with_jitter(before, now, fastrand::f64())
    }

    /// Records a lost race like [`Self::outrun`], with a given jitter from 0 to 1: the share by which the pause is
    /// longer.
    pub fn outrun_with_jitter(before: Option<&Self>, now: Moment, jitter: f64) -> Self {
        let Some(mut before) = before.copied() else {
            return Self {
                until: now,
                ..Self::with_jitter(None, now, jitter)
            };
        };
        before.backoff.rewind(LOST_RACES_UNTIL_LONGEST_PAUSE);
        Self::with_jitter(Some(&before), now, jitter)
    }

    /// Returns how many failures there were in a row.
    #[cfg(test)]
    pub(crate) fn attempts(&self) -> u32 {
        self.backoff.tries()
    }

    /// Waits until the next attempt is due.
    pub async fn wait(&self) {
        tokio::time::sleep(self.until.since(Moment::now())).await;
    }
}

/// Asks until there is an answer, after growing pauses. A problem is reported when it differs from the one before.
pub async fn retry_until_ok<T, E: PartialEq, A>(
    mut ask: impl FnMut() -> A,
    report: impl Fn(&E),
) -> T
where
    A: Future<Output = Result<T, E>>,
{
    let mut backoff = Backoff::default();
    let mut reported: Option<E> = None;
    loop {
        let problem = match ask().await {
            Ok(answer) => return answer,
            Err(problem) => problem,
        };
        if reported.as_ref() != Some(&problem) {
            report(&problem);
        }
        reported = Some(problem);
        backoff.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn many_failures_at_once_are_one() {
        let now = Moment::from_boot(Duration::ZERO);
        let first = Setback::after(None, now);
        let last = (0..20).fold(first, |before, _| Setback::after(Some(&before), now));
        assert_eq!(last.until, first.until);
    }

    #[test]
    fn who_is_outrun_tries_again_at_once_and_then_pauses() {
        let now = Moment::from_boot(Duration::ZERO);
        let first = Setback::outrun(None, now);
        assert_eq!(first.until, now);
        let second = Setback::outrun(Some(&first), now);
        assert!(second.until > now);
        let many = (0..20).fold(second, |before, _| {
            Setback::outrun(Some(&before), before.until)
        });
        let last = Setback::outrun(Some(&many), many.until);
        let pause = last.until.since(many.until);
        let bounds = Duration::from_secs(1)..Duration::from_secs(4);
        assert!(bounds.contains(&pause), "{pause:?}");
    }

    #[tokio::test]
    async fn each_problem_is_reported_once() {
        let mut answers = [Err(1), Err(1), Err(2), Ok("at last")].into_iter();
        let reported = parking_lot::Mutex::new(Vec::new());
        let ask = || std::future::ready(answers.next().unwrap());
        let answer = retry_until_ok(ask, |problem| reported.lock().push(*problem)).await;
        assert_eq!((answer, reported.into_inner()), ("at last", vec![1, 2]));
    }
}
