//! Shares one page of metrics among all readers. So the readers of `/metrics` together cost one encoding a second,
//! however many they are and however slowly they read.

use std::{sync::Arc, time::Duration};

use axum::body::Bytes;
use consul_client::clock::Moment;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

/// Time for which readers are given the same page.
const FRESH: Duration = Duration::from_secs(1);

/// Largest number of pages in memory: the one that readers are given, one that is being encoded, and one that slow
/// readers have not read to its end.
const PAGES: usize = 3;

/// The page, encoded when a reader asks for it.
pub(super) struct MetricsPage {
    encode: Box<dyn Fn() -> String + Send + Sync>,
    fresh: Duration,
    /// Bound on the pages in memory. Each page has a permit until its last reader is done.
    room: Arc<Semaphore>,
    last: Mutex<Option<Encoded>>,
}

/// A page that readers are given.
struct Encoded {
    text: Bytes,
    until: Moment,
}

impl MetricsPage {
    /// Creates a page with the text that `encode` returns.
    pub(super) fn new(encode: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self {
            encode: Box::new(encode),
            fresh: FRESH,
            room: Arc::new(Semaphore::new(PAGES)),
            last: Mutex::default(),
        }
    }

    /// Returns the text. It is older than [`FRESH`] only while slow readers keep all other pages, and the time limits
    /// of their connections bound that.
    pub(super) async fn read(&self) -> Bytes {
        // One reader encodes the page, and the others wait for that reader.
        let mut last = self.last.lock().await;
        let fresh = last
            .as_ref()
            .filter(|last| last.until > Moment::now() || self.room.available_permits() == 0);
        if let Some(fresh) = fresh {
            return fresh.text.clone();
        }
        let page = Kept {
            // A permit is free: one was seen above, or this is the first page.
            _room: self.room.clone().try_acquire_owned().ok(),
            text: (self.encode)(),
        };
        let text = Bytes::from_owner(page);
        *last = Some(Encoded {
            text: text.clone(),
            until: Moment::now() + self.fresh,
        });
        text
    }
}

/// A page in memory.
struct Kept {
    text: String,
    _room: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Returns a page that is too large for a socket to take at once and that stays fresh for this long, and the
    /// number of times that it was encoded.
    pub(in crate::endpoints) fn counted(fresh: Duration) -> (MetricsPage, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counts = count.clone();
        let encode = move || {
            counts.fetch_add(1, Ordering::Relaxed);
            "x".repeat(LENGTH)
        };
        let page = MetricsPage {
            fresh,
            ..MetricsPage::new(encode)
        };
        (page, count)
    }

    /// Length of the page of `counted`, in bytes.
    pub(in crate::endpoints) const LENGTH: usize = 16 << 20;

    #[tokio::test]
    async fn a_page_is_encoded_again_when_it_is_no_longer_fresh() {
        let (page, count) = counted(Duration::ZERO);
        for expected in 1..10 {
            page.read().await;
            assert_eq!(count.load(Ordering::Relaxed), expected);
        }
    }

    #[tokio::test]
    async fn pages_that_are_still_being_read_make_no_room_for_others() {
        let (page, count) = counted(Duration::ZERO);
        let mut reading = Vec::new();
        for _ in 0..2 * PAGES {
            reading.push(page.read().await);
        }
        assert_eq!(count.load(Ordering::Relaxed), PAGES);
        reading.remove(0);
        page.read().await;
        assert_eq!(count.load(Ordering::Relaxed), PAGES + 1);
    }
}
