//! Watches, reads and writes the workloads of a cluster in the API server. Parsing them, and composing what is
//! written to them, is in [`consul_semaphore_workload`].

mod known;
mod kueue;
mod list;
mod remains;
mod served_kinds;
mod turns;
mod watch;

use std::{sync::Arc, time::Duration};

pub(crate) use self::{
    known::KnownKinds,
    kueue::{Name as WorkloadName, Owners},
    list::Pages,
    served_kinds::ServedKinds,
    turns::Urgency,
    watch::{Sighting, watch, watch_pods},
};
use self::{remains::Remains, turns::Turns};
use crate::{
    call::{CallError, call, call_until, patch_params},
    crash::{self, Point},
};
use consul_client::clock::Moment;
use consul_semaphore::{Identity, KindName, Phase, Uid, Workload, plan::Target};
use consul_semaphore_workload::{
    EndBelow, Kind, Object, Request, TrackedWorkload,
    kueue::Earlier,
    pods::{self, Pod},
};
use futures::{StreamExt as _, stream};
use http::{HeaderValue, header::CONTENT_TYPE};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::ObjectReference,
};
use kube::{
    Api, Client, Resource as _,
    api::{
        DeleteParams, DynamicObject, GetParams, ListParams, Patch, PostParams, Preconditions,
        Request as KubeRequest,
    },
};
use serde_json::value::RawValue;
use tokio::time::sleep;

/// Number of remaining pods that are named.
const MAX_NAMED_REMAINS: u32 = 10;

/// Number of parts of a workload that are read at once.
const PARTS_PER_PAGE: u32 = 100;

/// Largest number of parts of a workload that are ended with it, and how many of them at once.
const MAX_ENDED_PARTS: u32 = 500;
const PARTS_ENDED_AT_ONCE: usize = 8;

/// Time for which the API server may still apply a start that was sent before a kind was switched off, even by
/// another replica. It is the API server's own bound on a request.
const STARTS_APPLIED: Duration = Duration::from_mins(1);

/// The workload that an event or a message is about.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) kind: &'a KindName,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a Uid,
}

impl<'a> From<&'a Workload> for Subject<'a> {
    fn from(workload: &'a Workload) -> Self {
        let Workload {
            kind, name, uid, ..
        } = workload;
        Self { kind, name, uid }
    }
}

impl<'a> From<&'a Target> for Subject<'a> {
    fn from(target: &'a Target) -> Self {
        let Target {
            kind, name, uid, ..
        } = target;
        Self { kind, name, uid }
    }
}

impl<'a> From<&'a Identity> for Subject<'a> {
    fn from(identity: &'a Identity) -> Self {
        Self {
            kind: &identity.kind,
            name: &identity.workload,
            uid: &identity.uid,
        }
    }
}

/// Returns the reference to a workload for events.
pub(crate) fn reference<'a>(
    kinds: &KnownKinds,
    namespace: &str,
    workload: impl Into<Subject<'a>>,
) -> ObjectReference {
    let Subject { kind, name, uid } = workload.into();
    let api_version = kinds.named(kind).map(|kind| kind.resource().api_version);
    ObjectReference {
        api_version,
        kind: Some(kind.to_string()),
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        uid: Some(uid.to_string()),
        ..ObjectReference::default()
    }
}

/// The reason why a write failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WriteError {
    /// The workload has changed since; this is its current state (`None`: it was deleted).
    #[error("the Job has changed in the meantime")]
    Outdated(Option<Box<TrackedWorkload>>),
    /// The API server refuses the write, and would refuse every retry; or it accepts the write, and nothing changes.
    #[error("{message}")]
    Refused {
        /// The API server's message.
        message: String,
        /// HTTP status of the refusal, if the API server gave one.
        code: Option<u16>,
        /// Whether the refusal is not about this workload: the operator may write to no workload there.
        forbidden: bool,
    },
    /// The write may have taken effect, or not.
    #[error("{0}")]
    Unanswered(String),
    /// The write was not sent, because the evidence that allows it would have ended before the answer.
    #[error("the evidence for the slot was too old to start the Job")]
    TooLate,
}

