//! `PipelineRun` of `tekton.dev/v1`, as of Tekton Pipelines v1.15.
//!
//! | question | answer |
//! |---|---|
//! | hold | `spec.status: PipelineRunPending`, only before it starts. |
//! | finished | condition `Succeeded` is not Unknown; pods may be left |
//! | metadata that reaches pods | its own |
//! | pods | the label `tekton.dev/pipelineRunUID`; pods of nested runs have only the holder label, which Tekton copies |
//! | stopped while it runs | no: it is ended |
//! | failed | `spec.status: Cancelled`, or `CancelledRunFinally` if a newer run replaces it; nested runs get `StoppedRunFinally`, and the runs in them end, too |

use consul_semaphore::{Uid, engine::Write};
use kube_core::ApiResource;

use super::{
    Kind,
    tekton::{Run, Words},
};
use crate::{
    Object,
    object::Fields,
    pods::{self, OwnQuery},
    request::Request,
    shape::Shape,
};

const WORDS: Words = Words {
    pending: "PipelineRunPending",
    cancelled: "Cancelled",
    replaced: "CancelledRunFinally",
};

/// Returns the API resource of `PipelineRun`s.
pub(super) fn resource() -> ApiResource {
    super::resource("tekton.dev", "v1", "PipelineRun", "pipelineruns")
}

/// Returns the queries for the pods of a `PipelineRun`.
pub(super) fn pods(uid: &Uid) -> Vec<OwnQuery> {
    let own = format!("tekton.dev/pipelineRunUID={uid}");
    vec![own.into(), pods::of(uid).into()]
}

/// Reads a `PipelineRun`.
pub(super) fn read(object: &Object) -> serde_json::Result<Run<'_>> {
    Ok(Run {
        kind: Kind::PipelineRun,
        words: &WORDS,
        fields: Fields::of(object)?,
    })
}

/// Returns the request for a write that the engine asks for.
pub(super) fn request(write: &Write, shape: &Shape) -> Option<Request> {
    WORDS.request(write, shape)
}
