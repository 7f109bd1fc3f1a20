//! What is written to a workload.

use consul_client::SessionId;
use consul_semaphore::{
    engine::Write,
    plan::{End, Fail, GiveBack, Rename, Start, Stop, Suspend, Target},
};
use consul_semaphore_api::annotations as a;
use serde_json::{Value, json};

use crate::slots;

/// What to send to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A merge patch.
    Patch(Value),
    /// A deletion, conditional on the uid and the version that it was decided on; the pods are deleted after it.
    Delete,
}

/// What to send for a write that the engine asks for.
pub fn request(write: &Write) -> Request {
    match write {
        Write::Start(write) => Request::Patch(start(write)),
        Write::Suspend(write) => Request::Patch(suspend(write)),
        Write::GiveBack(write) => Request::Patch(give_back(write)),
        Write::Rename(write) => Request::Patch(rename(write)),
        Write::Skip(_) => Request::Delete,
        Write::Fail(write) => Request::Patch(fail(write)),
        Write::End(write) => Request::Patch(end(write)),
    }
}

/// The patch that suspends a workload which runs though no grant started it.
pub fn stop(stop: &Stop) -> Request {
    let annotations = if stop.unhold {
        json!({ (a::HOLD): null })
    } else {
        json!({})
    };
    Request::Patch(json!({
        "metadata": metadata(&stop.workload, &annotations),
        "spec": { "suspend": true },
    }))
}

/// One patch unsuspends the Job and writes the sequencers of its slots where its pods read them.
fn start(start: &Start) -> Value {
    let Start {
        workload,
        slot,
        others,
    } = start;
    let annotations = json!({ (a::SESSION): listed(start.sessions()) });
    let mut patch = json!({
        "metadata": metadata(workload, &annotations),
        "spec": {
            "suspend": false,
            "template": { "metadata": {
                "labels": { (a::HOLDER_LABEL): workload.uid.as_ref() },
                "annotations": {
                    (a::LOCK_KEY): slot.key(),
                    (a::SESSION): slot.session(),
                    (a::LOCK_INDEX): slot.lock_index().to_string(),
                    (a::FENCING_TOKEN): slot.fencing_token().to_string(),
                    (a::GRANTED_TO): workload.uid.as_ref(),
                },
            } },
        },
    });
    if !others.is_empty() {
        patch["spec"]["template"]["metadata"]["annotations"][a::SLOTS] =
            slots::written(start).into();
    }
    patch
}

/// The Job controller ends the pods of a suspended Job.
fn suspend(suspend: &Suspend) -> Value {
    json!({
        "metadata": metadata(&suspend.workload, &json!({ (a::SESSION): null })),
        "spec": { "suspend": true },
    })
}

/// Records that the Job gives its slot back, and clears the grant from its template.
fn give_back(give_back: &GiveBack) -> Value {
    let mut annotations = json!({ (a::SESSION): listed(&give_back.sessions) });
    if give_back.hold {
        annotations[a::HOLD] = "true".into();
    }
    json!({
        "metadata": metadata(&give_back.workload, &annotations),
        "spec": { "template": { "metadata": {
            "labels": { (a::HOLDER_LABEL): null },
            "annotations": {
                (a::LOCK_KEY): null,
                (a::SESSION): null,
                (a::LOCK_INDEX): null,
                (a::FENCING_TOKEN): null,
                (a::SLOTS): null,
                (a::GRANTED_TO): null,
            },
        } } },
    })
}

/// Names the sessions that now hold a running Job's slots.
fn rename(rename: &Rename) -> Value {
    let annotations = json!({ (a::SESSION): listed(&rename.sessions) });
    json!({ "metadata": metadata(&rename.workload, &annotations) })
}

/// Starts the Job without pods and with a deadline: within about a second the Job controller makes it Failed, with the
/// reason `DeadlineExceeded`.
fn fail(fail: &Fail) -> Value {
    let annotations = json!({ (a::FAILED): fail.why.reason() });
    json!({
        "metadata": metadata(&fail.workload, &annotations),
        "spec": { "suspend": false, "parallelism": 0, "activeDeadlineSeconds": 1 },
    })
}

/// The Job controller ends the pods of a Job that is past its deadline, and makes it Failed.
fn end(end: &End) -> Value {
    json!({
        "metadata": metadata(&end.workload, &json!({ (a::FAILED): End::REASON })),
        "spec": { "activeDeadlineSeconds": 1 },
    })
}

/// Sessions, as in the annotation.
fn listed<'a>(sessions: impl IntoIterator<Item = &'a SessionId>) -> String {
    let sessions: Vec<&str> = sessions.into_iter().map(SessionId::as_str).collect();
    sessions.join(",")
}

/// With the version, the API server refuses what was decided on an older version; with the uid, what was decided on
/// another Job of that name.
fn metadata(job: &Target, annotations: &Value) -> Value {
    json!({
        "uid": job.uid.as_ref(),
        "resourceVersion": job.version,
        "annotations": annotations,
    })
}