impl WriteError {
    /// Returns the HTTP status and the message if the API server does not accept such a write at all: the operator
    /// may not make it, the resource has no such part, something finds the written values wrong, or the API server
    /// keeps none of them.
    pub(crate) fn is_unwanted(&self) -> Option<(u16, &str)> {
        match self {
            Self::Refused {
                message,
                code: Some(code @ (200 | 403 | 404 | 422)),
                ..
            } => Some((*code, message)),
            _ => None,
        }
    }
}

/// A write to a workload, ready to be sent.
pub(crate) struct WorkloadWrite {
    pub(crate) namespace: Arc<str>,
    /// Version of the workload that the decision is based on.
    pub(crate) target: Target,
    pub(crate) request: Request,
    /// Parts of the workload to end after the write.
    pub(crate) below: Vec<EndBelow>,
    pub(crate) urgency: Urgency,
    /// Time limit of the write.
    pub(crate) timeout: Duration,
    /// Moment at which the evidence that allows the write ends. The write is sent only if it can be answered before.
    pub(crate) deadline: Option<Moment>,
    /// Whether the workload must not run any more after the write.
    pub(crate) holds: bool,
}

/// Makes the API server give a request up when its caller does, so that the request has no effect later: a Job may be
/// started only as long as the evidence for its slot lasts, or its rate allows it.
fn given_up_at(end: Moment, mut request: http::Request<Vec<u8>>) -> http::Request<Vec<u8>> {
    let left = end.since(Moment::now()).as_millis().max(1);
    let uri = request.uri();
    let and = if uri.query().is_some() { "&" } else { "?" };
    let with = format!("{uri}{and}timeout={left}ms");
    if let Ok(uri) = with.parse() {
        *request.uri_mut() = uri;
    }
    request
}

/// The workloads of a cluster.
pub(crate) struct ClusterWorkloads {
    client: Client,
    kinds: KnownKinds,
    served: ServedKinds,
    turns: Turns,
    /// Knowledge about Workloads of Kueue that is not in their objects.
    owners: Owners,
}

impl ClusterWorkloads {
    pub(crate) fn new(
        client: Client,
        kinds: KnownKinds,
        served: ServedKinds,
        owners: Owners,
    ) -> Self {
        Self {
            client,
            kinds,
            served,
            turns: Turns::default(),
            owners,
        }
    }

    /// Returns the kind of this name, if it is known.
    pub(crate) fn kind(&self, name: &KindName) -> Option<Kind> {
        self.kinds.named(name)
    }

    /// Returns the kinds that are served.
    pub(crate) fn served(&self) -> &ServedKinds {
        &self.served
    }

