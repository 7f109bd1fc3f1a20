//! What is read of a workload of any kind: its metadata, and what its row says of the rest.

use std::{collections::BTreeMap, fmt, time::Duration};

use consul_client::SessionId;
use consul_semaphore::{CronJob, Granted, Phase, Traits, Uid, Wait, WaitBegan};
use consul_semaphore_api::annotations;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};

use crate::{
    Obstacle,
    kind::{Kind, kueue::QUEUE},
    owner::{self, MAKERS},
    shape::Shape,
    slots,
};

/// The annotation with the time for which a `CronJob` made a Job.
pub(crate) const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// How a kind is read: the columns of its row.
pub(crate) trait Read {
    /// Its kind.
    fn kind(&self) -> Kind;

    /// Its metadata.
    fn metadata(&self) -> &ObjectMeta;

    /// The annotations among which a grant is recorded.
    fn grant(&self) -> Option<&BTreeMap<String, String>> {
        self.metadata().annotations.as_ref()
    }

    /// The grant of its last run, if it names that no more and pods of that may be left.
    fn earlier_grant(&self) -> Option<&Granted> {
        None
    }

    /// What it is doing. `granted` says whether a grant started it.
    fn phase(&self, granted: bool) -> Phase;

    /// Whether the operator has made it fail.
    fn is_failing(&self) -> bool {
        is_failing(self.metadata())
    }

    /// Whether something else than a hold keeps it out of the queue for a while, as if it had ended.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// When it was last suspended, if it is.
    fn suspended_at(&self) -> Option<&Time> {
        None
    }

    /// Since when it is queued: since it was made, or since it was suspended if it was started before.
    fn queued_at(&self, was_started: bool) -> Option<&Time> {
        let suspended = self.suspended_at().filter(|_| was_started);
        suspended.or(self.metadata().creation_timestamp.as_ref())
    }

    /// Whether it was ever suspended.
    fn was_suspended(&self) -> bool {
        false
    }

    /// What follows from its kind.
    fn traits(&self) -> Traits {
        Traits::default()
    }

    /// How long its pods may take to end: Kubernetes' default if it does not say.
    fn grace(&self) -> Duration {
        grace(None)
    }

    /// What its spec names as its manager, if that is neither its kind's own controller nor this operator.
    fn managed_by(&self) -> Option<String> {
        None
    }

    /// Why it can't be held as it is, if it can't.
    fn unfit(&self) -> Option<String> {
        None
    }

    /// Why it is too large to be started by one patch, if it is.
    fn too_large(&self) -> Option<String> {
        None
    }

    /// What a patch must know of it.
    fn shape(&self) -> Shape {
        Shape::Plain
    }
}

/// Kubernetes' default for how long pods may take to end.
pub(crate) const GRACE: i64 = 30;

/// How long pods may take to end whose template says this.
pub(crate) fn grace(seconds: Option<i64>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(GRACE).try_into().unwrap_or(0))
}

/// The longest texts of a workload that are stored, in bytes. Anybody who may write a Job may write any text there. A
/// longer one can't be valid, and is not stored.
mod longest {
    use consul_semaphore::{Key, MOST_SLOTS, Prefix};

    /// A name or a uid of a Kubernetes object.
    pub(super) const NAME: usize = 253;
    /// A session's id: Consul makes UUIDs.
    pub(super) const SESSION: usize = 64;
    /// The sessions of all slots that a workload may ask for, and the commas between them.
    pub(super) const SESSIONS: usize = MOST_SLOTS as usize * (SESSION + 1);
    /// A contender key: a prefix, the key of a keyed semaphore, and a session.
    pub(super) const CONTENDER: usize = Prefix::MAX_LENGTH + Key::MAX_LENGTH + SESSION + 2;
    /// A time.
    pub(super) const TIME: usize = 64;
    /// The reason of a condition.
    pub(super) const REASON: usize = 64;
    /// All slots as JSON: two texts for each, two numbers, and the names.
    pub(super) const SLOTS: usize = MOST_SLOTS as usize * (CONTENDER + SESSION + 128);
}

