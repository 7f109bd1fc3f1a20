//! Builds the kinds of semaphores that have a type of their own, and says which options make sense for which kind.

use std::time::Duration;

use super::{Builder, InvalidSemaphore};
use crate::{
    Mode,
    handle::{Mutex, Rate, Semaphore},
};
use consul_client::Client;

/// The kinds whose slots are held while work runs: [`Semaphore`] and [`Mutex`].
pub trait Held: sealed::Built {}

impl Held for Semaphore {}
impl Held for Mutex {}

/// The kinds whose slots are granted in an order that all who wait can see: [`Semaphore`] and [`Rate`].
pub trait Ordered: sealed::Built {}

impl Ordered for Semaphore {}
impl Ordered for Rate {}

mod sealed {
    use crate::handle::{Mutex, Rate, Semaphore};

    /// The kinds that a builder builds. Other crates can't add one.
    pub trait Built {}

    impl Built for Semaphore {}
    impl Built for Mutex {}
    impl Built for Rate {}
}

/// A mutex.
impl Builder<Mutex> {
    pub(in crate::handle) fn of_mutex(consul: Client, prefix: String) -> Self {
        Self::new(consul, prefix).choose(|semaphore| semaphore.mode = Mode::Mutex)
    }

    /// Builds the mutex. This asks Consul nothing, and must be called in a tokio runtime, which runs the tasks of the
    /// slots.
    ///
    /// # Errors
    /// The error says which of the choices is not possible.
    pub fn build(self) -> Result<Mutex, InvalidSemaphore> {
        self.semaphore().map(Mutex)
    }
}

/// A rate.
impl Builder<Rate> {
    pub(in crate::handle) fn of_rate(
        consul: Client,
        prefix: String,
        starts: u32,
        period: Duration,
    ) -> Self {
        Self::new(consul, prefix).counting_starts(starts, period)
    }

    /// Builds the rate. This asks Consul nothing, and must be called in a tokio runtime, which runs the tasks of the
    /// starts.
    ///
    /// # Errors
    /// The error says which of the choices is not possible.
    pub fn build(self) -> Result<Rate, InvalidSemaphore> {
        self.semaphore().map(Rate)
    }
}
