//! `JobSet` of `jobset.x-k8s.io/v1alpha2`, as of its controller v0.12.
//!
//! | question | answer |
//! |---|---|
//! | hold | `spec.suspend` |
//! | finished | conditions `Completed` and `Failed`; pods may be left |
//! | metadata that reaches pods | the pod template of each of `spec.replicatedJobs`, which can be changed while it is suspended |
//! | pods | the holder label, or the label with the name of the `JobSet`, which its Jobs have, too; the label `jobset.sigs.k8s.io/jobset-uid` (from v0.9 on) or the owners say to which `JobSet` a pod belongs |
//! | stopped while it runs | by `spec.suspend` |
//! | failed | `status`: condition `Failed` and `terminalState`; the controller then deletes the Jobs that are active |

use std::time::Duration;

use consul_semaphore::{
    Identity, Phase, Uid,
    engine::Write,
    plan::{Start, Target},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_core::ApiResource;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};

use super::Kind;
use crate::{
    object::{Conditions, Fields, PodSpec},
    pods::{self, Maker, OwnQuery},
    read::{self, Read},
    request::{
        JsonPatch, Request, give_back, holder_label, record, record_wait, rename, suspend,
        template_annotations,
    },
    shape::{Shape, Template},
};

/// The least version that is known to work, for people.
pub(super) const LEAST_VERSION: &str = "JobSet 0.8";

/// The value of `spec.managedBy` for `JobSet`'s own controller.
const CONTROLLER: &str = "jobset.sigs.k8s.io/jobset-controller";

/// The greatest length of a label's value, in bytes.
const MOST_LABEL: usize = 63;

/// The greatest number of replicated Jobs whose templates one patch changes. The API server takes 10,000 operations.
const MOST_JOBS: usize = 500;

/// Returns the API resource of `JobSet`s.
pub(super) fn resource() -> ApiResource {
    super::resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
}

/// The label of a `JobSet`'s Jobs and pods with its uid. The controller writes it from v0.9 on.
const UID: &str = "jobset.sigs.k8s.io/jobset-uid";

/// Returns the label selector of the Jobs and pods of the `JobSet` with this uid.
pub(super) fn selector(uid: &Uid) -> String {
    format!("{UID}={uid}")
}

/// Returns the query for the Jobs and pods with the name of the `JobSet` in a label that all versions of its controller
/// write. `None` if the name is too long for a label; the controller makes nothing for such a `JobSet`.
fn named(workload: &Identity) -> Option<OwnQuery> {
    let name = &workload.workload;
    let labels = format!("jobset.sigs.k8s.io/jobset-name={name}");
    (name.len() <= MOST_LABEL).then(|| OwnQuery::made_by(labels, &maker(&workload.uid)))
}

fn maker(uid: &Uid) -> Maker {
    Maker {
        kind: Kind::JobSet.name(),
        group: resource().group,
        uid: uid.clone(),
        uid_label: Some(UID),
    }
}

/// Returns the queries for the pods of a `JobSet`: the pods that were started in its slot, and the pods that it made
/// before.
pub(super) fn pods(workload: &Identity) -> Vec<OwnQuery> {
    let uid = &workload.uid;
    let held = OwnQuery::made_by(pods::of(uid), &maker(uid));
    [held].into_iter().chain(named(workload)).collect()
}

/// Returns the query for the Jobs of a `JobSet`.
pub(super) fn parts(workload: &Identity) -> Vec<(Kind, OwnQuery)> {
    let jobs = named(workload).into_iter();
    jobs.map(|jobs| (Kind::Job, jobs)).collect()
}

pub(super) type JobSet<'a> = Fields<'a, JobSetSpec, JobSetStatus>;

/// The part of a `JobSet`'s spec that is needed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct JobSetSpec {
    suspend: Option<bool>,
    managed_by: Option<String>,
    replicated_jobs: Option<Vec<ReplicatedJob>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReplicatedJob {
    template: Nested<Nested<JobSetPodTemplate>>,
}

/// The spec of a Job's template, or the template within that spec.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Nested<T> {
    #[serde(alias = "template")]
    spec: T,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JobSetPodTemplate {
    metadata: Option<JobSetTemplateMetadata>,
    spec: PodSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JobSetTemplateMetadata {
    labels: Option<IgnoredAny>,
    annotations: Option<IgnoredAny>,
}

/// The part of a `JobSet`'s status that is needed.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct JobSetStatus {
    conditions: Conditions,
    replicated_jobs_status: Option<Vec<ReplicatedJobStatus>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReplicatedJobStatus {
    active: i64,
}

impl JobSet<'_> {
    fn templates(&self) -> impl Iterator<Item = &JobSetPodTemplate> {
        let jobs = self.spec.replicated_jobs.iter().flatten();
        jobs.map(|job| &job.template.spec.spec)
    }

    /// Whether a Job of the `JobSet` has active pods.
    fn is_active(&self) -> bool {
        let mut jobs = self.status.replicated_jobs_status.iter().flatten();
        jobs.any(|job| job.active > 0)
    }
}

