//! What the algorithm must know of a workload.

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

/// The name of a workload's kind, as Kubernetes has it: `Job`. The algorithm knows no kinds: it only says to whom a
/// session belongs, and where a write goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindName(Option<Arc<str>>);

impl KindName {
    /// The kind that is meant where none is named.
    const USUAL: &str = "Job";

    /// The name.
    pub fn as_str(&self) -> &str {
        self.unusual().unwrap_or(Self::USUAL)
    }

    /// The name, unless it is the one that is meant where none is named.
    pub fn unusual(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl From<&str> for KindName {
    fn from(name: &str) -> Self {
        Self((name != Self::USUAL).then(|| name.into()))
    }
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a workload is doing, as its spec and status show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Suspended and shown as such, with no pod active or terminating: it can be started.
    Idle,
    /// Suspended, but its status does not show yet that no pod is left; or unsuspended by a user, but its status does
    /// not show that yet.
    Stopping,
    /// Not suspended, and not finished.
    Running,
    /// Complete or Failed.
    Finished {
        /// Whether its status shows that no pod is active or terminating.
        at_rest: bool,
    },
    /// Marked for deletion.
    Deleting,
}

/// How many semaphores a workload may ask for slots of.
pub const MOST_SEMAPHORES: usize = 8;

/// How many slots a workload may ask for, of all its semaphores together.
pub const MOST_SLOTS: u32 = 50;

/// How many slots of one semaphore a workload asks for. Its whole request is a list of these, and all of it is
/// granted at once or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlotRequest {
    /// The `ConsulSemaphore`, in the workload's namespace.
    pub semaphore: Arc<str>,
    /// Which key of a keyed semaphore.
    pub key: Option<Key>,
    /// How many slots.
    pub slots: NonZeroU32,
}

impl SlotRequest {
    /// One slot of a semaphore, or of one key of it.
    pub fn one(semaphore: impl Into<Arc<str>>, key: Option<Key>) -> Self {
        Self {
            semaphore: semaphore.into(),
            key,
            slots: NonZeroU32::MIN,
        }
    }

    /// The semaphore, and the key if it has one: `tasks/customer-42`.
    pub fn place(&self) -> String {
        match &self.key {
            Some(key) => format!("{}/{key}", self.semaphore),
            None => self.semaphore.to_string(),
        }
    }
}

impl fmt::Display for SlotRequest {
    /// As in the annotation: `licenses:2`.
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
    /// Its number among the workload's slots at this lock key, from 0.
    pub ordinal: u32,
}

/// The slots that a grant wrote into the workload's pod template, grouped by lock key, in the order of their
/// ordinals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// At least one.
    pub slots: Vec<GrantedSlot>,
}

/// One of the granted slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedSlot {
    /// The lock key of the semaphore that granted it.
    pub lock_key: Arc<str>,
    /// The session that held it.
    pub session: SessionId,
}

impl Granted {
    /// Reads the sequencer of a grant of one slot: the session locked a contender key, and the lock key is beside it.
    pub fn by(key: &str, session: &str) -> Self {
        let slot = GrantedSlot {
            lock_key: lock_key_of(key).into(),
            session: session.into(),
        };
        Self { slots: vec![slot] }
    }
}

impl Granted {
    /// The sessions that held its slots last: those that are named beside it, or at first its own.
    pub fn latest(&self, reported: &[SessionId]) -> Vec<SessionId> {
        if reported.is_empty() {
            self.slots.iter().map(|slot| slot.session.clone()).collect()
        } else {
            reported.to_vec()
        }
    }

    /// The lock keys, for people.
    pub fn lock_keys(&self) -> String {
        let mut keys: Vec<&str> = self.slots.iter().map(|slot| &*slot.lock_key).collect();
        keys.dedup();
        keys.join(", ")
    }
}

/// The lock key beside a contender key.
pub fn lock_key_of(contender: &str) -> String {
    let prefix = contender.rsplit_once('/').map_or("", |(prefix, _)| prefix);
    format!("{prefix}/{LOCK}")
}

/// The prefix of a lock key; and, if its last segment can be a key of a keyed semaphore, that semaphore's prefix and
/// the key. `None` if this is no lock key.
pub fn lock_key_parts(lock_key: &str) -> Option<(&str, Option<(&str, Key)>)> {
    let prefix = lock_key.strip_suffix(LOCK)?.strip_suffix('/')?;
    let above = prefix.rsplit_once('/');
    let above = above.and_then(|(above, key)| Some((above, key.parse().ok()?)));
    Some((prefix, above))
}

/// A workload in the queue: the order of this type is the order of the queue.
///
/// Workloads that lost their slot come first, then higher priority, then whichever joined the queue earlier (within a
/// second by name, then by uid), so that the order is the same after a restart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(
    /// Shared, because it is in several lists of its queue.
    Arc<PlaceParts>,
);

