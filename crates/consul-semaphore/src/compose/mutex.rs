//! Composes the part of a transaction that locks and unlocks a mutex: the lock of `.lock`.

use crate::{lock::Lock, reading::Reading};
use consul_client::{Op, SessionId};

/// State of the mutex as the transaction leaves it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MutexState {
    /// Another program uses the key for something else.
    Unusable,
    /// A session has locked the key.
    Held,
    /// Nobody holds the key, or the key does not exist.
    Free,
    /// This transaction unlocks the key.
    Unlocked,
    /// This transaction locks the key.
    Locked,
}

/// The mutex as the transaction leaves it.
pub(super) struct MutexDraft {
    key: String,
    /// `ModifyIndex` of the key as it was read; 0 if there is no key.
    index: u64,
    flags: u64,
    state: MutexState,
    guard: Option<Op>,
    lock: Option<Op>,
}

impl MutexDraft {
    pub(super) fn new(reading: &Reading) -> Self {
        let (state, index, flags) = match reading.lock() {
            Lock::Mutex {
                holder,
                index,
                flags,
            } if holder.is_none() => (MutexState::Free, *index, *flags),
            Lock::Mutex { index, flags, .. } => (MutexState::Held, *index, *flags),
            _ => (MutexState::Unusable, 0, 0),
        };
        Self {
            key: reading.prefix().lock_key(),
            index,
            flags,
            state,
            guard: None,
            lock: None,
        }
    }

    /// Unlocks the key. The operation fails if this session has not locked the key, so no other program's key is
    /// deleted.
    pub(super) fn unlock(&mut self, session: &SessionId) {
        self.guard = Some(Op::Unlock {
            key: self.key.clone(),
            value: Vec::new(),
            flags: self.flags,
            session: session.clone(),
        });
        if self.state == MutexState::Held {
            self.state = MutexState::Unlocked;
        }
    }

    /// Returns whether this many slots are free; a mutex has one slot.
    pub(super) fn has_room(&self, needed: usize) -> bool {
        needed <= 1 && matches!(self.state, MutexState::Free | MutexState::Unlocked)
    }

    /// Locks the key, provided that the key is still as it was read. The lock operation alone would overwrite the
    /// body of a semaphore that was created in the meantime.
    pub(super) fn lock(&mut self, session: SessionId, value: Vec<u8>) {
        if self.state == MutexState::Free {
            self.guard = Some(Op::unchanged(self.key.clone(), self.index));
        }
        self.state = MutexState::Locked;
        self.lock = Some(Op::Lock {
            key: self.key.clone(),
            value,
            flags: self.flags,
            session,
        });
    }

    /// Returns whether there is nothing to write.
    pub(super) fn is_idle(&self) -> bool {
        self.guard.is_none() && self.lock.is_none()
    }

    /// Returns the operations. A mutex that is unlocked and not granted again is deleted.
    pub(super) fn write(self) -> impl Iterator<Item = Op> {
        let unlocked = self.guard.is_some() && self.lock.is_none();
        let delete = unlocked.then_some(Op::Delete { key: self.key });
        self.guard.into_iter().chain(self.lock).chain(delete)
    }
}
