//! Converts errors to the Python exceptions of `python/consul_semaphore/_errors.py`.

use std::time::Duration;

use consul_semaphore::{NoSlot, consul, holder::AcquireError};
use pyo3::{PyErr, import_exception};

import_exception!(consul_semaphore._errors, SemaphoreError);
import_exception!(consul_semaphore._errors, InvalidSemaphoreError);
import_exception!(consul_semaphore._errors, AcquireTimeoutError);
import_exception!(consul_semaphore._errors, UnreachableError);
import_exception!(consul_semaphore._errors, RefusedError);
import_exception!(consul_semaphore._errors, NotFoundError);
import_exception!(consul_semaphore._errors, ConflictError);
import_exception!(consul_semaphore._errors, StillHeldError);

/// Returns the exception that tells why no slot was taken.
pub(crate) fn no_slot(no: &NoSlot) -> PyErr {
    let text = no.to_string();
    if no.waited.is_some() {
        return AcquireTimeoutError::new_err(text);
    }
    match no.why {
        AcquireError::Taken(_) => AcquireTimeoutError::new_err(text),
        AcquireError::Unreachable(_) => UnreachableError::new_err(text),
        AcquireError::Refused(_) => RefusedError::new_err(text),
        AcquireError::Absent(_) => NotFoundError::new_err(text),
        AcquireError::Limit { .. } | AcquireError::Unusable { .. } => ConflictError::new_err(text),
    }
}

/// Returns the exception that tells why Consul did not say who uses a semaphore. The advice may be empty.
pub(crate) fn no_usage(why: &consul::Error, advice: &str) -> PyErr {
    let text = if advice.is_empty() {
        why.to_string()
    } else {
        format!("{why}. {advice}")
    };
    if why.may_pass() {
        UnreachableError::new_err(text)
    } else {
        RefusedError::new_err(text)
    }
}

/// Converts a number from Python to the type that the library uses.
pub(crate) fn number<T: TryFrom<i64>>(what: &str, given: i64) -> Result<T, PyErr> {
    T::try_from(given).map_err(|_beyond| {
        InvalidSemaphoreError::new_err(format!("{what} is {given}: out of range"))
    })
}

/// Converts a time from Python, in seconds.
pub(crate) fn time(what: &str, seconds: f64) -> Result<Duration, PyErr> {
    Duration::try_from_secs_f64(seconds).map_err(|_no_time| {
        InvalidSemaphoreError::new_err(format!(
            "{what} is {seconds}: use seconds, 0 or more, or a timedelta"
        ))
    })
}
