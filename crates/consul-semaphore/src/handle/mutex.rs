//! A semaphore with one slot, as a type of its own.

use std::time::Duration;

use super::{Builder, NoSlot, RunError, Semaphore, Slot};
use consul_client::Client;

/// A lock that one program holds at a time: the lock of `consul lock -n 1`, and of `api.Lock` in Consul's Go client at
/// `<prefix>/.lock`. Clones share it.
///
/// ```no_run
/// use consul_semaphore::{Mutex, consul};
///
/// # async fn migrate(fencing_token: u64) {}
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let consul = consul::Client::new(consul::Config::from_env()?)?;
/// let schema = Mutex::builder(consul, "locks/schema").build()?;
/// schema.run(async |lock| migrate(lock.fencing_token()).await).await?;
/// # Ok(())
/// # }
/// ```
///
/// Nobody can see who waits for a mutex, so there are no priorities, and no order among those who wait. A
/// [`Semaphore`] with the limit 1 has both.
#[derive(Clone, Debug)]
pub struct Mutex(pub(super) Semaphore);

impl Mutex {
    /// Begins to build the mutex at this prefix.
    pub fn builder(consul: Client, prefix: impl Into<String>) -> Builder<Self> {
        Builder::of_mutex(consul, prefix.into())
    }

    /// Waits for the lock, as [`Semaphore::acquire`] does. Others can have the lock once the slot is dropped or
    /// released.
    ///
    /// # Errors
    /// Returns [`NoSlot`], which says what to do, if waiting is useless.
    pub async fn lock(&self) -> Result<Slot, NoSlot> {
        self.0.acquire().await
    }

    /// Takes the lock if nobody holds it, as [`Semaphore::try_acquire`] does.
    ///
    /// # Errors
    /// Somebody holds the lock ([`NoSlot::is_taken`]), Consul can't be reached, or waiting would be useless.
    pub async fn try_lock(&self) -> Result<Slot, NoSlot> {
        self.0.try_acquire().await
    }

    /// Waits for the lock, for at most this time.
    ///
    /// # Errors
    /// The lock was not free in that time ([`NoSlot::waited`]), or waiting is useless.
    pub async fn lock_within(&self, time: Duration) -> Result<Slot, NoSlot> {
        self.0.acquire_within(time).await
    }

    /// Waits for the lock, runs the work while it holds the lock, and releases it, as [`Semaphore::run`] does.
    ///
    /// # Errors
    /// Waiting for the lock is useless, or the lock was lost.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Slot) -> T) -> Result<T, RunError> {
        self.0.run(work).await
    }

    /// Returns the mutex as a semaphore with one slot, which has [`Semaphore::usage`] and
    /// [`Semaphore::all_released`], too.
    pub fn semaphore(&self) -> &Semaphore {
        &self.0
    }
}
