//! Describes a workload as far as the algorithm must know it.

use std::{cmp::Reverse, collections::BTreeMap, fmt, num::NonZeroU32, sync::Arc, time::Duration};

use super::reading::LOCK;
use crate::{Key, OnContention, Wait};
use consul_client::{SessionId, clock::Moment, id::Id};

/// A workload's uid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(Id);

impl From<&str> for Uid {
    fn from(uid: &str) -> Self {
        Self(uid.into())
    }
}

impl AsRef<str> for Uid {
    fn as_ref(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a workload's kind, as Kubernetes has it: `Job`. The algorithm treats all kinds alike: the name only
/// says to whom a session belongs, and where a write goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindName(Option<Arc<str>>);

impl KindName {
    /// The kind that is meant if none is named.
    const DEFAULT: &str = "Job";

    /// Returns the name of the kind.
    pub fn as_str(&self) -> &str {
        self.unusual().unwrap_or(Self::DEFAULT)
    }

    /// Returns the name, unless it is the kind that is meant if none is named.
    pub fn unusual(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl From<&str> for KindName {
    fn from(name: &str) -> Self {
        Self((name != Self::DEFAULT).then(|| name.into()))
    }
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The state of a workload, as its spec and status show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The workload is suspended and shown as such, with no pod active or terminating: it can be started.
    Idle,
    /// The workload is suspended, but its status does not show yet that no pod is left. Or a user unsuspended it, but
    /// its status does not show that yet.
    Stopping,
    /// The workload is neither suspended nor finished.
    Running,
    /// The workload is Complete or Failed.
    Finished {
        /// Whether the status of the workload shows that no pod is active or terminating.
        at_rest: bool,
    },
    /// The workload is marked for deletion.
    Deleting,
}

/// The most semaphores that a workload may ask for slots of.
pub const MOST_SEMAPHORES: usize = 8;

/// The most slots that a workload may ask for, of all its semaphores together.
pub const MOST_SLOTS: u32 = 50;

/// A request of a workload for slots of one semaphore. The whole request of a workload is a list of these, of which all
/// are granted at once or none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlotRequest {
    /// The name of the `ConsulSemaphore`, in the workload's namespace.
    pub semaphore: Arc<str>,
    /// The key, if the semaphore is keyed.
    pub key: Option<Key>,
    /// The number of slots.
    pub slots: NonZeroU32,
}

impl SlotRequest {
    /// Creates a request for one slot of a semaphore, or of one key of it.
    pub fn one(semaphore: impl Into<Arc<str>>, key: Option<Key>) -> Self {
        Self {
            semaphore: semaphore.into(),
            key,
            slots: NonZeroU32::MIN,
        }
    }

    /// Returns the semaphore's name, and the key if there is one: `tasks/customer-42`.
    pub fn place(&self) -> String {
        match &self.key {
            Some(key) => format!("{}/{key}", self.semaphore),
            None => self.semaphore.to_string(),
        }
    }
}

impl fmt::Display for SlotRequest {
    /// Writes the request as in the annotation: `licenses:2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())?;
        match self.slots.get() {
            1 => Ok(()),
            slots => write!(f, ":{slots}"),
        }
    }
}

/// One of the slots that a workload has at a lock key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId {
    /// The workload's uid.
    pub workload: Uid,
    /// The number of the slot among the workload's slots at this lock key, from 0.
    pub ordinal: u32,
}

/// The slots that a grant wrote into the workload's pod template, grouped by lock key, in the order of their
/// ordinals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The granted slots: at least one.
    pub slots: Vec<GrantedSlot>,
}

/// One of the granted slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedSlot {
    /// The lock key of the semaphore that granted it.
    pub lock_key: Arc<str>,
    /// The session that held the slot.
    pub session: SessionId,
    /// The number of the slot among all slots of the semaphore, if the grant says it.
    pub index: Option<u32>,
}

impl Granted {
    /// Creates a grant of one slot from the key in its sequencer: the session locked a contender key, and the lock
    /// key is beside it. The slot has no index.
    pub fn by(key: &str, session: &str) -> Self {
        let slot = GrantedSlot {
            lock_key: lock_key_of(key).into(),
            session: session.into(),
            index: None,
        };
        Self { slots: vec![slot] }
    }
}

impl Granted {
    /// Returns the sessions that last held these slots: the sessions in `reported`, or at first the grant's own.
    pub fn latest(&self, reported: &[SessionId]) -> Vec<SessionId> {
        if reported.is_empty() {
            self.slots.iter().map(|slot| slot.session.clone()).collect()
        } else {
            reported.to_vec()
        }
    }

