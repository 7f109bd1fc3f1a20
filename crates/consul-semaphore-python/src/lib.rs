//! The native part of the Python package `consul-semaphore`: the library [`consul_semaphore`] in a runtime of its own.
//!
//! What Python programs use is in `python/consul_semaphore/`, and made of this. Whatever takes time is given a
//! `concurrent.futures.Future`, returns at once, and sets the future's outcome later: Python can wait for that in a
//! thread, where Ctrl-C interrupts it, as well as in asyncio.
//!
//! - `process`: the runtime of a process, and the only threads that call Python
//! - `call`: what takes time
//! - `error`: which exceptions are raised
//! - `consul`: a client of Consul
//! - `semaphore`: a semaphore, or several whose slots are taken together
//! - `slot`: a slot, from its grant to its release
//!
//! Sessions are renewed on the threads of the runtime. So these never wait for Python, in which one long call may keep
//! all others out.

mod call;
mod consul;
mod error;
mod process;
mod semaphore;
mod slot;

/// Beside what is in here, the package has nothing to do with Rust.
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