/// What a place is decided by, the most important first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlaceParts {
    lost: Reverse<bool>,
    priority: Reverse<i32>,
    since: i64,
    name: Arc<str>,
    uid: Uid,
}

/// What is known of the `CronJob` that made a workload, or of another kind's like it: `CronWorkflow`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronJob {
    /// The version of the API that its kind is in: `batch/v1`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name; the namespace is the workload's.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The scheduled time that it made the workload for, if recorded.
    pub scheduled: Option<jiff::Timestamp>,
}

impl Place {
    /// The place of a workload that was queued at `since`, in seconds since 1970.
    pub(super) fn new(lost: bool, priority: i32, since: i64, name: Arc<str>, uid: Uid) -> Self {
        Self(Arc::new(PlaceParts {
            lost: Reverse(lost),
            priority: Reverse(priority),
            since,
            name,
            uid,
        }))
    }

    /// Whose place it is.
    pub fn uid(&self) -> &Uid {
        &self.0.uid
    }
}

/// What the algorithm must know of a workload's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Traits {
    /// Whether it can be suspended while it runs. What can't be is ended instead.
    pub can_be_suspended: bool,
    /// Whether it may run again, as it is, after it has finished. So its grant is taken from it before its slot is
    /// released: what runs again then runs without one.
    pub runs_again: bool,
    /// Whether the operator can record beside it when its wait began.
    pub bears_a_record: bool,
}

impl Default for Traits {
    /// Those of a Job.
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
    /// Its kind.
    pub kind: KindName,
    /// Its name; the namespace is the semaphore's.
    pub name: Arc<str>,
    /// Its uid.
    pub uid: Uid,
    /// The `resourceVersion` that all of this was read from.
    pub version: Arc<str>,
    /// When that version was received: older facts about Consul can't be used against it.
    pub seen: Moment,
    /// What it asks for; empty if its annotations ask for nothing valid.
    pub requests: Vec<SlotRequest>,
    /// What happens to it if all slots are taken when it comes.
    pub on_contention: OnContention,
    /// The `CronJob` that made it, if it must not wait.
    pub cron_job: Option<Arc<CronJob>>,
    /// Higher priorities are served first.
    pub priority: i32,
    /// Whether it stays out of the queue.
    pub hold: bool,
    /// When it joined the queue, in seconds since 1970: when it was created, or last suspended if it was started
    /// before.
    pub since: i64,
    /// What it is doing.
    pub phase: Phase,
    /// How long its pods may take to end once they are asked to.
    pub grace: Duration,
    /// Whether it has ever been suspended.
    pub was_suspended: bool,
    /// What follows from its kind.
    pub traits: Traits,
    /// The grant by which we started it, if its template names one made for this very workload.
    pub granted: Option<Granted>,
    /// The sessions in its own annotation, each for the slot at the same position in `granted`. They are a report of
    /// what this operator did last: no session beside a grant means that it suspended the workload because a slot was
    /// lost, a session without a grant that its slots were given back.
    pub reported: Vec<SessionId>,
    /// What ends its wait.
    pub wait: Wait,
}

impl Workload {
    /// What its annotation must name when it gives back the slots of these sessions: those that it has given back at
    /// other lock keys before are not taken back by that. No more than it may have slots.
    pub(super) fn given_back_with(&self, mut sessions: Vec<SessionId>) -> Vec<SessionId> {
        if self.granted.is_none() {
            let before = self.reported.iter();
            let before: Vec<_> = before
                .filter(|id| !sessions.contains(id))
                .cloned()
                .collect();
            sessions.extend(before);
            sessions.truncate(usize::try_from(MOST_SLOTS).unwrap_or(usize::MAX));
        }
        sessions
    }

    /// Its place in the queue.
    pub fn place(&self) -> Place {
        Place::new(
            self.lost(),
            self.priority,
            self.since,
            self.name.clone(),
            self.uid.clone(),
        )
    }

    /// Whether it can be granted a slot of the semaphore that it asks for.
    pub fn is_queued(&self) -> bool {
        self.phase == Phase::Idle && !self.hold && self.asks()
    }

