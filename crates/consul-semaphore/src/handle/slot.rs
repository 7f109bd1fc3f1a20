//! Represents a slot, from its grant to its release.

use std::{fmt, time::Duration};

use tokio::sync::oneshot;

use super::{
    refusal::{advice_on, runtime_ended},
    task::Released,
};
use crate::{
    Sequencer,
    holder::{HolderSettings, Lost, NotReleased, SlotWatch, StillHeld},
    plan::{self, Start},
};
use consul_client::{SessionId, clock::Moment};

/// A slot that is held, or all slots that were asked for together. Its session is renewed until the slot is dropped or
/// released.
///
/// The slot counts as held only as long as a renewal and a reading of Consul show it, see [`Self::lost`].
#[must_use = "a slot that is dropped is released"]
pub struct Slot {
    granted: Start,
    watch: SlotWatch,
    /// The sender for the release. The slot's task releases the slot when the sender is used or dropped.
    ends: oneshot::Sender<Released>,
    /// The longest time for which an unreleased slot stays in Consul.
    expires: Duration,
}

/// A slot that is granted, and in which no work has begun yet.
///
/// [`Semaphore::acquire`](super::Semaphore::acquire) and its siblings begin the work by themselves when they return. A
/// pending slot is for programs that have to hand the slot on, as to another language, and may find that nobody wants
/// it any more. A pending slot that is dropped is given back at once, without a cooldown, and a rate does not count it
/// as a start.
#[must_use = "a pending slot that is dropped is given back"]
#[derive(Debug)]
pub struct PendingSlot {
    slot: Slot,
    /// The sender that is used when the work begins.
    begins: oneshot::Sender<()>,
    /// The time at which it is too late to begin.
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

    /// Returns the sequencers of all slots that were granted together, as [`Slot::sequencers`] does.
    pub fn sequencers(&self) -> Vec<Sequencer> {
        self.slot.sequencers()
    }

    /// Begins the work. `None` means that this comes too late, because the slot was lost meanwhile, or belongs to a
    /// [rate](super::Builder::rate), whose starts must follow their grant within half a minute. Then ask for another
    /// slot.
    pub fn begin(self) -> Option<Slot> {
        let late = self.begin_by <= Moment::now() || self.slot.is_lost();
        // An error means that the slot's task has given it back.
        (!late && self.begins.send(()).is_ok()).then_some(self.slot)
    }
}

/// The error of a release: the slot was not released, or was no longer held then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The slot was lost before its release, so others may have had it while the work ran. Nothing of it is left in
    /// Consul.
    #[error("{0}: other clients may have held it before it was released")]
    Lost(Lost),
    /// Consul does not answer, or refuses.
    #[error(transparent)]
    StillHeld(#[from] StillHeld),
}

impl StillHeld {
    pub(super) fn new(failed: NotReleased, expires: Duration, settings: &HolderSettings) -> Self {
        let advice = advice_on(&failed.why, settings);
        Self {
            why: failed.why,
            expires,
            advice,
        }
    }

    /// Returns the error if the slot's task has ended with its runtime.
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
        settings: &HolderSettings,
        watch: SlotWatch,
        ends: oneshot::Sender<Released>,
    ) -> Self {
        Self {
            granted,
            watch,
            ends,
            expires: settings.expires(),
        }
    }

    /// Ends the work in the slot, and leaves the release to the slot's task, as a drop does.
    ///
    /// # Errors
    /// The slot is lost.
    pub(super) fn leave(self) -> Result<(), ReleaseError> {
        match self.watch.lost() {
            Some(lost) => Err(ReleaseError::Lost(lost)),
            None => Ok(()),
        }
    }

    fn first(&self) -> &plan::HeldSlot {
        &self.granted.slot
    }

    /// Returns the session in Consul that holds the slot. Of several slots it is the session that holds the first.
    pub fn session(&self) -> &SessionId {
        self.first().session()
    }

    /// Returns a number that is greater than that of every earlier grant at the prefix, whoever got it. A resource that
    /// keeps the greatest number that it has seen, and refuses smaller ones, is safe from holders that have lost their
    /// slot without noticing. If the semaphore has more slots than one, the number only orders the grants. Several
    /// slots that were granted together have the same number.
    pub fn fencing_token(&self) -> u64 {
        self.first().fencing_token()
    }

    /// Returns the number of the slot among all slots of the semaphore: a number from 0 that no other holder has
    /// meanwhile, in whichever program or cluster it is. Usually it is the smallest that is free. It says which GPU,
    /// licence seat or port is this program's. After a slot was lost, two holders can have the same number:
    /// `docs/tasks.md` says when. Holders that number nothing, such as `consul lock`, have none. Of several slots it is
    /// the number of the first; [`Self::sequencers`] has the others. `None` for a slot of a rate.
    pub fn index(&self) -> Option<u32> {
        self.first().index()
    }

    /// Returns Consul's sequencer of the slot: the key, its session and its `LockIndex`, by which others can check that
    /// the slot is still held. Of several slots it is the sequencer of the first.
    pub fn sequencer(&self) -> Sequencer {
        self.first().into()
    }

    /// Returns the sequencers of all slots that were granted together, grouped by semaphore, in the order in which the
    /// semaphores were named.
    pub fn sequencers(&self) -> Vec<Sequencer> {
        self.granted.slots().map(Sequencer::from).collect()
    }

    /// Waits until the slot is lost. The work in the slot must then end within
    /// [`Builder::grace`](super::Builder::grace).
    ///
    /// The slot is lost when Consul says so, as when somebody has destroyed the session. Then others may have the slot:
    /// programs with this library after [their own lock-delay](super::Builder::lock_delay), Consul's Go client and
    /// `consul lock -n` at once. A mutex is not granted to anybody before the lock-delay of this session is over.
    ///
    /// The slot counts as lost, too, when nothing has shown for nearly a TTL that it is held, as when Consul can't be
    /// reached. This is early enough for the grace to be over before Consul can end the session, so the work has ended
    /// before anybody else has the slot.
    ///
    /// Of several slots, the first one that is lost counts. The slot stays lost: drop it and acquire another one. The
    /// slots of a [rate](super::Builder::rate) are never lost, because they only say that something may start.
    pub async fn lost(&self) -> Lost {
        self.watch.until_lost().await
    }

    /// Whether the slot is lost, see [`Self::lost`]. Check this before a step that can't be undone. The method reads
    /// the clock, so the answer is right also while the runtime is blocked or overloaded. A slot that was called lost
    /// stays lost.
    pub fn is_lost(&self) -> bool {
        self.watch.lost().is_some()
    }

    /// Releases the slot, and waits until others can have it. With a cooldown, or in a rate, that is when the cooldown
    /// or the period has ended. A slot that is dropped is released as well, by a task that nobody waits for (but see
    /// [`Semaphore::all_released`](super::Semaphore::all_released)).
    ///
    /// The release also finds out whether others may have had the slot without a sign of that until now. A session that
    /// has ended is no error as long as its slot was still in `.lock`, because nobody else can have had the slot. With
    /// a [cooldown](super::Builder::cooldown) the release does not find this out: then it fails only if [`Self::lost`]
    /// would have returned.
    ///
    /// # Errors
    /// The slot was lost before, or Consul does not answer, or refuses, for a sixth of the TTL: for ten seconds at least,
    /// and for a minute at most.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let ended = StillHeld::ended(self.expires);
        let (reply, released) = oneshot::channel();
        // The loss is determined now, and not when the slot's task gets to the release.
        self.watch.lost();
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
            .field("lost", &self.watch.lost())
            .finish_non_exhaustive()
    }
}
