//! The parts of a workload that are read in the same way for all kinds: its metadata, and what the [`Read`] of its kind
//! returns.

use std::{collections::BTreeMap, fmt, time::Duration};

use consul_client::SessionId;
use consul_semaphore::{
    CronJob, Granted, Phase, Termination, Traits, Uid, Wait, WaitBegan, plan::Ended,
};
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

/// Reads an object of a kind. Each kind implements this in its own file.
pub(crate) trait Read {
    /// Returns the kind of the workload.
    fn kind(&self) -> Kind;

    /// Returns the metadata of the workload.
    fn metadata(&self) -> &ObjectMeta;

    /// Returns the annotations in which a grant is recorded.
    fn grant(&self) -> Option<&BTreeMap<String, String>> {
        self.metadata().annotations.as_ref()
    }

    /// Returns the grant of the workload's last run, if the workload no longer records that grant but pods of that run
    /// may be left.
    fn earlier_grant(&self) -> Option<&Granted> {
        None
    }

    /// Returns what the workload is doing. `granted` says whether a grant started it.
    fn phase(&self, granted: bool) -> Phase;

    /// Returns how the workload ends, if the operator has made it fail.
    fn termination(&self) -> Option<Termination> {
        is_failing(self.metadata()).then_some(Termination::Immediate)
    }

    /// Whether something other than a hold keeps the workload out of the queue for a while, as if it had ended.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// Returns when the workload was last suspended, if its status says so.
    fn suspended_at(&self) -> Option<&Time> {
        None
    }

    /// Returns the time from which the workload is queued: when it was suspended, if it was started before, and
    /// otherwise when it was created.
    fn queued_at(&self, was_started: bool) -> Option<&Time> {
        let suspended = self.suspended_at().filter(|_| was_started);
        suspended.or(self.metadata().creation_timestamp.as_ref())
    }

    /// Whether the workload was ever suspended.
    fn was_suspended(&self) -> bool {
        false
    }

    /// Returns the traits that follow from the workload's kind.
    fn traits(&self) -> Traits {
        Traits::default()
    }

    /// Returns how long the workload's pods may take to end; Kubernetes' default if the workload does not say.
    fn grace(&self) -> Duration {
        grace(None)
    }

    /// Returns what the spec names as the workload's manager, if that is neither its kind's own controller nor this
    /// operator.
    fn managed_by(&self) -> Option<String> {
        None
    }

    /// Returns why the workload can't be held as it is, if it can't.
    fn unfit(&self) -> Option<String> {
        None
    }

    /// Returns why the workload is too large to be started by one patch, if it is.
    fn too_large(&self) -> Option<String> {
        None
    }

    /// Returns the facts about the workload that a patch depends on.
    fn shape(&self) -> Shape {
        Shape::Plain
    }
}

/// Kubernetes' default for how long pods may take to end, in seconds.
pub(crate) const DEFAULT_GRACE: i64 = 30;

/// Returns how long pods may take to end whose template names this number of seconds. A negative number counts as 0.
pub(crate) fn grace(seconds: Option<i64>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(DEFAULT_GRACE).try_into().unwrap_or(0))
}

/// The longest texts of a workload that are stored, in bytes. Anybody who may write a Job may write any text there. A
/// longer text can't be valid, and is not stored.
mod longest {
    use consul_semaphore::{Key, MOST_SLOTS, Prefix};

    /// The name or uid of a Kubernetes object.
    pub(super) const NAME: usize = 253;
    /// The id of a session. Consul makes UUIDs.
    pub(super) const SESSION: usize = 64;
    /// The sessions of all slots that a workload may ask for, and the commas between them.
    pub(super) const SESSIONS: usize = MOST_SLOTS as usize * (SESSION + 1);
    /// A contender key: a prefix, the key of a keyed semaphore, and a session.
    pub(super) const CONTENDER: usize = Prefix::MAX_LENGTH + Key::MAX_LENGTH + SESSION + 2;
    /// A time.
    pub(super) const TIME: usize = 64;
    /// The reason of a condition.
    pub(super) const REASON: usize = 64;
    /// All slots as JSON: three texts for each, three numbers, and the names of the fields.
    pub(super) const SLOTS: usize = MOST_SLOTS as usize * (CONTENDER + SESSION + 256);
}

