//! Holds the runtime of a process, and the only threads that call Python.
//!
//! A forked child has none of its parent's threads. The child therefore gets its own runtime and does not touch what
//! belongs to its parent: the slots are the parent's, and a lock that another thread held at the fork is never
//! unlocked.

use std::{
    collections::HashMap,
    io, mem,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use consul_semaphore::Semaphore;
use parking_lot::Mutex;
use pyo3::prelude::*;
use tokio::{
    runtime::{self, EnterGuard, Runtime},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    call::{self, Call},
    error::SemaphoreError,
    slot::ReleasableSlot,
};

/// Number of worker threads: two, so that sessions are renewed even while one thread works.
const WORKER_THREADS: usize = 2;

/// Number of threads that resolve host names.
const NAME_RESOLVING_THREADS: usize = 4;

/// Largest number of outcomes that wait for Python. Further outcomes wait in their tasks.
const MOST_WAITING_OUTCOMES: usize = 1024;

/// Largest number of messages that wait to be logged. Further messages are dropped.
const MOST_WAITING_LOGS: usize = 1024;

/// Time that the end of a program may wait for semaphores whose slots stay held after they are given back. Those
/// slots are left to expire; the time is enough for the others at the same semaphores.
const GIVE_UP_RESTING_AFTER: Duration = Duration::from_secs(1);

/// Time that the end of a program may wait for all other semaphores. The library gives up earlier.
const GIVE_UP_RELEASING_AFTER: Duration = Duration::from_secs(15);

/// Work to do on a thread that calls Python.
type Delivery = Box<dyn FnOnce(Python<'_>) + Send>;

/// State that exists once in a process.
pub(crate) struct Process {
    id: u32,
    runtime: Runtime,
    outcomes: Caller,
    /// Thread for log messages, separate because logging may block and the outcomes must not wait for that.
    logs: Caller,
    /// Whether Python is ending.
    ends: watch::Sender<bool>,
    /// Slots that are held.
    held: Mutex<HashMap<u64, Arc<ReleasableSlot>>>,
    /// Semaphores whose slots may not be released yet.
    semaphores: Mutex<HashMap<u64, KnownSemaphore>>,
    next: AtomicU64,
}

/// State of the process. Only a thread that holds the GIL locks this mutex, and a thread that forks also holds the
/// GIL. So the mutex is never locked at a fork.
static PROCESS: Mutex<Option<&'static Process>> = Mutex::new(None);

/// Id of the process in which nothing calls Python any more; 0 at first. Code of the program may run after that:
/// functions of `atexit` that were registered early, and objects that Python closes when it drops its modules.
static STOPPED: AtomicU32 = AtomicU32::new(0);

impl Process {
    /// Returns the state of this process, and creates it at the first call.
    ///
    /// # Errors
    /// The program is ending.
    pub(crate) fn here() -> PyResult<&'static Self> {
        runs()?;
        let mut process = PROCESS.lock();
        match *process {
            Some(process) if process.id == std::process::id() => Ok(process),
            _ => {
                // The state lasts as long as the process, because references to it may be dropped at any time.
                let new = &*Box::leak(Box::new(Self::new()?));
                *process = Some(new);
                Ok(new)
            }
        }
    }

    fn new() -> PyResult<Self> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(WORKER_THREADS)
            .max_blocking_threads(NAME_RESOLVING_THREADS)
            .thread_name("semaphore")
            .enable_all()
            .build()?;
        Ok(Self {
            id: std::process::id(),
            runtime,
            outcomes: Caller::new("semaphore-calls", MOST_WAITING_OUTCOMES)?,
            logs: Caller::new("semaphore-logs", MOST_WAITING_LOGS)?,
            ends: watch::Sender::new(false),
            held: Mutex::default(),
            semaphores: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    /// Enters the runtime, so that tasks spawned while the guard lives run on it.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime.spawn(task)
    }

    /// Queues an outcome for delivery to Python.
    pub(crate) async fn deliver(&self, outcome: impl FnOnce(Python<'_>) + Send + 'static) {
        if let Some(queue) = self.outcomes.queue() {
            // The queue refuses the outcome once Python ends.
            drop(queue.send(Box::new(outcome)).await);
        }
    }

    /// Queues a log message, unless too many messages wait already.
    pub(crate) fn log(&self, message: impl FnOnce(Python<'_>) + Send + 'static) {
        if let Some(queue) = self.logs.queue() {
            drop(queue.try_send(Box::new(message)));
        }
    }

    /// Waits until Python ends.
    pub(crate) async fn ends(&self) {
        // The channel stays open, because its sender is in `self`.
        drop(self.ends.subscribe().wait_for(|ends| *ends).await);
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers a held slot, so that the end of the program gives it back.
    ///
    /// # Errors
    /// The end of the program has given back everything that was held.
    pub(crate) fn hold(&self, held: &Arc<ReleasableSlot>) -> PyResult<u64> {
        let id = self.next();
        // The end sets its flag before it takes what is in this map, so a slot is either refused here or given back
        // there.
        let mut all = self.held.lock();
        if *self.ends.borrow() {
            return Err(ending());
        }
        all.insert(id, held.clone());
        Ok(id)
    }

    pub(crate) fn forget(&self, id: u64) {
        self.held.lock().remove(&id);
    }

    /// Gives back all slots and places in queues, and waits for that.
    async fn end(&self) {
        self.ends.send_replace(true);
        let held = mem::take(&mut *self.held.lock());
        let releases: Vec<_> = held
            .into_values()
            .map(|held| self.spawn(async move { drop(held.release().await) }))
            .collect();
        let known = mem::take(&mut *self.semaphores.lock());
        let (resting, others): (Vec<_>, Vec<_>) =
            known.into_values().partition(|known| known.rests);
        let all = async {
            for release in releases {
                drop(release.await);
            }
            all_free(others).await;
        };
        drop(timeout(GIVE_UP_RELEASING_AFTER, all).await);
        drop(timeout(GIVE_UP_RESTING_AFTER, all_free(resting)).await);
    }

    /// Stops the threads that call Python: a call after Python is gone would be the end of the process.
    fn stop(&self) {
        // The logging thread stops first, because code that logs may wait for an outcome.
        self.logs.stop();
        self.outcomes.stop();
    }
}

async fn all_free(semaphores: Vec<KnownSemaphore>) {
    for known in semaphores {
        known.semaphore.all_released().await;
    }
}

/// A thread that calls Python, in the order in which deliveries are queued.
struct Caller {
    /// Queue of deliveries; `None` once Python ends.
    queue: Mutex<Option<mpsc::Sender<Delivery>>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Caller {
    fn new(name: &str, room: usize) -> io::Result<Self> {
        let (queue, mut deliveries) = mpsc::channel::<Delivery>(room);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                while let Some(delivery) = deliveries.blocking_recv() {
                    if Python::try_attach(delivery).is_none() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
        })
    }

    fn queue(&self) -> Option<mpsc::Sender<Delivery>> {
        self.queue.lock().clone()
    }

    /// Finishes the deliveries that are in the queue, and accepts no more.
    fn stop(&self) {
        drop(self.queue.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            drop(thread.join());
        }
    }
}

/// Checks that Python can still be called.
///
/// # Errors
/// Nothing calls Python any more, so a caller would wait for ever.
pub(crate) fn runs() -> PyResult<()> {
    if STOPPED.load(Ordering::Relaxed) == std::process::id() {
        return Err(ending());
    }
    Ok(())
}

/// Returns the error for calls that begin while the program ends.
pub(crate) fn ending() -> PyErr {
    SemaphoreError::new_err("the program ends")
}

/// Ends everything that this process has begun. `future` is done once slots and places in queues are given back.
#[pyfunction]
pub(crate) fn all_released(future: Py<PyAny>) -> PyResult<Option<Call>> {
    let Some(process) = begun() else {
        return Ok(None);
    };
    let call = call::begin(process, future, async {
        process.end().await;
        Ok(())
    });
    call.map(Some)
}

/// Stops all calls of Python before it returns. Calls that begin later fail at once.
#[pyfunction]
pub(crate) fn stop(py: Python<'_>) {
    STOPPED.store(std::process::id(), Ordering::Relaxed);
    if let Some(process) = begun() {
        py.detach(|| process.stop());
    }
}

/// Returns the state of this process, if it was created.
fn begun() -> Option<&'static Process> {
    PROCESS
        .lock()
        .filter(|process| process.id == std::process::id())
}

/// A value that belongs to the process that made it. A forked child does not drop the value.
pub(crate) struct OfProcess<T> {
    process: u32,
    /// The value; `None` only while it is dropped.
    value: Option<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            process: std::process::id(),
            value: Some(value),
        }
    }

    pub(crate) fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns the value.
    ///
    /// # Errors
    /// The value belongs to another process, from which this one was forked.
    pub(crate) fn get(&self) -> PyResult<&T> {
        let value = self.value.as_ref().filter(|_| self.is_here());
        value.ok_or_else(|| {
            SemaphoreError::new_err(format!(
                "it belongs to process {}, which this one was forked from: take a slot in this process",
                self.process
            ))
        })
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            mem::forget(self.value.take());
        }
    }
}

#[derive(Clone)]
struct KnownSemaphore {
    semaphore: Semaphore,
    /// Whether slots stay held for a while after they are given back.
    rests: bool,
}

/// A semaphore that stays registered until all its slots are released, even if it is dropped earlier.
pub(crate) struct Registered {
    process: &'static Process,
    id: u64,
    known: KnownSemaphore,
}

impl Registered {
    pub(crate) fn new(process: &'static Process, semaphore: Semaphore, rests: bool) -> Self {
        let id = process.next();
        let known = KnownSemaphore { semaphore, rests };
        process.semaphores.lock().insert(id, known.clone());
        Self { process, id, known }
    }

    pub(crate) fn semaphore(&self) -> &Semaphore {
        &self.known.semaphore
    }

    pub(crate) fn rests(&self) -> bool {
        self.known.rests
    }

    pub(crate) fn process(&self) -> &'static Process {
        self.process
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let (process, id) = (self.process, self.id);
        let semaphore = self.known.semaphore.clone();
        process.spawn(async move {
            semaphore.all_released().await;
            process.semaphores.lock().remove(&id);
        });
    }
}
