//! Decides when a failed call is made again.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

use super::{
    Backoff, Error,
    endpoints::{Choice, Target},
};

/// Pauses between the attempts of one call.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Number of pauses that one call makes.
const MOST_PAUSES: u32 = 5;

/// The shortest pause after "too many requests".
const SLOW_DOWN_PAUSE: Duration = Duration::from_millis(500);

/// The attempts of one call.
pub(super) struct Repeat {
    /// Nothing is sent after this.
    latest: Instant,
    backoff: Backoff,
    pub(super) tried: Vec<Arc<Target>>,
    /// A failure after which a write may have been applied. It takes precedence over later ones.
    undecided: Option<Error>,
}

impl Repeat {
    pub(super) fn new(latest: Instant) -> Self {
        Self {
            latest,
            backoff: BACKOFF,
            tried: Vec::new(),
            undecided: None,
        }
    }

    /// Waits until the next attempt; fails with the error if that would be too late. A server that this call has not
    /// tried yet is asked at once.
    pub(super) async fn pause(&mut self, error: Error, servers: &Choice) -> Result<(), Error> {
        let slow = matches!(error, Error::TooManyRequests(_));
        let fresh = match timeout_at(self.latest, servers.current()).await {
            Ok(Ok(next)) => !self.tried.iter().any(|tried| tried.is_same_server(&next)),
            _ => false,
        };
        let pause = match (slow, fresh) {
            (false, true) => Some(Duration::ZERO),
            (false, false) => self.next_pause(),
            (true, _) => self.next_pause().map(|pause| pause + SLOW_DOWN_PAUSE),
        };
        let Some(pause) = pause.filter(|pause| Instant::now() + *pause < self.latest) else {
            return Err(self.worst(error));
        };
        if error.may_have_been_applied() {
            self.undecided.get_or_insert(error);
        }
        sleep(pause).await;
        Ok(())
    }

    fn next_pause(&mut self) -> Option<Duration> {
        (self.backoff.tries() < MOST_PAUSES).then(|| self.backoff.pause())
    }

    /// The error of the whole call, whose last attempt failed with this one.
    pub(super) fn worst(&mut self, last: Error) -> Error {
        match self.undecided.take() {
            Some(undecided) if !last.may_have_been_applied() && last.is_transient() => undecided,
            _ => last,
        }
    }
}
