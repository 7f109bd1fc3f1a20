//! Runs calls that take time.

use pyo3::{IntoPyObjectExt, prelude::*};
use tokio::task::AbortHandle;

use crate::process::{self, Process};

/// A call that was begun and can be cancelled.
#[pyclass(frozen)]
pub(crate) struct Call(AbortHandle);

#[pymethods]
impl Call {
    /// Cancels the call. The future of the call is then never done, unless it is done already.
    fn cancel(&self) {
        self.0.abort();
    }
}

/// Begins some work whose outcome becomes the outcome of `future`.
///
/// # Errors
/// The program ends, so nothing would set the outcome of `future`.
pub(crate) fn begin<T>(
    process: &'static Process,
    future: Py<PyAny>,
    work: impl Future<Output = PyResult<T>> + Send + 'static,
) -> PyResult<Call>
where
    T: for<'py> IntoPyObject<'py> + Send + 'static,
{
    process::runs()?;
    let task = process.spawn(async move {
        let outcome = work.await;
        process
            .deliver(move |py| settle(py, &future, outcome))
            .await;
    });
    Ok(Call(task.abort_handle()))
}

/// Sets the outcome of `future`.
pub(crate) fn settle<T>(py: Python<'_>, future: &Py<PyAny>, outcome: PyResult<T>)
where
    T: for<'py> IntoPyObject<'py>,
{
    let settled = match outcome {
        Ok(value) => value
            .into_py_any(py)
            .and_then(|value| future.call_method1(py, "set_result", (value,))),
        Err(error) => future.call_method1(py, "set_exception", (error.into_value(py),)),
    };
    // This fails if the future is cancelled, because then nobody waits any more. A slot in the outcome is dropped.
    drop(settled);
}
