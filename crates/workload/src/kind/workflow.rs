//! `Workflow` of `argoproj.io/v1alpha1`, as of Argo Workflows v3.7.
//!
//! | question | answer |
//! |---|---|
//! | hold | `spec.suspend`, before it has made anything: later it only makes no new pods |
//! | finished | `status.phase`; pods may be left, and `argo retry` runs it again |
//! | metadata that reaches pods | `spec.podMetadata` |
//! | pods | the holder label, which a copy's pods have, too; or the label with its name, and its uid among their owners |
//! | stopped while it runs | no: it is ended |
//! | failed | `spec.shutdown: Terminate`, without `spec.suspend`; also for one that its user shuts down while it waits |
//!
//! Argo considers a Workflow that waits to be Running: the Workflow holds the locks of `spec.synchronization`, and its
//! deadline runs.

use consul_semaphore::{
    Identity, Phase, Termination, Traits,
    engine::Write,
    plan::{Start, Target},
};
use consul_semaphore_api::annotations as a;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ApiResource;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};

use super::Kind;
use crate::{
    Object,
    object::Fields,
    pods::{self, OwnQuery, Which},
    read::{self, Read},
    request::{
        Request, ended, give_back, holder_label, metadata, record, record_wait, rename,
        template_annotations,
    },
    shape::Shape,
};

/// The least version that is known to work, for people.
pub(super) const LEAST_VERSION: &str = "Argo Workflows 3.7";

/// The value of `status.progress` before there is anything to do.
const NOTHING_YET: &str = "0/0";

/// Returns the API resource of Workflows.
pub(super) fn resource() -> ApiResource {
    super::resource("argoproj.io", "v1alpha1", "Workflow", "workflows")
}

/// Returns the queries for the pods of a Workflow.
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

pub(super) type Workflow<'a> = Fields<'a, WorkflowSpec, WorkflowStatus>;

/// The part of a Workflow's spec that is needed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WorkflowSpec {
    suspend: Option<bool>,
    shutdown: Option<String>,
    synchronization: Option<IgnoredAny>,
    active_deadline_seconds: Option<IgnoredAny>,
}

/// The part of a Workflow's status that is needed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WorkflowStatus {
    phase: Option<String>,
    progress: Option<String>,
    /// The Workflow's spec, merged with the spec of the `WorkflowTemplate` that it refers to. Argo writes it once it
    /// has read the template.
    stored_workflow_template_spec: Option<WorkflowSpec>,
}

/// The reason in the annotation of a Workflow that its user shut down while it waited, and that therefore fails.
const SHUT_DOWN: &str = "ShutDown";

impl Workflow<'_> {
    /// Whether the Workflow is suspended and has made nothing yet.
    fn is_held(&self) -> bool {
        let progress = self.status.progress.as_deref().unwrap_or_default();
        let is_new = matches!(progress, "" | NOTHING_YET);
        self.spec.suspend == Some(true) && is_new
    }

    /// Returns what Argo does with the Workflow while it waits, as if it ran; for its users.
    fn caution(&self) -> Option<String> {
        let stored = self.status.stored_workflow_template_spec.as_ref();
        let specs = || [&self.spec].into_iter().chain(stored);
        let locks = specs().any(|spec| spec.synchronization.is_some());
        let deadline = specs().any(|spec| spec.active_deadline_seconds.is_some());
        let locks = locks.then_some(
            "it holds the locks of its spec.synchronization, and can forever block Workflows that have a slot and wait for \
             such a lock: remove spec.synchronization, or move it to a template",
        );
        let deadline = deadline.then_some(
            "the time of its spec.activeDeadlineSeconds runs, and the Workflow fails when this time is over: remove the \
             field, or set activeDeadlineSeconds of its templates",
        );
        let effects: Vec<&str> = locks.into_iter().chain(deadline).collect();
        (!effects.is_empty()).then(|| {
            let effects = effects.join("; ");
            format!("Argo treats a Workflow that waits for a slot as running. While this one waits, {effects}")
        })
    }
}

