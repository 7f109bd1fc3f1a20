//! Steps of a test. A step that fails ends the test and names the line of the test.
use std::panic::Location;

use anyhow::Result;

/// Turns a step that failed into a panic that names the line of the story, for which the caller
/// passes its `Location::caller()`: inside a future the caller is not known any more.
pub(crate) fn story<T>(
    line: &Location<'_>,
    step: impl Future<Output = Result<T>>,
) -> impl Future<Output = T> {
    // Boxed, or a test of many steps would have a future too large for its stack.
    let step = Box::pin(step);
    async move {
        match step.await {
            Ok(value) => value,
            #[expect(clippy::panic, reason = "this is how a test fails")]
            Err(error) => panic!("{line}: {error:#}"),
        }
    }
}