    /// Writes to a workload. Returns its current state, which is `None` once the workload is deleted.
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
            below,
            urgency,
            timeout,
            deadline,
            holds,
        } = write;
        // The process may have slept between the decision and now, even while it waited for its turn.
        let turn = self.turns.take(&namespace, urgency).await;
        let end = Moment::now() + timeout;
        if deadline.is_some_and(|deadline| end > deadline) {
            return Err(WriteError::TooLate);
        }
        if deadline.is_some() {
            crash::reach(Point::StartAllowed, &namespace).await;
        }
        let Some(kind) = self.kind(&target.kind) else {
            return Err(unknown(&target.kind));
        };
        let of = WorkloadResource::new(&kind, &namespace, &target.name);
        let mut answer = self.send_write(&of, &target, &request, end).await;
        let may_write = self.may_write_after(&of, answer.as_ref().err(), end).await;
        if may_write == Some(true) {
            // The permission may have come back since. If the API server still refuses the write, the refusal is
            // about this workload alone.
            answer = self.send_write(&of, &target, &request, end).await;
        }
        drop(turn);
        match answer {
            // The rest of a deleted workload no longer concerns the operator.
            Ok(None) if !matches!(request, Request::Delete) => Err(WriteError::Outdated(None)),
            Ok(Some(now))
                if !matches!(request, Request::Delete) && has_no_effect(&now, &target, holds) =>
            {
                Err(no_effect(&kind, &request))
            }
            Ok(written) => {
                for below in &below {
                    self.end_below(&namespace, below, end).await;
                }
                Ok(written)
            }
            Err(error) => {
                let forbidden = may_write == Some(false);
                Err(self.find_out(&of, &target, &error, forbidden, end).await)
            }
        }
    }

    async fn send_write(
        &self,
        of: &WorkloadResource<'_>,
        target: &Target,
        request: &Request,
        end: Moment,
    ) -> Result<Option<TrackedWorkload>, CallError> {
        let request = of.write(target, request).map_err(Box::new)?;
        self.send(of.kind, request, end).await
    }

    /// Returns whether the operator may write to Jobs of the namespace at all, after this error of a write. `None` if
    /// the error does not raise the question, if there is no error, or if the question has no answer. A refusal for
    /// another kind says nothing about Jobs in the same queue.
    async fn may_write_after(
        &self,
        of: &WorkloadResource<'_>,
        error: Option<&CallError>,
        end: Moment,
    ) -> Option<bool> {
        match error.and_then(CallError::refusal) {
            Some((401 | 403, _)) if *of.kind == Kind::Job => {
                self.may_write(of.namespace, end).await
            }
            _ => None,
        }
    }

    /// Ends the parts of an ended workload. A part that goes on in spite of this ends by itself, and keeps the slot
    /// until then.
    async fn end_below(&self, namespace: &str, below: &EndBelow, end: Moment) {
        let EndBelow { kind, labels, .. } = below;
        let api: Api<Object> =
            Api::namespaced_with(self.client.clone(), namespace, &kind.resource());
        let of_it = ListParams::default().labels(labels).limit(MAX_ENDED_PARTS);
        let ended = async {
            let listed = call_until(end, api.list(&of_it)).await?.items.into_iter();
            let found = listed.filter(|object| below.ends(object));
            let calls = found.filter_map(|object| object.metadata.name).map(|name| {
                let (api, patch) = (&api, Patch::Merge(&below.patch));
                async move { call_until(end, api.patch(&name, &patch_params(), &patch)).await }
            });
            let mut ends = stream::iter(calls).buffer_unordered(PARTS_ENDED_AT_ONCE);
            let mut failed = None;
            while let Some(ended) = ends.next().await {
                // A part that has ended in the meantime can't be changed any more.
                let has_ended = |error: &CallError| matches!(error.refusal(), Some((400 | 404, _)));
                failed = failed.or(ended.err().filter(|error| !has_ended(error)));
            }
            failed.map_or(Ok(()), Err)
        };
        if let Err::<_, CallError>(error) = ended.await {
            tracing::warn!(namespace, kind = %kind.name(), labels, %error, "can't delete the children of an ended workload: they may continue to run");
        }
    }

    /// Sends a request about a workload; returns the workload in the answer, if there is one.
    async fn send(
        &self,
        kind: &Kind,
        request: http::Request<Vec<u8>>,
        end: Moment,
    ) -> Result<Option<TrackedWorkload>, CallError> {
        let request = given_up_at(end, request);
        let answer = self.client.request_status::<Box<RawValue>>(request);
        let Some(object) = call_until(end, answer).await?.left() else {
            return Ok(None);
        };
        self.parse(kind, object.get(), Moment::now())
    }

    fn parse(
        &self,
        kind: &Kind,
        json: &str,
        seen: Moment,
    ) -> Result<Option<TrackedWorkload>, CallError> {
        let read = match kind {
            Kind::KueueWorkload => serde_json::from_str(json)
                .and_then(|mut object| self.owners.track(&mut object, seen)),
            kind => TrackedWorkload::parse(kind, json, seen),
        };
        read.map_err(|error| Box::new(kube::Error::SerdeError(error)).into())
    }

    /// Returns the meaning of a failed write, given the current state of the workload. `forbidden` says whether the
    /// operator may write to no workload. The API server has given the write up by `end`.
    async fn find_out(
        &self,
        of: &WorkloadResource<'_>,
        target: &Target,
        error: &CallError,
        forbidden: bool,
        end: Moment,
    ) -> WriteError {
        let conflict = matches!(error.refusal(), Some((404 | 409, _)));
        let code = error.refusal().map(|(code, _)| code);
        let failed = match error.refusal() {
            Some((code @ 400..500, message)) if code != 429 => WriteError::Refused {
                message: message.to_owned(),
                code: Some(code),
                forbidden,
            },
            _ => WriteError::Unanswered(error.to_string()),
        };
        // A webhook may be away for long: all writes then fail with 500. A write that has changed nothing by the time
        // at which the API server has given it up never will.
        let shows = matches!(failed, WriteError::Unanswered(_));
        if shows {
            sleep(end.since(Moment::now())).await;
        }
        let now = match self.read(of, &target.uid).await {
            Ok(now) => now,
            Err(error) if conflict => return WriteError::Unanswered(error.to_string()),
            Err(_) => return failed,
        };
        match now {
            // Nothing shows whether the write was applied before the workload was deleted.
            None if !conflict => failed,
            // This is a conflict although the version is still current: somebody refuses the write, such as a
            // webhook.
            Some(now) if target.is_still(&now.workload) && shows => WriteError::Refused {
                message: error.to_string(),
                code,
                forbidden: false,
            },
            Some(now) if target.is_still(&now.workload) => failed,
            // Another version answers the question, and so does another workload under the same name.
            now => WriteError::Outdated(now.map(Box::new)),
        }
    }

    /// Returns whether the operator may write to Jobs of a namespace at all; `None` if that can't be determined by
    /// `end`. Admission policies and webhooks refuse single workloads with 403, too, and only the API server's
    /// authorizer can tell the two apart.
    pub(crate) async fn may_write(&self, namespace: &str, end: Moment) -> Option<bool> {
        let jobs = Kind::Job.resource();
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(jobs.group),
                    resource: Some(jobs.plural),
                    verb: Some("patch".to_owned()),
                    namespace: Some(namespace.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let answer = call_until(end, reviews.create(&PostParams::default(), &review)).await;
        match answer {
            Ok(review) => Some(review.status?.allowed),
            // The API server does not even know this user.
            Err(error) if matches!(error.refusal(), Some((401, _))) => Some(false),
            Err(_) => None,
        }
    }

    /// Reads a workload; `None` if it was deleted, replaced under its name, or does not concern the operator.
    async fn read(
        &self,
        of: &WorkloadResource<'_>,
        uid: &Uid,
    ) -> Result<Option<TrackedWorkload>, CallError> {
        let seen = Moment::now();
        let Some(text) = self.read_text(of).await? else {
            return Ok(None);
        };
        let found = self.parse(of.kind, &text, seen)?;
        Ok(found.filter(|found| found.workload.uid == *uid))
    }

    /// Reads the object of a workload as JSON; `None` if there is no object under its name.
    async fn read_text(&self, of: &WorkloadResource<'_>) -> Result<Option<String>, CallError> {
        let text = async { self.client.request_text(of.get()?).await };
        match call(text).await {
            Err(error) => match error.not_found(of.name) {
                Some(named) if named || !self.is_defined(of.kind).await? => Ok(None),
                _ => Err(error),
            },
            Ok(text) => Ok(Some(text)),
        }
    }

    /// Returns whether there may be objects of a kind although the API server does not know the resource, because a
    /// row may have a wrong resource name or a version that the API server no longer serves.
    async fn is_defined(&self, kind: &Kind) -> Result<bool, CallError> {
        let Kind::Listed(_) = kind else {
            return Ok(false);
        };
        let group = kind.resource().group;
        let groups = call(self.client.list_api_groups()).await?.groups;
        Ok(groups.iter().any(|known| known.name == group))
    }

    /// Reads the current state of the workload, and its remaining pods, for people. Never uses a cache.
    pub(crate) async fn prove(
        &self,
        identity: &Identity,
    ) -> Result<(Option<Arc<Workload>>, Vec<String>), String> {
        let Identity {
            kind,
            namespace,
            workload,
            uid,
            ..
        } = identity;
        let Some(kind) = self.kind(kind) else {
            return Err(unknown(kind).to_string());
        };
        let of = WorkloadResource::new(&kind, namespace, workload);
        if let Some(since) = self.served.off_since(&kind) {
            let left = self.left_of_unserved(&of, identity, since).await;
            return left.map(|left| (None, left));
        }
        let owner = self
            .owners
            .owner(uid)
            .filter(|_| kind == Kind::KueueWorkload);
        let prove = async {
            let found = self.read(&of, uid).await?;
            let mut remains = Remains::new(self, namespace);
            if let Some(owner) = &owner {
                remains.owner(owner).await?;
                let owner_itself = Identity {
                    kind: owner.kind.name(),
                    workload: owner.name.clone(),
                    ..identity.clone()
                };
                remains.of(&owner.kind, &owner_itself).await?;
            }
            remains.of(&kind, identity).await?;
            Ok((found.map(|found| found.workload), remains.titles))
        };
        prove.await.map_err(|error: CallError| error.to_string())
    }

    /// Returns what is left, for people, of a workload whose kind has been off since `since`: the workload itself, if
    /// it may still make pods, and its pods. Its slot is released without a write to the workload, because the
    /// operator may not change it any more.
    async fn left_of_unserved(
        &self,
        of: &WorkloadResource<'_>,
        workload: &Identity,
        since: Moment,
    ) -> Result<Vec<String>, String> {
        if *of.kind == Kind::KueueWorkload {
            // Only the watches of Kueue's objects tell which object owns the Workload, and the owner may make pods
            // when none is left.
            return Err(format!(
                "{} is not among --workloads",
                Kind::KueueWorkload.switch()
            ));
        }
        let left = async {
            let mut remains = Remains::new(self, of.namespace);
            if let Some(text) = self.read_text(of).await? {
                let object: Object = serde_json::from_str(&text)
                    .map_err(|error| Box::new(kube::Error::SerdeError(error)))?;
                let is_it = object.metadata.uid.as_deref() == Some(workload.uid.as_ref());
                if is_it && may_run_on(of.kind, &object, since) {
                    let title = of.kind.title(&object);
                    remains
                        .titles
                        .push(format!("{title} (this kind is switched off)"));
                }
            }
            remains.of(of.kind, workload).await?;
            Ok(remains.titles)
        };
        left.await.map_err(|error: CallError| error.to_string())
    }

    /// Reads from the pods of a workload that have not ended in which slots they run.
    pub(crate) async fn slots_of_pods(
        &self,
        namespace: &str,
        workload: &Uid,
    ) -> Result<Earlier, CallError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let its = ListParams::default()
            .labels(&pods::of(workload))
            .fields(pods::NOT_ENDED)
            .limit(MAX_NAMED_REMAINS);
        let pods = call(api.list(&its)).await?.items;
        let granted = pods.iter().find_map(|pod| pods::granted(pod, workload));
        Ok(granted.map_or(Earlier::Nothing, |granted| Earlier::of(granted, &[])))
    }
}