/// The text, if it has at most this many bytes.
fn bounded(text: &str, most: usize) -> Option<&str> {
    (text.len() <= most).then_some(text)
}

/// One of its annotations.
fn annotation<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a String> {
    metadata.annotations.as_ref()?.get(name)
}

/// The sessions in the workload's own annotation, separated by commas; none if one of them is longer than any real
/// one.
pub(crate) fn reported(metadata: &ObjectMeta) -> Vec<SessionId> {
    let sessions = annotation(metadata, annotations::SESSION);
    let sessions = sessions.and_then(|sessions| bounded(sessions, longest::SESSIONS));
    let sessions = sessions
        .into_iter()
        .flat_map(|sessions| sessions.split(','));
    let sessions = sessions.map(|session| bounded(session, longest::SESSION).map(SessionId::from));
    sessions.collect::<Option<_>>().unwrap_or_default()
}

/// The recorded grant, if it was made for this workload and not for one that this is a copy of.
pub(crate) fn granted(object: &dyn Read) -> Option<Granted> {
    let uid = object.metadata().uid.as_ref();
    let recorded = object.grant().zip(uid);
    let recorded = recorded.and_then(|(grant, uid)| granted_to(uid, grant));
    recorded.or_else(|| object.earlier_grant().cloned())
}

/// The grant among these annotations, if it was made for the workload with this uid.
pub(crate) fn granted_to(uid: &str, grant: &BTreeMap<String, String>) -> Option<Granted> {
    if grant.get(annotations::GRANTED_TO)? != uid {
        return None;
    }
    if let Some(slots) = grant.get(annotations::SLOTS) {
        let is_real = |key: &str, session: &str| {
            key.len() <= longest::CONTENDER && session.len() <= longest::SESSION
        };
        return slots::read(bounded(slots, longest::SLOTS)?, is_real);
    }
    let key = bounded(grant.get(annotations::LOCK_KEY)?, longest::CONTENDER)?;
    let session = bounded(grant.get(annotations::SESSION)?, longest::SESSION)?;
    Some(Granted::by(key, session))
}

/// The `CronJob` that made a workload, or another kind's like it.
pub(crate) fn cron_job(metadata: &ObjectMeta) -> Option<CronJob> {
    let mut owners = metadata.owner_references.iter().flatten();
    let is_maker =
        |owner: &&OwnerReference| owner.controller == Some(true) && owner::is_any(owner, &MAKERS);
    let owner = owners.find(is_maker)?;
    // Only that of a Job can't be changed later.
    let scheduled = annotation(metadata, SCHEDULED).filter(|_| owner.kind == "CronJob");
    Some(CronJob {
        api_version: bounded(&owner.api_version, longest::NAME)?.to_owned(),
        kind: owner.kind.clone(),
        name: bounded(&owner.name, longest::NAME)?.to_owned(),
        uid: bounded(&owner.uid, longest::NAME)?.to_owned(),
        scheduled: scheduled.and_then(|scheduled| scheduled.parse().ok()),
    })
}

/// Whether a workload is a hook, by these annotations of it.
pub(crate) fn is_hook(annotations: &BTreeMap<String, String>) -> bool {
    HOOKS.iter().any(|hook| annotations.contains_key(*hook))
}

/// The annotations by which Helm and Argo CD know their hooks.
const HOOKS: [&str; 2] = ["helm.sh/hook", "argocd.argoproj.io/hook"];

/// What starts and stops a workload, if that is neither its kind's own controller nor this operator.
pub(crate) fn manager(object: &dyn Read) -> Option<String> {
    if let Some(manager) = object.managed_by() {
        return Some(manager);
    }
    let labels = object.metadata().labels.as_ref()?;
    let queue = labels.get(QUEUE)?;
    Some(format!(
        "the label {QUEUE} puts it in Kueue's queue {queue}"
    ))
}

/// Where most kinds name their manager.
pub(crate) const MANAGER: &str = "spec.managedBy";

/// What the field at this path says, unless it names the kind's own controller.
pub(crate) fn managed_by(
    path: &dyn fmt::Display,
    manager: Option<&str>,
    own: &str,
) -> Option<String> {
    let manager = manager.filter(|manager| *manager != own)?;
    Some(format!("{path} names {}", shown(manager)))
}

