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
use serde_json::{Value, json};

use super::Kind;
use crate::{
    read::{self, Read},
    request::{
        JsonPatch, Request, end_by_deadline, holder_label, listed, metadata, no_sequencers, rename,
        sequencers, suspend,
    },
    shape::Shape,
};

/// The value of `spec.managedBy` for Kubernetes' own Job controller.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// Where the API server has it.
pub(super) fn resource() -> ApiResource {
    ApiResource::erase::<batch::Job>(&())
}

impl Read for batch::Job {
    fn kind(&self) -> Kind {
        Kind::Job
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn grant(&self) -> Option<&BTreeMap<String, String>> {
        template(self)
    }

    fn phase(&self, granted: bool) -> Phase {
        phase_if(self, granted)
    }

    fn suspended_at(&self) -> Option<&Time> {
        condition(self, "Suspended")?.last_transition_time.as_ref()
    }

    fn was_suspended(&self) -> bool {
        condition(self, "Suspended").is_some()
    }

    fn grace(&self) -> Duration {
        let spec = self.spec.as_ref();
        let pod = spec.and_then(|spec| spec.template.spec.as_ref());
        read::grace(pod.and_then(|pod| pod.termination_grace_period_seconds))
    }

    fn shape(&self) -> Shape {
        if is_suspended_after_a_start(self) {
            Shape::Started
        } else {
            Shape::Plain
        }
    }

    fn managed_by(&self) -> Option<String> {
        let manager = self.spec.as_ref()?.managed_by.as_deref();
        read::managed_by(&read::MANAGER, manager, JOB_CONTROLLER)
    }
}

/// The annotations of the pod template.
pub(crate) fn template(job: &batch::Job) -> Option<&BTreeMap<String, String>> {
    let metadata = job.spec.as_ref()?.template.metadata.as_ref()?;
    metadata.annotations.as_ref()
}

fn phase_if(job: &batch::Job, granted: bool) -> Phase {
    if has_ended(job) {
        let at_rest = has_no_pods(job);
        return Phase::Finished { at_rest };
    }
    if job.metadata.deletion_timestamp.is_some() {
        return Phase::Deleting;
    }
    if !job
        .spec
        .as_ref()
        .and_then(|spec| spec.suspend)
        .unwrap_or(false)
    {
        // It was started only to fail, and gets no pods.
        if read::is_failing(&job.metadata) && has_no_parallelism(job) && !granted {
            return Phase::Stopping;
        }
        // It was unsuspended, and the Job controller has not reacted yet. If it was suspended again now, its status
        // would still say that it is at rest, while pods are being made: it would be granted a slot, and those pods
        // would run without the sequencer.
        return if is(job, "Suspended") && !granted {
            Phase::Stopping
        } else {
            Phase::Running
        };
    }
    if is_at_rest(job) && !has_started(job) {
        Phase::Idle
    } else {
        Phase::Stopping
    }
}

/// Whether its status counts no pods, not even ones that are ending.
fn has_no_pods(job: &batch::Job) -> bool {
    let status = job.status.as_ref();
    let active = status.and_then(|status| status.active);
    let terminating = status.and_then(|status| status.terminating);
    active.unwrap_or(0) == 0 && terminating.unwrap_or(0) == 0
}

/// Whether the Job controller is done with suspending it.
fn is_at_rest(job: &batch::Job) -> bool {
    is(job, "Suspended") && has_no_pods(job)
}

/// Whether it has a start time: then its template can't be changed.
fn has_started(job: &batch::Job) -> bool {
    let status = job.status.as_ref();
    status.is_some_and(|status| status.start_time.is_some())
}

/// Whether it is suspended and at rest, and its start time is still there: before Kubernetes 1.36 the Job controller does
/// not clear it.
fn is_suspended_after_a_start(job: &batch::Job) -> bool {
    let suspended = job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
    suspended && is_at_rest(job) && has_started(job) && !is_over(job)
}

/// Clears the start time, so that the template can be changed.
pub(super) fn forget_start(workload: &Target) -> Request {
    let mut patch = JsonPatch::of(workload);
    patch.remove("/status/startTime");
    Request::Status(patch.into_value())
}

/// Whether it gets no pods, even if it is not suspended.
fn has_no_parallelism(job: &batch::Job) -> bool {
    let spec = job.spec.as_ref();
    spec.and_then(|spec| spec.parallelism) == Some(0)
}

/// Whether a Job is over: it has ended, or is being deleted.
pub(crate) fn is_over(job: &batch::Job) -> bool {
    job.metadata.deletion_timestamp.is_some() || has_ended(job)
}

fn has_ended(job: &batch::Job) -> bool {
    is(job, "Complete") || is(job, "Failed")
}

fn is(job: &batch::Job, type_: &str) -> bool {
    condition(job, type_).is_some_and(|condition| condition.status == "True")
}

fn condition<'a>(job: &'a batch::Job, type_: &str) -> Option<&'a batch::JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// What to send for a write that the engine asks for.
pub(crate) fn request(write: &Write) -> Request {
    match write {
        Write::Start(write) => Request::Patch(start(write)),
        Write::Suspend(write) => suspend(write),
        Write::GiveBack(write) => Request::Patch(give_back(write)),
        Write::Rename(write) => rename(write),
        Write::Skip(_) => Request::Delete,
        Write::Fail(write) => Request::Patch(fail(write)),
        Write::End(write) => end_by_deadline(write),
    }
}

/// One patch unsuspends the Job and writes the sequencers of its slots where its pods read them.
fn start(start: &Start) -> Value {
    let annotations = json!({ (a::SESSION): listed(start.sessions()) });
    json!({
        "metadata": metadata(&start.workload, &annotations),
        "spec": {
            "suspend": false,
            "template": { "metadata": {
                "labels": holder_label(start),
                "annotations": sequencers(start),
            } },
        },
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
