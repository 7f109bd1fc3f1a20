//! What is written to a workload.

use consul_client::SessionId;
use consul_semaphore::{
    engine::Write,
    plan::{Rename, Stop, Target},
};
use consul_semaphore_api::annotations as a;
use serde_json::{Value, json};

use crate::kind::{Kind, job};

/// What to send to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A merge patch.
    Patch(Value),
    /// A deletion, conditional on the uid and the version that it was decided on; the pods are deleted after it.
    Delete,
}

/// What to send for a write that the engine asks for; `None` if the kind is unknown.
pub fn request(write: &Write) -> Option<Request> {
    let request = match Kind::named(&write.target().kind)? {
        Kind::Job => job::request(write),
    };
    Some(request)
}

/// What suspends a workload that runs though no grant started it; `None` if the kind is unknown.
pub fn stop(stop: &Stop) -> Option<Request> {
    let request = match Kind::named(&stop.workload.kind)? {
        Kind::Job => job::stop(stop),
    };
    Some(request)
}

/// Names the sessions that now hold a running workload's slots.
pub(crate) fn rename(rename: &Rename) -> Request {
    let annotations = json!({ (a::SESSION): listed(&rename.sessions) });
    Request::Patch(json!({ "metadata": metadata(&rename.workload, &annotations) }))
}

/// Sessions, as in the annotation.
pub(crate) fn listed<'a>(sessions: impl IntoIterator<Item = &'a SessionId>) -> String {
    let sessions: Vec<&str> = sessions.into_iter().map(SessionId::as_str).collect();
    sessions.join(",")
}

/// With the version, the API server refuses what was decided on an older version; with the uid, what was decided on
/// another workload of that name.
pub(crate) fn metadata(workload: &Target, annotations: &Value) -> Value {
    json!({
        "uid": workload.uid.as_ref(),
        "resourceVersion": workload.version,
        "annotations": annotations,
    })
}
