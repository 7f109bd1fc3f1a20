//! A slot, from its grant to its release.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use consul_semaphore::{ReleaseError, Sequencer, Slot as Granted};
use pyo3::prelude::*;
use tokio::sync::{RwLock, watch};

use crate::{
    call::{self, Call},
    error::StillHeld,
    process::{OfProcess, Registered},
};

/// The slot, while it is held.
pub(crate) struct Held {
    /// Those who wait for its loss read it.
    slot: RwLock<Option<Granted>>,
    /// Makes them end.
    given_back: watch::Sender<bool>,
    /// Whether it was lost when it was given back.
    was_lost: AtomicBool,
}

impl Held {
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
        let mut given_back = self.given_back.subscribe();
        tokio::select! {
            biased;
            lost = slot.as_ref()?.lost() => Some(lost.to_string()),
            // The sender is in `self`.
            _ = given_back.wait_for(|given_back| *given_back) => None,
        }
    }

    /// Takes the slot out, to be released or dropped.
    pub(crate) async fn take(&self) -> Option<Granted> {
        self.given_back.send_replace(true);
        let slot = self.slot.write().await.take()?;
        self.was_lost.store(slot.is_lost(), Ordering::Relaxed);
        Some(slot)
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
        process.spawn(async move { drop(held.take().await) });
    }
}

impl Slot {
    pub(crate) fn new(slot: Granted, semaphore: Arc<Registered>) -> Self {
        let sequencers = slot.sequencers();
        let held = Arc::new(Held {
            slot: RwLock::new(Some(slot)),
            given_back: watch::Sender::new(false),
            was_lost: AtomicBool::new(false),
        });
        let id = semaphore.process().hold(&held);
        Self(OfProcess::new(Kept {
            held,
            id,
            sequencers,
            semaphore,
        }))
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
        Ok(call::begin(semaphore.process(), future, async move {
            Ok(held.lost().await)
        }))
    }

    /// Gives it back. `future` gets why it was lost, or `None` if it was not; unless the slot rests, once others can
    /// have it.
    fn release(&self, future: Py<PyAny>) -> PyResult<()> {
        let Kept {
            held, semaphore, ..
        } = self.0.get()?;
        let (held, rests) = (held.clone(), semaphore.rests());
        // It goes on even if nobody waits for it.
        drop(call::begin(semaphore.process(), future, async move {
            let Some(slot) = held.take().await else {
                return Ok(None);
            };
            if rests {
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
                    held.was_lost.store(true, Ordering::Relaxed);
                    Ok(Some(lost.to_string()))
                }
                Err(error) => Err(StillHeld::new_err(error.to_string())),
            }
        }));
        Ok(())
    }
}
