//! When something that failed is tried again.

use std::time::Duration;

use consul_client::clock::Moment;

/// The first pause, before its jitter.
const SHORTEST: Duration = Duration::from_millis(200);

/// The longest pause, before its jitter.
const LONGEST: Duration = Duration::from_secs(30);

/// Failures in a row, and when the next try is due.
#[derive(Clone, Copy, Debug)]
pub struct Setback {
    attempts: u32,
    /// When the next try is due.
    pub until: Moment,
}

impl Setback {
    /// One more failure: the pause grows from 200 ms to half a minute, with jitter. Failures while
    /// a pause lasts are one failure: they were all begun before it.
    pub fn after(before: Option<&Self>, now: Moment) -> Self {
        Self::with_jitter(before, now, fastrand::f64())
    }

    /// The same, longer by this share of it: from 0 to 1.
    pub fn with_jitter(before: Option<&Self>, now: Moment, jitter: f64) -> Self {
        if let Some(before) = before.filter(|before| before.until > now) {
            return *before;
        }
        let attempts = before.map_or(0, |before| before.attempts.saturating_add(1));
        let pause = SHORTEST.saturating_mul(1 << attempts.min(16)).min(LONGEST);
        Self {
            attempts,
            until: now + pause.mul_f64(1.0 + jitter),
        }
    }

    /// Somebody else was faster: the next try is due at once the first time, then after pauses that grow to
    /// a few seconds. They stay short because each time somebody got something done.
    pub fn outrun(before: Option<&Self>, now: Moment) -> Self {
        Self::outrun_with_jitter(before, now, fastrand::f64())
    }

    /// The same, longer by this share of it.
    pub fn outrun_with_jitter(before: Option<&Self>, now: Moment, jitter: f64) -> Self {
        let Some(before) = before else {
            return Self {
                attempts: 0,
                until: now,
            };
        };
        let attempts = before.attempts.min(2);
        let before = Self {
            attempts,
            ..*before
        };
        Self::with_jitter(Some(&before), now, jitter)
    }

    /// How many failures came before this one.
    #[cfg(test)]
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Waits until the next try is due.
    pub async fn wait(&self) {
        tokio::time::sleep(self.until.since(Moment::now())).await;
    }
}

/// Asks until there is an answer, after pauses as those of a [`Setback`]. What is in the way is told when
/// it is not what it was before.
pub async fn insist<T, E: PartialEq, A>(mut ask: impl FnMut() -> A, tell: impl Fn(&E)) -> T
where
    A: Future<Output = Result<T, E>>,
{
    let mut setback: Option<Setback> = None;
    let mut told: Option<E> = None;
    loop {
        let problem = match ask().await {
            Ok(answer) => return answer,
            Err(problem) => problem,
        };
        if told.as_ref() != Some(&problem) {
            tell(&problem);
        }
        told = Some(problem);
        let next = Setback::after(setback.as_ref(), Moment::now());
        setback = Some(next);
        next.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_at_a_minute() {
        let mut now = Moment::from_boot(Duration::ZERO);
        let mut setback: Option<Setback> = None;
        let mut pauses = Vec::new();
        for _ in 0..20 {
            let next = Setback::after(setback.as_ref(), now);
            pauses.push(next.until.since(now));
            now = next.until;
            setback = Some(next);
        }
        assert!(pauses[0] < Duration::from_secs(1), "{pauses:?}");
        assert!(pauses[19] >= LONGEST, "{pauses:?}");
        assert!(
            pauses.iter().all(|pause| *pause <= LONGEST * 2),
            "{pauses:?}"
        );
    }

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
    async fn whoever_insists_is_told_of_each_problem_once() {
        let mut answers = [Err(1), Err(1), Err(2), Ok("at last")].into_iter();
        let told = std::sync::Mutex::new(Vec::new());
        let ask = || std::future::ready(answers.next().unwrap());
        let answer = insist(ask, |problem| told.lock().unwrap().push(*problem)).await;
        assert_eq!(
            (answer, told.into_inner().unwrap()),
            ("at last", vec![1, 2])
        );
    }
}
