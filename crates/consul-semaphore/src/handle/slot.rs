//! A slot, from its grant to its release.

use std::{fmt, time::Duration};

use tokio::sync::oneshot;

use super::{
    refusal::{advice_on, runtime_ended},
    task::Released,
};
use crate::{
    Sequencer,
    holder::{Lost, NotReleased, Settings, Standing},
    plan::{self, Start},
};
use consul_client::{self as consul, SessionId, clock::Moment};

/// A slot that is held, or all of those that were asked for together. Its session is renewed until it is dropped or
/// released.
///
/// It counts as held only as long as a renewal and a reading of Consul show it, see [`Self::lost`].
#[must_use = "a slot that is dropped is released"]
pub struct Slot {
    granted: Start,
    standing: Standing,
    /// The slot's task releases it when this is used or dropped.
    ends: oneshot::Sender<Released>,
    /// How long what is not released stays in Consul at the most.
    expires: Duration,
}

/// A slot that is granted, and in which no work has begun yet.
///
/// [`Semaphore::acquire`](super::Semaphore::acquire) and the like begin by themselves, when they return. This is for
/// those who have to hand the slot on, as to another language, and may find that nobody wants it any more: a pending slot
/// that is dropped is given back at once, without a cooldown, and a rate does not count it as a start.
#[must_use = "a pending slot that is dropped is given back"]
#[derive(Debug)]
pub struct PendingSlot {
    slot: Slot,
    /// Used when the work begins.
    begins: oneshot::Sender<()>,
    /// When it is too late for that.
    begin_by: Moment,
}

impl PendingSlot {
    pub(super) fn new(slot: Slot, begins: oneshot::Sender<()>, begin_by: Moment) -> Self {
        Self {
            slot,
            begins,
            begin_by,
        }
    }

    /// The sequencers of all slots that were granted together, as those of a [`Slot`].
    pub fn sequencers(&self) -> Vec<Sequencer> {
        self.slot.sequencers()
    }

    /// The work begins now. `None`: this comes too late, because the slot was lost meanwhile, or belongs to a
    /// [rate](super::Builder::rate), whose starts follow their grant within half a minute. Then ask for another slot.
    pub fn begin(self) -> Option<Slot> {
        let late = self.begin_by <= Moment::now() || self.slot.is_lost();
        // An error means that the slot's task has given it back.
        (!late && self.begins.send(()).is_ok()).then_some(self.slot)
    }
}

/// A slot was not released, or was no longer held then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It was lost before that, so others may have had it while the work ran. Nothing of it is left.
    #[error("{0}: others may have had it before it was released")]
    Lost(Lost),
    /// Consul does not answer, or refuses.
    #[error(transparent)]
    StillHeld(#[from] StillHeld),
}

/// A slot could not be released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{why}: the slot is free once its session has expired, {}s from now at the latest{}{advice}",
    expires.as_secs(),
    if advice.is_empty() { "" } else { ". " }
)]
#[non_exhaustive]
pub struct StillHeld {
    /// What was wrong with Consul at last.
    pub why: consul::Error,
    /// After how long Consul has ended the session, at the latest.
    pub expires: Duration,
    /// What to do about it: a sentence, or nothing.
    pub advice: String,
}

impl StillHeld {
    pub(super) fn new(failed: NotReleased, expires: Duration, settings: &Settings) -> Self {
        let advice = advice_on(&failed.why, settings);
        Self {
            why: failed.why,
            expires,
            advice,
        }
    }

    /// The slot's task has ended with its runtime.
    fn ended(expires: Duration) -> Self {
        Self {
            why: runtime_ended(),
            expires,
            advice: String::new(),
        }
    }
}

impl Slot {
    pub(super) fn new(
        granted: Start,
        settings: &Settings,
        standing: Standing,
        ends: oneshot::Sender<Released>,
    ) -> Self {
        Self {
            granted,
            standing,
            ends,
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
    /// It is lost when Consul says so, as when somebody has destroyed the session. Then others may have the slot: those
    /// with this library after [their own lock-delay](super::Builder::lock_delay), Consul's Go client and
    /// `consul lock -n` at once, and that of a mutex nobody before the lock-delay of this session is over.
    ///
    /// It counts as lost, too, when nothing has shown for nearly a TTL that it is held, as when Consul can't be reached:
    /// early enough for the grace to be over before Consul can end the session. So the work has ended before anybody
    /// else has the slot.
    ///
    /// Of several slots, the first one that is lost counts. The slot stays lost: drop it and acquire another one. The
    /// slots of a [rate](super::Builder::rate) are never lost, because they only say that something may start.
    pub async fn lost(&self) -> Lost {
        self.standing.until_lost().await
    }

    /// Whether it is lost, see [`Self::lost`]: check this before a step that can't be undone. It reads the clock, so it
    /// tells the truth also while the runtime is blocked or overloaded. A slot that was called lost stays lost.
    pub fn is_lost(&self) -> bool {
        self.standing.lost().is_some()
    }

    /// Releases the slot, and waits until others can have it: with a cooldown, or in a rate, that is when it has
    /// ended. A slot that is dropped is released as well, by a task that nobody waits for
    /// (but see [`Semaphore::all_released`](super::Semaphore::all_released)).
    ///
    /// It also finds out whether others may have had the slot without a sign of that until now. A session that has ended
    /// is no error as long as its slot was still in `.lock`, because nobody else can have had it. With a
    /// [cooldown](super::Builder::cooldown) this does not find out: then only what [`Self::lost`] would have said is an
    /// error.
    ///
    /// # Errors
    /// The slot was lost before, or Consul does not answer, or refuses, for ten seconds.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let ended = StillHeld::ended(self.expires);
        let (reply, released) = oneshot::channel();
        // Now, and not when its task comes to it.
        self.standing.lost();
        // An error means that the slot's task has ended.
        if self.ends.send(reply).is_err() {
            return Err(ended.into());
        }
        released.await.unwrap_or_else(|_ended| Err(ended.into()))
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("sequencers", &self.sequencers())
            .field("lost", &self.standing.lost())
            .finish_non_exhaustive()
    }
}
