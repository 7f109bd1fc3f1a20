//! What a pass decides to do.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    identity::{ContenderBody, Identity},
    limit::{self, Agreement},
    lock::{Lock, LockChange},
    settings::Settings,
    wait::WaitBegan,
    workload::{
        CronJob, Granted, GrantedSlot, KindName, Phase, SlotId, Uid, Workload, lock_key_of,
    },
};
use consul_client::{Entry, Op, OpError, SessionId, clock::Moment};

/// The workload that an action is about, at the version that the decision was based on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The workload's kind.
    pub kind: KindName,
    /// The workload's name.
    pub name: Arc<str>,
    /// The workload's uid.
    pub uid: Uid,
    /// Its `resourceVersion`: the action is refused if the workload has changed since.
    pub version: Arc<str>,
}

impl From<&Arc<Workload>> for Target {
    fn from(workload: &Arc<Workload>) -> Self {
        Self::from(&**workload)
    }
}

impl From<&Workload> for Target {
    fn from(workload: &Workload) -> Self {
        Self {
            kind: workload.kind.clone(),
            name: workload.name.clone(),
            uid: workload.uid.clone(),
            version: workload.version.clone(),
        }
    }
}

impl Target {
    /// Whether the workload, read again, is unchanged since the decision. Then a failed write was refused; otherwise
    /// it came too late, whatever the error said.
    pub fn is_still(&self, now: &Workload) -> bool {
        self.uid == now.uid && self.version == now.version
    }
}

/// A slot that Consul says is held. Its key, index and session are a sequencer
/// (<https://developer.hashicorp.com/consul/docs/dynamic-app-config/sessions>), with which a client checks that it
/// still has the lock that it was given.
///
/// There is one way to make it, from an entry of Consul's for the contender key, so nothing that needs a slot can be
/// done without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    key: String,
    session: SessionId,
    lock_index: u64,
    fencing_token: u64,
}

impl Slot {
    pub(super) fn new(session: SessionId, contender: &Entry) -> Self {
        Self {
            key: contender.key.clone(),
            session,
            lock_index: contender.lock_index,
            fencing_token: contender.modify_index,
        }
    }

    /// The key that the session has locked: its contender, or the mutex.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The session that holds the slot.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// That key's `LockIndex`. It restarts when the key is deleted.
    pub fn lock_index(&self) -> u64 {
        self.lock_index
    }

    /// The raft index of the grant: a later grant has a greater one.
    pub fn fencing_token(&self) -> u64 {
        self.fencing_token
    }
}

/// A workload to be started in its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The workload.
    pub workload: Target,
    /// The first of its slots.
    pub slot: Slot,
    /// The others, grouped by lock key, in the order of their ordinals.
    pub others: Vec<Slot>,
}

impl Start {
    /// Starts a workload in these slots; `None` if there are none.
    pub(super) fn new(workload: Target, slots: Vec<Slot>) -> Option<Self> {
        let mut slots = slots.into_iter();
        let slot = slots.next()?;
        let others = slots.collect();
        Some(Self {
            workload,
            slot,
            others,
        })
    }

    /// All of its slots.
    pub fn slots(&self) -> impl Iterator<Item = &Slot> + Clone {
        [&self.slot].into_iter().chain(&self.others)
    }

    /// The grant as the workload's template records it.
    pub fn granted(&self) -> Granted {
        let slots = self.slots().map(|slot| GrantedSlot {
            lock_key: lock_key_of(slot.key()).into(),
            session: slot.session.clone(),
        });
        Granted {
            slots: slots.collect(),
        }
    }

    /// The sessions that the workload's own annotation names.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        self.slots().map(Slot::session)
    }
}

/// Why a workload is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspended {
    /// It lost its slot, and there is no other one.
    SlotLost,
    /// Nothing has shown for too long that its slot is still held.
    Unproved,
}

/// A workload to be suspended that was started in a slot. Its annotation is cleared, which marks it as the first in
/// the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspend {
    /// The workload.
    pub workload: Target,
    /// Why.
    pub why: Suspended,
    /// The session that holds, or held, its slot.
    pub session: Option<SessionId>,
    /// When it was started, in seconds since 1970.
    pub since: i64,
}

