//! Decisions of a pass: the types that say what is to be done, and to which workloads and keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    identity::{ContenderBody, ContenderName, Identity},
    limit::{self, Agreement},
    lock::{Lock, LockChange},
    settings::Settings,
    wait::{Termination, WaitBegan},
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
    /// `resourceVersion` of the workload: the API server refuses the action if the workload has changed since.
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
    /// Whether the workload, read again, is unchanged since the decision. If it is unchanged, a failed write was
    /// refused; otherwise the write came too late, whatever the error said.
    pub fn is_still(&self, now: &Workload) -> bool {
        self.uid == now.uid && self.version == now.version
    }
}

/// The longest name of a slot, in bytes. A longer one that somebody has written into a contender is left out.
const LONGEST_SLOT_NAME: usize = 63;

/// A slot that Consul says is held. The key, the index and the session of a slot are a sequencer
/// (<https://developer.hashicorp.com/consul/docs/dynamic-app-config/sessions>), with which a client checks that it
/// still has the lock that it was given.
///
/// A slot can only be made from Consul's entry for the contender key, so nothing that needs a slot can be done
/// without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldSlot {
    key: String,
    session: SessionId,
    lock_index: u64,
    fencing_token: u64,
    index: Option<u32>,
    name: Option<Box<str>>,
}

impl HeldSlot {
    /// Returns the slot of a session, given Consul's entry for its contender key and the value of that key, which
    /// Consul's answer to a write leaves out.
    pub(super) fn new(session: SessionId, contender: &Entry, value: &[u8]) -> Self {
        let body = ContenderBody::read(value);
        let (index, name) = body.map_or((None, None), |body| (body.slot_index, body.slot_name));
        let name = name.filter(|name| name.len() <= LONGEST_SLOT_NAME);
        Self {
            key: contender.key.clone(),
            session,
            lock_index: contender.lock_index,
            fencing_token: contender.modify_index,
            index,
            name: name.map(String::into_boxed_str),
        }
    }

    /// The key that the session has locked: the contender key of the session, or the mutex.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The session that holds the slot.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// The `LockIndex` of the key that the session has locked. Consul restarts the index when the key is deleted.
    pub fn lock_index(&self) -> u64 {
        self.lock_index
    }

    /// The raft index of the grant: a later grant has a greater one.
    pub fn fencing_token(&self) -> u64 {
        self.fencing_token
    }

    /// The number of the slot among all slots of its semaphore, from 0: see [`ContenderBody::slot_index`].
    pub fn index(&self) -> Option<u32> {
        self.index
    }

    /// The name that the `ConsulSemaphore` gives to this index.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// A workload to be started in the slots that it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The workload.
    pub workload: Target,
    /// The first of the workload's slots.
    pub slot: HeldSlot,
    /// The workload's other slots, grouped by lock key, in the order of their ordinals.
    pub others: Vec<HeldSlot>,
}

impl Start {
    /// Returns the start of a workload in these slots; `None` if there are none.
    pub(super) fn new(workload: Target, slots: Vec<HeldSlot>) -> Option<Self> {
        let mut slots = slots.into_iter();
        let slot = slots.next()?;
        let others = slots.collect();
        Some(Self {
            workload,
            slot,
            others,
        })
    }

    /// Returns all slots of the workload.
    pub fn slots(&self) -> impl Iterator<Item = &HeldSlot> + Clone {
        [&self.slot].into_iter().chain(&self.others)
    }

    /// Returns the grant as the workload's template records it.
    pub fn granted(&self) -> Granted {
        let slots = self.slots().map(|slot| GrantedSlot {
            lock_key: lock_key_of(slot.key()).into(),
            session: slot.session.clone(),
            index: slot.index,
        });
        Granted {
            slots: slots.collect(),
        }
    }

    /// Returns the sessions that the workload's own annotation names.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        self.slots().map(HeldSlot::session)
    }
}

/// The reason why a workload is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspended {
    /// The workload lost its slot, and there is no other one for it.
    SlotLost,
    /// Nothing has shown for too long that the workload's slot is still held.
    Unproved,
}

/// A workload to be suspended that was started in a slot. The operator clears the workload's annotation, which makes
/// the workload the first in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspend {
    /// The workload.
    pub workload: Target,
    /// The reason for the suspension.
    pub why: Suspended,
    /// The session that holds, or held, the workload's slot.
    pub session: Option<SessionId>,
    /// Time at which the workload was started, in seconds since 1970.
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

