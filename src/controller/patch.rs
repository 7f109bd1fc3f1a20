//! What is written to Jobs, and what their answers mean.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::batch::v1 as batch;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Context, job::Kept};
use crate::{
    api::annotations as a,
    clock::Moment,
    semaphore::plan::{GiveBack, Rename, Start, Suspend, Suspended, Target},
};

/// Starts a Job in its slot: one PATCH unsuspends it and puts the sequencer where its pods read it.
pub(super) fn start(start: &Start) -> Value {
    let Start { job, slot } = start;
    json!({
        "metadata": metadata(job, &json!({ (a::SESSION): slot.session() })),
        "spec": {
            "suspend": false,
            "template": { "metadata": {
                "labels": { (a::HOLDER_LABEL): a::HOLDER_VALUE },
                "annotations": {
                    (a::LOCK_KEY): slot.lock_key(),
                    (a::SESSION): slot.session(),
                    (a::LOCK_INDEX): slot.lock_index().to_string(),
                    (a::FENCING_TOKEN): slot.fencing_token().to_string(),
                    (a::GRANTED_TO): job.uid.as_ref(),
                },
            } },
        },
    })
}

/// Suspends a Job; the Job controller ends its pods.
pub(super) fn suspend(suspend: &Suspend) -> Value {
    let mut annotations = json!({});
    if suspend.unhold {
        annotations[a::HOLD] = Value::Null;
    }
    if suspend.why == Suspended::SlotLost {
        annotations[a::SESSION] = Value::Null;
    }
    json!({
        "metadata": metadata(&suspend.job, &annotations),
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
    #[error("{0}")]
    Refused(String),
    /// It may have been done, or not.
    #[error("{0}")]
    Unanswered(String),
}

/// Writes to a Job; the answer is the Job as it is now.
///
/// # Errors
/// See [`PatchError`]. Whatever went wrong, the Job was read again if it could be.
pub(super) async fn write(
    context: Arc<Context>,
    namespace: Arc<str>,
    job: Target,
    body: Value,
    timeout: Duration,
) -> Result<Kept, PatchError> {
    let jobs: Api<batch::Job> = Api::namespaced(context.client.clone(), &namespace);
    let (params, body) = (PatchParams::default(), Patch::Merge(body));
    let patch = jobs.patch(&job.name, &params, &body);
    let refused = match tokio::time::timeout(timeout, patch).await {
        Ok(Ok(job)) => match Kept::read(&job, Moment::now()) {
            Some(kept) => return Ok(kept),
            None => return Err(PatchError::Outdated(None)),
        },
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => None,
        Ok(Err(kube::Error::Api(status)))
            if (400..500).contains(&status.code) && status.code != 429 =>
        {
            Some(PatchError::Refused(status.message.clone()))
        }
        Ok(Err(error)) => Some(PatchError::Unanswered(error.to_string())),
        Err(_) => Some(PatchError::Unanswered(format!(
            "no answer within {timeout:?}"
        ))),
    };
    let now = match read(&context, &namespace, &job).await {
        Ok(now) => now,
        Err(error) => return Err(refused.unwrap_or(PatchError::Unanswered(error))),
    };
    let same = now
        .as_ref()
        .is_some_and(|now| now.job.version == job.version);
    match refused {
        Some(refused) if same => Err(refused),
        // Another version answers the question; so does another Job under the same name.
        _ => Err(PatchError::Outdated(now.map(Box::new))),
    }
}

/// Reads a Job; `None` if it is gone, another one under its name, or no concern of the operator's.
pub(super) async fn read(
    context: &Context,
    namespace: &str,
    job: &Target,
) -> Result<Option<Kept>, String> {
    let jobs: Api<batch::Job> = Api::namespaced(context.client.clone(), namespace);
    let seen = Moment::now();
    match tokio::time::timeout(super::CALL_TIMEOUT, jobs.get_opt(&job.name)).await {
        Ok(Ok(found)) => Ok(found
            .filter(|found| found.metadata.uid.as_deref() == Some(job.uid.as_ref()))
            .and_then(|found| Kept::read(&found, seen))),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the API server did not answer in time".into()),
    }
}
