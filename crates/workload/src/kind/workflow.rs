//! `Workflow` of `argoproj.io/v1alpha1`, as of Argo Workflows v3.7.
//!
//! | question | answer |
//! |---|---|
//! | hold | `spec.suspend`, before it has made anything: later it only makes no new pods |
//! | finished | `status.phase`; pods may be left, and `argo retry` runs it again |
//! | metadata that reaches pods | `spec.podMetadata` |
//! | pods | the holder label, which a copy's pods have, too; or the label with its name, and its uid among their owners |
//! | stopped while it runs | no: it is ended |
//! | failed | `spec.shutdown: Terminate`, without `spec.suspend` |

use consul_semaphore::{
    Identity, Phase, Traits,
    engine::Write,
    plan::{Start, Target},
};
use consul_semaphore_api::annotations as a;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ApiResource;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Kind;
use crate::{
    object::Fields,
    pods::{self, OwnQuery, Which},
    read::{self, Read},
    request::{Request, ended, give_back, holder_label, metadata, record, rename, sequencers},
};

/// What `status.progress` says before there is anything to do.
const NOTHING_YET: &str = "0/0";

/// Where the API server has it.
pub(super) fn resource() -> ApiResource {
    super::resource("argoproj.io", "v1alpha1", "Workflow", "workflows")
}

/// Its pods.
pub(super) fn pods(workload: &Identity) -> Vec<OwnQuery> {
    let uid = &workload.uid;
    let by_holder = OwnQuery {
        labels: pods::of(uid),
        which: Which::NotOfAnother(Kind::Workflow.name(), uid.clone()),
    };
    let by_name = OwnQuery {
        labels: format!("workflows.argoproj.io/workflow={}", workload.workload),
        which: Which::Owned(uid.clone()),
    };
    vec![by_holder, by_name]
}

pub(super) type Workflow<'a> = Fields<'a, Spec, State>;

/// What matters of its spec.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Spec {
    suspend: Option<bool>,
    shutdown: Option<String>,
}

/// What matters of its status.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct State {
    phase: Option<String>,
    progress: Option<String>,
}

impl Read for Workflow<'_> {
    fn kind(&self) -> Kind {
        Kind::Workflow
    }

    fn metadata(&self) -> &ObjectMeta {
        self.metadata
    }

    fn phase(&self, granted: bool) -> Phase {
        let State { phase, progress } = &self.status;
        if matches!(phase.as_deref(), Some("Succeeded" | "Failed" | "Error")) {
            return Phase::Finished { at_rest: false };
        }
        if self.metadata.deletion_timestamp.is_some() {
            return Phase::Deleting;
        }
        // Whoever suspends it later has it go on with the pods that it has.
        if granted {
            return Phase::Running;
        }
        let progress = progress.as_deref().unwrap_or_default();
        let is_new = matches!(progress, "" | NOTHING_YET);
        match self.spec.suspend {
            Some(true) if is_new => Phase::Idle,
            // It was shut down before it could start, and makes no pods, unless `argo retry` runs it again.
            _ if read::is_failing(self.metadata) && self.spec.shutdown.is_some() => Phase::Stopping,
            _ => Phase::Running,
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            can_be_suspended: false,
            runs_again: true,
        }
    }
}

/// What to send for a write that the engine asks for.
pub(super) fn request(write: &Write) -> Option<Request> {
    let request = match write {
        Write::Start(write) => start(write),
        // It can't be held again.
        Write::Suspend(_) => return None,
        Write::GiveBack(write) => give_back(write),
        Write::Rename(write) => rename(write),
        Write::Skip(_) => Request::Delete,
        Write::Fail(write) => fail(&write.workload, &json!({ (a::FAILED): write.why.reason() })),
        Write::End(write) => fail(&write.workload, &ended(write)),
    };
    Some(request)
}

/// One patch unsuspends it, and writes the sequencers of its slots where its pods read them.
fn start(start: &Start) -> Request {
    Request::Patch(json!({
        "metadata": metadata(&start.workload, &record(start).into()),
        "spec": {
            "suspend": null,
            "podMetadata": {
                "labels": holder_label(start),
                "annotations": sequencers(start),
            },
        },
    }))
}

/// Argo shuts down nothing that is suspended, and a user may suspend one that runs.
fn fail(target: &Target, annotations: &Value) -> Request {
    Request::Patch(json!({
        "metadata": metadata(target, annotations),
        "spec": { "suspend": null, "shutdown": "Terminate" },
    }))
}