/// A workload to be suspended because it runs although no grant started it. The decision depends on no semaphore and
/// not on Consul, so no pending request delays it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The workload.
    pub workload: Target,
    /// Whether the workload's hold is removed.
    pub unhold: bool,
}

impl Stop {
    /// Returns the order to stop the workload, if it runs without a grant and can be suspended. A workload that can't
    /// be suspended never belonged to this operator, so this operator does not end it.
    pub fn of(workload: &Workload) -> Option<Self> {
        let runs_without_grant = workload.phase == Phase::Running && workload.granted.is_none();
        let stops = runs_without_grant && workload.traits.can_be_suspended;
        stops.then(|| Self {
            workload: workload.into(),
            // If the workload was suspended before, its user unsuspended it, and removing the hold queues it again. A
            // workload that was created running and on hold was never suspended before, and stays out of the queue.
            unhold: workload.hold && workload.was_suspended,
        })
    }
}

/// A workload that will not run in the slot that it has. The PATCH of the workload comes before the release: the
/// PATCH changes the workload's version, so that no earlier decision can start the workload once the slot is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveBack {
    /// The workload.
    pub workload: Target,
    /// The sessions that hold, or held, the workload's slots at this lock key.
    pub sessions: Vec<SessionId>,
    /// Whether the workload is put on hold, because its user suspended it while it ran.
    pub hold: bool,
    /// Time at which the workload's wait began, if the wait goes on; `None` if a start has ended the wait.
    pub began: Option<WaitBegan>,
}

/// A workload whose object is to record when its wait began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordWait {
    /// The workload.
    pub workload: Target,
    /// The beginning of the wait, as it is recorded.
    pub began: WaitBegan,
}

/// A workload that is deleted because it must not wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// The workload.
    pub workload: Target,
    /// The `CronJob` that made it.
    pub cron_job: Option<Arc<CronJob>>,
    /// The reason why the workload is deleted.
    pub why: Skipped,
}

/// A workload that has never had a slot and fails, by a write that starts it without pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fail {
    /// The workload.
    pub workload: Target,
    /// The reason why the workload fails.
    pub why: Failed,
}

/// The reason why a workload fails instead of waiting on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The workload must not wait, and can't be started at once.
    Contended(Skipped),
    /// The workload has waited in the queue for as long as it may wait.
    TimedOut {
        /// Time for which the workload may wait.
        timeout: Duration,
        /// The slots that the workload asks for, as in its annotation.
        asked: String,
        /// The contenders that have the slots, for each of the workload's semaphores by its name.
        taken: Vec<(String, Skipped)>,
    },
    /// The workload has waited for as long as it may wait, and something keeps it out of the queue.
    Unqueued {
        /// Time for which the workload may wait.
        timeout: Duration,
        /// The reason that keeps the workload out of the queue.
        why: String,
    },
    /// A newer workload that asks for the same slots supersedes this one.
    Superseded {
        /// Kind, namespace and name of the newer workload.
        by: String,
    },
    /// The workload came into a queue in which as many workloads wait as may.
    QueueFull {
        /// The semaphore of the queue, by its name.
        semaphore: String,
        /// Number of workloads that wait in the queue.
        waiting: usize,
        /// Number of workloads that may wait in the queue.
        most: usize,
    },
}

impl Failed {
    /// Returns the reason in one word, as in the workload's annotation.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Contended(_) => "Contended",
            Self::TimedOut { .. } | Self::Unqueued { .. } => "WaitTimedOut",
            Self::Superseded { .. } => "Superseded",
            Self::QueueFull { .. } => "QueueFull",
        }
    }
}

/// A running workload that is ended, and fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The workload.
    pub workload: Target,
    /// The reason why the workload is ended.
    pub why: Ended,
}

impl End {
    /// Whether the workload is ended for want of a slot.
    pub fn is_lost(&self) -> bool {
        matches!(self.why, Ended::Lost(_))
    }
}

/// The reason why a running workload is ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A newer workload that asks for the same slots replaces this one.
    Replaced {
        /// The kind, the namespace and the name of the newer one.
        by: String,
    },
    /// The workload lost its slot and can't be suspended. The value is the suspension that would be due if the
    /// workload could be suspended.
    Lost(Box<Suspend>),
}

