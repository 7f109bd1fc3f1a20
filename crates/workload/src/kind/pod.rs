//! Pod that nothing else owns.
//!
//! | question | answer |
//! |---|---|
//! | hold | the scheduling gate `consul-semaphore.io/slot`, which can't be added later |
//! | finished | `status.phase` |
//! | metadata that reaches pods | its own |
//! | pods | itself, by the holder label |
//! | stopped while it runs | no: it is ended |
//! | failed | `status.phase: Failed` before it has a node; `spec.activeDeadlineSeconds: 1` later |

use std::time::Duration;

use consul_semaphore::{
    Phase, Traits, Uid,
    engine::Write,
    plan::{Fail, Start},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ApiResource;
use serde::Deserialize;
use serde_json::json;

use super::Kind;
use crate::{
    object::Fields,
    pods::{self, OwnQuery, Which},
    read::{self, Read},
    request::{
        JsonPatch, Request, end_by_deadline, give_back, holder_label, record, record_wait, rename,
    },
    shape::Shape,
};

/// The scheduling gate that holds a Pod.
const GATE: &str = "consul-semaphore.io/slot";

/// Returns the API resource of Pods.
pub(super) fn resource() -> ApiResource {
    super::resource("", "v1", "Pod", "pods")
}

/// Returns the query for the Pod itself.
pub(super) fn pods(uid: &Uid) -> Vec<OwnQuery> {
    let labels = pods::of(uid);
    let which = Which::Itself(uid.clone());
    vec![OwnQuery { labels, which }]
}

pub(super) type Pod<'a> = Fields<'a, GatedPodSpec, GatedPodStatus>;

/// The part of a Pod's spec that is needed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct GatedPodSpec {
    scheduling_gates: Option<Vec<Gate>>,
    node_name: Option<String>,
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Gate {
    name: String,
}

/// The part of a Pod's status that is needed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct GatedPodStatus {
    phase: Option<String>,
}

impl Pod<'_> {
    /// Returns the place of our gate in the list of gates.
    fn gate(&self) -> Option<usize> {
        let mut gates = self.spec.scheduling_gates.iter().flatten();
        gates.position(|gate| gate.name == GATE)
    }
}

impl Read for Pod<'_> {
    fn kind(&self) -> Kind {
        Kind::Pod
    }

    fn metadata(&self) -> &ObjectMeta {
        self.metadata
    }

    fn phase(&self, _granted: bool) -> Phase {
        if matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return Phase::Finished { at_rest: false };
        }
        if self.metadata.deletion_timestamp.is_some() {
            return Phase::Deleting;
        }
        if self.gate().is_some() && self.spec.node_name.is_none() {
            Phase::Idle
        } else {
            Phase::Running
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            can_be_suspended: false,
            runs_again: false,
            ..Traits::default()
        }
    }

    fn grace(&self) -> Duration {
        read::grace(self.spec.termination_grace_period_seconds)
    }

    fn shape(&self) -> Shape {
        self.gate().map_or(Shape::Plain, Shape::Gate)
    }
}

/// Returns the request for a write that the engine asks for.
pub(super) fn request(write: &Write, shape: &Shape) -> Option<Request> {
    let request = match write {
        Write::Start(write) => start(write, shape)?,
        // A Pod can't be held again once it runs.
        Write::Suspend(_) => return None,
        Write::GiveBack(write) => give_back(write),
        Write::Rename(write) => rename(write),
        Write::RecordWait(write) => record_wait(write),
        Write::Skip(_) => Request::Delete,
        Write::Fail(write) => fail(write),
        Write::End(write) => end_by_deadline(write),
    };
    Some(request)
}

/// Starts the Pod. One patch removes the gate and writes the sequencers of its slots into its metadata. The map of
/// labels exists, because a Pod that waits has at least the label by which it is watched.
fn start(start: &Start, shape: &Shape) -> Option<Request> {
    let Shape::Gate(place) = shape else {
        return None;
    };
    let mut patch = JsonPatch::of(&start.workload);
    patch.add_all("/metadata/annotations", record(start), true);
    patch.add_all("/metadata/labels", holder_label(start), true);
    patch.remove(&format!("/spec/schedulingGates/{place}"));
    Some(Request::Json(patch.into_value()))
}

/// Makes the Pod fail by its status. The Pod has no node, so nobody else writes its status.
fn fail(fail: &Fail) -> Request {
    let mut patch = JsonPatch::of(&fail.workload);
    patch.add("/status/phase", &json!("Failed"));
    patch.add("/status/reason", &json!(fail.why.reason()));
    let message = json!("ended by consul-semaphore-operator: see the events");
    patch.add("/status/message", &message);
    Request::Status(patch.into_value())
}