impl Suspend {
    /// Suspends a running workload.
    pub(super) fn new(workload: &Workload, why: Suspended) -> Self {
        Self {
            workload: workload.into(),
            why,
            session: workload.held_by().next().cloned(),
            since: workload.since,
        }
    }
}

/// A workload to be suspended because it runs although no grant started it. This depends on no semaphore and not on
/// Consul, so no pending request delays it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The workload.
    pub workload: Target,
    /// Whether its hold is removed.
    pub unhold: bool,
}

impl Stop {
    /// The order to stop the workload, if it runs without a grant and can be stopped. What can't be was never this
    /// operator's to end.
    pub fn of(workload: &Workload) -> Option<Self> {
        let runs = workload.phase == Phase::Running && workload.granted.is_none();
        let runs = runs && workload.traits.can_be_suspended;
        runs.then(|| Self {
            workload: workload.into(),
            // Its user unsuspended it, which queues it again. A workload that was created running and on hold was
            // never suspended before, and stays out of the queue.
            unhold: workload.hold && workload.was_suspended,
        })
    }
}

/// A workload that will not run in the slot that it has. Its PATCH comes before the release: it changes the
/// workload's version, so that no earlier decision can start the workload once the slot is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveBack {
    /// The workload.
    pub workload: Target,
    /// The sessions that hold, or held, its slots here.
    pub sessions: Vec<SessionId>,
    /// Whether the workload is put on hold: its user suspended it while it ran.
    pub hold: bool,
    /// When its wait began, which goes on; `None`: a start has ended it.
    pub began: Option<WaitBegan>,
}

/// A workload beside which is recorded when its wait began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordWait {
    /// The workload.
    pub workload: Target,
    /// What is recorded.
    pub began: WaitBegan,
}

/// A workload that must not wait: it is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// The workload.
    pub workload: Target,
    /// The `CronJob` that made it.
    pub cron_job: Option<Arc<CronJob>>,
    /// Why.
    pub why: Skipped,
}

/// A workload that has never had a slot and fails, by a write that starts it without pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fail {
    /// The workload.
    pub workload: Target,
    /// Why.
    pub why: Failed,
}

/// Why a workload fails instead of waiting on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// It must not wait.
    Contended(Skipped),
    /// It has waited for so long.
    TimedOut {
        /// How long it may wait.
        timeout: Duration,
        /// What it asks for, as in its annotation.
        asked: String,
        /// Who has the slots, for each of its semaphores by its name.
        taken: Vec<(String, Skipped)>,
    },
    /// It has waited for so long, and is in no queue for this reason.
    Unqueued {
        /// How long it may wait.
        timeout: Duration,
        /// What keeps it out of the queue.
        why: String,
    },
    /// This newer workload asks for the same.
    Superseded {
        /// Its kind, namespace and name.
        by: String,
    },
}

impl Failed {
    /// The reason in one word, as in the workload's annotation.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Contended(_) => "Contended",
            Self::TimedOut { .. } | Self::Unqueued { .. } => "WaitTimedOut",
            Self::Superseded { .. } => "Superseded",
        }
    }
}

/// A running workload that is ended: it fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The workload.
    pub workload: Target,
    /// Why.
    pub why: Ended,
}

impl End {
    /// Whether it is ended for want of a slot.
    pub fn is_lost(&self) -> bool {
        matches!(self.why, Ended::Lost(_))
    }
}

/// Why a running workload is ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A newer one that asks for the same replaces it.
    Replaced {
        /// The kind, the namespace and the name of the newer one.
        by: String,
    },
    /// It would be suspended like this for want of a slot, and can't be.
    Lost(Box<Suspend>),
}

impl Ended {
    /// The reason in one word, as in the workload's annotation.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Replaced { .. } => "Replaced",
            Self::Lost(_) => "SlotLost",
        }
    }
}

/// Why a workload that must not wait is deleted, or fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// All slots are taken, by these.
    Taken {
        /// Who takes them, oldest first; no more than are shown to people.
        by: Vec<Taker>,
        /// How many others do.
        others: usize,
    },
    /// It is later than its scheduled time by this much, which exceeds the cooldown: another cluster may have done
    /// its work, and nothing would show that any more.
    Late(Duration),
}

