//! The parts that `PipelineRun` and `TaskRun` have in common.

use consul_semaphore::{
    Phase, Termination, Traits,
    engine::Write,
    plan::{Start, Target},
};
use consul_semaphore_api::annotations as a;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Kind;
use crate::{
    object::{Conditions, Fields},
    pods,
    read::{self, Read},
    request::{
        EndBelow, Request, ended, give_back, holder_label, metadata, record, record_wait, rename,
    },
    shape::Shape,
};

/// The least version that is known to work, for people.
pub(super) const LEAST_VERSION: &str = "Tekton Pipelines 1.15";

/// The value of `spec.managedBy` for Tekton's own controller.
const CONTROLLER: &str = "tekton.dev/pipeline";

/// Values of `spec.status` for a kind of run.
pub(super) struct Words {
    /// Value for a run that is not to start.
    pub(super) pending: &'static str,
    /// Value for a run that is to end at once.
    pub(super) cancelled: &'static str,
    /// Value for a run that a newer one replaces, so that its finally tasks still run in its slot.
    pub(super) replaced: &'static str,
}

/// A run of either kind.
pub(super) struct Run<'a> {
    pub(super) kind: Kind,
    pub(super) words: &'static Words,
    pub(super) fields: Fields<'a, RunSpec, RunStatus>,
}

/// The part of a run's spec that is needed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RunSpec {
    status: Option<String>,
    managed_by: Option<String>,
}

/// The part of a run's status that is needed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RunStatus {
    conditions: Conditions,
    start_time: Option<Time>,
    child_references: Option<Vec<ChildReference>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChildReference {
    kind: String,
}

impl Read for Run<'_> {
    fn kind(&self) -> Kind {
        self.kind.clone()
    }

    fn metadata(&self) -> &ObjectMeta {
        self.fields.metadata
    }

    fn phase(&self, granted: bool) -> Phase {
        let Fields {
            metadata,
            spec,
            status,
        } = &self.fields;
        let conditions = &status.conditions;
        if conditions.is("Succeeded") || conditions.is_not("Succeeded") {
            return Phase::Finished { at_rest: false };
        }
        if metadata.deletion_timestamp.is_some() {
            return Phase::Deleting;
        }
        // A run can't be pending again once it has started.
        let pending = spec.status.as_deref() == Some(self.words.pending);
        if pending && status.start_time.is_none() {
            return Phase::Idle;
        }
        // The operator cancelled the run before it could start, so it makes no pods.
        if read::is_failing(metadata) && !granted && status.start_time.is_none() {
            return Phase::Stopping;
        }
        Phase::Running
    }

    fn termination(&self) -> Option<Termination> {
        read::termination(self.fields.metadata)
    }

    fn traits(&self) -> Traits {
        Traits {
            can_be_suspended: false,
            runs_again: false,
            ..Traits::default()
        }
    }

    fn managed_by(&self) -> Option<String> {
        read::managed_by(
            &read::MANAGER,
            self.fields.spec.managed_by.as_deref(),
            CONTROLLER,
        )
    }

    fn shape(&self) -> Shape {
        let mut children = self.fields.status.child_references.iter().flatten();
        if children.any(|child| child.kind == Kind::PipelineRun.name().as_str()) {
            Shape::Nested
        } else {
            Shape::Plain
        }
    }
}

impl Words {
    /// Returns the request for a write that the engine asks for.
    pub(super) fn request(&self, write: &Write, shape: &Shape) -> Option<Request> {
        let request = match write {
            Write::Start(write) => start(write),
            // A run can't be held again once it has started.
            Write::Suspend(_) => return None,
            Write::GiveBack(write) => give_back(write),
            Write::Rename(write) => rename(write),
            Write::RecordWait(write) => record_wait(write),
            Write::Skip(_) => Request::Delete,
            Write::Fail(write) => {
                let annotations = json!({ (a::FAILED): write.why.reason() });
                end(&write.workload, &annotations, self.cancelled)
            }
            Write::End(write) if *shape == Shape::Nested => {
                end(&write.workload, &ended(write), STOPPED)
            }
            Write::End(write) if write.is_lost() => {
                end(&write.workload, &ended(write), self.cancelled)
            }
            Write::End(write) => end(&write.workload, &ended(write), self.replaced),
        };
        Some(request)
    }
}

/// The value of `spec.status` for a `PipelineRun` that is to make nothing more than its finally tasks. A run that is
/// made of other `PipelineRuns` is never Cancelled, because Tekton cancels only its `TaskRuns` and goes on trying for
/// ever.
const STOPPED: &str = "StoppedRunFinally";

fn end(target: &Target, annotations: &Value, status: &str) -> Request {
    Request::Patch(json!({
        "metadata": metadata(target, annotations),
        "spec": { "status": status },
    }))
}

/// Returns how to end the runs that a run is made of, at any depth. They have a copy of its holder label. The inner
/// `PipelineRuns` then make nothing more.
pub(super) fn ends_below(workload: &Target, shape: &Shape) -> Vec<EndBelow> {
    if *shape != Shape::Nested {
        return Vec::new();
    }
    let end = |kind, status| EndBelow {
        kind,
        labels: pods::of(&workload.uid),
        patch: json!({ "spec": { "status": status } }),
    };
    vec![
        end(Kind::PipelineRun, STOPPED),
        end(Kind::TaskRun, "TaskRunCancelled"),
    ]
}

/// Starts a run by one patch, which also writes the sequencers of its slots into the run's metadata. Tekton copies the
/// metadata to all objects that the run makes. The run's spec can't be changed.
fn start(start: &Start) -> Request {
    let mut metadata = metadata(&start.workload, &record(start).into());
    metadata["labels"] = holder_label(start).into();
    Request::Patch(json!({ "metadata": metadata, "spec": { "status": null } }))
}
