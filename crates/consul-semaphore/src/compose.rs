//! Composes the one transaction of a pass: the releases, prunes and grants that are due.

mod mutex;
mod semaphore;

use self::{mutex::MutexDraft, semaphore::SemaphoreDraft};
use super::{
    Mode,
    asked::Asked,
    decide::Observed,
    fate::OwnContender,
    identity::{Claim, ContenderBody},
    lock::SEMAPHORE_FLAGS,
    plan::{Cooling, Grant, Release, Target, Transaction},
    rate,
    reading::Reading,
    slot_index::IndexDraft,
    workload::{Phase, Uid, Workload},
};
use consul_client::{Op, SessionId};

/// State of the lock key as the transaction leaves it.
enum Draft<'a> {
    Semaphore(SemaphoreDraft<'a>),
    Mutex(MutexDraft),
}

/// The way in which a running workload is granted a slot again that it has lost.
pub(super) struct Regrant<'a> {
    /// The index that the workload's grant says for the slot, which stays.
    pub(super) index: Option<u32>,
    /// The dead holder that the new one replaces, provided that it is still dead, with the check for that.
    pub(super) swap: Option<(&'a SessionId, Op)>,
}

/// A transaction being composed.
pub(super) struct Composer<'a> {
    observed: &'a Observed<'a>,
    reading: &'a Reading,
    draft: Draft<'a>,
    /// Indices of the slots as the transaction leaves them.
    indices: IndexDraft<'a>,
    /// Number of free slots that are reserved, so that they are not granted here: for workloads that come first, for
    /// foreign contenders, and for lost slots whose workloads still have pods.
    reserved: usize,
    /// Whether adding holders is forbidden.
    closed: bool,
    /// Number of further operations that fit, with room left for the CAS of `.lock`.
    left: usize,
    /// Whether something was left out because Consul accepts no more operations in a transaction.
    cut_short: bool,
    /// Whether the contender of a waiting workload is written that a slot may have been granted to.
    shows: bool,
    checks: Vec<Op>,
    locks: Vec<Op>,
    deletes: Vec<Op>,
    transaction: Transaction,
}

impl<'a> Composer<'a> {
    pub(super) fn new(reading: &'a Reading, observed: &'a Observed<'a>) -> Self {
        let draft = match observed.settings.mode {
            Mode::Semaphore => Draft::Semaphore(SemaphoreDraft::new(reading.lock())),
            Mode::Mutex => Draft::Mutex(MutexDraft::new(reading)),
        };
        Self {
            observed,
            reading,
            draft,
            indices: indices(observed, reading),
            reserved: 0,
            closed: false,
            left: observed.operations.saturating_sub(1),
            cut_short: false,
            shows: false,
            checks: Vec::new(),
            locks: Vec::new(),
            deletes: Vec::new(),
            transaction: Transaction::default(),
        }
    }

    /// Returns whether a workload is granted a slot.
    pub(super) fn grants_any(&self, workload: &Uid) -> bool {
        let mut grants = self.transaction.grants.iter();
        grants.any(|grant| grant.workload.uid == *workload)
    }

    /// Returns whether this slot is granted.
    pub(super) fn grants(&self, workload: &Uid, ordinal: u32) -> bool {
        let mut grants = self.transaction.grants.iter();
        grants.any(|grant| grant.workload.uid == *workload && grant.sessions.contains_key(&ordinal))
    }

    /// Reserves operations, and returns whether they fit.
    fn fits(&mut self, operations: usize) -> bool {
        match self.left.checked_sub(operations) {
            Some(left) => self.left = left,
            None => self.cut_short = true,
        }
        !self.cut_short
    }

    fn take_out(&mut self, session: &SessionId) {
        if let Draft::Semaphore(semaphore) = &mut self.draft {
            semaphore.take_out(session);
        }
    }

    /// Deletes the key that the session has locked, and removes the session from `Holders`. If the session is not in
    /// `Holders`, or `.lock` can't be understood, only the key is deleted, because a holder without a contender does
    /// not count. In that case no CAS of `.lock` protects the delete, so it fails if the key has changed: the key may
    /// have been granted a slot since. A mutex is deleted too, unless it is granted to another workload.
    pub(super) fn release(&mut self, release: Release) {
        let operations = match self.draft {
            Draft::Semaphore(_) => 1,
            Draft::Mutex(_) => 2,
        };
        if !self.fits(operations) {
            return;
        }
        self.indices.free(&release.session);
        match &mut self.draft {
            Draft::Mutex(mutex) => mutex.unlock(&release.session),
            Draft::Semaphore(semaphore) => {
                semaphore.take_out(&release.session);
                let key = self.reading.key_of(&release.session);
                let contender = self.reading.contender(&release.session);
                self.deletes
                    .push(match contender.filter(|_| !release.held) {
                        Some(contender) => Op::DeleteCas {
                            key,
                            index: contender.modify_index,
                        },
                        None => Op::Delete { key },
                    });
            }
        }
        self.transaction.releases.push(release);
    }