/// Who takes a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taker {
    /// The session in `Holders`.
    pub session: SessionId,
    /// Who that is, if its contender says so.
    pub holder: Option<String>,
    /// Whether it is dead, and its slot waits for the lock-delay.
    pub rests: bool,
    /// Until when its slot cools down, if its workload is finished.
    pub cools_until: Option<jiff::Timestamp>,
}

impl Taker {
    /// What is known of this session from its contender, if that exists.
    pub fn new(session: &SessionId, contender: Option<&Entry>) -> Self {
        let body = contender.and_then(|entry| ContenderBody::read(&entry.value));
        Self {
            session: session.clone(),
            holder: body.as_ref().map(ContenderBody::holder),
            rests: contender.is_none(),
            cools_until: body.and_then(|body| body.cools_until),
        }
    }

    /// Who it is and the state of its slot, for people; by this name if it does not name itself.
    pub fn describe(&self, name: Option<String>) -> String {
        let session = self.session.shown();
        let who = match self.holder.clone().or(name) {
            _ if !self.session.is_genuine() => "an entry that is no session".to_owned(),
            Some(name) => format!("{name} (session {session})"),
            None => format!("session {session}"),
        };
        match self.cools_until {
            _ if self.rests => {
                format!("{who}, which is dead and whose slot rests for the lock-delay")
            }
            Some(until) => format!("{who}, which is done and whose slot cools until {until:.0}"),
            None => who,
        }
    }
}

/// A running workload whose annotation must name the sessions that hold its slots now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    /// The workload.
    pub workload: Target,
    /// The sessions, in the order of its slots.
    pub sessions: Vec<SessionId>,
}

/// The slots that the transaction grants to one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The workload.
    pub workload: Target,
    /// The sessions that will hold the slots, by ordinal: all that the workload waits for, or one that it lost.
    pub sessions: BTreeMap<u32, SessionId>,
    /// Whether the workload waits for them; otherwise it already runs and had lost one.
    pub starts: bool,
    /// Whether they are all that it asks for. If not, the other lock keys' parts are granted in the same transaction,
    /// and the workload is started in all of them.
    pub whole: bool,
    /// When the workload joined the queue, in seconds since 1970.
    pub since: i64,
}

/// A session to be made for a workload, which then waits with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRequest {
    /// The workload.
    pub workload: Target,
    /// The ordinal of the slot that it is for.
    pub ordinal: u32,
    /// Whether no slot is free for it yet, so that it is not urgent.
    pub ahead: bool,
}

impl SessionRequest {
    /// The slot that it is for.
    pub fn slot(&self) -> SlotId {
        SlotId {
            workload: self.workload.uid.clone(),
            ordinal: self.ordinal,
        }
    }
}

/// A slot, or only a contender key, that the transaction gives back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Who had it.
    pub identity: Arc<Identity>,
    /// The session, to be destroyed once the transaction has gone through.
    pub session: SessionId,
    /// Whether it held a slot.
    pub held: bool,
}

/// A slot that begins to cool down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cooling {
    /// Who has it.
    pub identity: Arc<Identity>,
    /// The session that holds it.
    pub session: SessionId,
    /// Until when it stays held.
    pub until: jiff::Timestamp,
}

/// One write to Consul: all of it or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The operations, in order.
    pub operations: Vec<Op>,
    /// What it grants.
    pub grants: Vec<Grant>,
    /// What it gives back.
    pub releases: Vec<Release>,
    /// Whose cooldown it starts.
    pub cooldowns: Vec<Cooling>,
    /// The sessions of a rate's slots that it has count from their start.
    pub stamped: Vec<SessionId>,
    /// The sessions of a rate's slots that are gone, each with the one that takes its slot over.
    pub replaced: Vec<(SessionId, SessionId)>,
    /// The dead holders that it prunes.
    pub prunes: Vec<SessionId>,
    /// The limit that it writes, if it is a new one.
    pub limit: Option<u32>,
    /// Whether that limit overwrites one that is not ours.
    pub enforced: bool,
    /// Whether it deletes `.lock` itself.
    pub removes_lock: bool,
    /// What it changes in the body of `.lock`, if it writes one.
    pub lock: Option<LockChange>,
}

