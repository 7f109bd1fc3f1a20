//! A slot, from its grant to its release.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use consul_semaphore::{PendingSlot, ReleaseError, Sequencer, Slot as Granted};
use parking_lot::Mutex;
use pyo3::prelude::*;
use tokio::sync::{RwLock, watch};

use crate::{
    call::{self, Call},
    error::StillHeldError,
    process::{OfProcess, Registered},
};

/// A slot while it is held, and afterwards the outcome of its release.
pub(crate) struct ReleasableSlot {
    /// The slot until its work begins. The caller that asked for the slot may be cancelled before it gets the slot.
    pending: Mutex<Option<PendingSlot>>,
    /// The slot once its work has begun; `None` before that. A caller that waits for the loss of the slot holds a read
    /// lock.
    slot: RwLock<Option<Granted>>,
    /// The stage of the slot. A change of the stage ends the waits for the loss of the slot.
    stage: watch::Sender<Stage>,
    /// Whether the slot was lost when it was given back.
    was_lost: AtomicBool,
    /// Whether the slot stays held for a while after it is given back.
    rests: bool,
}

/// The stage of a slot between its grant and its release.
enum Stage {
    /// The slot is held.
    Held,
    /// The slot is being given back.
    Leaves,
    /// The slot was given back, or is left to expire.
    Gone(Outcome),
}

/// The outcome of a release: the reason why the slot was lost before, if it was lost; or the reason why the slot is
/// still held.
type Outcome = Result<Option<String>, String>;

impl ReleasableSlot {
    fn new(slot: PendingSlot, rests: bool) -> Self {
        Self {
            pending: Mutex::new(Some(slot)),
            slot: RwLock::new(None),
            stage: watch::Sender::new(Stage::Held),
            was_lost: AtomicBool::new(false),
            rests,
        }
    }

    /// Begins the work in the slot, unless it is too late. Returns whether the work begins.
    fn begin(&self) -> bool {
        let begun = self.pending.lock().take().and_then(PendingSlot::begin);
        match (begun, self.slot.try_write()) {
            (Some(slot), Ok(mut place)) => {
                *place = Some(slot);
                true
            }
            // The slot is being given back.
            _ => false,
        }
    }

    fn is_lost(&self) -> bool {
        match self.slot.try_read().as_deref() {
            Ok(Some(slot)) => slot.is_lost(),
            // The slot is being given back.
            Ok(None) | Err(_) => self.was_lost.load(Ordering::Relaxed),
        }
    }

    /// Waits until the slot is lost, and returns the reason; `None` if the slot was given back before.
    async fn lost(&self) -> Option<String> {
        let slot = self.slot.read().await;
        let mut stage = self.stage.subscribe();
        tokio::select! {
            biased;
            lost = slot.as_ref()?.lost() => Some(lost.to_string()),
            // The sender is in `self`.
            _ = stage.wait_for(|stage| !matches!(stage, Stage::Held)) => None,
        }
    }

    /// Gives the slot back, and waits until that is done. If another caller gives the slot back already or has done so,
    /// this returns the same outcome. The future must run to its end.
    pub(crate) async fn release(&self) -> PyResult<Option<String>> {
        if self.leave() {
            let outcome = match self.take().await {
                Some(slot) => self.end(slot).await,
                // The work in the slot has not begun.
                None => Ok(None),
            };
            self.stage.send_replace(Stage::Gone(outcome));
        }
        let mut stage = self.stage.subscribe();
        let gone = stage.wait_for(|stage| matches!(stage, Stage::Gone(_)));
        // The sender is in `self`.
        drop(gone.await);
        self.released().unwrap_or(Ok(None))
    }

    /// Returns the outcome of the release; `None` while the slot is not released.
    fn released(&self) -> Option<PyResult<Option<String>>> {
        match &*self.stage.borrow() {
            Stage::Gone(outcome) => Some(outcome.clone().map_err(StillHeldError::new_err)),
            Stage::Held | Stage::Leaves => None,
        }
    }

    /// Moves the slot from `Held` to `Leaves`. Returns whether this call did so, and must therefore give the slot back.
    fn leave(&self) -> bool {
        self.stage.send_if_modified(|stage| {
            let held = matches!(stage, Stage::Held);
            if held {
                *stage = Stage::Leaves;
            }
            held
        })
    }