    /// Returns the lock keys as a text for people.
    pub fn lock_keys(&self) -> String {
        let mut keys: Vec<&str> = self.slots.iter().map(|slot| &*slot.lock_key).collect();
        keys.dedup();
        keys.join(", ")
    }
}

/// Returns the lock key beside a contender key.
pub fn lock_key_of(contender: &str) -> String {
    let prefix = contender.rsplit_once('/').map_or("", |(prefix, _)| prefix);
    format!("{prefix}/{LOCK}")
}

/// Splits a lock key: returns its prefix and, if the last segment of the prefix can be a key of a keyed semaphore,
/// the prefix of that semaphore and the key. Returns `None` if this is no lock key.
pub fn lock_key_parts(lock_key: &str) -> Option<(&str, Option<(&str, Key)>)> {
    let prefix = lock_key.strip_suffix(LOCK)?.strip_suffix('/')?;
    let above = prefix
        .rsplit_once('/')
        .and_then(|(above, key)| Some((above, key.parse().ok()?)));
    Some((prefix, above))
}

/// A workload in the queue: the order of this type is the order of the queue.
///
/// Workloads that lost their slot come first, then higher priorities, then workloads that joined the queue earlier
/// (within a second by name, then by uid), so that the order is the same after a restart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(
    /// The parts are shared, because a place is in several lists of its queue.
    Arc<PlaceParts>,
);

/// The parts that decide the order of places, the most important first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlaceParts {
    lost: Reverse<bool>,
    priority: Reverse<i32>,
    since: i64,
    name: Arc<str>,
    uid: Uid,
}

/// The `CronJob` that made a workload, or an object of another kind like it: `CronWorkflow`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronJob {
    /// The version of the API that the kind is in: `batch/v1`.
    pub api_version: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object, whose namespace is the workload's.
    pub name: String,
    /// Uid of the object.
    pub uid: String,
    /// The scheduled time that the workload was made for, if that is recorded.
    pub scheduled: Option<jiff::Timestamp>,
}

impl Place {
    /// Creates the place of a workload that was queued at `since`, in seconds since 1970.
    pub(super) fn new(lost: bool, priority: i32, since: i64, name: Arc<str>, uid: Uid) -> Self {
        Self(Arc::new(PlaceParts {
            lost: Reverse(lost),
            priority: Reverse(priority),
            since,
            name,
            uid,
        }))
    }

    /// The uid of the workload that has this place.
    pub fn uid(&self) -> &Uid {
        &self.0.uid
    }
}

/// The properties of a workload's kind that the algorithm must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Traits {
    /// Whether the workload can be suspended while it runs. The operator ends a workload that can't be suspended.
    pub can_be_suspended: bool,
    /// Whether the workload may run again, as it is, after it has finished. If so, the operator takes the grant from
    /// the workload before it releases the slot, so that the workload then runs without a grant.
    pub runs_again: bool,
    /// Whether the operator can record beside the workload when its wait began.
    pub bears_a_record: bool,
}

impl Default for Traits {
    /// Returns the traits of a Job.
    fn default() -> Self {
        Self {
            can_be_suspended: true,
            runs_again: false,
            bears_a_record: true,
        }
    }
}

/// A workload that asks for a slot, or that this operator started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Kind of the workload.
    pub kind: KindName,
    /// Name of the workload, whose namespace is the semaphore's.
    pub name: Arc<str>,
    /// Uid of the workload.
    pub uid: Uid,
    /// The `resourceVersion` from which the workload was read.
    pub version: Arc<str>,
    /// Time at which that version was received: older facts about Consul can't be used against it.
    pub seen: Moment,
    /// The slots that the workload asks for; empty if its annotations ask for nothing valid.
    pub requests: Vec<SlotRequest>,
    /// The policy for the case that all slots are taken when the workload comes.
    pub on_contention: OnContention,
    /// The `CronJob` that made the workload, if the workload must not wait.
    pub cron_job: Option<Arc<CronJob>>,
    /// The priority of the workload. Higher priorities are served first.
    pub priority: i32,
    /// Whether the workload is on hold, and so stays out of the queue.
    pub hold: bool,
    /// Time at which the workload joined the queue, in seconds since 1970: when it was created, or last suspended if
    /// it was started before.
    pub since: i64,
    /// The state of the workload.
    pub phase: Phase,
    /// The time that the workload's pods may take to end once they are asked to.
    pub grace: Duration,
    /// Whether the workload has ever been suspended.
    pub was_suspended: bool,
    /// The traits that follow from the workload's kind.
    pub traits: Traits,
    /// The grant by which this operator started the workload, if the workload's template names a grant that was made
    /// for this very workload.
    pub granted: Option<Granted>,
    /// The sessions in the workload's own annotation, each for the slot at the same position in `granted`. They
    /// report what this operator did last. A grant without sessions means that the operator suspended the workload
    /// because a slot was lost. Sessions without a grant mean that the workload's slots were given back.
    pub reported: Vec<SessionId>,
    /// The facts that end the workload's wait.
    pub wait: Wait,
}