impl Transaction {
    /// Whether it writes `.lock`, by a CAS.
    pub fn writes_lock(&self) -> bool {
        let mut operations = self.operations.iter();
        operations.any(|operation| matches!(operation, Op::Cas { .. }))
    }

    /// The keys that it writes or deletes.
    pub fn written_keys(&self) -> impl Iterator<Item = &str> {
        let writes = self
            .operations
            .iter()
            .filter(|operation| operation.writes());
        writes.map(Op::key)
    }

    /// What it grants as a part of a grant at several lock keys.
    pub fn part(&self) -> Option<&Grant> {
        let mut grants = self.grants.iter();
        grants.find(|grant| grant.starts && !grant.whole)
    }

    /// Whether it grants a workload slots at several lock keys.
    pub fn is_joint(&self) -> bool {
        let of: BTreeSet<&Uid> = self
            .grants
            .iter()
            .map(|grant| &grant.workload.uid)
            .collect();
        of.len() < self.grants.len()
    }

    /// The sessions that Consul found missing when it refused this, before their renewal did.
    pub fn gone_sessions<'a>(
        &'a self,
        errors: &'a [OpError],
    ) -> impl Iterator<Item = &'a SessionId> {
        let invalid = errors.iter().filter(|error| error.is_invalid_session());
        invalid.filter_map(|error| match self.operations.get(error.operation)? {
            Op::Lock { session, .. } => Some(session),
            _ => None,
        })
    }

    /// What it granted, each with its slots, now that Consul has answered. `answer` has the entries that were
    /// written: a slot's entry is the last one that its session has locked, because a mutex may have been another's
    /// before.
    pub fn slots<'a>(
        &'a self,
        answer: &'a [Entry],
    ) -> impl Iterator<Item = (&'a Grant, Vec<Slot>)> {
        let slot = |session: &SessionId| {
            let mut written = answer.iter().rev();
            let locked = written.find(|entry| entry.session.as_ref() == Some(session))?;
            Some(Slot::new(session.clone(), locked))
        };
        self.grants.iter().filter_map(move |grant| {
            let slots: Option<Vec<Slot>> = grant.sessions.values().map(slot).collect();
            Some((grant, slots?))
        })
    }

    /// The workloads to start now that Consul has given this answer.
    pub fn starts(&self, answer: &[Entry]) -> Vec<Start> {
        let granted = self.slots(answer);
        let granted = granted.filter(|(grant, _)| grant.starts && grant.whole);
        granted
            .filter_map(|(grant, slots)| Start::new(grant.workload.clone(), slots))
            .collect()
    }
}

/// The state at one lock key of a workload that asks for several slots, here or at several lock keys, and has not been
/// started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// It waits here.
    Waits(Waits),
    /// It can't be started for now, because the API server refused that.
    Barred,
    /// It holds what it asks for here: these slots.
    Held(Vec<Slot>),
    /// It is being written to: the next step is decided when that is done.
    Busy,
}

/// What a workload that waits for several slots finds at a lock key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Whether enough slots are free for it here.
    pub free: bool,
    /// Whether its sessions are made, and those of all before it that nobody may pass.
    pub ready: bool,
    /// Whether nobody waits before it.
    pub first: bool,
    /// When it can have enough slots at the earliest.
    pub enough: Enough,
}

/// When a workload that waits for several slots can have enough of them at a lock key, at the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enough {
    /// Before [`Settings::pass_over`] has gone by.
    Soon,
    /// Later: the others cool down.
    Late,
    /// Not while this limit is in force.
    Never,
}

/// What a queue does with its free slots for a workload that asks for several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// The workload is granted them if there are enough: nothing is missing elsewhere.
    Grants,
    /// They go to those behind it, because slots are missing elsewhere.
    PassedOver,
    /// They are kept for it while it is the first: it was passed over for long enough, and is the first in all of its
    /// other queues, too.
    Keeps,
    /// As `PassedOver`, and it is in nobody's way, because one of its queues can't grant it enough before
    /// [`Settings::pass_over`] has gone by.
    Stopped,
}