    /// Takes the slot out, if its work has begun.
    async fn take(&self) -> Option<Granted> {
        drop(self.pending.lock().take());
        let slot = self.slot.write().await.take()?;
        self.was_lost.store(slot.is_lost(), Ordering::Relaxed);
        Some(slot)
    }

    async fn end(&self, slot: Granted) -> Outcome {
        if self.rests {
            // A release would wait until the slot no longer stays held.
            let lost = slot.is_lost();
            return Ok(if lost {
                Some(slot.lost().await.to_string())
            } else {
                None
            });
        }
        match slot.release().await {
            Ok(()) => Ok(None),
            Err(ReleaseError::Lost(lost)) => {
                self.was_lost.store(true, Ordering::Relaxed);
                Ok(Some(lost.to_string()))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The key, session, `LockIndex`, fencing token and index of a slot.
type SequencerTuple = (String, String, u64, u64, Option<u32>);

/// A slot that is held until it is released or dropped.
#[pyclass(frozen)]
pub(crate) struct Slot(OfProcess<TakenSlot>);

/// The parts of a slot in the process that took the slot.
struct TakenSlot {
    held: Arc<ReleasableSlot>,
    /// The number under which the process has registered the slot.
    id: u64,
    sequencers: Vec<Sequencer>,
    semaphore: Arc<Registered>,
}

impl Drop for TakenSlot {
    fn drop(&mut self) {
        let process = self.semaphore.process();
        process.forget(self.id);
        let held = self.held.clone();
        process.spawn(async move { drop(held.release().await) });
    }
}

impl Slot {
    /// Registers a slot that was granted.
    ///
    /// # Errors
    /// The program ends, and the slot is given back.
    pub(crate) fn new(slot: PendingSlot, semaphore: Arc<Registered>) -> PyResult<Self> {
        let sequencers = slot.sequencers();
        let held = Arc::new(ReleasableSlot::new(slot, semaphore.rests()));
        let id = semaphore.process().hold(&held)?;
        Ok(Self(OfProcess::new(TakenSlot {
            held,
            id,
            sequencers,
            semaphore,
        })))
    }
}

#[pymethods]
impl Slot {
    /// Returns the sequencer of each slot that was granted together.
    fn sequencers(&self) -> PyResult<Vec<SequencerTuple>> {
        let sequencers = self.0.get()?.sequencers.iter();
        let all = sequencers.map(|of| {
            let session = of.session.to_string();
            (
                of.lock_key.clone(),
                session,
                of.lock_index,
                of.fencing_token,
                of.slot_index,
            )
        });
        Ok(all.collect())
    }

    /// Begins the work in the slot. Returns false if it is too late, and the slot is given back.
    fn begin(&self) -> PyResult<bool> {
        Ok(self.0.get()?.held.begin())
    }

    /// Whether this process took the slot, and not a process from which this one was forked.
    fn is_here(&self) -> bool {
        self.0.is_here()
    }

    fn is_lost(&self) -> PyResult<bool> {
        Ok(self.0.get()?.held.is_lost())
    }

    /// Sets the result of `future` once the slot is lost, to the reason, or once the slot is given back, to `None`.
    fn when_lost(&self, future: Py<PyAny>) -> PyResult<Call> {
        let TakenSlot {
            held, semaphore, ..
        } = self.0.get()?;
        let held = held.clone();
        call::begin(
            semaphore.process(),
            future,
            async move { Ok(held.lost().await) },
        )
    }

    /// Gives the slot back, and sets the result of `future`: the reason why the slot was lost, or `None` if it was not
    /// lost. The result is set once others can have the slot, unless the slot stays held for a while.
    fn release(&self, py: Python<'_>, future: Py<PyAny>) -> PyResult<()> {
        let TakenSlot {
            held, semaphore, ..
        } = self.0.get()?;
        if let Some(outcome) = held.released() {
            call::settle(py, &future, outcome);
            return Ok(());
        }
        let held = held.clone();
        // The release goes on even if nobody waits for it.
        let release = async move { held.release().await };
        call::begin(semaphore.process(), future, release).map(drop)
    }
}
