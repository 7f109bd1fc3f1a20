//! A limit on how often something starts, as a type of its own.

use std::time::Duration;

use super::{Builder, NoSlot, Semaphore};
use consul_client::Client;

/// A limit on how often something starts, among all who use the prefix. Clones share it.
///
/// ```no_run
/// use std::time::Duration;
///
/// use consul_semaphore::{Rate, consul};
///
/// # async fn call() {}
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let consul = consul::Client::new(consul::Config::from_env()?)?;
/// // At most two calls in any second.
/// let calls = Rate::builder(consul, "rates/api", 2, Duration::from_secs(1)).build()?;
/// for _ in 0..10 {
///     calls.start().await?;
///     call().await;
/// }
/// // Otherwise the last starts would count until their sessions have expired.
/// calls.semaphore().all_released().await;
/// # Ok(())
/// # }
/// ```
///
/// A start counts for one period, even if it fails, so there is nothing to hold or release: a task removes the
/// start from Consul when its period is over. If the program ends earlier, the start counts until its session has
/// expired, for up to four periods and two minutes. [`Semaphore::all_released`] waits until no start of this program
/// counts.
#[derive(Clone, Debug)]
pub struct Rate(pub(super) Semaphore);

impl Rate {
    /// Begins to build the rate at this prefix: at most `starts` in any `period`, whole seconds from 1 to 12 hours. Both
    /// must be the same for all who use the prefix.
    pub fn builder(
        consul: Client,
        prefix: impl Into<String>,
        starts: u32,
        period: Duration,
    ) -> Builder<Self> {
        Builder::of_rate(consul, prefix.into(), starts, period)
    }

    /// Waits until one more start is allowed, and counts it, as [`Semaphore::acquire`] does. Start at once when this
    /// returns.
    ///
    /// # Errors
    /// Returns [`NoSlot`], which says what to do, if waiting is useless.
    pub async fn start(&self) -> Result<(), NoSlot> {
        self.0.acquire().await.map(drop)
    }

    /// Counts one more start if it is allowed now and nobody waited for it before, as [`Semaphore::try_acquire`] does.
    ///
    /// # Errors
    /// The start is not allowed now ([`NoSlot::is_taken`]), Consul can't be reached, or waiting would be useless.
    pub async fn try_start(&self) -> Result<(), NoSlot> {
        self.0.try_acquire().await.map(drop)
    }

    /// Waits until one more start is allowed, for at most this time, and counts it.
    ///
    /// # Errors
    /// The start was not allowed in that time ([`NoSlot::waited`]), or waiting is useless.
    pub async fn start_within(&self, time: Duration) -> Result<(), NoSlot> {
        self.0.acquire_within(time).await.map(drop)
    }

    /// Returns the rate as a semaphore whose held slots are the starts that count, which has [`Semaphore::usage`] and
    /// [`Semaphore::all_released`], too.
    pub fn semaphore(&self) -> &Semaphore {
        &self.0
    }
}
