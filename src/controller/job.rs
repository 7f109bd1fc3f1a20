//! From a Kubernetes Job to what the operator keeps of it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::batch::v1 as batch;

use consul_client::clock::Moment;
use consul_semaphore::OnContention;
use consul_semaphore::{CronJob, Granted, Job, Standing};
use consul_semaphore_api::annotations::{self, AnnotationError};

/// The annotation by which a `CronJob` says for when it made a Job.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The label by which Kueue knows its Jobs.
const KUEUE_QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// The value of `spec.managedBy` that stands for Kubernetes' own Job controller.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// How long the texts of a Job can be that are kept of it, in bytes. Whoever may write a Job may write any
/// text there; what is longer is none of what it is to be, and is not kept.
mod longest {
    use consul_semaphore::{Key, Prefix};

    /// A name or a uid of an object of Kubernetes.
    pub(super) const NAME: usize = 253;
    /// A session's id: Consul makes UUIDs.
    pub(super) const SESSION: usize = 64;
    /// A contender key: a prefix, the key of a keyed semaphore, and a session.
    pub(super) const CONTENDER: usize = Prefix::MAX_LENGTH + Key::MAX_LENGTH + SESSION + 2;
}

/// A text, if it has at most so many bytes.
fn bounded(text: &str, most: usize) -> Option<&str> {
    (text.len() <= most).then_some(text)
}

/// Why a Job that names a semaphore is not in its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Its annotations can't be read; it stays suspended until they are corrected.
    Malformed(AnnotationError),
    /// Something else starts and stops it; it is left alone.
    Managed(String),
}

/// A Job that concerns the operator: the little of it that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) namespace: Arc<str>,
    pub(crate) job: Arc<Job>,
    /// The semaphore that it names, also where an obstacle keeps it out of its line.
    pub(crate) names: Option<Arc<str>>,
    pub(crate) obstacle: Option<Obstacle>,
    /// Why what it gives as its key can't be one: an obstacle where there are keys.
    pub(crate) no_key: Option<AnnotationError>,
}

