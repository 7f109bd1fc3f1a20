//! Composes a pass's one transaction: releases, prunes and grants that are due together.

use super::{
    decide::Observed,
    identity::ContenderBody,
    job::Uid,
    lock::{Lock, LockBody, SEMAPHORE_FLAGS},
    plan::{Grant, Release, Transaction},
    reading::Reading,
};
use crate::consul::{Op, SessionId};

/// A transaction in the making, with the body of `.lock` as it will be.
pub(super) struct Composer<'a> {
    observed: &'a Observed<'a>,
    reading: &'a Reading,
    /// The body to write; `None` while there is none that may be written.
    body: Option<LockBody>,
    /// What the CAS of `.lock` names.
    index: u64,
    /// Whether anything in the body has changed.
    changed: bool,
    /// Slots that are free but kept for those whose session is being made.
    reserved: usize,
    /// Whether holders may be added.
    closed: bool,
    /// How many operations fit in yet, with room left for the CAS of `.lock`.
    left: usize,
    cut_short: bool,
    checks: Vec<Op>,
    locks: Vec<Op>,
    deletes: Vec<Op>,
    transaction: Transaction,
}

impl<'a> Composer<'a> {
    pub(super) fn new(reading: &'a Reading, observed: &'a Observed<'a>) -> Self {
        let (body, index) = match reading.lock() {
            Lock::Semaphore { body, index } => (Some(body.clone()), *index),
            Lock::Absent { index, .. } => (None, *index),
            Lock::Unreadable(_) => (None, 0),
        };
        Self {
            observed,
            reading,
            body,
            index,
            changed: false,
            reserved: 0,
            closed: false,
            left: observed.operations.saturating_sub(1),
            cut_short: false,
            checks: Vec::new(),
            locks: Vec::new(),
            deletes: Vec::new(),
            transaction: Transaction::default(),
        }
    }

    /// Whether this Job is granted a slot.
    pub(super) fn grants(&self, job: &Uid) -> bool {
        let mut grants = self.transaction.grants.iter();
        grants.any(|grant| grant.job.uid == *job)
    }

    /// Whether something was left out because Consul takes no more operations at once.
    pub(super) fn cut_short(&self) -> bool {
        self.cut_short
    }

    /// Counts operations, if they fit in.
    fn fits(&mut self, operations: usize) -> bool {
        match self.left.checked_sub(operations) {
            Some(left) => self.left = left,
            None => self.cut_short = true,
        }
        !self.cut_short
    }

    fn take_out(&mut self, session: &SessionId) {
        if let Some(body) = self.body.as_mut().filter(|body| body.holds(session)) {
            body.remove(session);
            self.changed = true;
        }
    }

    /// The contender key goes, and the session leaves `Holders`. Where it is not in `Holders`, or
    /// `.lock` can't be understood, the key goes alone: nobody counts a holder without a contender.
    /// There is no CAS of `.lock` then, so the key itself must not have been granted a slot since.
    pub(super) fn release(&mut self, release: Release) {
        if !self.fits(1) {
            return;
        }
        self.take_out(&release.session);
        let key = self.reading.prefix().contender_key(&release.session);
        let contender = self.reading.contender(&release.session);
        self.deletes
            .push(match contender.filter(|_| !release.held) {
                Some(contender) => Op::DeleteCas {
                    key,
                    index: contender.modify_index,
                },
                None => Op::Delete { key },
            });
        self.transaction.releases.push(release);
    }

    /// A dead holder leaves `Holders`, provided that it is still dead.
    pub(super) fn prune(&mut self, session: SessionId, check: Op) {
        if self.fits(1) {
            self.take_out(&session);
            self.checks.push(check);
            self.transaction.prunes.push(session);
        }
    }

    /// The limit is written, in a new body where there is none.
    pub(super) fn write_limit(&mut self, limit: u32, enforced: bool) {
        match (&mut self.body, self.reading.lock()) {
            (Some(body), _) => body.set_limit(limit),
            (None, Lock::Absent { flags, .. }) => self.body = Some(LockBody::new(limit, *flags)),
            (None, _) => return,
        }
        self.changed = true;
        self.transaction.limit = Some(limit);
        self.transaction.enforced = enforced;
    }

    /// The lock is written even if nothing in its body changes: what was sent before comes too late
    /// then.
    pub(super) fn rewrite(&mut self) {
        self.changed = true;
    }

    /// From now on no holder is added.
    pub(super) fn add_nobody(&mut self) {
        self.closed = true;
    }

    /// Keeps a free slot for somebody.
    pub(super) fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// Whether one more holder may be added, if this dead one goes for it. It says nothing about
    /// room in the transaction: what does not fit in now follows.
    pub(super) fn has_room(&self, swap: Option<&SessionId>) -> bool {
        let Some(body) = self.body.as_ref().filter(|_| !self.closed) else {
            return false;
        };
        let freed = usize::from(swap.is_some_and(|swap| body.holds(swap)));
        let limit = usize::try_from(body.limit()).unwrap_or(usize::MAX);
        body.held() - freed + self.reserved < limit
    }

    /// Adds a holder, in place of a dead one of the same Job if there is one, provided that it is
    /// still dead.
    pub(super) fn grant(&mut self, grant: Grant, swap: Option<(&SessionId, Op)>) {
        let operations = 1 + usize::from(swap.is_some());
        if !self.has_room(swap.as_ref().map(|(session, _)| *session)) || !self.fits(operations) {
            return;
        }
        if let Some((session, check)) = swap {
            self.take_out(session);
            self.checks.push(check);
        }
        let added = self
            .body
            .as_mut()
            .is_some_and(|body| body.add(grant.session.clone()));
        if !added {
            return;
        }
        self.changed = true;
        let settings = self.observed.settings;
        let identity = settings.identity(&grant.job);
        let body = ContenderBody::new(
            &settings.cluster,
            &identity,
            self.observed.time,
            settings.ttl.is_none(),
        );
        self.locks.push(Op::Lock {
            key: self.reading.prefix().contender_key(&grant.session),
            value: serde_json::to_vec(&body).unwrap_or_default(),
            flags: SEMAPHORE_FLAGS,
            session: grant.session.clone(),
        });
        self.transaction.grants.push(grant);
    }

    /// `.lock` itself goes, if it has not changed.
    pub(super) fn remove_lock(&mut self, index: u64) {
        let key = self.reading.prefix().lock_key();
        self.deletes.push(Op::DeleteCas { key, index });
        self.transaction.removes_lock = true;
        self.body = None;
        self.changed = false;
    }

    /// The transaction: checks, contenders, `.lock`, then what goes. `None` if there is nothing to
    /// write.
    pub(super) fn compose(self) -> Option<Transaction> {
        let Self {
            mut transaction,
            checks,
            locks,
            deletes,
            body,
            ..
        } = self;
        transaction.operations.extend(checks);
        transaction.operations.extend(locks);
        if let Some(body) = body.filter(|_| self.changed) {
            let mut value = body.encode();
            // Consul's index stays as it is when the same value is written. Every client reads JSON
            // with a line's end behind it.
            if self.reading.lock_value() == Some(&value) {
                value.push(b'\n');
            }
            transaction.operations.push(Op::Cas {
                key: self.reading.prefix().lock_key(),
                value,
                flags: body.flags(),
                index: self.index,
            });
        }
        transaction.operations.extend(deletes);
        (!transaction.operations.is_empty()).then_some(transaction)
    }
}