/// Returns the warning for the users of a Workflow that waits, if waiting has effects that they may not expect.
///
/// # Errors
/// The object can't be read as a Workflow.
pub(super) fn caution(object: &Object) -> serde_json::Result<Option<String>> {
    let workflow = Workflow::of(object)?;
    let waits = workflow.phase(false) == Phase::Idle;
    Ok(waits.then(|| workflow.caution()).flatten())
}

impl Read for Workflow<'_> {
    fn kind(&self) -> Kind {
        Kind::Workflow
    }

    fn metadata(&self) -> &ObjectMeta {
        self.metadata
    }

    fn phase(&self, granted: bool) -> Phase {
        let phase = self.status.phase.as_deref();
        if matches!(phase, Some("Succeeded" | "Failed" | "Error")) {
            return Phase::Finished { at_rest: false };
        }
        if self.metadata.deletion_timestamp.is_some() {
            return Phase::Deleting;
        }
        // A Workflow that is suspended later goes on with the pods that it has.
        if granted {
            return Phase::Running;
        }
        match &self.spec.shutdown {
            None if self.is_held() => Phase::Idle,
            // The user no longer wants a slot for the Workflow.
            Some(_) if self.is_held() => Phase::Stopping,
            // The Workflow was shut down before it could start. It makes no pods unless `argo retry` runs it again.
            Some(_) if read::is_failing(self.metadata) => Phase::Stopping,
            _ => Phase::Running,
        }
    }

    fn shape(&self) -> Shape {
        let shut_down = self.is_held() && self.spec.shutdown.is_some();
        if shut_down && read::granted(self).is_none() {
            Shape::ShutDown
        } else {
            Shape::Plain
        }
    }

    fn termination(&self) -> Option<Termination> {
        read::termination(self.metadata)
    }

    fn traits(&self) -> Traits {
        Traits {
            can_be_suspended: false,
            runs_again: true,
            ..Traits::default()
        }
    }
}

/// Returns the request for a write that the engine asks for.
pub(super) fn request(write: &Write) -> Option<Request> {
    let request = match write {
        Write::Start(write) => start(write),
        // A Workflow can't be held again once it has started.
        Write::Suspend(_) => return None,
        Write::GiveBack(write) => give_back(write),
        Write::Rename(write) => rename(write),
        Write::RecordWait(write) => record_wait(write),
        Write::Skip(_) => Request::Delete,
        Write::Fail(write) => {
            let annotations = json!({ (a::FAILED): write.why.reason() });
            shut_down_by(&write.workload, &annotations, TERMINATE)
        }
        Write::End(write) if write.is_lost() => {
            shut_down_by(&write.workload, &ended(write), TERMINATE)
        }
        Write::End(write) => shut_down_by(&write.workload, &ended(write), STOP),
    };
    Some(request)
}

/// Starts the Workflow. One patch unsuspends it and writes the sequencers of its slots where its pods read them.
fn start(start: &Start) -> Request {
    Request::Patch(json!({
        "metadata": metadata(&start.workload, &record(start).into()),
        "spec": {
            "suspend": null,
            "podMetadata": {
                "labels": holder_label(start),
                "annotations": template_annotations(start),
            },
        },
    }))
}

/// Ends a Workflow that its user shut down while it waited, because Argo does nothing about the shutdown while the
/// Workflow is suspended. The value `Stop` would run its exit handler, in a pod without a slot, so it is replaced by
/// `Terminate`.
pub(super) fn shut_down(target: &Target, shape: &Shape) -> Option<Request> {
    let annotations = json!({ (a::FAILED): SHUT_DOWN });
    (*shape == Shape::ShutDown).then(|| shut_down_by(target, &annotations, TERMINATE))
}

/// The value of `spec.shutdown` with which Argo ends all pods and starts no more.
const TERMINATE: &str = "Terminate";

/// The value of `spec.shutdown` with which Argo ends all pods, and then runs the exit handlers.
const STOP: &str = "Stop";

/// Shuts a Workflow down, so that it fails. The patch unsuspends it, because a user may have suspended it while it ran,
/// and Argo shuts down no Workflow that is suspended.
fn shut_down_by(target: &Target, annotations: &Value, strategy: &str) -> Request {
    Request::Patch(json!({
        "metadata": metadata(target, annotations),
        "spec": { "suspend": null, "shutdown": strategy },
    }))
}
