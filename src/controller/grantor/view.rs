//! What a grantor sees of Consul: the prefix, and what is in the way.

use std::time::Duration;

use crate::{
    clock::Moment,
    consul::{self, Entry, Listing},
    controller::{backoff::Setback, home::Home, index::SemaphoreRef},
    semaphore::{Deaths, Prefix, Reading, plan::Transaction},
};

/// Why Consul can't be used now.
#[derive(Debug)]
pub(in crate::controller) struct Trouble {
    pub(in crate::controller) error: consul::Error,
    /// Since when there has been trouble of any kind.
    pub(in crate::controller) since: Moment,
    /// Whether reading works, and only writing does not.
    writing: bool,
    pub(super) setback: Setback,
}

/// The part of Consul that a lock key lives in, as it is seen.
pub(in crate::controller) struct View {
    /// For whom it is looked at, for the log.
    semaphore: SemaphoreRef,
    /// The way there; `None` while there is none, so that nothing is read or written.
    pub(in crate::controller) home: Option<Home>,
    prefix: Prefix,
    /// The prefix as Consul last showed it; `None` while that is in doubt.
    pub(in crate::controller) reading: Option<Reading>,
    /// When the last of what it shows was received.
    received: Moment,
    pub(in crate::controller) trouble: Option<Trouble>,
    pub(super) deaths: Deaths,
    /// How often in a row somebody else was faster.
    conflicts: u32,
    /// Whether Consul's index went back.
    pub(in crate::controller) went_back: bool,
    /// When a running Job is to be suspended if nothing is heard of its slot: no call outlasts it.
    pub(super) deadline: Option<Moment>,
}

/// What a call may take, however soon a running Job is to be suspended: less than what would make the
/// next pass believe that it has slept.
const LEAST: Duration = Duration::from_millis(500);

impl View {
    pub(super) fn new(semaphore: SemaphoreRef, home: Option<Home>, prefix: Prefix) -> Self {
        Self {
            semaphore,
            home,
            prefix,
            reading: None,
            received: Moment::now(),
            trouble: None,
            deaths: Deaths::default(),
            conflicts: 0,
            went_back: false,
            deadline: None,
        }
    }