/// Returns whether the API server has accepted a write that did not do what it was for. The API server drops fields
/// that the schema of a kind does not have, and webhooks may set other fields back. A write that changes nothing
/// leaves the version as it was.
fn has_no_effect(now: &TrackedWorkload, target: &Target, holds: bool) -> bool {
    target.is_still(&now.workload) || holds && now.workload.phase == Phase::Running
}

/// Returns whether an object of a kind that has been off since `since` may still make pods in its slot. An object
/// that is held makes none: if somebody starts it now, it runs without a slot.
fn may_run_on(kind: &Kind, object: &Object, since: Moment) -> bool {
    match kind.phase(object) {
        Ok(Phase::Finished { .. } | Phase::Deleting) => false,
        Ok(Phase::Idle) => Moment::now() < since + STARTS_APPLIED,
        Ok(Phase::Running | Phase::Stopping) | Err(_) => true,
    }
}

/// Returns the error for a request of which the API server keeps nothing, and would keep nothing at every retry.
fn no_effect(kind: &Kind, request: &Request) -> WriteError {
    let resource = kind.resource();
    let fields = request.fields().join(", ");
    WriteError::Refused {
        message: format!(
            "the write has no effect on {fields}: either the schema of {}.{} has no such field, or a webhook resets it",
            resource.plural, resource.group
        ),
        code: Some(200),
        forbidden: false,
    }
}

