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

/// The number of the next watch. What one of them brought may still be on its way when its semaphore is gone and there
/// is another one of that name: no two watches have the same.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The watch of a prefix, until this is dropped.
pub(super) struct PrefixWatch {
    number: u64,
    /// How long it waits for news before it answers all the same.
    wait: Duration,
    /// Whether somebody waits for what it brings.
    urgent: watch::Sender<bool>,
    _task: JoinSet<()>,
}

impl PrefixWatch {
    /// Watches what is below this folder, and has the shell told what it brings, with the number of the watch.
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

    /// Whether it waits so long.
    pub(super) fn waits(&self, wait: Duration) -> bool {
        self.wait == wait
    }

    /// Somebody waits for what it brings, or nobody does.
    pub(super) fn hurry(&self, urgent: bool) {
        self.urgent
            .send_if_modified(|is| std::mem::replace(is, urgent) != urgent);
    }
}
