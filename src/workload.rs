//! The workloads of a cluster in the API server: watched, read and written. Parsing them, and composing what is
//! written to them, is in [`consul_semaphore_workload`].

mod list;
mod turns;
mod watch;

use std::{sync::Arc, time::Duration};

use self::turns::Turns;
pub(crate) use self::{
    list::Pages,
    turns::Urgency,
    watch::{Sighting, watch, watch_pods},
};
use crate::{
    call::{CallError, call, call_until, patch_params},
    crash::{self, Point},
};
use consul_client::clock::Moment;
use consul_semaphore::{Uid, Workload, plan::Target};
use consul_semaphore_workload::{Request, TrackedWorkload, WorkloadObject, pods};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::{ObjectReference, Pod},
};
use kube::{
    Api, Client, Resource as _,
    api::{DeleteParams, ListParams, Patch, PostParams, Preconditions, Request as KubeRequest},
};

/// How many of the remaining pods are named.
const NAMED: u32 = 10;

/// A workload as events refer to it.
pub(crate) fn reference(namespace: &str, name: &str, uid: &Uid) -> ObjectReference {
    ObjectReference {
        api_version: Some(WorkloadObject::api_version(&()).into()),
        kind: Some(WorkloadObject::kind(&()).into()),
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        uid: Some(uid.to_string()),
        ..ObjectReference::default()
    }
}

/// How a write failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WriteError {
    /// The workload has changed since; this is its current state (`None`: it was deleted).
    #[error("the Job has changed in the meantime")]
    Outdated(Option<Box<TrackedWorkload>>),
    /// The API server refuses it, and would refuse every retry.
    #[error("{message}")]
    Refused {
        /// The API server's message.
        message: String,
        /// Whether it is not about this workload: the operator may write to no workload there.
        forbidden: bool,
    },
    /// It may have taken effect, or not.
    #[error("{0}")]
    Unanswered(String),
    /// It was not sent: the evidence that allows it would have ended before the answer.
    #[error("the evidence for the slot was too old to start the Job")]
    TooLate,
}

/// A write to a workload, ready to be sent.
pub(crate) struct WorkloadWrite {
    pub(crate) namespace: Arc<str>,
    /// The version that the decision is based on.
    pub(crate) target: Target,
    pub(crate) request: Request,
    pub(crate) urgency: Urgency,
    /// How long it may take.
    pub(crate) timeout: Duration,
    /// When the evidence that allows it ends; it is sent only if it can be answered before.
    pub(crate) deadline: Option<Moment>,
}

/// Has the API server give a request up when its caller does, so that nothing comes of it later: a Job is started only as
/// long as the evidence for its slot lasts, or its rate allows it.
fn given_up_at(end: Moment, mut request: http::Request<Vec<u8>>) -> http::Request<Vec<u8>> {
    let left = end.since(Moment::now()).as_millis().max(1);
    let with = format!("{}&timeout={left}ms", request.uri());
    if let Ok(uri) = with.parse() {
        *request.uri_mut() = uri;
    }
    request
}

/// The workloads of a cluster.
pub(crate) struct Workloads {
    client: Client,
    turns: Turns,
}