impl Ended {
    /// The reason of [`Self::Replaced`] in one word.
    pub const REPLACED: &str = "Replaced";

    /// Returns the reason in one word, as in the workload's annotation.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Replaced { .. } => Self::REPLACED,
            Self::Lost(_) => "SlotLost",
        }
    }
}

/// The reason why a workload that must not wait is deleted, or fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// All slots are taken.
    Taken {
        /// The takers of the slots, oldest first; no more than are shown to people.
        by: Vec<Taker>,
        /// Number of takers beyond those in `by`.
        others: usize,
    },
    /// The workload is later than its scheduled time by this much, which exceeds the cooldown: another cluster may
    /// have done the same work, and after the cooldown nothing would show that.
    Late(Duration),
}

/// A session that takes a slot, and what is known of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taker {
    /// The session in `Holders`.
    pub session: SessionId,
    /// The name of the holder, if the session or its contender has one.
    pub holder: Option<ContenderName>,
    /// Whether the holder is dead, so that its slot waits for the lock-delay.
    pub rests: bool,
    /// Time until which the slot cools down, if the holder's workload is finished.
    pub cools_until: Option<jiff::Timestamp>,
}

impl Taker {
    /// Returns what is known of this session from its contender, if the contender exists.
    pub fn new(session: &SessionId, contender: Option<&Entry>) -> Self {
        let body = contender.and_then(|entry| ContenderBody::read(&entry.value));
        Self {
            session: session.clone(),
            holder: body.as_ref().map(ContenderBody::holder),
            rests: contender.is_none(),
            cools_until: body.and_then(|body| body.cools_until),
        }
    }

    /// Describes the taker and the state of its slot, for people.
    pub fn describe(&self) -> String {
        let session = self.session.shown();
        let who = match &self.holder {
            _ if !self.session.is_genuine() => "an entry that is not a session".to_owned(),
            Some(name) => format!("{name} (session {session})"),
            None => format!("session {session}"),
        };
        match self.cools_until {
            _ if self.rests => {
                format!(
                    "{who}, which is dead and whose slot is blocked until the lock-delay is over"
                )
            }
            Some(until) => {
                format!("{who}, which is done and whose slot is in its cooldown until {until:.0}")
            }
            None => who,
        }
    }
}

/// A running workload whose annotation must name other sessions, because those hold its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    /// The workload.
    pub workload: Target,
    /// The sessions, in the order of the workload's slots.
    pub sessions: Vec<SessionId>,
}

/// The slots that the transaction grants to one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The workload.
    pub workload: Target,
    /// The sessions that will hold the slots, by ordinal: all that the workload waits for, or one that replaces a
    /// lost one.
    pub sessions: BTreeMap<u32, SessionId>,
    /// Whether the workload waits for the slots; otherwise the workload already runs and had lost one.
    pub starts: bool,
    /// Whether these slots are all that the workload asks for. If not, the parts of the other lock keys are granted
    /// in the same transaction, and the workload is started in all of them.
    pub whole: bool,
    /// Time at which the workload joined the queue, in seconds since 1970.
    pub since: i64,
}

/// A session to be made for a workload, which then waits with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRequest {
    /// The workload.
    pub workload: Target,
    /// The ordinal of the slot that the session is for.
    pub ordinal: u32,
    /// Whether no slot is free for the workload yet, so that the session is not urgent.
    pub ahead: bool,
}

impl SessionRequest {
    /// Returns the slot that the session is for.
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
    /// The workload that had the slot or the key.
    pub identity: Arc<Identity>,
    /// The session, to be destroyed once the transaction has gone through.
    pub session: SessionId,
    /// Whether the session held a slot.
    pub held: bool,
}

/// A slot that begins to cool down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cooling {
    /// The workload that has the slot.
    pub identity: Arc<Identity>,
    /// The session that holds it.
    pub session: SessionId,
    /// Time until which the slot stays held.
    pub until: jiff::Timestamp,
}