/// Returns the error for workloads of a kind that is not known.
fn unknown(kind: &KindName) -> WriteError {
    WriteError::Unanswered(format!(
        "this operator knows no kind {kind}: put its row back into the ConfigMap of --kinds until its slots are released"
    ))
}

/// The address of a workload in the API server, with its kind.
struct WorkloadResource<'a> {
    kind: &'a Kind,
    namespace: &'a str,
    name: &'a str,
    requests: KubeRequest,
}

impl<'a> WorkloadResource<'a> {
    fn new(kind: &'a Kind, namespace: &'a str, name: &'a str) -> Self {
        let url = DynamicObject::url_path(&kind.resource(), Some(namespace));
        Self {
            kind,
            namespace,
            name,
            requests: KubeRequest::new(url),
        }
    }

    fn get(&self) -> kube::Result<http::Request<Vec<u8>>> {
        let request = self.requests.get(self.name, &GetParams::default());
        request.map_err(kube::Error::BuildRequest)
    }

    /// Returns the request that writes to the workload. A deletion names the version that the decision is based on,
    /// and deletes the pods after the workload.
    fn write(&self, target: &Target, request: &Request) -> kube::Result<http::Request<Vec<u8>>> {
        let built = match request {
            Request::Patch(body) => {
                let patch = Patch::Merge(body);
                self.requests.patch(self.name, &patch_params(), &patch)
            }
            Request::Json(body) => {
                let patch = Patch::Merge(body);
                let merge = self.requests.patch(self.name, &patch_params(), &patch);
                merge.map(as_json_patch)
            }
            Request::Status(body) => {
                let (params, patch) = (patch_params(), Patch::Merge(body));
                let merge = self
                    .requests
                    .patch_subresource("status", self.name, &params, &patch);
                merge.map(as_json_patch)
            }
            Request::Delete => {
                let params = DeleteParams::background().preconditions(Preconditions {
                    uid: Some(target.uid.to_string()),
                    resource_version: Some(target.version.to_string()),
                });
                self.requests.delete(self.name, &params)
            }
        };
        built.map_err(kube::Error::BuildRequest)
    }
}

