//! Steps of a test. A step that fails ends the test and names the line of the test.
use std::{panic::Location, time::Duration};

use anyhow::Result;

use crate::wait;

/// How long a read is repeated. It is less than [`wait::PATIENCE`], so that a wait that reads tells why it can't.
const PATIENCE: Duration = Duration::from_mins(1);

/// Turns a failed step into a panic that names the line of the test. The caller passes its `Location::caller()`,
/// because inside a future the caller is no longer known.
pub(crate) fn story<T>(
    line: &Location<'_>,
    step: impl Future<Output = Result<T>>,
) -> impl Future<Output = T> {
    // Boxed, or the future of a test with many steps would be too large for its stack.
    let step = Box::pin(step);
    async move {
        match step.await {
            Ok(value) => value,
            #[expect(clippy::panic, reason = "this is how a test fails")]
            Err(error) => panic!("{line}: {error:#}"),
        }
    }
}

/// Like [`story`], for a step that reads. It is repeated while it fails: a server may be starting, elect a leader, or
/// have closed a connection, and that is not what the test is about.
pub(crate) fn reads<T, F>(
    line: &Location<'_>,
    what: &str,
    read: impl FnMut() -> F,
) -> impl Future<Output = T>
where
    F: Future<Output = Result<T>>,
{
    let what = format!("reading {what}");
    story(
        line,
        async move { wait::until(&what, PATIENCE, read).await },
    )
}
