//! What takes time.

use pyo3::{IntoPyObjectExt, prelude::*};
use tokio::task::AbortHandle;

use crate::process::{self, Process};

/// What was begun. It may be given up.
#[pyclass(frozen)]
pub(crate) struct Call(AbortHandle);

#[pymethods]
impl Call {
    /// Gives it up: its future is never done then, unless it is already.
    fn cancel(&self) {
        self.0.abort();
    }
}

/// Begins this work; its outcome becomes that of `future`.
///
/// # Errors
/// The program ends: the outcome would never be told.
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

/// This outcome becomes that of `future`.
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
    // It fails if the future is cancelled: nobody waits any more. A slot is dropped with the outcome then.
    drop(settled);
}
