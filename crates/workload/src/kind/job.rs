//! `batch/v1` Job.

use std::{collections::BTreeMap, time::Duration};

use consul_semaphore::{
    Phase,
    engine::Write,
    plan::{Fail, GiveBack, Start, Target},
};
use consul_semaphore_api::annotations as a;
use k8s_openapi::{
    api::batch::v1 as batch,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube_core::ApiResource;
use kube_derive::Resource;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Kind;
use crate::{
    object::{Conditions, Object, PodSpec, or_default},
    read::{self, Read},
    request::{
        JsonPatch, Request, end_by_deadline, holder_label, listed, metadata, no_sequencers,
        record_wait, rename, suspend, template_annotations, waits_since,
    },
    shape::Shape,
};

/// The value of `spec.managedBy` for Kubernetes' own Job controller.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// Returns the API resource of Jobs.
pub(super) fn resource() -> ApiResource {
    ApiResource::erase::<Job>(&())
}

/// The part of a Job that is needed. The rest of its spec, most of which is its pod template, is skipped.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = batch::Job, crates(kube_core = kube_core))]
pub struct Job {
    /// Metadata of the Job.
    #[serde(default, deserialize_with = "or_default")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) spec: JobSpec,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) status: JobStatus,
}

/// The part of a Job's spec that is needed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct JobSpec {
    suspend: Option<bool>,
    parallelism: Option<i32>,
    managed_by: Option<String>,
    #[serde(deserialize_with = "or_default")]
    template: JobPodTemplate,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct JobPodTemplate {
    metadata: Option<JobTemplateMetadata>,
    #[serde(deserialize_with = "or_default")]
    spec: PodSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct JobTemplateMetadata {
    annotations: Option<BTreeMap<String, String>>,
}

/// Returns the holder label in a Job's pod template. This is needed for few Jobs, so [`Job`] is read without it.
pub(super) fn holder_of_pods(job: &Object) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct SpecWithLabels {
        template: TemplateWithLabels,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct TemplateWithLabels {
        metadata: Option<ObjectMeta>,
    }
    let spec: SpecWithLabels = serde_json::from_str(job.spec()?.get()).ok()?;
    spec.template.metadata?.labels?.remove(a::HOLDER_LABEL)
}

/// The part of a Job's status that is needed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct JobStatus {
    conditions: Conditions,
    active: Option<i32>,
    terminating: Option<i32>,
    start_time: Option<Time>,
}

impl Job {
    /// Returns the annotations of the pod template.
    pub(crate) fn template(&self) -> Option<&BTreeMap<String, String>> {
        let metadata = self.spec.template.metadata.as_ref()?;
        metadata.annotations.as_ref()
    }

    /// Whether the Job has ended or is being deleted.
    pub(crate) fn is_over(&self) -> bool {
        self.metadata.deletion_timestamp.is_some() || self.has_ended()
    }

    fn has_ended(&self) -> bool {
        self.is("Complete") || self.is("Failed")
    }

    fn is(&self, type_: &str) -> bool {
        self.status.conditions.is(type_)
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Whether the status counts no pods, including pods that are ending.
    fn has_no_pods(&self) -> bool {
        let JobStatus {
            active,
            terminating,
            ..
        } = self.status;
        active.unwrap_or(0) == 0 && terminating.unwrap_or(0) == 0
    }

    /// Whether the Job controller has finished suspending the Job.
    fn is_at_rest(&self) -> bool {
        self.is("Suspended") && self.has_no_pods()
    }

    /// Whether the Job has a start time. The template can't be changed while it does.
    fn has_started(&self) -> bool {
        self.status.start_time.is_some()
    }

    /// Whether the Job is suspended and at rest while its start time is still there. Before Kubernetes 1.36 the Job
    /// controller does not clear the start time.
    fn is_suspended_after_a_start(&self) -> bool {
        self.is_suspended() && self.is_at_rest() && self.has_started() && !self.is_over()
    }

    /// Whether the Job gets no pods, even if it is not suspended.
    fn has_no_parallelism(&self) -> bool {
        self.spec.parallelism == Some(0)
    }
}

impl Read for Job {
    fn kind(&self) -> Kind {
        Kind::Job
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn grant(&self) -> Option<&BTreeMap<String, String>> {
        self.template()
    }

    fn phase(&self, granted: bool) -> Phase {
        if self.has_ended() {
            let at_rest = self.has_no_pods();
            return Phase::Finished { at_rest };
        }
        if self.metadata.deletion_timestamp.is_some() {
            return Phase::Deleting;
        }
        if !self.is_suspended() {
            // The operator started the Job only to make it fail, and the Job gets no pods.
            if read::is_failing(&self.metadata) && self.has_no_parallelism() && !granted {
                return Phase::Stopping;
            }
            // Someone unsuspended the Job, and the Job controller has not reacted yet. If the Job was suspended again
            // now, its status would still say that it is at rest while pods are being made. The Job would then be
            // granted a slot, and those pods would run without the sequencer.
            return if self.is("Suspended") && !granted {
                Phase::Stopping
            } else {
                Phase::Running
            };
        }
        if self.is_at_rest() && !self.has_started() {
            Phase::Idle
        } else {
            Phase::Stopping
        }
    }

    fn suspended_at(&self) -> Option<&Time> {
        let suspended = self.status.conditions.get("Suspended")?;
        suspended.last_transition_time.as_ref()
    }

    fn was_suspended(&self) -> bool {
        self.status.conditions.get("Suspended").is_some()
    }

    fn grace(&self) -> Duration {
        read::grace(self.spec.template.spec.termination_grace_period_seconds)
    }

    fn shape(&self) -> Shape {
        if self.is_suspended_after_a_start() {
            Shape::Started
        } else {
            Shape::Plain
        }
    }

    fn managed_by(&self) -> Option<String> {
        let manager = self.spec.managed_by.as_deref();
        read::managed_by(&read::MANAGER, manager, JOB_CONTROLLER)
    }
}

/// Clears the start time, so that the template can be changed.
pub(super) fn forget_start(workload: &Target) -> Request {
    let mut patch = JsonPatch::of(workload);
    patch.remove("/status/startTime");
    Request::Status(patch.into_value())
}

/// Returns the request for a write that the engine asks for.
pub(crate) fn request(write: &Write) -> Request {
    match write {
        Write::Start(write) => Request::Patch(start(write)),
        Write::Suspend(write) => suspend(write),
        Write::GiveBack(write) => Request::Patch(give_back(write)),
        Write::Rename(write) => rename(write),
        Write::RecordWait(write) => record_wait(write),
        Write::Skip(_) => Request::Delete,
        Write::Fail(write) => Request::Patch(fail(write)),
        Write::End(write) => end_by_deadline(write),
    }
}

/// Starts the Job. One patch unsuspends it and writes the sequencers of its slots where its pods read them.
fn start(start: &Start) -> Value {
    let annotations = json!({ (a::SESSION): listed(start.sessions()) });
    json!({
        "metadata": metadata(&start.workload, &annotations),
        "spec": {
            "suspend": false,
            "template": { "metadata": {
                "labels": holder_label(start),
                "annotations": template_annotations(start),
            } },
        },
    })
}

/// Records that the Job gives its slot back, and clears the grant from its template.
fn give_back(give_back: &GiveBack) -> Value {
    let mut annotations = json!({
        (a::SESSION): listed(&give_back.sessions),
        (a::WAITS_SINCE): waits_since(give_back.began),
    });
    if give_back.hold {
        annotations[a::HOLD] = "true".into();
    }
    json!({
        "metadata": metadata(&give_back.workload, &annotations),
        "spec": { "template": { "metadata": {
            "labels": { (a::HOLDER_LABEL): null },
            "annotations": no_sequencers(),
        } } },
    })
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