/// Returns the text if it has at most this many bytes.
fn bounded(text: &str, most: usize) -> Option<&str> {
    (text.len() <= most).then_some(text)
}

/// Returns the annotation with this name.
fn annotation<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a String> {
    metadata.annotations.as_ref()?.get(name)
}

/// Returns the sessions in the workload's own annotation, where commas separate them; no session if one of them is
/// longer than any real one.
pub(crate) fn reported(metadata: &ObjectMeta) -> Vec<SessionId> {
    let text = annotation(metadata, annotations::SESSION);
    let listed = text.and_then(|text| bounded(text, longest::SESSIONS));
    let sessions = listed.into_iter().flat_map(|listed| listed.split(','));
    sessions
        .map(|session| bounded(session, longest::SESSION).map(SessionId::from))
        .collect::<Option<_>>()
        .unwrap_or_default()
}

/// Returns the grant that the workload records, or else the grant of its last run. A recorded grant counts only if it
/// was made for this workload, because a copy of a workload records the grant of the original.
pub(crate) fn granted(object: &dyn Read) -> Option<Granted> {
    let uid = object.metadata().uid.as_ref();
    let recorded = object
        .grant()
        .zip(uid)
        .and_then(|(grant, uid)| granted_to(uid, grant));
    recorded.or_else(|| object.earlier_grant().cloned())
}

/// Returns the grant among these annotations, if it was made for the workload with this uid.
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
    let mut granted = Granted::by(key, session);
    let index = grant.get(annotations::SLOT_INDEX);
    if let Some(slot) = granted.slots.first_mut() {
        slot.index = index.and_then(|index| index.parse().ok());
    }
    Some(granted)
}

/// Returns the `CronJob` that made a workload, or the object of a similar kind, such as a `CronWorkflow`.
pub(crate) fn cron_job(metadata: &ObjectMeta) -> Option<CronJob> {
    let mut owners = metadata.owner_references.iter().flatten();
    let is_maker =
        |owner: &&OwnerReference| owner.controller == Some(true) && owner::is_any(owner, &MAKERS);
    let owner = owners.find(is_maker)?;
    // The annotation of a Job that a `CronJob` made can't be changed later. Annotations of other kinds can, so they are
    // not read.
    let scheduled = annotation(metadata, SCHEDULED).filter(|_| owner.kind == "CronJob");
    Some(CronJob {
        api_version: bounded(&owner.api_version, longest::NAME)?.to_owned(),
        kind: owner.kind.clone(),
        name: bounded(&owner.name, longest::NAME)?.to_owned(),
        uid: bounded(&owner.uid, longest::NAME)?.to_owned(),
        scheduled: scheduled.and_then(|scheduled| scheduled.parse().ok()),
    })
}

/// Whether a workload with these annotations is a hook of Helm or Argo CD.
pub(crate) fn is_hook(annotations: &BTreeMap<String, String>) -> bool {
    HOOKS.iter().any(|hook| annotations.contains_key(*hook))
}

/// The annotations by which Helm and Argo CD know their hooks.
const HOOKS: [&str; 2] = ["helm.sh/hook", "argocd.argoproj.io/hook"];

/// Returns what starts and stops a workload, if that is neither its kind's own controller nor this operator.
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

/// The field in which most kinds name their manager.
pub(crate) const MANAGER: &str = "spec.managedBy";

