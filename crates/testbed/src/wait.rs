//! Waits for a condition, with a generous deadline. Nothing here waits for a fixed time.
use std::{
    fmt::{Debug, Display},
    panic::Location,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use crate::story::story;

/// How long [`eventually`] waits. This is far more than anything takes, because a machine may be busy. It is less
/// than a semaphore's usual TTL, so that the mere expiry of a session does not count as a success.
pub const PATIENCE: Duration = Duration::from_secs(100);

/// The shortest and the longest time between two checks. It is a twentieth of what has passed, so that long waits cost
/// servers little, and tests that wait beside each other do not slow each other down.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(400)];

/// The result of a check: the condition is met, or what was seen instead.
pub trait Look {
    /// The value when the condition is met.
    type Value;

    /// The value, or as the error the state that was seen.
    fn judge(self) -> Result<Self::Value, String>;
}

impl Look for bool {
    type Value = ();

    fn judge(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "false".to_owned())
    }
}

impl<T> Look for Option<T> {
    type Value = T;

    fn judge(self) -> Result<T, String> {
        self.ok_or_else(|| "none".to_owned())
    }
}

impl<T, E: Display> Look for Result<T, E> {
    type Value = T;

    fn judge(self) -> Result<T, String> {
        self.map_err(|seen| format!("{seen:#}"))
    }
}

/// A check that succeeds if `seen` equals `expected`.
#[expect(clippy::needless_pass_by_value, reason = "a story needs no ampersands")]
pub fn same<T: PartialEq + Debug>(seen: T, expected: T) -> Result<T, String> {
    if seen == expected {
        Ok(seen)
    } else {
        Err(format!("{seen:?}, not {expected:?}"))
    }
}

/// Checks repeatedly until the condition is met, for at most [`PATIENCE`]. Panics with the last state if it never is.
///
/// ```ignore
/// eventually("two Jobs hold a slot", || async { same(bed.consul().holders("jobs").await.len(), 2) }).await;
/// ```
#[track_caller]
pub fn eventually<F>(
    what: &str,
    look: impl FnMut() -> F,
) -> impl Future<Output = <F::Output as Look>::Value>
where
    F: Future<Output: Look>,
{
    eventually_within(PATIENCE, what, look)
}

/// Like [`eventually`], with another deadline.
#[track_caller]
pub fn eventually_within<F>(
    patience: Duration,
    what: &str,
    look: impl FnMut() -> F,
) -> impl Future<Output = <F::Output as Look>::Value>
where
    F: Future<Output: Look>,
{
    story(Location::caller(), until(what, patience, look))
}

/// Like [`eventually_within`], for programs other than tests.
///
/// # Errors
/// The condition is not met in time. The error is the last state.
pub async fn until<F>(
    what: &str,
    patience: Duration,
    mut look: impl FnMut() -> F,
) -> Result<<F::Output as Look>::Value>
where
    F: Future<Output: Look>,
{
    let start = Instant::now();
    let mut seen = "nothing".to_owned();
    while let Some(left) = patience.checked_sub(start.elapsed()) {
        let Ok(looked) = tokio::time::timeout(left, look()).await else {
            break;
        };
        match looked.judge() {
            Ok(value) => return Ok(value),
            Err(state) => seen = state,
        }
        let [shortest, longest] = PAUSES;
        tokio::time::sleep((start.elapsed() / 20).clamp(shortest, longest)).await;
    }
    bail!(
        "not within {} s: {what}; last seen: {seen}",
        patience.as_secs_f32()
    )
}
