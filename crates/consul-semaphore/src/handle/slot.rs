//! A slot, from its grant to its release.

use std::{fmt, time::Duration};

use tokio::sync::{oneshot, watch};

use super::task::Released;
use crate::{
    Prefix, Sequencer,
    holder::{Lost, Settings},
    plan::{self, Start, Suspended},
};
use consul_client::SessionId;

/// A slot that is held, or all of those that were asked for together. Its session is renewed until it is dropped or
/// released.
///
/// It counts as held only as long as a renewal and a reading of Consul show it, see [`Self::lost`].
#[must_use = "a slot that is dropped is released"]
pub struct Slot {
    granted: Start,
    lost: watch::Receiver<Option<Lost>>,
    /// The slot's task releases it when this is used or dropped.
    ends: oneshot::Sender<Released>,
    /// The semaphore that was named first.
    prefix: Prefix,
    /// How long what is not released stays in Consul at the most.
    expires: Duration,
}

/// A slot could not be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Consul does not answer: the slot is free once its session has expired, {}s from now at the latest",
    expires.as_secs()
)]
pub struct StillHeld {
    /// After how long Consul has ended the session, at the latest.
    pub expires: Duration,
}

impl StillHeld {
    pub(super) fn for_at_most(expires: Duration) -> Self {
        Self { expires }
    }
}

impl Slot {
    pub(super) fn new(
        granted: Start,
        settings: &Settings,
        lost: watch::Receiver<Option<Lost>>,
        ends: oneshot::Sender<Released>,
    ) -> Self {
        Self {
            granted,
            lost,
            ends,
            prefix: settings.request.first().prefix.clone(),
            expires: settings.expires(),
        }
    }

    fn first(&self) -> &plan::Slot {
        &self.granted.slot
    }

    /// The session in Consul that holds it: of several slots, the one that holds the first.
    pub fn session(&self) -> &SessionId {
        self.first().session()
    }

    /// A number that is greater than that of every earlier grant at the prefix, whoever got it. A resource that keeps
    /// the greatest one that it has seen, and refuses smaller ones, is safe from holders that have lost their slot
    /// without noticing. With more slots than one it only orders the grants. Several slots that were granted together
    /// have the same.
    pub fn fencing_token(&self) -> u64 {
        self.first().fencing_token()
    }

    /// Consul's sequencer of the slot: the key, its session and its `LockIndex`, by which others can check that the
    /// slot is still held. Of several slots, that of the first.
    pub fn sequencer(&self) -> Sequencer {
        self.first().into()
    }

    /// The sequencers of all slots that were granted together, grouped by semaphore, in the order in which these were
    /// named.
    pub fn sequencers(&self) -> Vec<Sequencer> {
        self.granted.slots().map(Sequencer::from).collect()
    }

    /// Waits until the slot is lost; then the work in it must end, within [`Builder::grace`](super::Builder::grace).
    ///
    /// It is lost when Consul says so, as when somebody has destroyed the session. Then others may have the slot once
    /// the lock-delay is over. It counts as lost, too, when nothing has shown for nearly a TTL that it is held, as when
    /// Consul can't be reached: early enough for the grace to be over before Consul can end the session. So the work
    /// has ended before anybody else has the slot.
    ///
    /// Of several slots, the first one that is lost counts. The slot stays lost: drop it and acquire another one. The
    /// slots of a [rate](super::Builder::rate) are never lost, because they only say that something may start.
    pub async fn lost(&self) -> Lost {
        let mut lost = self.lost.clone();
        let lost = lost.wait_for(Option::is_some).await;
        let lost = lost.ok().and_then(|lost| lost.clone());
        // The task has ended with its runtime: nobody knows any more.
        lost.unwrap_or_else(|| Lost {
            prefix: self.prefix.clone(),
            why: Suspended::Unproved,
        })
    }

    /// Whether it is known to be lost: check this before a step that can't be undone.
    pub fn is_lost(&self) -> bool {
        self.lost.borrow().is_some() || self.ends.is_closed()
    }

    /// Releases the slot, and waits until others can have it: with a cooldown, or in a rate, that is when it has
    /// ended. A slot that is dropped is released as well, by a task that nobody waits for
    /// (but see [`Semaphore::all_released`](super::Semaphore::all_released)).
    ///
    /// # Errors
    /// Consul does not answer.
    pub async fn release(self) -> Result<(), StillHeld> {
        let unknown = StillHeld::for_at_most(self.expires);
        let (reply, released) = oneshot::channel();
        // An error means that the slot's task has ended with its runtime.
        if self.ends.send(reply).is_err() {
            return Err(unknown);
        }
        released.await.unwrap_or(Err(unknown))
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("sequencers", &self.sequencers())
            .field("lost", &*self.lost.borrow())
            .finish_non_exhaustive()
    }
}