/// What a pass decides to do, in the order in which it is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// `status.appliedLimits` to be written before anything else: the transaction that changes the limit comes in a
    /// later pass.
    pub record: Option<Vec<u32>>,
    /// The write to Consul.
    pub transaction: Option<Transaction>,
    /// Interrupted starts, to be completed.
    pub starts: Vec<Start>,
    /// Workloads to be suspended.
    pub suspends: Vec<Suspend>,
    /// Workloads to be ended, because they can't be suspended.
    pub ends: Vec<End>,
    /// Workloads that give their slot back.
    pub give_backs: Vec<GiveBack>,
    /// Running workloads that continue without a slot, or with one that could not be proved for too long.
    pub unheld: Vec<Target>,
    /// Workloads whose annotation names an earlier session.
    pub renames: Vec<Rename>,
    /// Workloads that must not wait, and are deleted.
    pub skips: Vec<Skip>,
    /// Workloads that must not wait, and fail.
    pub fails: Vec<Fail>,
    /// The waiting workloads that can have what they ask for here, now or as soon as their sessions are made.
    pub in_reach: BTreeSet<Uid>,
    /// How many slots others wait for that come before the first of the waiting workloads; `None` if none waits.
    pub before: Option<usize>,
    /// Whether slots are granted here now.
    pub open: bool,
    /// The state here of workloads that ask for several slots.
    pub parts: BTreeMap<Uid, Part>,
    /// Sessions to make, in queue order.
    pub sessions: Vec<SessionRequest>,
    /// Slots whose session, made ahead, is not needed.
    pub surplus: Vec<SlotId>,
    /// `status.appliedLimits` once all of this is done.
    pub applied: Vec<u32>,
    /// Whether spec and Consul agree on the limit; `None` while `.lock` can't be read.
    pub agreement: Option<Agreement>,
    /// Whether the prefix must be read again before the rest can be decided.
    pub reread: bool,
    /// When to decide again if nothing changes before.
    pub wake: Option<Moment>,
    /// When to write the contenders anew for which others keep slots. This goes on for as long as they wait, so it is
    /// no work that is left to do.
    pub anew: Option<Moment>,
    /// When a running workload is suspended unless something new is learned of its slot before.
    pub deadline: Option<Moment>,
    /// Whether the semaphore that is being deleted has left nothing behind.
    pub finished: bool,
}

impl Plan {
    /// A running workload must not run without its slot: it is suspended, or ended if it can't be.
    pub(super) fn stop(&mut self, workload: &Workload, why: Suspended) {
        let suspend = Suspend::new(workload, why);
        if workload.traits.can_be_suspended {
            return self.suspends.push(suspend);
        }
        // Its controller ends it already.
        if workload.wait.failing {
            return;
        }
        self.ends.push(End {
            workload: workload.into(),
            why: Ended::Lost(Box::new(suspend)),
        });
    }

    /// Whether nothing at this lock key depends on a limit other than the spec's that was written here, and no write
    /// of such a limit can still arrive: see [`limit::settled`].
    pub fn settles(&self, lock: &Lock, settings: &Settings) -> bool {
        match (self.agreement, lock) {
            (None, _) => false,
            (Some(Agreement::Conflict { .. }), _) => true,
            // One lock key of many has a limit in Consul only while it is used.
            (Some(Agreement::Write { .. }), Lock::Absent { .. }) => {
                settings.transient && self.record.is_none()
            }
            (Some(_), _) => *self.applied == limit::settled(&self.applied, settings.limit),
        }
    }

    /// Whether there is nothing to do, now or later.
    pub fn is_at_rest(&self) -> bool {
        let Self {
            record,
            transaction,
            starts,
            suspends,
            ends,
            give_backs,
            unheld: _,
            renames,
            skips,
            fails,
            in_reach: _,
            before: _,
            open: _,
            parts: _,
            sessions,
            surplus,
            applied: _,
            agreement: _,
            reread,
            wake,
            anew: _,
            deadline: _,
            finished: _,
        } = self;
        record.is_none()
            && transaction.is_none()
            && starts.is_empty()
            && suspends.is_empty()
            && ends.is_empty()
            && give_backs.is_empty()
            && renames.is_empty()
            && skips.is_empty()
            && fails.is_empty()
            && sessions.is_empty()
            && surplus.is_empty()
            && !reread
            && wake.is_none()
    }
}
