//! Runs work in a slot, from the wait for the slot to its release.

use super::{NoSlot, ReleaseError, Semaphore, Slot, task::report};
use crate::holder::{Lost, Notice};

/// The error of [`Semaphore::run`]: the work did not begin, or its slot was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no slot, so the work did not begin.
    #[error(transparent)]
    NoSlot(#[from] NoSlot),
    /// The slot was lost while the work ran, or the release found that others may have held it meanwhile. Check what
    /// the work did.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl Semaphore {
    /// Waits for a slot as [`Self::acquire`] does, runs the work in the slot, and releases the slot.
    ///
    /// ```no_run
    /// # use consul_semaphore::{RunError, Semaphore};
    /// # async fn migrate(fencing_token: u64) -> u32 { 0 }
    /// # async fn run(db: Semaphore) -> Result<(), RunError> {
    /// let steps = db.run(async |slot| migrate(slot.fencing_token()).await).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If the slot is lost, `run` ends the work at once: it drops the work's future, which happens where the work
    /// awaits something. A function that blocks is not ended, nor are the tasks, threads and processes that the work
    /// started: end these within [`Builder::grace`](super::Builder::grace) when `run` returns [`RunError::Lost`].
    ///
    /// When `run` returns the work's value, others can have the slot. With a [cooldown](super::Builder::cooldown), or
    /// in a [rate](super::Builder::rate), a task releases the slot later, and `run` does not wait for it. If Consul
    /// does not answer the release, or refuses it, for as long as [`Slot::release`] tries it, `run` returns the value
    /// nevertheless, and reports [`Notice::StillHeld`].
    ///
    /// If the future that `run` returns is dropped, the work's future is dropped with it, and a task releases the slot.
    /// After a loss, too, a task gives back what is left of it. [`Self::all_released`] waits for such tasks.
    ///
    /// # Errors
    /// Waiting for a slot is useless, or the slot was lost. The value of work that ended in a lost slot is dropped.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Slot) -> T) -> Result<T, RunError> {
        let slot = self.acquire().await?;
        let value = tokio::select! {
            // Work that is woken late does not go on in a slot that is lost by the clock.
            biased;
            lost = slot.lost() => return Err(lost.into()),
            value = work(&slot) => value,
        };
        let released = if self.0.settings.outlasts_work() {
            slot.leave()
        } else {
            slot.release().await
        };
        match released {
            Ok(()) => Ok(value),
            Err(ReleaseError::Lost(lost)) => Err(lost.into()),
            Err(ReleaseError::StillHeld(held)) => {
                report(&*self.0.on_notice, Notice::StillHeld(held));
                Ok(value)
            }
        }
    }
}