impl Workload {
    /// Returns the sessions that the annotation must name when the workload gives back the slots of `sessions`. They
    /// include the sessions whose slots the workload has given back at other lock keys before, because those slots
    /// stay given back. The result has no more sessions than a workload may have slots.
    pub(super) fn given_back_with(&self, mut sessions: Vec<SessionId>) -> Vec<SessionId> {
        if self.granted.is_none() {
            let before: Vec<_> = self
                .reported
                .iter()
                .filter(|id| !sessions.contains(id))
                .cloned()
                .collect();
            sessions.extend(before);
            sessions.truncate(usize::try_from(MOST_SLOTS).unwrap_or(usize::MAX));
        }
        sessions
    }

    /// Returns the workload's place in the queue.
    pub fn place(&self) -> Place {
        Place::new(
            self.lost(),
            self.priority,
            self.since,
            self.name.clone(),
            self.uid.clone(),
        )
    }

    /// Returns the workload's place among all that have come, whatever their priority.
    pub fn arrival(&self) -> Place {
        Place::new(false, 0, self.since, self.name.clone(), self.uid.clone())
    }

    /// Whether the workload can be granted a slot of the semaphore that it asks for.
    pub fn is_queued(&self) -> bool {
        self.phase == Phase::Idle && !self.hold && self.asks()
    }

