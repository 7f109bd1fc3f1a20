//! What is written to Jobs, and what their answers mean.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    batch::v1 as batch,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PostParams, Preconditions},
};
use serde_json::{Value, json};

use super::{
    Context,
    call::{CallError, call, call_until, patch_params},
    job::Kept,
};
use crate::crash::{self, Point};
use consul_client::clock::Moment;
use consul_semaphore::plan::{GiveBack, Rename, Start, Stop, Suspend, Target};
use consul_semaphore_api::annotations as a;

/// Starts a Job in its slot: one PATCH unsuspends it and puts the sequencer where its pods read it.
pub(super) fn start(start: &Start) -> Value {
    let Start { job, slot } = start;
    json!({
        "metadata": metadata(job, &json!({ (a::SESSION): slot.session() })),
        "spec": {
            "suspend": false,
            "template": { "metadata": {
                "labels": { (a::HOLDER_LABEL): job.uid.as_ref() },
                "annotations": {
                    (a::LOCK_KEY): slot.key(),
                    (a::SESSION): slot.session(),
                    (a::LOCK_INDEX): slot.lock_index().to_string(),
                    (a::FENCING_TOKEN): slot.fencing_token().to_string(),
                    (a::GRANTED_TO): job.uid.as_ref(),
                },
            } },
        },
    })
}

/// Suspends a Job that was started in a slot; the Job controller ends its pods.
pub(super) fn suspend(suspend: &Suspend) -> Value {
    json!({
        "metadata": metadata(&suspend.job, &json!({ (a::SESSION): null })),
        "spec": { "suspend": true },
    })
}

/// Suspends a Job that was not.
pub(super) fn stop(stop: &Stop) -> Value {
    let annotations = if stop.unhold {
        json!({ (a::HOLD): null })
    } else {
        json!({})
    };
    json!({
        "metadata": metadata(&stop.job, &annotations),
        "spec": { "suspend": true },
    })
}

/// Tells a Job that it gives its slot back, and clears the grant from its template.
pub(super) fn give_back(give_back: &GiveBack) -> Value {
    let mut annotations = json!({ (a::SESSION): give_back.session });
    if give_back.hold {
        annotations[a::HOLD] = "true".into();
    }
    json!({
        "metadata": metadata(&give_back.job, &annotations),
        "spec": { "template": { "metadata": {
            "labels": { (a::HOLDER_LABEL): null },
            "annotations": {
                (a::LOCK_KEY): null,
                (a::SESSION): null,
                (a::LOCK_INDEX): null,
                (a::FENCING_TOKEN): null,
                (a::GRANTED_TO): null,
            },
        } } },
    })
}

/// Names the session that holds a running Job's slot now.
pub(super) fn rename(rename: &Rename) -> Value {
    json!({ "metadata": metadata(&rename.job, &json!({ (a::SESSION): rename.session })) })
}

/// The version makes the API server refuse what was decided on an older one; the uid, what was
/// decided on another Job of that name.
fn metadata(job: &Target, annotations: &Value) -> Value {
    json!({
        "uid": job.uid.as_ref(),
        "resourceVersion": job.version,
        "annotations": annotations,
    })
}

/// How a write to a Job failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PatchError {
    /// The Job has changed since; this is how it is now (`None`: it is gone).
    #[error("the Job has changed in the meantime")]
    Outdated(Option<Box<Kept>>),
    /// The API server will not have it, however often it is tried.
    #[error("{message}")]
    Refused {
        /// Its words.
        message: String,
        /// Whether it is not about this Job: the operator may write to none.
        forbidden: bool,
    },
    /// It may have been done, or not.
    #[error("{0}")]
    Unanswered(String),
    /// It was not sent: what allows it would have ended before it was answered.
    #[error("the evidence for the slot was too old to start the Job")]
    TooLate,
}

/// A write to a Job, ready to be sent.
pub(super) struct JobWrite {
    pub(super) namespace: Arc<str>,
    pub(super) job: Target,
    /// The merge patch.
    pub(super) body: Value,
    /// How long it may take.
    pub(super) timeout: Duration,
    /// When what allows it ends; it is sent only if it can be answered before.
    pub(super) deadline: Option<Moment>,
}