    /// Writes into a contender's body until when its slot cools down. The same session locks the key again, so its
    /// `LockIndex` stays. The write fails if the contender has changed in any way, so that an end that was already
    /// written is not postponed.
    pub(super) fn cool(
        &mut self,
        ours: &OwnContender,
        body: ContenderBody,
        until: jiff::Timestamp,
    ) {
        if self.stamp(ours, body, until) {
            self.transaction.cooldowns.push(Cooling {
                identity: ours.identity.clone(),
                session: ours.session.clone(),
                until,
            });
        }
    }

    /// Writes into the body of a rate's slot until when the slot counts, because its start is known now.
    pub(super) fn count_from_start(
        &mut self,
        ours: &OwnContender,
        body: ContenderBody,
        until: jiff::Timestamp,
    ) {
        if self.stamp(ours, body, until) {
            self.transaction.stamped.push(ours.session.clone());
        }
    }

    /// Gives a rate's slot to another session, because the session that holds it is gone. The transaction fails
    /// unless the session is still gone.
    pub(super) fn replace(
        &mut self,
        (gone, check): (SessionId, Op),
        session: SessionId,
        body: &ContenderBody,
    ) {
        if !self.fits(2) {
            return;
        }
        if let Draft::Semaphore(semaphore) = &mut self.draft {
            semaphore.take_out(&gone);
            semaphore.add(session.clone());
            self.checks.push(check);
            let value = serde_json::to_vec(body).unwrap_or_default();
            self.lock_contender(&session, value);
            self.transaction.replaced.push((gone, session));
        }
    }

    /// Writes into a contender's body until when its slot stays held. Returns whether the operations fit.
    fn stamp(&mut self, ours: &OwnContender, body: ContenderBody, until: jiff::Timestamp) -> bool {
        let Some(contender) = self.reading.contender(&ours.session) else {
            return false;
        };
        if !self.fits(2) {
            return false;
        }
        self.checks.push(Op::CheckIndex {
            key: contender.key.clone(),
            index: contender.modify_index,
        });
        let body = ContenderBody {
            cools_until: Some(until),
            ..body
        };
        self.locks.push(Op::Lock {
            key: contender.key.clone(),
            value: serde_json::to_vec(&body).unwrap_or_default(),
            flags: contender.flags,
            session: ours.session.clone(),
        });
        true
    }

    /// Removes a dead holder from `Holders`, provided that it is still dead.
    pub(super) fn prune(&mut self, session: SessionId, check: Op) {
        if self.fits(1) {
            self.take_out(&session);
            self.indices.free(&session);
            self.checks.push(check);
            self.transaction.prunes.push(session);
        }
    }

    /// Writes the limit, into a new body if there is none. A mutex has no limit.
    pub(super) fn write_limit(&mut self, limit: u32, enforced: bool) {
        if let Draft::Semaphore(semaphore) = &mut self.draft
            && semaphore.set_limit(limit, self.reading.lock())
        {
            self.transaction.limit = Some(limit);
            self.transaction.enforced = enforced;
        }
    }

    /// Prepares a new body with this limit, which is written only if a holder is added to it.
    pub(super) fn await_holder(&mut self, limit: u32) {
        if let Draft::Semaphore(semaphore) = &mut self.draft {
            semaphore.await_holder(limit, self.reading.lock());
        }
    }

    /// Writes the lock key even if its body does not change, so that a write sent earlier fails.
    pub(super) fn rewrite(&mut self) {
        if let Draft::Semaphore(semaphore) = &mut self.draft {
            semaphore.rewrite();
        }
    }

    /// Forbids adding more holders.
    pub(super) fn add_nobody(&mut self) {
        self.closed = true;
    }

    /// Reserves free slots, so that they are not granted.
    pub(super) fn reserve(&mut self, slots: u32) {
        self.reserved = self.reserved.saturating_add(count(slots));
    }

    /// Returns how many more holders may be added, in this transaction or in the next ones.
    pub(super) fn room(&self) -> usize {
        let room = match &self.draft {
            _ if self.closed => 0,
            Draft::Semaphore(semaphore) => semaphore.room(),
            Draft::Mutex(mutex) => usize::from(mutex.has_room(1)),
        };
        room.saturating_sub(self.reserved)
    }

