//! What the watch of a prefix reads.

use futures::{Stream, StreamExt};
use tokio::{sync::mpsc, task::JoinSet};

use crate::consul::{self, Listing};

/// A watch of the prefix, in a task of its own, which ends with this.
///
/// Polled between the passes only, it could stand still with a lock of the client's in its hands,
/// such as that of the token's file, while a call of the pass waits for that lock for ever.
pub(in crate::controller) struct Readings {
    listings: mpsc::Receiver<Result<Listing, consul::Error>>,
    _task: JoinSet<()>,
}

impl Readings {
    pub(super) fn of(
        watch: impl Stream<Item = Result<Listing, consul::Error>> + Send + 'static,
    ) -> Self {
        // A reading that waits here gets no newer: the watch goes on when it is taken.
        let (send, listings) = mpsc::channel(1);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut watch = std::pin::pin!(watch);
            while let Some(listing) = watch.next().await {
                if send.send(listing).await.is_err() {
                    return;
                }
            }
        });
        Self {
            listings,
            _task: task,
        }
    }

    /// The next reading.
    pub(in crate::controller) async fn next(&mut self) -> Option<Result<Listing, consul::Error>> {
        self.listings.recv().await
    }
}