    /// Whether only a hold keeps the workload out of the queue, once its last pods are gone.
    pub fn is_held_back(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Stopping) && self.hold && self.asks()
    }

    /// Whether the workload asks for a slot and has none.
    fn asks(&self) -> bool {
        let free = self.granted.is_none() || self.lost();
        !self.requests.is_empty() && free
    }

    /// Whether the workload is finished or being deleted.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Finished { .. } | Phase::Deleting)
    }

    /// Whether this operator suspended the workload because its slot was lost.
    pub fn lost(&self) -> bool {
        self.granted.is_some() && self.reported.is_empty()
    }

    /// Whether the workload is deleted or fails instead of having to wait: it asks for that, and has never had a
    /// slot.
    pub fn is_skippable(&self) -> bool {
        self.on_contention.is_hasty() && self.was_never_granted()
    }

    /// Whether no grant was ever written to the workload.
    pub fn was_never_granted(&self) -> bool {
        self.granted.is_none() && self.reported.is_empty()
    }

    /// Whether a newer workload that asks for the same slots may replace this one, or this one an older workload,
    /// while it waits.
    pub fn is_replaceable(&self) -> bool {
        self.on_contention.replaces() && self.is_queued() && self.was_never_granted()
    }

    /// Returns the age of the workload. Of two workloads that ask for the same slots, the one that is later in this
    /// order is the newer.
    pub fn age(&self) -> (i64, Arc<str>, Uid) {
        (self.wait.created, self.name.clone(), self.uid.clone())
    }

    /// Returns the names of the semaphores that the workload asks for, for people.
    pub fn semaphores(&self) -> String {
        let names = self.requests.iter().map(|request| &*request.semaphore);
        names.collect::<Vec<_>>().join(", ")
    }

    /// Returns the slots that the workload asks for, for people: as in the annotation.
    pub fn asked(&self) -> String {
        let requests = self.requests.iter().map(ToString::to_string);
        requests.collect::<Vec<_>>().join(", ")
    }

    /// Returns how many slots the workload asks for, of all semaphores together.
    pub fn slots_asked(&self) -> u32 {
        self.requests
            .iter()
            .map(|request| request.slots.get())
            .sum()
    }

    /// Whether the workload asks for more than one slot.
    pub fn asks_for_many(&self) -> bool {
        self.slots_asked() > 1
    }

    /// Whether the workload asks for slots at several lock keys, which are all granted in one transaction.
    pub fn asks_for_several(&self) -> bool {
        self.requests.len() > 1
    }

    /// Returns the slots that the workload asks for at a semaphore, or at one key of it.
    pub fn asks_for(&self, semaphore: &str, key: Option<&Key>) -> Option<&SlotRequest> {
        let mut requests = self.requests.iter();
        requests.find(|request| {
            *request.semaphore == *semaphore && (key.is_none() || request.key.as_ref() == key)
        })
    }

    /// Returns the workload's slots, each with the session that its annotation names for it, if any.
    fn slots(&self) -> impl Iterator<Item = (&GrantedSlot, Option<&SessionId>)> {
        let granted = self.granted.iter().flat_map(|granted| &granted.slots);
        granted
            .enumerate()
            .map(|(place, slot)| (slot, self.reported.get(place)))
    }

    /// Whether a grant of a slot at this lock key started the workload.
    pub fn started_at(&self, lock_key: &str) -> bool {
        self.slots().any(|(slot, _)| *slot.lock_key == *lock_key)
    }

    /// Whether a grant started the workload, and the workload has not finished. There may be thousands of finished ones,
    /// and some kinds never show that no pod is left.
    pub fn is_bound(&self) -> bool {
        self.granted.is_some() && !matches!(self.phase, Phase::Finished { .. })
    }

    /// Returns the slots at this lock key in which the workload was started, by ordinal. Each slot has the sessions
    /// that held it while the workload ran, the latest first. The annotation names a different session than the
    /// template if the workload got its slot again without being stopped.
    pub fn slots_at(
        &self,
        lock_key: &str,
    ) -> impl Iterator<Item = impl Iterator<Item = &SessionId> + Clone> {
        let slots = self.slots();
        let here = slots.filter(move |(slot, _)| *slot.lock_key == *lock_key);
        here.map(|(slot, reported)| reported.into_iter().chain([&slot.session]))
    }

    /// Returns the index that the grant says for the slot with this ordinal at a lock key.
    pub fn slot_index(&self, lock_key: &str, ordinal: u32) -> Option<u32> {
        let granted = self.granted.as_ref()?.slots.iter();
        let mut here = granted.filter(|slot| *slot.lock_key == *lock_key);
        here.nth(usize::try_from(ordinal).ok()?)?.index
    }

    /// Returns the sessions that the annotation must name when `held` has the sessions that hold the workload's slots
    /// at this lock key, by ordinal; `None` if the annotation names them already.
    pub fn renamed(
        &self,
        lock_key: &str,
        held: &BTreeMap<u32, &SessionId>,
    ) -> Option<Vec<SessionId>> {
        let mut ordinals = 0..;
        let named = self.slots().map(|(slot, reported)| {
            let here = *slot.lock_key == *lock_key;
            let ordinal = here.then(|| ordinals.next()).flatten();
            let now = ordinal.and_then(|ordinal| held.get(&ordinal).copied());
            now.or(reported).unwrap_or(&slot.session)
        });
        let named: Vec<SessionId> = named.cloned().collect();
        (named != self.reported).then_some(named)
    }

    /// Whether `other`, another version of the same workload, replaces this one. Versions order what the watch and
    /// the answers to writes bring. If `other` was requested after this one was received, it replaces this one
    /// whatever its version, because etcd may have been restored from a backup.
    pub fn is_replaced_by(&self, other: &Self, asked: Option<Moment>) -> bool {
        let asked_later = asked.is_some_and(|asked| asked > self.seen);
        asked_later || !is_older(&other.version, &self.version)
    }

    /// Whether the grant of this session started the workload.
    pub fn started_by(&self, session: &SessionId) -> bool {
        self.slots().any(|(slot, _)| slot.session == *session)
    }

    /// Returns the sessions that held the workload's slots while it ran, the latest first.
    pub fn held_by(&self) -> impl Iterator<Item = &SessionId> {
        self.slots()
            .flat_map(|(slot, reported)| reported.into_iter().chain([&slot.session]))
    }
}

/// Whether one version is older than the other. The API server's versions of one object increase, and may be compared
/// as numbers if they are numbers (KEP-5504).
fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::samples;

    #[test]
    fn a_version_that_went_back_is_believed_if_it_was_asked_for_later() {
        let second = |seconds| Moment::from_boot(Duration::from_secs(seconds));
        let at = |version: &str| Workload {
            version: version.into(),
            seen: second(5),
            ..samples::workload("a", Phase::Idle, None, None)
        };
        let known = at("100");
        for (version, asked, expected) in [
            ("101", None, true),
            ("100", None, true),
            ("99", None, false),
            ("99", Some(second(5)), false),
            ("99", Some(second(6)), true),
        ] {
            let said = known.is_replaced_by(&at(version), asked);
            assert_eq!(said, expected, "{version}, asked for at {asked:?}");
        }
    }
}