    /// Returns whether this many more holders may be added. The room in the transaction does not count here, because
    /// a grant that does not fit now follows in the next transaction.
    pub(super) fn has_room(&self, slots: u32) -> bool {
        self.has_room_instead_of(slots, &[])
    }

    /// Returns whether this many more holders may be added once these dead holders are removed.
    pub(super) fn has_room_instead_of(&self, slots: u32, dead: &[&SessionId]) -> bool {
        let needed = self.reserved.saturating_add(count(slots));
        let room = match &self.draft {
            Draft::Semaphore(semaphore) => semaphore.has_room(needed, dead),
            Draft::Mutex(mutex) => mutex.has_room(needed),
        };
        room && !self.closed
    }

    /// Adds all holders of a grant, or none. Their contenders tell `asked`, which is everything that is granted
    /// together.
    pub(super) fn grant(&mut self, grant: Grant, asked: &Asked, regrant: Option<&Regrant<'_>>) {
        let swap = regrant.and_then(|regrant| regrant.swap.as_ref());
        let slots = grant.sessions.len();
        let operations = match self.draft {
            Draft::Semaphore(_) => slots + usize::from(swap.is_some()),
            // The operations of the release are counted already, and its unlock replaces the check.
            Draft::Mutex(_) if !self.transaction.releases.is_empty() => 1,
            Draft::Mutex(_) => 2,
        };
        let dead: Vec<&SessionId> = swap.iter().map(|(session, _)| *session).collect();
        let room = u32::try_from(slots).is_ok_and(|slots| self.has_room_instead_of(slots, &dead));
        if !room || !self.fits(operations) {
            return;
        }
        if let Some((session, check)) = swap {
            self.take_out(session);
            self.checks.push(check.clone());
        }
        for (ordinal, session) in &grant.sessions {
            let index = match regrant {
                Some(regrant) => regrant.index,
                None => self.next_index(session),
            };
            let value = self.body_of_holder(&grant.workload, *ordinal, asked.clone(), index);
            match &mut self.draft {
                Draft::Semaphore(semaphore) => {
                    semaphore.add(session.clone());
                    let fresh = semaphore.take_fresh();
                    self.transaction.limit = fresh.or(self.transaction.limit);
                    self.lock_contender(session, value);
                }
                Draft::Mutex(mutex) => mutex.lock(session.clone(), value),
            }
        }
        let mut grants = self.transaction.grants.iter_mut();
        match grants.find(|other| other.workload.uid == grant.workload.uid) {
            Some(other) => other.sessions.extend(grant.sessions),
            None => self.transaction.grants.push(grant),
        }
    }

    /// Makes or updates the contender of a waiting workload, so that others see its place. The write is refused once
    /// the contender or `.lock` has changed, because a late write must neither undo a grant nor bring a dead holder
    /// back to life. `.lock` does not count for a session that no transaction was sent for before: nothing was granted
    /// to that session. In a long queue `.lock` changes so often that hardly anybody could join the queue otherwise.
    pub(super) fn show(
        &mut self,
        workload: &Workload,
        claim: Claim,
        asked: Asked,
        session: &SessionId,
    ) {
        if self.fits(2) {
            let known = self.reading.contender(session);
            let index = known.map_or(0, |contender| contender.modify_index);
            let key = self.reading.key_of(session);
            self.checks.push(Op::unchanged(key, index));
            let body = self.body(&workload.into(), 0, asked, Some(claim));
            self.lock_contender(session, serde_json::to_vec(&body).unwrap_or_default());
            if self.observed.unused.contains(session) {
                self.transaction.joins.push(session.clone());
            } else {
                self.shows = true;
            }
        }
    }

    fn lock_contender(&mut self, session: &SessionId, value: Vec<u8>) {
        self.locks.push(Op::Lock {
            key: self.reading.key_of(session),
            value,
            flags: SEMAPHORE_FLAGS,
            session: session.clone(),
        });
    }

    /// Returns whether there is nothing to write so far.
    pub(super) fn is_idle(&self) -> bool {
        let draft = match &self.draft {
            Draft::Semaphore(semaphore) => semaphore.is_idle(),
            Draft::Mutex(mutex) => mutex.is_idle(),
        };
        let none = self.checks.is_empty() && self.locks.is_empty() && self.deletes.is_empty();
        none && draft && !self.cut_short
    }