    /// Makes a call of Consul, at the longest until a running Job is to be suspended.
    pub(super) async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, consul::Error>>,
    ) -> Result<T, consul::Error> {
        let Some(deadline) = self.deadline else {
            return call.await;
        };
        let left = deadline.since(Moment::now()).max(LEAST);
        tokio::time::timeout(left, call).await.unwrap_or_else(|_| {
            Err(consul::Error::Unreachable {
                message: "no answer before a running Job must be suspended".into(),
                undecided: true,
            })
        })
    }

    /// Takes a reading from the watch, unless what is known is newer.
    pub(in crate::controller) fn note(&mut self, listing: Result<Listing, consul::Error>) {
        match listing {
            Ok(listing) => {
                // A prefix's index also goes back by itself, when Consul forgets what was deleted.
                // What was asked after the last answer is newer for sure; what was asked beside a
                // write of ours may show the prefix as it was before.
                let newer = self.reading.as_ref().is_none_or(|known| {
                    listing.index >= known.index || listing.sent > self.received
                });
                if newer || listing.reset {
                    self.went_back |= listing.reset;
                    self.accept(listing);
                }
            }
            Err(error) => self.read_failed(error),
        }
    }

    /// Reads the prefix now, if nothing is known of it and nothing is in the way.
    pub(super) async fn look(&mut self) {
        if self.reading.is_some() || self.is_blocked() {
            return;
        }
        let Some(home) = &self.home else {
            return;
        };
        let folder = self.prefix.folder();
        match self.in_time(home.consul.list(&folder)).await {
            Ok(listing) => self.accept(listing),
            Err(error) => self.read_failed(error),
        }
    }

    /// Has the prefix read again before anything else is decided on it.
    pub(super) fn doubt(&mut self) {
        self.reading = None;
    }

    fn accept(&mut self, listing: Listing) {
        self.know(Reading::new(self.prefix.clone(), listing));
        if self
            .trouble
            .as_ref()
            .is_some_and(|trouble| !trouble.writing)
        {
            tracing::debug!(semaphore = %self.semaphore, "Consul can be read again");
            self.trouble = None;
        }
    }

    /// Takes over what a transaction of ours wrote.
    pub(super) fn committed(&mut self, transaction: &Transaction, answer: &[Entry], sent: Moment) {
        self.conflicts = 0;
        self.writing_works();
        if let Some(reading) = self.reading.take() {
            self.know(reading.after(&transaction.operations, answer, sent));
        }
    }

    /// Goes by this from now on.
    fn know(&mut self, reading: Reading) {
        self.received = Moment::now();
        self.deaths.observe(&reading, self.received);
        self.reading = Some(reading);
    }

    /// Somebody else was faster: the prefix is read again, after a pause that grows with every time
    /// in a row.
    pub(super) async fn outrun(&mut self) {
        self.doubt();
        self.conflicts = self.conflicts.saturating_add(1);
        let longest = Duration::from_millis(5) * (1 << self.conflicts.min(8));
        tokio::time::sleep(longest.mul_f64(fastrand::f64())).await;
    }

    pub(super) fn read_failed(&mut self, error: consul::Error) {
        // Nothing is granted in doubt.
        self.doubt();
        self.failed(error, false);
    }

    /// A write failed. If it may have been done all the same, that is looked up, not guessed.
    pub(super) fn write_failed(&mut self, error: consul::Error) {
        if error.may_have_been_applied() {
            self.doubt();
        }
        self.failed(error, true);
    }

    fn failed(&mut self, error: consul::Error, writing: bool) {
        let (before, now) = (self.trouble.as_ref(), Moment::now());
        if before.is_none() {
            let what = if writing { "written to" } else { "read" };
            // The overseer tells of it as what it means to the semaphore.
            tracing::debug!(semaphore = %self.semaphore, %error, "Consul can't be {what}");
        }
        self.trouble = Some(Trouble {
            error,
            since: before.map_or(now, |before| before.since),
            writing,
            setback: Setback::after(before.map(|before| &before.setback), now),
        });
    }

    /// Consul can be written to again, or nothing is left to write.
    pub(super) fn writing_works(&mut self) {
        if self.trouble.as_ref().is_some_and(|trouble| trouble.writing) {
            self.trouble = None;
        }
    }

    /// How many operations a transaction may have.
    pub(super) fn capacity(&self) -> usize {
        let home = self.home.as_ref();
        home.map_or(0, |home| home.consul.transaction_capacity())
    }

    /// Whether Consul is left in peace for now.
    pub(super) fn is_blocked(&self) -> bool {
        let trouble = self.trouble.as_ref();
        self.home.is_none() || trouble.is_some_and(|trouble| trouble.setback.until > Moment::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(index: u64, sent: Moment) -> Listing {
        Listing {
            entries: Vec::new(),
            index,
            sent,
            reset: false,
        }
    }

    fn view() -> View {
        let semaphore = SemaphoreRef {
            namespace: "batch".into(),
            name: "db".into(),
        };
        let prefix: Prefix = "p".parse().unwrap();
        View::new(semaphore, None, prefix)
    }

    #[tokio::test]
    async fn a_call_without_an_answer_ends_when_a_job_must_be_suspended_and_is_undecided() {
        let mut view = view();
        view.deadline = Some(Moment::now());
        let answer: Result<(), _> = view.in_time(std::future::pending()).await;
        assert!(answer.unwrap_err().may_have_been_applied());
        assert_eq!(view.in_time(std::future::ready(Ok(1))).await, Ok(1));
    }

    #[test]
    fn a_listing_asked_beside_a_write_does_not_undo_it() {
        let mut view = view();
        let index = |view: &View| view.reading.as_ref().map(|reading| reading.index);
        let (first, second) = (Moment::now(), Moment::now());
        view.note(Ok(listing(9, first)));
        view.note(Ok(listing(8, second)));
        assert_eq!(index(&view), Some(9));
        view.note(Ok(listing(7, Moment::now() + Duration::from_nanos(1))));
        assert_eq!(index(&view), Some(7), "Consul forgot what was deleted");
    }
}