impl Workloads {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            turns: Turns::default(),
        }
    }

    fn api(&self, namespace: &str) -> Api<WorkloadObject> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Writes to a workload. Returns its current state: `None` once it is deleted.
    ///
    /// # Errors
    /// See [`WriteError`]. After any failure the workload is read again if possible.
    pub(crate) async fn write(
        &self,
        write: WorkloadWrite,
    ) -> Result<Option<TrackedWorkload>, WriteError> {
        let WorkloadWrite {
            namespace,
            target,
            request,
            urgency,
            timeout,
            deadline,
        } = write;
        // The process may have slept between the decision and now, also while it waited for its turn.
        let turn = self.turns.take(&namespace, urgency).await;
        let end = Moment::now() + timeout;
        if deadline.is_some_and(|deadline| end > deadline) {
            return Err(WriteError::TooLate);
        }
        if deadline.is_some() {
            crash::reach(Point::StartAllowed, &namespace).await;
        }
        let answer = match request {
            Request::Patch(body) => self.patch(&namespace, &target, body, end).await,
            Request::Delete => self.delete(&namespace, &target, end).await,
        };
        drop(turn);
        match answer {
            Ok(written) => written,
            Err(error) => Err(self.find_out(&namespace, &target, &error).await),
        }
    }

    async fn patch(
        &self,
        namespace: &str,
        target: &Target,
        body: serde_json::Value,
        end: Moment,
    ) -> Result<Result<Option<TrackedWorkload>, WriteError>, CallError> {
        let url = WorkloadObject::url_path(&(), Some(namespace));
        let (params, body) = (patch_params(), Patch::Merge(body));
        let patch = async {
            let patch = KubeRequest::new(url).patch(&target.name, &params, &body);
            let patch = patch.map_err(kube::Error::BuildRequest)?;
            self.client.request(given_up_at(end, patch)).await
        };
        let patched: WorkloadObject = call_until(end, patch).await?;
        let now = TrackedWorkload::read(&patched, Moment::now());
        Ok(now.map(Some).ok_or(WriteError::Outdated(None)))
    }

    /// Deletes a workload in the version of the decision; its pods, if there are any, are deleted after it.
    async fn delete(
        &self,
        namespace: &str,
        target: &Target,
        end: Moment,
    ) -> Result<Result<Option<TrackedWorkload>, WriteError>, CallError> {
        let workloads = self.api(namespace);
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(target.uid.to_string()),
            resource_version: Some(target.version.to_string()),
        });
        let left = call_until(end, workloads.delete(&target.name, &params)).await?;
        let left = left.left();
        Ok(Ok(left.and_then(|left| {
            TrackedWorkload::read(&left, Moment::now())
        })))
    }

    /// What a failed write means, given the current state of the workload.
    async fn find_out(&self, namespace: &str, target: &Target, error: &CallError) -> WriteError {
        let conflict = matches!(error.refusal(), Some((404 | 409, _)));
        let failed = match error.refusal() {
            Some((code @ 400..500, message)) if code != 429 => WriteError::Refused {
                message: message.to_owned(),
                forbidden: matches!(code, 401 | 403)
                    && self.may_write(namespace).await == Some(false),
            },
            _ => WriteError::Unanswered(error.to_string()),
        };
        let now = match self.read(namespace, &target.name, &target.uid).await {
            Ok(now) => now,
            Err(error) if conflict => return WriteError::Unanswered(error.to_string()),
            Err(_) => return failed,
        };
        match now {
            // Nothing shows whether it was applied before the workload went.
            None if !conflict => failed,
            // A conflict although the version is still current: somebody refuses the write, such as a webhook.
            Some(now) if target.is_still(&now.workload) => failed,
            // Another version answers the question; so does another workload under the same name.
            now => WriteError::Outdated(now.map(Box::new)),
        }
    }

    /// Whether the operator may write to workloads of a namespace at all; `None` if that can't be determined.
    /// Admission policies and webhooks refuse single workloads with 403, too: only the API server's authorizer can
    /// tell the two apart.
    pub(crate) async fn may_write(&self, namespace: &str) -> Option<bool> {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(WorkloadObject::group(&()).into()),
                    resource: Some(WorkloadObject::plural(&()).into()),
                    verb: Some("patch".to_owned()),
                    namespace: Some(namespace.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        match call(reviews.create(&PostParams::default(), &review)).await {
            Ok(review) => Some(review.status?.allowed),
            // The API server does not even know this user.
            Err(error) if matches!(error.refusal(), Some((401, _))) => Some(false),
            Err(_) => None,
        }
    }

    /// Reads a workload; `None` if it was deleted, replaced under its name, or does not concern the operator.
    async fn read(
        &self,
        namespace: &str,
        name: &str,
        uid: &Uid,
    ) -> Result<Option<TrackedWorkload>, CallError> {
        let workloads = self.api(namespace);
        let seen = Moment::now();
        let found = call(workloads.get_opt(name)).await?;
        let found = found.filter(|found| found.metadata.uid.as_deref() == Some(uid.as_ref()));
        Ok(found.and_then(|found| TrackedWorkload::read(&found, seen)))
    }

    /// The current state of the workload, and its remaining pods, for people. Never from a cache.
    pub(crate) async fn prove(
        &self,
        namespace: &str,
        name: &str,
        uid: &Uid,
    ) -> Result<(Option<Arc<Workload>>, Vec<String>), CallError> {
        let found = self.read(namespace, name, uid).await?;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let left = ListParams::default()
            .labels(&pods::of(uid))
            .fields(pods::NOT_ENDED)
            .limit(NAMED);
        let left = call(api.list(&left)).await?;
        let left = left.items.iter().map(pods::title);
        Ok((found.map(|found| found.workload), left.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_server_is_told_when_its_caller_gives_up() {
        let url = WorkloadObject::url_path(&(), Some("batch"));
        let body = Patch::Merge(serde_json::json!({}));
        let patch = KubeRequest::new(url).patch("a", &patch_params(), &body);
        let patch = given_up_at(Moment::now() + Duration::from_secs(9), patch.unwrap());
        let query = patch.uri().query().unwrap();
        let parts: Vec<&str> = query.split('&').filter(|part| !part.is_empty()).collect();
        let &[manager, timeout] = parts.as_slice() else {
            panic!("{query}");
        };
        assert!(manager.starts_with("fieldManager="), "{query}");
        assert!(
            timeout.starts_with("timeout=") && timeout.ends_with("ms"),
            "{query}"
        );
    }
}