/// Turns a patch into a JSON Patch. The client makes JSON Patches only from types of another crate, which do not
/// change their bytes.
fn as_json_patch(mut patch: http::Request<Vec<u8>>) -> http::Request<Vec<u8>> {
    let type_ = HeaderValue::from_static("application/json-patch+json");
    patch.headers_mut().insert(CONTENT_TYPE, type_);
    patch
}

#[cfg(test)]
mod tests {
    use consul_semaphore_workload::Kinds;

    use super::*;

    #[test]
    fn the_api_server_is_told_when_its_caller_gives_up() {
        let target = Target {
            kind: KindName::default(),
            name: "a".into(),
            uid: "u".into(),
            version: "1".into(),
        };
        let of = WorkloadResource::new(&Kind::Job, "batch", "a");
        let patch = of.write(&target, &Request::Patch(serde_json::json!({})));
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

    /// Returns a Job of this version, which may be suspended.
    fn job(version: &str, suspend: bool) -> String {
        serde_json::json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {
                "name": "a", "namespace": "batch", "uid": "u", "resourceVersion": version,
                "annotations": { "consul-semaphore.io/semaphore": "db" },
            },
            "spec": { "suspend": suspend },
        })
        .to_string()
    }

    /// Returns the result of suspending a Job at version 1, if the API server gives this answer.
    async fn suspended(answer: String) -> Result<Option<TrackedWorkload>, WriteError> {
        let server = wiremock::MockServer::start().await;
        let answer = wiremock::ResponseTemplate::new(200).set_body_string(answer);
        wiremock::Mock::given(wiremock::matchers::method("PATCH"))
            .respond_with(answer)
            .mount(&server)
            .await;
        let config = kube::Config::new(server.uri().parse().unwrap());
        let client = Client::try_from(config).unwrap();
        let workloads = ClusterWorkloads::new(
            client,
            KnownKinds::new(),
            ServedKinds::new(&Kinds::all()),
            Owners::default(),
        );
        let target = Target {
            kind: Kind::Job.name(),
            name: "a".into(),
            uid: "u".into(),
            version: "1".into(),
        };
        let patch = serde_json::json!({
            "metadata": { "uid": "u", "resourceVersion": "1", "annotations": { "a/b": null } },
            "spec": { "suspend": true },
        });
        let write = WorkloadWrite {
            namespace: "batch".into(),
            target,
            request: Request::Patch(patch),
            below: Vec::new(),
            urgency: Urgency::Suspends,
            timeout: Duration::from_mins(1),
            deadline: None,
            holds: true,
        };
        workloads.write(write).await
    }

    /// The API server answers like this if a schema has no such field, or a webhook resets it.
    #[tokio::test]
    async fn a_write_that_has_no_effect_is_refused_and_names_its_fields() {
        for answer in [job("1", false), job("2", false)] {
            let error = suspended(answer).await.unwrap_err();
            let (code, message) = error.is_unwanted().unwrap();
            assert_eq!(code, 200);
            assert!(
                message.starts_with(
                    "the write has no effect on spec.suspend, metadata.annotations.a/b: "
                ),
                "{message}"
            );
        }
        let now = suspended(job("2", true)).await.unwrap().unwrap();
        assert_eq!(now.workload.phase, Phase::Stopping);
    }
}