/// Writes to a Job; the answer is the Job as it is now.
///
/// # Errors
/// See [`PatchError`]. Whatever went wrong, the Job was read again if it could be.
pub(super) async fn write(context: &Context, write: JobWrite) -> Result<Kept, PatchError> {
    let JobWrite {
        namespace,
        job,
        body,
        timeout,
        deadline,
    } = write;
    let jobs: Api<batch::Job> = Api::namespaced(context.client.clone(), &namespace);
    let (params, body) = (patch_params(), Patch::Merge(body));
    // The process may have slept between the decision and now, also while it waited for its turn.
    let permit = context.job_writes.acquire().await;
    let end = Moment::now() + timeout;
    if deadline.is_some_and(|deadline| end > deadline) {
        return Err(PatchError::TooLate);
    }
    if deadline.is_some() {
        crash::reach(Point::StartAllowed, &namespace).await;
    }
    let answer = call_until(end, jobs.patch(&job.name, &params, &body)).await;
    drop(permit);
    match answer {
        Ok(job) => Kept::read(&job, Moment::now()).ok_or(PatchError::Outdated(None)),
        Err(error) => Err(find_out(context, &namespace, &job, &error).await),
    }
}

/// Deletes a Job as it was decided on; its pods, if there are any, go after it. The answer is what
/// is left of it: `None` if that is nothing.
///
/// # Errors
/// As of [`write()`].
pub(super) async fn delete(
    context: &Context,
    namespace: &str,
    job: &Target,
    timeout: Duration,
) -> Result<Option<Kept>, PatchError> {
    let jobs: Api<batch::Job> = Api::namespaced(context.client.clone(), namespace);
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: Some(job.uid.to_string()),
        resource_version: Some(job.version.to_string()),
    });
    let permit = context.job_writes.acquire().await;
    let end = Moment::now() + timeout;
    let answer = call_until(end, jobs.delete(&job.name, &params)).await;
    drop(permit);
    match answer {
        Ok(left) => {
            let left = left.left();
            Ok(left.and_then(|job| Kept::read(&job, Moment::now())))
        }
        Err(error) => Err(find_out(context, namespace, job, &error).await),
    }
}

/// What it means that a write failed, by the Job as it is now.
async fn find_out(
    context: &Context,
    namespace: &str,
    job: &Target,
    error: &CallError,
) -> PatchError {
    let conflict = matches!(error.refusal(), Some((404 | 409, _)));
    let failed = match error.refusal() {
        Some((code @ 400..500, message)) if code != 429 => PatchError::Refused {
            message: message.to_owned(),
            forbidden: matches!(code, 401 | 403)
                && may_write(&context.client, namespace).await == Some(false),
        },
        _ => PatchError::Unanswered(error.to_string()),
    };
    let now = match read(context, namespace, job).await {
        Ok(now) => now,
        Err(error) if conflict => return PatchError::Unanswered(error.to_string()),
        Err(_) => return failed,
    };
    match now {
        // A conflict with the version that is still there is somebody's refusal, such as a webhook's.
        Some(now) if job.is_still(&now.job) => failed,
        // Another version answers the question; so does another Job under the same name.
        now => PatchError::Outdated(now.map(Box::new)),
    }
}

/// Whether the operator may write to Jobs of a namespace at all; `None` if that can't be found out.
/// Admission policies and webhooks refuse one Job or another with 403, too: only the API server's
/// authorizer can tell which it was.
pub(super) async fn may_write(client: &Client, namespace: &str) -> Option<bool> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some("batch".to_owned()),
                resource: Some("jobs".to_owned()),
                verb: Some("patch".to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    match call(reviews.create(&PostParams::default(), &review)).await {
        Ok(review) => Some(review.status?.allowed),
        // It does not even know who asks.
        Err(error) if matches!(error.refusal(), Some((401, _))) => Some(false),
        Err(_) => None,
    }
}

/// Reads a Job; `None` if it is gone, another one under its name, or no concern of the operator's.
pub(super) async fn read(
    context: &Context,
    namespace: &str,
    job: &Target,
) -> Result<Option<Kept>, CallError> {
    let jobs: Api<batch::Job> = Api::namespaced(context.client.clone(), namespace);
    let seen = Moment::now();
    let found = call(jobs.get_opt(&job.name)).await?;
    let found = found.filter(|found| found.metadata.uid.as_deref() == Some(job.uid.as_ref()));
    Ok(found.and_then(|found| Kept::read(&found, seen)))
}