impl Kept {
    /// Reads a Job; `None` if it neither asks for a slot nor was started in one.
    pub(crate) fn read(job: &batch::Job, seen: Moment) -> Option<Self> {
        let empty = BTreeMap::new();
        let metadata = &job.metadata;
        let annotations = metadata.annotations.as_ref().unwrap_or(&empty);
        let uid = metadata.uid.as_deref()?;
        let granted = granted(job, uid);
        let request = annotations::parse(annotations);
        if request.is_none() && granted.is_none() {
            return None;
        }
        let manager = request.is_some().then(|| manager(job)).flatten();
        let (request, obstacle) = match (request, manager) {
            (_, Some(manager)) => (None, Some(Obstacle::Managed(manager))),
            (Some(Err(error)), None) => (None, Some(Obstacle::Malformed(error))),
            (Some(Ok(request)), None) => (Some(request), None),
            (None, None) => (None, None),
        };
        let reported = annotations.get(annotations::SESSION);
        let reported = reported.and_then(|session| bounded(session, longest::SESSION));
        let key = request.as_ref().and_then(|request| request.key.clone());
        let (key, no_key) = match key {
            Some(Ok(key)) => (Some(key), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        let names = annotations.get(annotations::SEMAPHORE);
        let names = names.filter(|name| annotations::is_object_name(name));
        let names: Option<Arc<str>> = names.map(|name| name.as_str().into());
        let job = Job {
            name: metadata.name.as_deref()?.into(),
            uid: uid.into(),
            version: metadata.resource_version.as_deref()?.into(),
            seen,
            wants: names.clone().filter(|_| request.is_some()),
            key,
            on_contention: request
                .as_ref()
                .map_or(OnContention::Wait, |request| request.on_contention),
            cron_job: request
                .as_ref()
                .filter(|request| request.on_contention == OnContention::Skip)
                .and_then(|_| cron_job(job))
                .map(Arc::new),
            priority: request.as_ref().map_or(0, |request| request.priority),
            hold: request.as_ref().is_some_and(|request| request.hold),
            since: since(job, reported.is_some()),
            standing: standing(job, granted.is_some()),
            grace: grace(job),
            was_suspended: condition(job, "Suspended").is_some(),
            granted,
            reported: reported.map(Into::into),
        };
        Some(Self {
            namespace: metadata.namespace.as_deref()?.into(),
            job: Arc::new(job),
            names,
            obstacle,
            no_key,
        })
    }

    /// Whether a later version says nothing else: most changes of a Job mean nothing to its slot.
    pub(super) fn says_the_same(&self, later: &Self) -> bool {
        let job = Job {
            version: self.job.version.clone(),
            seen: self.job.seen,
            ..Job::clone(&later.job)
        };
        let Self {
            namespace,
            names,
            job: _,
            obstacle,
            no_key,
        } = later;
        *self.job == job
            && self.namespace == *namespace
            && self.names == *names
            && self.obstacle == *obstacle
            && self.no_key == *no_key
    }
}

/// The grant that the template names, if it was made for this very Job and not for one that this
/// is a copy of.
fn granted(job: &batch::Job, uid: &str) -> Option<Granted> {
    let template = job
        .spec
        .as_ref()?
        .template
        .metadata
        .as_ref()?
        .annotations
        .as_ref()?;
    if template.get(annotations::GRANTED_TO)? != uid {
        return None;
    }
    let key = bounded(template.get(annotations::LOCK_KEY)?, longest::CONTENDER)?;
    let session = bounded(template.get(annotations::SESSION)?, longest::SESSION)?;
    Some(Granted::by(key, session))
}

/// The `CronJob` that made a Job.
fn cron_job(job: &batch::Job) -> Option<CronJob> {
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

/// How long the pods may take to end: Kubernetes' default where the template does not say.
fn grace(job: &batch::Job) -> Duration {
    let pod = job
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let seconds = pod.and_then(|pod| pod.termination_grace_period_seconds);
    Duration::from_secs(seconds.unwrap_or(30).try_into().unwrap_or(0))
}

/// What starts and stops this Job, if that is neither the Job controller nor this operator.
fn manager(job: &batch::Job) -> Option<String> {
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

/// What the Job is doing; `started` says whether a grant made it run.
fn standing(job: &batch::Job, started: bool) -> Standing {
    let status = job.status.as_ref();
    let pods = status.map_or(0, |status| {
        let active = status.active.unwrap_or(0);
        active.saturating_add(status.terminating.unwrap_or(0))
    });
    if has_ended(job) {
        return Standing::Finished { at_rest: pods == 0 };
    }
    if job.metadata.deletion_timestamp.is_some() {
        return Standing::Deleting;
    }
    if !job
        .spec
        .as_ref()
        .and_then(|spec| spec.suspend)
        .unwrap_or(false)
    {
        // Someone unsuspended it, and the Job controller has not shown yet that it knows. Suspended
        // again now, its status would say still that it is at rest, while pods are being made: it
        // would be granted a slot, and those pods would go on without the sequencer.
        return if is(job, "Suspended") && !started {
            Standing::Stopping
        } else {
            Standing::Running
        };
    }
    // The template of a Job can be changed once its start time is cleared.
    let started = status.is_some_and(|status| status.start_time.is_some());
    if is(job, "Suspended") && pods == 0 && !started {
        Standing::Idle
    } else {
        Standing::Stopping
    }
}

/// Whether nothing more is to come of a Job: it has ended, or is being deleted.
pub(super) fn is_over(job: &batch::Job) -> bool {
    job.metadata.deletion_timestamp.is_some() || has_ended(job)
}

fn has_ended(job: &batch::Job) -> bool {
    is(job, "Complete") || is(job, "Failed")
}

/// When it came in line: when it was made, or when it was suspended if it has had a slot before.
fn since(job: &batch::Job, had_a_slot: bool) -> i64 {
    let suspended = condition(job, "Suspended")
        .filter(|_| had_a_slot)
        .and_then(|condition| condition.last_transition_time.as_ref());
    let time = suspended.or(job.metadata.creation_timestamp.as_ref());
    time.map_or(0, |time| time.0.as_second())
}

fn is(job: &batch::Job, type_: &str) -> bool {
    condition(job, type_).is_some_and(|condition| condition.status == "True")
}

fn condition<'a>(job: &'a batch::Job, type_: &str) -> Option<&'a batch::JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

#[cfg(test)]
mod tests;