/// The beginning of a text: no more than a real name has.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(longest::NAME).collect()
}

/// What made a workload, and decides when it runs.
pub(crate) fn owner(object: &dyn Read) -> Option<&OwnerReference> {
    let decide = object.kind().owners_that_decide();
    let mut owners = object.metadata().owner_references.iter().flatten();
    owners.find(|owner| decide.include(owner))
}

/// Whether its annotations are a copy of those of what made it, which was granted the slots: it runs in these.
pub(crate) fn belongs_to_its_owner(object: &dyn Read) -> bool {
    let granted_to = annotation(object.metadata(), annotations::GRANTED_TO);
    owner(object).is_some()
        && granted_to.is_some_and(|uid| Some(uid) != object.metadata().uid.as_ref())
}

/// What about a workload that asks for a slot keeps it from getting one, whatever its annotations say.
pub(crate) fn obstacle(object: &dyn Read, granted: Option<&Granted>) -> Option<Obstacle> {
    if let Some(manager) = manager(object) {
        return Some(Obstacle::Managed(manager));
    }
    if let Some(owner) = owner(object) {
        let owner = format!("{} {}", shown(&owner.kind), shown(&owner.name));
        return Some(Obstacle::Owned(owner));
    }
    if let Some(why) = object.unfit() {
        return Some(Obstacle::Unfit(why));
    }
    if let Some(why) = object.too_large() {
        return Some(Obstacle::TooLarge(why));
    }
    let runs = object.phase(granted.is_some()) == Phase::Running;
    let never_ours = granted.is_none() && !object.traits().can_be_suspended;
    (runs && never_ours).then(|| Obstacle::Started(object.kind().name()))
}

/// What ends its wait: `timeout` is by its annotation.
pub(crate) fn wait(object: &dyn Read, phase: Phase, timeout: Option<Duration>) -> Wait {
    let ended = matches!(phase, Phase::Finished { .. });
    Wait {
        timeout,
        created: seconds(object.metadata().creation_timestamp.as_ref()),
        failing: object.is_failing() && !ended,
        interrupted: object.is_interrupted(),
        recorded: waits_since(object.metadata()),
        ..Wait::default()
    }
}

/// When its wait began, as the operator recorded.
pub(crate) fn waits_since(metadata: &ObjectMeta) -> Option<WaitBegan> {
    let since = annotation(metadata, annotations::WAITS_SINCE)?;
    bounded(since, longest::TIME)?.parse().ok()
}

/// Whether the operator has made it fail.
pub(crate) fn is_failing(metadata: &ObjectMeta) -> bool {
    annotation(metadata, annotations::FAILED).is_some()
}

/// Whether a text is not too long for the name or the uid of an object.
pub(crate) fn may_be_a_name(text: &str) -> bool {
    text.len() <= longest::NAME
}

/// The mark of a workload that is held until its status says that it failed. A copy of it is held, too, and is not to
/// fail: the uid tells them apart.
pub(crate) fn mark(reason: &str, workload: &Uid) -> String {
    format!("{reason} {workload}")
}

/// Why it is to fail, if it bears such a mark of its own: a word, as the reason of a condition is.
pub(crate) fn marked(metadata: &ObjectMeta) -> Option<&str> {
    let (reason, uid) = annotation(metadata, annotations::FAILED)?.split_once(' ')?;
    let is_word = reason.chars().all(|c| c.is_ascii_alphabetic()) && !reason.is_empty();
    let is_its_own = metadata.uid.as_deref() == Some(uid);
    bounded(reason, longest::REASON).filter(|_| is_word && is_its_own)
}

/// Since when it is queued, in seconds since 1970.
pub(crate) fn since(object: &dyn Read, was_started: bool) -> i64 {
    seconds(object.queued_at(was_started))
}

/// A time in seconds since 1970; 0 if there is none.
fn seconds(time: Option<&Time>) -> i64 {
    time.map_or(0, |time| time.0.as_second())
}