/// One write to Consul, which is applied as a whole or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The operations, in order.
    pub operations: Vec<Op>,
    /// The slots that the transaction grants.
    pub grants: Vec<Grant>,
    /// The slots and contender keys that the transaction gives back.
    pub releases: Vec<Release>,
    /// The slots whose cooldown the transaction starts.
    pub cooldowns: Vec<Cooling>,
    /// The sessions of a rate's slots whose period the transaction counts from the start of their workload.
    pub stamped: Vec<SessionId>,
    /// The dead sessions of a rate's slots, each with the session that takes its slot over.
    pub replaced: Vec<(SessionId, SessionId)>,
    /// The dead holders that the transaction prunes.
    pub prunes: Vec<SessionId>,
    /// The sessions that no transaction was sent for before, and whose contender is written while nothing checks
    /// `.lock`. If the transaction has no answer, these sessions must end, because it may arrive at any later time.
    pub joins: Vec<SessionId>,
    /// The limit that the transaction writes, if that is a new one.
    pub limit: Option<u32>,
    /// Whether the new limit overwrites one that is not ours.
    pub enforced: bool,
    /// Whether the transaction deletes `.lock` itself.
    pub removes_lock: bool,
    /// The change to the body of `.lock`, if the transaction writes a body.
    pub lock: Option<LockChange>,
}

impl Transaction {
    /// Whether the transaction writes `.lock`, by a CAS.
    pub fn writes_lock(&self) -> bool {
        let mut operations = self.operations.iter();
        operations.any(|operation| matches!(operation, Op::Cas { .. }))
    }

    /// Returns the keys that the transaction writes or deletes.
    pub fn written_keys(&self) -> impl Iterator<Item = &str> {
        let writes = self
            .operations
            .iter()
            .filter(|operation| operation.writes());
        writes.map(Op::key)
    }

    /// Returns the sessions whose contenders the transaction writes.
    pub fn locked_by(&self) -> impl Iterator<Item = &SessionId> {
        self.operations
            .iter()
            .filter_map(|operation| match operation {
                Op::Lock { session, .. } => Some(session),
                _ => None,
            })
    }

    /// Returns the first grant that is only a part of what a workload waits for, because the other parts are at other
    /// lock keys.
    pub fn part(&self) -> Option<&Grant> {
        let mut grants = self.grants.iter();
        grants.find(|grant| grant.starts && !grant.whole)
    }

    /// Whether the transaction grants a workload slots at several lock keys.
    pub fn is_joint(&self) -> bool {
        let of: BTreeSet<&Uid> = self
            .grants
            .iter()
            .map(|grant| &grant.workload.uid)
            .collect();
        of.len() < self.grants.len()
    }

    /// Returns the sessions that Consul found missing when it refused this transaction, before their renewal found
    /// out.
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

    /// Returns the grants of the transaction, each with its slots, after Consul has accepted the transaction.
    /// `answer` has the entries that were written: a slot's entry is the last one that its session has locked,
    /// because another session may have held a mutex before.
    pub fn slots<'a>(
        &'a self,
        answer: &'a [Entry],
    ) -> impl Iterator<Item = (&'a Grant, Vec<HeldSlot>)> {
        let slot = |session: &SessionId| {
            let mut written = answer.iter().rev();
            let locked = written.find(|entry| entry.session.as_ref() == Some(session))?;
            let mut operations = self.operations.iter().rev();
            let value = operations.find_map(|operation| match operation {
                Op::Lock {
                    session: by, value, ..
                } if by == session => Some(value.as_slice()),
                _ => None,
            });
            Some(HeldSlot::new(
                session.clone(),
                locked,
                value.unwrap_or_default(),
            ))
        };
        self.grants.iter().filter_map(move |grant| {
            let slots: Option<Vec<HeldSlot>> = grant.sessions.values().map(slot).collect();
            Some((grant, slots?))
        })
    }

    /// Returns the workloads to start after Consul has given this answer.
    pub fn starts(&self, answer: &[Entry]) -> Vec<Start> {
        self.slots(answer)
            .filter(|(grant, _)| grant.starts && grant.whole)
            .filter_map(|(grant, slots)| Start::new(grant.workload.clone(), slots))
            .collect()
    }
}

/// The state, at one lock key, of a workload that asks for several slots, at this lock key or at several, and has not
/// been started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The workload waits at this lock key.
    Waits(Waits),
    /// The workload can't be started for the time being, because the API server refused the start.
    Barred,
    /// The workload holds all slots that it asks for at this lock key, which are these.
    Held(Vec<HeldSlot>),
    /// The workload is being written to, and its next step is decided when the write is done.
    Busy,
}

/// The situation of a workload that waits for several slots, at one lock key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Whether enough slots are free for the workload at this lock key.
    pub free: bool,
    /// Whether the sessions of the workload are made, and the sessions of all contenders before the workload that
    /// nobody may pass.
    pub ready: bool,
    /// Whether no other contender waits before the workload.
    pub first: bool,
    /// The earliest time at which the workload can have enough slots.
    pub enough: Enough,
}

