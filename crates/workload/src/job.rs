//! How a `batch/v1` Job is read.

use std::{collections::BTreeMap, time::Duration};

use consul_client::SessionId;
use consul_semaphore::{CronJob, Granted, Phase, Wait};
use consul_semaphore_api::annotations;
use k8s_openapi::api::batch::v1 as batch;

use crate::slots;

/// The annotation with the time for which a `CronJob` made a Job.
pub(crate) const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The label of Jobs that Kueue manages.
const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// The value of `spec.managedBy` for Kubernetes' own Job controller.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// The longest texts of a Job that are stored, in bytes. Anybody who may write a Job may write any text there. A
/// longer one can't be valid, and is not stored.
mod longest {
    use consul_semaphore::{Key, MOST_SLOTS, Prefix};

    /// A name or a uid of a Kubernetes object.
    pub(super) const NAME: usize = 253;
    /// A session's id: Consul makes UUIDs.
    pub(super) const SESSION: usize = 64;
    /// The sessions of all slots that a Job may ask for, and the commas between them.
    pub(super) const SESSIONS: usize = MOST_SLOTS as usize * (SESSION + 1);
    /// A contender key: a prefix, the key of a keyed semaphore, and a session.
    pub(super) const CONTENDER: usize = Prefix::MAX_LENGTH + Key::MAX_LENGTH + SESSION + 2;
    /// All slots as JSON: two texts for each, two numbers, and the names.
    pub(super) const SLOTS: usize = MOST_SLOTS as usize * (CONTENDER + SESSION + 128);
}

/// The text, if it has at most this many bytes.
fn bounded(text: &str, most: usize) -> Option<&str> {
    (text.len() <= most).then_some(text)
}

/// The sessions in the Job's own annotation, separated by commas; none if one of them is longer than any real one.
pub(crate) fn reported(job: &batch::Job) -> Vec<SessionId> {
    let annotations = job.metadata.annotations.as_ref();
    let sessions = annotations.and_then(|annotations| annotations.get(annotations::SESSION));
    let sessions = sessions.and_then(|sessions| bounded(sessions, longest::SESSIONS));
    let sessions = sessions
        .into_iter()
        .flat_map(|sessions| sessions.split(','));
    let sessions = sessions.map(|session| bounded(session, longest::SESSION).map(SessionId::from));
    sessions.collect::<Option<_>>().unwrap_or_default()
}

/// The annotations of the pod template.
pub(crate) fn template(job: &batch::Job) -> Option<&BTreeMap<String, String>> {
    let metadata = job.spec.as_ref()?.template.metadata.as_ref()?;
    metadata.annotations.as_ref()
}

/// The grant in the template, if it was made for this Job and not for one that this is a copy of.
pub(crate) fn granted(job: &batch::Job) -> Option<Granted> {
    let template = template(job)?;
    if template.get(annotations::GRANTED_TO)? != job.metadata.uid.as_ref()? {
        return None;
    }
    if let Some(slots) = template.get(annotations::SLOTS) {
        let is_real = |key: &str, session: &str| {
            key.len() <= longest::CONTENDER && session.len() <= longest::SESSION
        };
        return slots::read(bounded(slots, longest::SLOTS)?, is_real);
    }
    let key = bounded(template.get(annotations::LOCK_KEY)?, longest::CONTENDER)?;
    let session = bounded(template.get(annotations::SESSION)?, longest::SESSION)?;
    Some(Granted::by(key, session))
}

/// The `CronJob` that made a Job.
pub(crate) fn cron_job(job: &batch::Job) -> Option<CronJob> {
    let mut owners = job.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| {
        let batch = owner.api_version.starts_with("batch/");
        batch && owner.kind == "CronJob" && owner.controller == Some(true)
    })?;
    let annotations = job.metadata.annotations.as_ref();
    let scheduled = annotations.and_then(|annotations| annotations.get(SCHEDULED));
    Some(CronJob {
        name: bounded(&owner.name, longest::NAME)?.to_owned(),
        uid: bounded(&owner.uid, longest::NAME)?.to_owned(),
        scheduled: scheduled.and_then(|scheduled| scheduled.parse().ok()),
    })
}

