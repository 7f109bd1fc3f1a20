//! Implements the native part of the Python package `consul-semaphore`: the library [`consul_semaphore`] with its own
//! runtime.
//!
//! The API for Python programs is in `python/consul_semaphore/` and builds on this crate. Each function that takes
//! time is given a `concurrent.futures.Future`, returns at once, and sets the future's outcome later. Python can wait
//! for that future in a thread, where Ctrl-C interrupts the wait, as well as in asyncio.
//!
//! - `process`: the runtime of a process, and the only threads that call Python
//! - `call`: calls that take time
//! - `usage`: the use of a semaphore, as Python's values
//!
//! The threads of the runtime renew sessions. They never wait for Python, because one long call in Python may keep
//! all other threads out.

mod call;
mod consul;
mod error;
mod process;
mod semaphore;
mod slot;
mod usage;

/// The Python module with the native parts; the rest of the package is written in Python.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::{
        call::Call,
        consul::Consul,
        process::{all_released, stop},
        semaphore::Semaphore,
        slot::Slot,
    };
}