/// The earliest time at which a workload that waits for several slots can have enough of them at a lock key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enough {
    /// The workload can have enough slots before [`Settings::pass_over`] has gone by.
    Soon,
    /// The workload can have enough slots only after [`Settings::pass_over`] has gone by, because the other slots
    /// cool down.
    Late,
    /// The workload can't have enough slots while this limit is in force.
    Never,
}

/// The use that a queue makes of its free slots when a workload that asks for several waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// The queue grants the workload its slots if enough are free, because no slots are missing at its other lock
    /// keys.
    Grants,
    /// The queue grants the slots to the contenders behind the workload, because slots are missing at its other lock
    /// keys.
    PassedOver,
    /// The queue keeps the slots for the workload while the workload is the first: it was passed over for long
    /// enough, and is the first in all of its other queues, too.
    Keeps,
    /// The queue passes the workload over as for `PassedOver`, and the workload blocks nobody, because one of its
    /// queues can't grant it enough slots before [`Settings::pass_over`] has gone by.
    Stopped,
}

/// The decisions of a pass, in the order in which they are carried out.
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
    /// Running workloads that continue without a slot, or with a slot that could not be proved for too long.
    pub unheld: Vec<Target>,
    /// Workloads whose annotation names an earlier session.
    pub renames: Vec<Rename>,
    /// Workloads that must not wait, and are deleted.
    pub skips: Vec<Skip>,
    /// Workloads that must not wait, and fail.
    pub fails: Vec<Fail>,
    /// The waiting workloads that can have all slots that they ask for at this lock key, at once or as soon as their
    /// sessions are made.
    pub in_reach: BTreeSet<Uid>,
    /// Number of slots that stay free after this plan, because no workload that the pass has read is granted or kept
    /// them; `None` if it is not certain what can be granted.
    pub spare: Option<usize>,
    /// Number of slots for which others wait before the first of the waiting workloads; `None` if no workload waits.
    pub before: Option<usize>,
    /// Whether slots are granted at this lock key at present.
    pub open: bool,
    /// The state, at this lock key, of workloads that ask for several slots.
    pub parts: BTreeMap<Uid, Part>,
    /// Sessions to make, in queue order.
    pub sessions: Vec<SessionRequest>,
    /// Slots whose session was made ahead and is not needed.
    pub surplus: Vec<SlotId>,
    /// `status.appliedLimits` once all of this plan is done.
    pub applied: Vec<u32>,
    /// Whether spec and Consul agree on the limit; `None` while `.lock` can't be read.
    pub agreement: Option<Agreement>,
    /// Whether the prefix must be read again before the rest can be decided.
    pub reread: bool,
    /// Time at which to decide again if nothing changes before.
    pub wake: Option<Moment>,
    /// Time at which to write again the contenders for which others keep slots. The writing goes on for as long as
    /// they wait, so it does not count as work that is left to do.
    pub anew: Option<Moment>,
    /// Time at which a running workload is suspended unless something new is learned of its slot before.
    pub deadline: Option<Moment>,
    /// Whether the semaphore that is being deleted has left nothing behind.
    pub finished: bool,
}

impl Plan {
    /// Plans that a running workload stops because it has lost its slot: it is suspended, or ended if it can't be
    /// suspended.
    pub(super) fn stop(&mut self, workload: &Workload, why: Suspended) {
        let suspend = Suspend::new(workload, why);
        if workload.traits.can_be_suspended {
            return self.suspends.push(suspend);
        }
        // The controller of the workload is already ending it. A graceful end would go on without a slot.
        if workload.wait.failing == Some(Termination::Immediate) {
            return;
        }
        self.ends.push(End {
            workload: workload.into(),
            why: Ended::Lost(Box::new(suspend)),
        });
    }

    /// Whether nothing at this lock key depends on a limit that was written here and differs from the spec's, and no
    /// write of such a limit can still arrive: see [`limit::settled`].
    pub fn settles(&self, lock: &Lock, settings: &Settings) -> bool {
        match (self.agreement, lock) {
            (None, _) => false,
            (Some(Agreement::Conflict { .. }), _) => true,
            // The lock key of a transient semaphore exists, and has a limit, only while it is used.
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
            spare: _,
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
