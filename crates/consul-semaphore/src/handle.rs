//! Offers the semaphore that a program uses, [`Semaphore`], and the [`Slot`] that it gives.
//!
//! Each slot has a task that drives a [`Holder`](crate::holder::Holder), from the wait for the slot to its release. The
//! handles only talk to the task, so they can be dropped at any time.
//!
//! | file | subject |
//! |---|---|
//! | `builder` | the choices of a program, and the errors of impossible ones |
//! | `mutex`, `rate` | kinds of semaphores with a type of their own |
//! | `run` | work in a slot, from the wait for the slot to its release |
//! | `slot` | a slot, from its grant to its release |
//! | `task` | the task of a slot |
//! | `usage` | who uses a semaphore |
//! | `refusal` | the reason why there is no slot, and advice |

mod builder;
mod mutex;
mod rate;
mod refusal;
mod run;
mod slot;
mod task;
mod usage;

use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
};

use self::task::Counted;
pub use self::{
    builder::{Builder, Held, InvalidSemaphore, Ordered},
    mutex::Mutex,
    rate::Rate,
    refusal::NoSlot,
    run::RunError,
    slot::{PendingSlot, ReleaseError, Slot},
};
use crate::holder::{HolderSettings, Notice};
use consul_client::{Client, clock::Moment};

/// A semaphore, or several semaphores whose slots are taken together. Clones share it.
///
/// ```no_run
/// use consul_semaphore::{Semaphore, consul};
///
/// # async fn work() {}
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let consul = consul::Client::new(consul::Config::from_env()?)?;
/// let db = Semaphore::builder(consul, "locks/db").limit(3).build()?;
/// let slot = db.acquire().await?;
/// tokio::select! {
///     () = work() => {}
///     lost = slot.lost() => return Err(lost.into()),
/// }
/// // The release fails, too, if the slot was lost just before.
/// slot.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// A call that waits for a slot can be dropped at any time, as by `tokio::select!` or `tokio::time::timeout`. Its place
/// in the queue is then given up, and a slot that was just granted is released at once: the slot does not cool down,
/// and does not count as a start of a rate. This takes a few calls to Consul, which a task makes;
/// [`Self::all_released`] waits for the task.
///
/// A call that ends without a slot has given up its place when it returns. If Consul does not answer, the call returns
/// two seconds later at the most, and the place stays until the session has expired, for two TTLs at the most.
///
/// Thousands of calls may wait at once, in one program or in many on a machine. Consul accepts only 200 connections
/// from one address, so only the calls whose turn is near watch the prefix. All others look now and then how many are
/// left before them, and keep no connection meanwhile. The programs on one machine together watch 48 prefixes at each
/// server of Consul, for calls whose turn is near, slots that are held, and calls that wait for a mutex or without
/// [`fair_order`](Builder::fair_order), where nobody sees who waits. Beyond that number a prefix is read every fifth of
/// the TTL, or every second for a call whose turn is near.
#[derive(Clone)]
pub struct Semaphore(Arc<SharedData>);

/// The data that all clones and slots have in common.
struct SharedData {
    settings: HolderSettings,
    consul: Client,
    on_notice: Arc<dyn Fn(Notice) + Send + Sync>,
    /// The runtime of the tasks. The code that awaits a slot may run in another runtime.
    runtime: Handle,
    /// The number of tasks.
    tasks: watch::Sender<usize>,
}

impl Semaphore {
    /// Begins to build the semaphore at this prefix. [`Builder::limit`], [`Builder::mutex`] or [`Builder::rate`] says
    /// what kind of semaphore it is. All users of the prefix must say the same.
    pub fn builder(consul: Client, prefix: impl Into<String>) -> Builder {
        Builder::new(consul, prefix.into())
    }

    /// Waits for a slot, for as long as it takes, also while Consul can't be reached.
    ///
    /// # Errors
    /// Returns [`NoSlot`], which says what to do, if waiting is useless.
    pub async fn acquire(&self) -> Result<Slot, NoSlot> {
        self.ask(true, None).await
    }

    /// Takes a slot if one is free, and nobody queued for it before. The call waits only for answers of Consul, and for
    /// the lock-delay of a dead holder, also of a mutex.
    ///
    /// # Errors
    /// There is no free slot ([`NoSlot::is_taken`]), Consul can't be reached, or waiting would be useless.
    pub async fn try_acquire(&self) -> Result<Slot, NoSlot> {
        self.ask(false, None).await
    }

    /// Waits for a slot, for at most this time.
    ///
    /// # Errors
    /// There was no slot in that time ([`NoSlot::waited`]), or waiting is useless.
    pub async fn acquire_within(&self, time: Duration) -> Result<Slot, NoSlot> {
        self.ask(true, Some(time)).await
    }

    /// Waits until all slots of this semaphore are given back, and nobody waits for one. Call this before the program
    /// ends if it has dropped slots. With a cooldown or a rate this takes until the last slot is free.
    pub async fn all_released(&self) {
        let mut tasks = self.0.tasks.subscribe();
        // The wait can't fail, because the sender is in `self`.
        let _ = tasks.wait_for(|tasks| *tasks == 0).await;
    }

    /// Asks for a slot as [`Self::acquire_within`] does, as [`Self::acquire`] without a time, or as
    /// [`Self::try_acquire`] with a time of zero. The work begins only with [`PendingSlot::begin`].
    ///
    /// # Errors
    /// The errors are those of the method whose behavior is chosen.
    pub async fn acquire_pending(&self, within: Option<Duration>) -> Result<PendingSlot, NoSlot> {
        match within {
            Some(Duration::ZERO) => self.pend(false, None).await,
            within => self.pend(true, within).await,
        }
    }

    async fn ask(&self, wait: bool, within: Option<Duration>) -> Result<Slot, NoSlot> {
        let until = within.map(|time| Moment::now() + time);
        loop {
            let left = until.map(|until| until.since(Moment::now()));
            let pending = self.pend(wait, left).await.map_err(|refused| NoSlot {
                waited: refused.waited.and(within),
                ..refused
            })?;
            // A slot that was lost before anybody looked at it does not count, so another one is requested.
            if let Some(slot) = pending.begin() {
                return Ok(slot);
            }
        }
    }

    async fn pend(&self, wait: bool, within: Option<Duration>) -> Result<PendingSlot, NoSlot> {
        let (reply, answer) = oneshot::channel();
        let task = task::run(Counted::new(&self.0), wait, within, reply);
        self.0.runtime.spawn(task);
        answer.await.unwrap_or_else(|_ended| Err(NoSlot::ended()))
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Semaphore").field(&self.0.settings).finish()
    }
}