    /// Whether only a hold keeps it out of the queue, once its last pods are gone.
    pub fn is_held_back(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Stopping) && self.hold && self.asks()
    }

    /// Whether it asks for a slot and has none.
    fn asks(&self) -> bool {
        let free = self.granted.is_none() || self.lost();
        !self.requests.is_empty() && free
    }

    /// Whether it is finished or being deleted.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Finished { .. } | Phase::Deleting)
    }

    /// Whether this operator suspended it because its slot was lost.
    pub fn lost(&self) -> bool {
        self.granted.is_some() && self.reported.is_empty()
    }

    /// Whether it is deleted or fails instead of having to wait: it asks for that, and has never had a slot.
    pub fn is_skippable(&self) -> bool {
        self.on_contention.is_hasty() && self.was_never_granted()
    }

    /// Whether no grant was ever written to it.
    pub fn was_never_granted(&self) -> bool {
        self.granted.is_none() && self.reported.is_empty()
    }

    /// Whether a newer one that asks for the same may replace it, or it an older one, while it waits.
    pub fn is_replaceable(&self) -> bool {
        self.on_contention.replaces() && self.is_queued() && self.was_never_granted()
    }

    /// By which of two that ask for the same is the newer: the later one in this order.
    pub fn age(&self) -> (i64, Arc<str>, Uid) {
        (self.wait.created, self.name.clone(), self.uid.clone())
    }

    /// The names of the semaphores that it asks for, for people.
    pub fn semaphores(&self) -> String {
        let names = self.requests.iter().map(|request| &*request.semaphore);
        names.collect::<Vec<_>>().join(", ")
    }

    /// What it asks for, for people: as in the annotation.
    pub fn asked(&self) -> String {
        let requests = self.requests.iter().map(ToString::to_string);
        requests.collect::<Vec<_>>().join(", ")
    }

    /// How many slots it asks for, of all semaphores together.
    pub fn slots_asked(&self) -> u32 {
        self.requests
            .iter()
            .map(|request| request.slots.get())
            .sum()
    }

    /// Whether it asks for more than one slot.
    pub fn asks_for_many(&self) -> bool {
        self.slots_asked() > 1
    }

    /// Whether it asks for slots at several lock keys, which are all granted in one transaction.
    pub fn asks_for_several(&self) -> bool {
        self.requests.len() > 1
    }

    /// What it asks for at a semaphore, or at one key of it.
    pub fn asks_for(&self, semaphore: &str, key: Option<&Key>) -> Option<&SlotRequest> {
        let mut requests = self.requests.iter();
        requests.find(|request| {
            *request.semaphore == *semaphore && (key.is_none() || request.key.as_ref() == key)
        })
    }

    /// Its slots, each with the session that its annotation names for it, if any.
    fn slots(&self) -> impl Iterator<Item = (&GrantedSlot, Option<&SessionId>)> {
        let granted = self.granted.iter().flat_map(|granted| &granted.slots);
        granted
            .enumerate()
            .map(|(place, slot)| (slot, self.reported.get(place)))
    }

    /// Whether a grant of a slot at this lock key started it.
    pub fn started_at(&self, lock_key: &str) -> bool {
        self.slots().any(|(slot, _)| *slot.lock_key == *lock_key)
    }

    /// The slots at this lock key that it was started in, by ordinal: the sessions that held each of them while it
    /// ran, the latest first. Its annotation names a different session than its template if it got its slot again
    /// without being stopped.
    pub fn slots_at(
        &self,
        lock_key: &str,
    ) -> impl Iterator<Item = impl Iterator<Item = &SessionId> + Clone> {
        let slots = self.slots();
        let here = slots.filter(move |(slot, _)| *slot.lock_key == *lock_key);
        here.map(|(slot, reported)| reported.into_iter().chain([&slot.session]))
    }

    /// The sessions that its annotation must name when these hold its slots at this lock key, by ordinal; `None` if
    /// it names them already.
    pub fn renamed(
        &self,
        lock_key: &str,
        held: &BTreeMap<u32, &SessionId>,
    ) -> Option<Vec<SessionId>> {
        let mut ordinals = 0..;
        let named = self.slots().map(|(slot, reported)| {
            let here = *slot.lock_key == *lock_key;
            let now = here.then(|| ordinals.next()).flatten();
            let now = now.and_then(|ordinal| held.get(&ordinal).copied());
            now.or(reported).unwrap_or(&slot.session)
        });
        let named: Vec<SessionId> = named.cloned().collect();
        (named != self.reported).then_some(named)
    }

    /// Whether another version of the same workload replaces this one. Versions order what the watch and the answers
    /// to writes bring. What was requested after this one was received replaces it, whatever its version: etcd may
    /// have been restored from a backup.
    pub fn is_replaced_by(&self, other: &Self, asked: Option<Moment>) -> bool {
        let asked_later = asked.is_some_and(|asked| asked > self.seen);
        asked_later || !is_older(&other.version, &self.version)
    }

    /// Whether the grant of this session started it.
    pub fn started_by(&self, session: &SessionId) -> bool {
        self.slots().any(|(slot, _)| slot.session == *session)
    }

    /// The sessions that held its slots while it ran, the latest first.
    pub fn held_by(&self) -> impl Iterator<Item = &SessionId> {
        self.slots()
            .flat_map(|(slot, reported)| reported.into_iter().chain([&slot.session]))
    }
}

/// Whether one version is older than the other: the API server's versions of one object increase, and may be compared
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
