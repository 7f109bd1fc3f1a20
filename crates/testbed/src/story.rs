//! Steps of a test. A step that fails ends the test and names the line of the test.
use std::panic::Location;

use anyhow::Result;

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
