//! The watch of a semaphore's prefix in Consul.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use crate::controller::shell::Input;
use consul_client::{Client, WatchOptions};
use consul_semaphore::engine::SemaphoreRef;

/// The number of the next watch. A listing may still be queued when its semaphore was deleted and another one has its
/// name: so every watch has its own number.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The watch of a prefix, until this is dropped.
pub(super) struct PrefixWatch {
    number: u64,
    /// How long it waits for a change before it answers anyway.
    wait: Duration,
    /// Whether somebody waits for a change.
    urgent: watch::Sender<bool>,
    _task: JoinSet<()>,
}

impl PrefixWatch {
    /// Watches this folder, and sends its listings to the shell with the number of the watch.
    pub(super) fn start(
        consul: &Client,
        folder: &str,
        (wait, urgent): (Duration, bool),
        (semaphore, inputs): (SemaphoreRef, mpsc::Sender<Input>),
    ) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let urgent = watch::channel(urgent).0;
        let options = WatchOptions {
            wait,
            urgent: urgent.subscribe(),
            ..WatchOptions::default()
        };
        let mut readings = consul.readings(folder, options);
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Some(listing) = readings.recv().await {
                let input = Input::Listed(semaphore.clone(), number, listing);
                if inputs.send(input).await.is_err() {
                    return;
                }
            }
        });
        Self {
            number,
            wait,
            urgent,
            _task: task,
        }
    }

    /// Whether it is the watch with this number.
    pub(super) fn is(&self, number: u64) -> bool {
        self.number == number
    }

    /// Whether this is how long it waits.
    pub(super) fn waits(&self, wait: Duration) -> bool {
        self.wait == wait
    }

    /// Sets whether somebody waits for a change.
    pub(super) fn hurry(&self, urgent: bool) {
        self.urgent
            .send_if_modified(|is| std::mem::replace(is, urgent) != urgent);
    }
}
