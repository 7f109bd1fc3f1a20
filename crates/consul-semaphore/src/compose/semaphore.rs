//! Composes the part of a transaction that changes a semaphore: the body of `.lock`, in one CAS.

use crate::{
    lock::{Lock, LockChange, LockDraft},
    reading::Reading,
};
use consul_client::{Op, SessionId};

/// Body of `.lock` as the transaction leaves it.
pub(super) struct SemaphoreDraft<'a> {
    /// Body; `None` if there is none that may be written.
    body: Option<LockDraft<'a>>,
    /// Index for the CAS of `.lock`.
    index: u64,
    /// Whether anything in the body has changed.
    changed: bool,
    /// Limit of a body that is written only with its first holder.
    fresh: Option<u32>,
}

impl<'a> SemaphoreDraft<'a> {
    pub(super) fn new(lock: &'a Lock) -> Self {
        let (body, index) = match lock {
            Lock::Semaphore { body, index } => (Some(LockDraft::of(body)), *index),
            Lock::Absent { index, .. } => (None, *index),
            Lock::Mutex { .. } | Lock::Unreadable(_) => (None, 0),
        };
        Self {
            body,
            index,
            changed: false,
            fresh: None,
        }
    }

    pub(super) fn take_out(&mut self, session: &SessionId) {
        if let Some(body) = self.body.as_mut().filter(|body| body.holds(session)) {
            body.remove(session);
            self.changed = true;
        }
    }

    /// Sets the limit, in a new body if there is none. Returns whether there may be a body.
    pub(super) fn set_limit(&mut self, limit: u32, lock: &Lock) -> bool {
        match (&mut self.body, lock) {
            (Some(body), _) => body.set_limit(limit),
            (None, Lock::Absent { flags, .. }) => self.body = Some(LockDraft::fresh(limit, *flags)),
            (None, _) => return false,
        }
        self.changed = true;
        true
    }

    /// Prepares a new body with this limit, which is written only if a holder is added to it.
    pub(super) fn await_holder(&mut self, limit: u32, lock: &Lock) {
        if let Lock::Absent { flags, .. } = lock {
            self.body = Some(LockDraft::fresh(limit, *flags));
            self.fresh = Some(limit);
        }
    }

    /// Takes the limit of a new body that has just got its first holder.
    pub(super) fn take_fresh(&mut self) -> Option<u32> {
        self.fresh.take()
    }

    /// Returns whether there is nothing to write.
    pub(super) fn is_idle(&self) -> bool {
        !self.changed
    }

    /// Returns the number of holders after the transaction.
    pub(super) fn held(&self) -> usize {
        self.body.as_ref().map_or(0, LockDraft::held)
    }

    /// Writes the body even if nothing in it changes.
    pub(super) fn rewrite(&mut self) {
        self.changed = true;
    }

    /// Returns how many slots are free.
    pub(super) fn room(&self) -> usize {
        self.body.as_ref().map_or(0, |body| body.room(0))
    }

    /// Returns whether this many slots are free once these dead holders are removed.
    pub(super) fn has_room(&self, needed: usize, dead: &[&SessionId]) -> bool {
        self.body.as_ref().is_some_and(|body| {
            let freed = dead.iter().filter(|session| body.holds(session)).count();
            body.room(freed) >= needed
        })
    }

    /// Adds a holder, if there is room.
    pub(super) fn add(&mut self, session: SessionId) {
        let added = self.body.as_mut().is_some_and(|body| body.add(session));
        self.changed |= added;
    }

    /// Drops the body, because the key is deleted.
    pub(super) fn remove(&mut self) {
        self.body = None;
    }

    /// Returns the check that `.lock` is as it was read. Returns `None` if `.lock` is written, because the CAS checks
    /// that too.
    pub(super) fn unchanged(&self, reading: &Reading) -> Option<Op> {
        let check = Op::unchanged(reading.prefix().lock_key(), self.index);
        (self.body.is_none() || !self.changed).then_some(check)
    }

    /// Returns the CAS of `.lock` and the change that it makes, if there is anything to write.
    pub(super) fn write(self, reading: &Reading) -> Option<(Op, LockChange)> {
        let body = self.body.filter(|_| self.changed)?;
        let mut value = body.encode();
        // Consul keeps the index if the same value is written, so the value must differ. Every client can parse JSON
        // followed by a line break.
        if reading.lock_value() == Some(&value) {
            value.push(b'\n');
        }
        let write = Op::Cas {
            key: reading.prefix().lock_key(),
            value,
            flags: body.flags(),
            index: self.index,
        };
        Some((write, body.change()))
    }
}
