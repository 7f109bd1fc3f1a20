//! What `PipelineRun` and `TaskRun` have in common.

use consul_semaphore::{
    Phase, Traits,
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
    read::{self, Read},
    request::{Request, ended, give_back, holder_label, metadata, record, rename},
};

/// The value of `spec.managedBy` for Tekton's own controller.
const CONTROLLER: &str = "tekton.dev/pipeline";

/// The words of a kind of run for `spec.status`.
pub(super) struct Words {
    /// It is not to start.
    pub(super) pending: &'static str,
    /// It is to end.
    pub(super) cancelled: &'static str,
}

/// A run, and which kind of one.
pub(super) struct Run<'a> {
    pub(super) kind: Kind,
    pub(super) words: &'static Words,
    pub(super) fields: Fields<'a, Spec, State>,
}

/// What matters of its spec.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Spec {
    status: Option<String>,
    managed_by: Option<String>,
}

/// What matters of its status.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct State {
    conditions: Conditions,
    start_time: Option<Time>,
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
        // It can't be pending again once it has started.
        let pending = spec.status.as_deref() == Some(self.words.pending);
        if pending && status.start_time.is_none() {
            return Phase::Idle;
        }
        // It was cancelled before it could start, and makes no pods.
        if read::is_failing(metadata) && !granted && status.start_time.is_none() {
            return Phase::Stopping;
        }
        Phase::Running
    }

    fn traits(&self) -> Traits {
        Traits {
            can_be_suspended: false,
            runs_again: false,
        }
    }

    fn managed_by(&self) -> Option<String> {
        read::managed_by(self.fields.spec.managed_by.as_deref(), CONTROLLER)
    }
}

impl Words {
    /// What to send for a write that the engine asks for.
    pub(super) fn request(&self, write: &Write) -> Option<Request> {
        let request = match write {
            Write::Start(write) => start(write),
            // It can't be held again.
            Write::Suspend(_) => return None,
            Write::GiveBack(write) => give_back(write),
            Write::Rename(write) => rename(write),
            Write::Skip(_) => Request::Delete,
            Write::Fail(write) => {
                self.cancel(&write.workload, &json!({ (a::FAILED): write.why.reason() }))
            }
            Write::End(write) => self.cancel(&write.workload, &ended(write)),
        };
        Some(request)
    }

    fn cancel(&self, target: &Target, annotations: &Value) -> Request {
        Request::Patch(json!({
            "metadata": metadata(target, annotations),
            "spec": { "status": self.cancelled },
        }))
    }
}

/// One patch lets it start, and writes the sequencers of its slots into its metadata, which Tekton copies to all that it
/// makes. Its spec can't be changed.
fn start(start: &Start) -> Request {
    let mut metadata = metadata(&start.workload, &record(start).into());
    metadata["labels"] = holder_label(start).into();
    Request::Patch(json!({ "metadata": metadata, "spec": { "status": null } }))
}
