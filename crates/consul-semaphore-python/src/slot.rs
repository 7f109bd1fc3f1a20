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
    error::StillHeld,
    process::{OfProcess, Registered},
};

/// The slot, while it is held, and then what came of its release.
pub(crate) struct Held {
    /// Until its work begins. Whoever asked for it may be cancelled before it looks at it.
    pending: Mutex<Option<PendingSlot>>,
    /// Those who wait for its loss read it. `None` before its work begins.
    slot: RwLock<Option<Granted>>,
    /// Makes them end.
    stage: watch::Sender<Stage>,
    /// Whether it was lost when it was given back.
    was_lost: AtomicBool,
    /// Whether it stays held for a while after it is given back.
    rests: bool,
}

/// How far a slot is.
enum Stage {
    Held,
    /// It is being given back.
    Leaves,
    /// It is given back, or left to expire.
    Gone(Outcome),
}

/// Why a slot was lost, or `None` if it was not; or why it is still held.
type Outcome = Result<Option<String>, String>;

impl Held {
    fn new(slot: PendingSlot, rests: bool) -> Self {
        Self {
            pending: Mutex::new(Some(slot)),
            slot: RwLock::new(None),
            stage: watch::Sender::new(Stage::Held),
            was_lost: AtomicBool::new(false),
            rests,
        }
    }

    /// The work begins, unless it is too late.
    fn begin(&self) -> bool {
        let begun = self.pending.lock().take().and_then(PendingSlot::begin);
        match (begun, self.slot.try_write()) {
            (Some(slot), Ok(mut place)) => {
                *place = Some(slot);
                true
            }
            // It is being given back.
            _ => false,
        }
    }

    fn is_lost(&self) -> bool {
        match self.slot.try_read().as_deref() {
            Ok(Some(slot)) => slot.is_lost(),
            // It is being given back.
            Ok(None) | Err(_) => self.was_lost.load(Ordering::Relaxed),
        }
    }

    /// Why it is lost, once it is; `None` if it was given back before.
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

    /// Gives it back, unless somebody does already or has, and waits until that is done: all are told the same. It must
    /// run to its end.
    pub(crate) async fn release(&self) -> PyResult<Option<String>> {
        if self.leave() {
            let outcome = match self.take().await {
                Some(slot) => self.end(slot).await,
                // Its work has not begun.
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

    /// What came of its release, once that is done.
    fn released(&self) -> Option<PyResult<Option<String>>> {
        match &*self.stage.borrow() {
            Stage::Gone(outcome) => Some(outcome.clone().map_err(StillHeld::new_err)),
            Stage::Held | Stage::Leaves => None,
        }
    }

    /// Whether the slot is to be given back now, and not by somebody else.
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
            // Its release would wait until it has rested.
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

/// A slot that is held until it is released or dropped.
#[pyclass(frozen)]
pub(crate) struct Slot(OfProcess<Kept>);

/// What it has in the process that took it.
struct Kept {
    held: Arc<Held>,
    /// Where the process knows it by.
    id: u64,
    sequencers: Vec<Sequencer>,
    semaphore: Arc<Registered>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let process = self.semaphore.process();
        process.forget(self.id);
        let held = self.held.clone();
        process.spawn(async move { drop(held.release().await) });
    }
}

impl Slot {
    /// # Errors
    /// The program ends: the slot is given back.
    pub(crate) fn new(slot: PendingSlot, semaphore: Arc<Registered>) -> PyResult<Self> {
        let sequencers = slot.sequencers();
        let held = Arc::new(Held::new(slot, semaphore.rests()));
        let id = semaphore.process().hold(&held)?;
        Ok(Self(OfProcess::new(Kept {
            held,
            id,
            sequencers,
            semaphore,
        })))
    }
}

#[pymethods]
impl Slot {
    /// Key, session, `LockIndex` and fencing token of each slot that was granted together.
    fn sequencers(&self) -> PyResult<Vec<(String, String, u64, u64)>> {
        let sequencers = self.0.get()?.sequencers.iter();
        let all = sequencers.map(|of| {
            let session = of.session.to_string();
            (
                of.lock_key.clone(),
                session,
                of.lock_index,
                of.fencing_token,
            )
        });
        Ok(all.collect())
    }

    /// Whether the work begins in it. Otherwise it is too late, and it is given back.
    fn begin(&self) -> PyResult<bool> {
        Ok(self.0.get()?.held.begin())
    }

    /// Whether this process took it, not one that it was forked from.
    fn is_here(&self) -> bool {
        self.0.is_here()
    }

    fn is_lost(&self) -> PyResult<bool> {
        Ok(self.0.get()?.held.is_lost())
    }

    /// `future` gets why it is lost, once it is, or `None` when it is given back.
    fn when_lost(&self, future: Py<PyAny>) -> PyResult<Call> {
        let Kept {
            held, semaphore, ..
        } = self.0.get()?;
        let held = held.clone();
        call::begin(
            semaphore.process(),
            future,
            async move { Ok(held.lost().await) },
        )
    }

    /// Gives it back. `future` gets why it was lost, or `None` if it was not; unless the slot rests, once others can
    /// have it.
    fn release(&self, py: Python<'_>, future: Py<PyAny>) -> PyResult<()> {
        let Kept {
            held, semaphore, ..
        } = self.0.get()?;
        if let Some(outcome) = held.released() {
            call::settle(py, &future, outcome);
            return Ok(());
        }
        let held = held.clone();
        // It goes on even if nobody waits for it.
        let release = async move { held.release().await };
        call::begin(semaphore.process(), future, release).map(drop)
    }
}