/// Returns what the field at this path says about the manager, unless the manager is the kind's own controller.
pub(crate) fn managed_by(
    path: &dyn fmt::Display,
    manager: Option<&str>,
    own: &str,
) -> Option<String> {
    let manager = manager.filter(|manager| *manager != own)?;
    Some(format!("{path} names {}", shown(manager)))
}

/// Returns the beginning of a text, no longer than a real name.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(longest::NAME).collect()
}

/// Returns the owner that made a workload and decides when it runs.
pub(crate) fn owner(object: &dyn Read) -> Option<&OwnerReference> {
    let decide = object.kind().owners_that_decide();
    let mut owners = object.metadata().owner_references.iter().flatten();
    owners.find(|owner| decide.include(owner))
}

/// Whether the workload runs in the slots of its owner: the owner decides when it runs, and the annotations name a
/// grant for another uid, because they are a copy of the owner's.
pub(crate) fn belongs_to_its_owner(object: &dyn Read) -> bool {
    let granted_to = annotation(object.metadata(), annotations::GRANTED_TO);
    owner(object).is_some()
        && granted_to.is_some_and(|uid| Some(uid) != object.metadata().uid.as_ref())
}

/// Returns the obstacle that keeps a workload from getting a slot, whatever its annotations ask for.
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

/// Returns the facts that end the workload's wait. `timeout` comes from its annotation.
pub(crate) fn wait(object: &dyn Read, phase: Phase, timeout: Option<Duration>) -> Wait {
    let ended = matches!(phase, Phase::Finished { .. });
    Wait {
        timeout,
        created: seconds(object.metadata().creation_timestamp.as_ref()),
        failing: object.termination().filter(|_| !ended),
        interrupted: object.is_interrupted(),
        recorded: waits_since(object.metadata()),
        ..Wait::default()
    }
}

/// Returns when the workload's wait began, as the operator recorded it.
pub(crate) fn waits_since(metadata: &ObjectMeta) -> Option<WaitBegan> {
    let since = annotation(metadata, annotations::WAITS_SINCE)?;
    bounded(since, longest::TIME)?.parse().ok()
}

/// Whether the operator has made the workload fail.
pub(crate) fn is_failing(metadata: &ObjectMeta) -> bool {
    annotation(metadata, annotations::FAILED).is_some()
}

/// Returns how a workload ends whose controller ends it gracefully if a newer workload replaces it, and at once for
/// every other reason.
pub(crate) fn termination(metadata: &ObjectMeta) -> Option<Termination> {
    let reason = annotation(metadata, annotations::FAILED)?;
    Some(if reason == Ended::REPLACED {
        Termination::Graceful
    } else {
        Termination::Immediate
    })
}

/// Whether a text is short enough to be the name or the uid of an object.
pub(crate) fn may_be_a_name(text: &str) -> bool {
    text.len() <= longest::NAME
}

/// Returns the mark for a workload that is held until its status says that it failed. The mark contains the uid,
/// because a copy of the workload is held, too, but must not fail.
pub(crate) fn mark(reason: &str, workload: &Uid) -> String {
    format!("{reason} {workload}")
}

/// Returns why the workload is to fail, if it has such a mark with its own uid. The reason is one word, like the reason
/// of a condition.
pub(crate) fn marked(metadata: &ObjectMeta) -> Option<&str> {
    let (reason, uid) = annotation(metadata, annotations::FAILED)?.split_once(' ')?;
    let is_word = reason.chars().all(|c| c.is_ascii_alphabetic()) && !reason.is_empty();
    let is_its_own = metadata.uid.as_deref() == Some(uid);
    bounded(reason, longest::REASON).filter(|_| is_word && is_its_own)
}

/// Returns when the workload was queued, in seconds since 1970.
pub(crate) fn since(object: &dyn Read, was_started: bool) -> i64 {
    seconds(object.queued_at(was_started))
}

/// Returns a time in seconds since 1970; 0 if there is none.
fn seconds(time: Option<&Time>) -> i64 {
    time.map_or(0, |time| time.0.as_second())
}