/// How long the pods may take to end: Kubernetes' default if the template does not say.
pub(crate) fn grace(job: &batch::Job) -> Duration {
    let pod = job
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let seconds = pod.and_then(|pod| pod.termination_grace_period_seconds);
    Duration::from_secs(seconds.unwrap_or(30).try_into().unwrap_or(0))
}

/// What starts and stops this Job, if that is neither the Job controller nor this operator.
pub(crate) fn manager(job: &batch::Job) -> Option<String> {
    let managed_by = job
        .spec
        .as_ref()
        .and_then(|spec| spec.managed_by.as_deref());
    if let Some(manager) = managed_by.filter(|manager| *manager != JOB_CONTROLLER) {
        return Some(format!("spec.managedBy names {manager}"));
    }
    let labels = job.metadata.labels.as_ref()?;
    let queue = labels.get(KUEUE_QUEUE)?;
    Some(format!(
        "the label {KUEUE_QUEUE} puts it in Kueue's queue {queue}"
    ))
}

/// What a Job is doing, whether it asks for a slot or not.
pub fn phase(job: &batch::Job) -> Phase {
    let status = job.status.as_ref();
    let pods = status.map_or(0, |status| {
        let active = status.active.unwrap_or(0);
        active.saturating_add(status.terminating.unwrap_or(0))
    });
    if has_ended(job) {
        return Phase::Finished { at_rest: pods == 0 };
    }
    if job.metadata.deletion_timestamp.is_some() {
        return Phase::Deleting;
    }
    if !job
        .spec
        .as_ref()
        .and_then(|spec| spec.suspend)
        .unwrap_or(false)
    {
        // It was started only to fail, and gets no pods.
        if is_failing(job) && has_no_parallelism(job) && granted(job).is_none() {
            return Phase::Stopping;
        }
        // It was unsuspended, and the Job controller has not reacted yet. If it was suspended again now, its status
        // would still say that it is at rest, while pods are being made: it would be granted a slot, and those pods
        // would run without the sequencer.
        return if is(job, "Suspended") && granted(job).is_none() {
            Phase::Stopping
        } else {
            Phase::Running
        };
    }
    // The template of a Job can be changed once its start time is cleared.
    let started = status.is_some_and(|status| status.start_time.is_some());
    if is(job, "Suspended") && pods == 0 && !started {
        Phase::Idle
    } else {
        Phase::Stopping
    }
}

/// What ends its wait: `timeout` is by its annotation.
pub(crate) fn wait(job: &batch::Job, timeout: Option<Duration>) -> Wait {
    let created = job.metadata.creation_timestamp.as_ref();
    Wait {
        timeout,
        created: created.map_or(0, |time| time.0.as_second()),
        failing: is_failing(job) && !has_ended(job),
    }
}

/// Whether the operator has made it fail.
fn is_failing(job: &batch::Job) -> bool {
    let annotations = job.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(annotations::FAILED))
}

/// Whether it gets no pods, even if it is not suspended.
fn has_no_parallelism(job: &batch::Job) -> bool {
    let spec = job.spec.as_ref();
    spec.and_then(|spec| spec.parallelism) == Some(0)
}

/// Whether a Job is over: it has ended, or is being deleted.
pub(crate) fn is_over(job: &batch::Job) -> bool {
    job.metadata.deletion_timestamp.is_some() || has_ended(job)
}

fn has_ended(job: &batch::Job) -> bool {
    is(job, "Complete") || is(job, "Failed")
}

/// Since when it is queued: since it was made, or since it was suspended if it has had a slot before.
pub(crate) fn since(job: &batch::Job, had_a_slot: bool) -> i64 {
    let suspended = condition(job, "Suspended")
        .filter(|_| had_a_slot)
        .and_then(|condition| condition.last_transition_time.as_ref());
    let time = suspended.or(job.metadata.creation_timestamp.as_ref());
    time.map_or(0, |time| time.0.as_second())
}

/// Whether it was ever suspended.
pub(crate) fn was_suspended(job: &batch::Job) -> bool {
    condition(job, "Suspended").is_some()
}

fn is(job: &batch::Job, type_: &str) -> bool {
    condition(job, type_).is_some_and(|condition| condition.status == "True")
}

fn condition<'a>(job: &'a batch::Job, type_: &str) -> Option<&'a batch::JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}