impl Read for JobSet<'_> {
    fn kind(&self) -> Kind {
        Kind::JobSet
    }

    fn metadata(&self) -> &ObjectMeta {
        self.metadata
    }

    fn phase(&self, granted: bool) -> Phase {
        let conditions = &self.status.conditions;
        if conditions.is("Completed") || conditions.is("Failed") {
            // The status does not show pods that still terminate.
            return Phase::Finished { at_rest: false };
        }
        if self.metadata.deletion_timestamp.is_some() {
            return Phase::Deleting;
        }
        let suspended = conditions.is("Suspended");
        if !self.spec.suspend.unwrap_or(false) {
            // Someone unsuspended the `JobSet`, and its controller has not reacted yet, as in a Job. A `JobSet` whose
            // Jobs are started in order is Suspended until the last of them is started.
            let starts_in_order = conditions.is("StartupPolicyInProgress");
            return if suspended && !starts_in_order && !granted {
                Phase::Stopping
            } else {
                Phase::Running
            };
        }
        if suspended && !self.is_active() {
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

    /// Returns the longest grace period of all its Jobs.
    fn grace(&self) -> Duration {
        let graces = self
            .templates()
            .map(|template| read::grace(template.spec.termination_grace_period_seconds));
        graces.max().unwrap_or_else(|| read::grace(None))
    }

    fn managed_by(&self) -> Option<String> {
        read::managed_by(&read::MANAGER, self.spec.managed_by.as_deref(), CONTROLLER)
    }

    fn too_large(&self) -> Option<String> {
        let count = self.templates().count();
        (count > MOST_JOBS).then(|| {
            format!("it has {count} replicatedJobs, but the operator can start at most {MOST_JOBS}")
        })
    }

    fn shape(&self) -> Shape {
        let templates = self.templates().take(MOST_JOBS);
        let contents = templates.map(|template| match &template.metadata {
            None => Template::Bare,
            Some(metadata) => Template::Has {
                labels: metadata.labels.is_some(),
                annotations: metadata.annotations.is_some(),
            },
        });
        Shape::Templates(contents.collect())
    }
}

/// Returns the request for a write that the engine asks for.
pub(super) fn request(write: &Write, shape: &Shape, now: jiff::Timestamp) -> Option<Request> {
    let request = match write {
        Write::Start(write) => start(write, shape)?,
        Write::Suspend(write) => suspend(write),
        Write::GiveBack(write) => give_back(write),
        Write::Rename(write) => rename(write),
        Write::RecordWait(write) => record_wait(write),
        Write::Skip(_) => Request::Delete,
        Write::Fail(write) => fail(&write.workload, write.why.reason(), now),
        Write::End(write) => fail(&write.workload, write.why.reason(), now),
    };
    Some(request)
}

/// Starts the `JobSet`. One patch unsuspends it, and writes the sequencers of its slots into its own annotations and
/// into the pod template of each of its Jobs.
fn start(start: &Start, shape: &Shape) -> Option<Request> {
    let Shape::Templates(templates) = shape else {
        return None;
    };
    let mut patch = JsonPatch::of(&start.workload);
    patch.add_all("/metadata/annotations", record(start), true);
    for (place, template) in templates.iter().enumerate() {
        let at = format!("/spec/replicatedJobs/{place}/template/spec/template/metadata");
        patch.add_metadata(
            &at,
            *template,
            holder_label(start),
            template_annotations(start),
        );
    }
    patch.replace("/spec/suspend", &json!(false));
    Some(Request::Json(patch.into_value()))
}

/// Makes the `JobSet` fail; its controller then deletes the Jobs that are active. The list of conditions exists,
/// because a `JobSet` that has waited or run has the condition Suspended.
fn fail(target: &Target, reason: &str, now: jiff::Timestamp) -> Request {
    let mut patch = JsonPatch::of(target);
    patch.add("/status/conditions/-", &failed(reason, now));
    patch.add("/status/terminalState", &json!("Failed"));
    Request::Status(patch.into_value())
}

fn failed(reason: &str, now: jiff::Timestamp) -> Value {
    json!({
        "type": "Failed",
        "status": "True",
        "reason": reason,
        "message": "ended by consul-semaphore-operator: see the events",
        "lastTransitionTime": format!("{now:.0}"),
    })
}
