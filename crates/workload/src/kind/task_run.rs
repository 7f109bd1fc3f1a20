//! `TaskRun` of `tekton.dev/v1`, as of Tekton Pipelines v1.15.
//!
//! | question | answer |
//! |---|---|
//! | hold | `spec.status: TaskRunPending`, only before it starts. Tekton 1.6 does not know that word. |
//! | finished | condition `Succeeded` is not Unknown; pods may be left |
//! | metadata that reaches pods | its own |
//! | pods | the holder label, which Tekton copies and a copy's pods have, too; or the label `tekton.dev/taskRunUID` |
//! | stopped while it runs | no: it is ended |
//! | failed | `spec.status: TaskRunCancelled` |

use consul_semaphore::{Uid, engine::Write};
use kube_core::ApiResource;

use super::{
    Kind,
    tekton::{Run, Words},
};
use crate::{
    Object,
    object::Fields,
    pods::{self, OwnQuery, Which},
    request::Request,
    shape::Shape,
};

const WORDS: Words = Words {
    pending: "TaskRunPending",
    cancelled: "TaskRunCancelled",
    // A TaskRun has no finally tasks.
    replaced: "TaskRunCancelled",
};

/// Returns the API resource of `TaskRun`s.
pub(super) fn resource() -> ApiResource {
    super::resource("tekton.dev", "v1", "TaskRun", "taskruns")
}

/// Returns the queries for the pods of a `TaskRun`.
pub(super) fn pods(uid: &Uid) -> Vec<OwnQuery> {
    let by_holder = OwnQuery {
        labels: pods::of(uid),
        which: Which::NotOfAnother(Kind::TaskRun.name(), uid.clone()),
    };
    let by_uid = format!("tekton.dev/taskRunUID={uid}");
    vec![by_holder, by_uid.into()]
}

/// Reads a `TaskRun`.
pub(super) fn read(object: &Object) -> serde_json::Result<Run<'_>> {
    Ok(Run {
        kind: Kind::TaskRun,
        words: &WORDS,
        fields: Fields::of(object)?,
    })
}

/// Returns the request for a write that the engine asks for.
pub(super) fn request(write: &Write, shape: &Shape) -> Option<Request> {
    WORDS.request(write, shape)
}