    /// Returns the index of the slot that a session is granted. The slots of a rate have none, because their number says
    /// nothing about what runs.
    fn next_index(&mut self, session: &SessionId) -> Option<u32> {
        if self.observed.settings.is_rate() {
            return None;
        }
        Some(self.indices.take(session))
    }

    /// Returns the encoded body of the key of a session that is granted the slot with this index.
    fn body_of_holder(
        &self,
        workload: &Target,
        ordinal: u32,
        request: Asked,
        index: Option<u32>,
    ) -> Vec<u8> {
        let names = &self.observed.settings.slot_names;
        let body = ContenderBody {
            slot_index: index,
            slot_name: index.and_then(|index| names.get(count(index)).cloned()),
            ..self.body(workload, ordinal, request, None)
        };
        serde_json::to_vec(&body).unwrap_or_default()
    }

    /// Returns the body of a session's key, which tells people who look at Consul who holds or waits.
    pub(super) fn body(
        &self,
        workload: &Target,
        ordinal: u32,
        request: Asked,
        waiting: Option<Claim>,
    ) -> ContenderBody {
        let settings = self.observed.settings;
        let identity = settings.identity(workload, ordinal);
        let (time, endless) = (self.observed.time, settings.ttl.is_none());
        let mut body = ContenderBody::new(&settings.cluster, &identity, time, endless);
        if waiting.is_none() {
            body.cooldown = settings.cooldown.as_secs();
            if let Some(period) = settings.period {
                body.period = period.as_secs();
                body.cools_until = Some(rate::stamp_of_grant(time, period));
            }
        }
        body.request = request;
        body.waiting = waiting;
        body
    }

    /// Returns whether the transaction leaves no holder and deletes all contenders.
    pub(super) fn leaves_nobody(&self) -> bool {
        let released = |session: &SessionId| {
            let mut releases = self.transaction.releases.iter();
            releases.any(|release| release.session == *session)
        };
        let held = match &self.draft {
            Draft::Semaphore(semaphore) => semaphore.held(),
            Draft::Mutex(_) => 0,
        };
        let mut contenders = self.reading.contenders();
        held == 0 && contenders.all(|(session, _)| released(session))
    }

    /// Deletes `.lock` itself, if it has not changed.
    pub(super) fn remove_lock(&mut self, index: u64) {
        let key = self.reading.prefix().lock_key();
        self.deletes.push(Op::DeleteCas { key, index });
        self.transaction.removes_lock = true;
        self.transaction.limit = None;
        self.transaction.enforced = false;
        if let Draft::Semaphore(semaphore) = &mut self.draft {
            semaphore.remove();
        }
    }

    /// Returns the transaction with its operations in this order: checks, contenders, `.lock`, deletions. Returns
    /// `None` if there is nothing to write.
    pub(super) fn compose(self) -> Option<Transaction> {
        let Self {
            mut transaction,
            checks,
            locks,
            deletes,
            draft,
            reading,
            shows,
            ..
        } = self;
        let operations = &mut transaction.operations;
        operations.extend(checks);
        match draft {
            Draft::Semaphore(semaphore) => {
                let unchanged = semaphore.unchanged(reading).filter(|_| shows);
                operations.extend(unchanged);
                operations.extend(locks);
                if let Some((write, change)) = semaphore.write(reading) {
                    operations.push(write);
                    transaction.lock = Some(change);
                }
            }
            Draft::Mutex(mutex) => {
                operations.extend(locks);
                operations.extend(mutex.write());
            }
        }
        operations.extend(deletes);
        (!transaction.operations.is_empty()).then_some(transaction)
    }
}

/// Returns the indices of the slots before anything is granted. What runs keeps its index whatever happens to its slot,
/// so nobody else gets it. What is deleted keeps its index as long as it keeps its slot, although its contender may be
/// gone.
fn indices<'a>(observed: &Observed<'a>, reading: &Reading) -> IndexDraft<'a> {
    let mut indices = observed.memory.indices.draft();
    let lock_key = observed.settings.prefix.lock_key();
    for workload in observed.bound {
        for (ordinal, mut sessions) in (0..).zip(workload.slots_at(&lock_key)) {
            let Some(index) = workload.slot_index(&lock_key, ordinal) else {
                continue;
            };
            match workload.phase {
                Phase::Running | Phase::Stopping => indices.reserve(index),
                Phase::Deleting => {
                    if let Some(session) = sessions.find(|session| reading.is_named(session)) {
                        indices.tell(session, index);
                    }
                }
                Phase::Idle | Phase::Finished { .. } => {}
            }
        }
    }
    indices
}

fn count(slots: u32) -> usize {
    usize::try_from(slots).unwrap_or(usize::MAX)
}
