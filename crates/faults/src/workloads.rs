//! The kinds of workloads in a campaign: where the API server has them, and how one is described.
//!
//! All of them run by their real controllers. Where there are others than Jobs, the admission policies of the operator
//! hold what is created, and refuse to let anybody else start it.

use kube::{
    Api,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

use crate::{
    load::Life,
    observer::{POD_LABEL, SEMAPHORE},
    record::WorkloadKind,
    world::World,
};

/// All kinds.
pub(crate) const KINDS: [WorkloadKind; 3] = [
    WorkloadKind::Job,
    WorkloadKind::JobSet,
    WorkloadKind::PipelineRun,
];

impl WorkloadKind {
    /// Where the API server has it.
    pub(crate) fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = match self {
            Self::Job => ("batch", "v1", "Job", "jobs"),
            Self::JobSet => ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
            Self::PipelineRun => ("tekton.dev", "v1", "PipelineRun", "pipelineruns"),
        };
        let kind = GroupVersionKind::gvk(group, version, kind);
        ApiResource::from_gvk_with_plural(&kind, plural)
    }

    /// Whether it can be suspended while it runs.
    pub(crate) fn can_be_suspended(self) -> bool {
        self != Self::PipelineRun
    }

    /// One of this name that asks for these slots. Its pods name the first semaphore.
    pub(crate) fn describe(self, name: &str, semaphore: &str, life: &Life) -> Value {
        let mut annotations = json!({ SEMAPHORE: semaphore });
        if let Some((annotation, value)) = life.ends_by {
            annotations[annotation] = value.into();
        }
        let first = semaphore.split(':').next().unwrap_or_default();
        let ApiResource {
            api_version, kind, ..
        } = self.resource();
        let mut object = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": { "name": name, "annotations": annotations },
            "spec": self.spec(first, life),
        });
        if self == Self::PipelineRun {
            // Tekton copies its metadata to its pods.
            let Value::Object(of_pods) = life.metadata(first) else {
                return object;
            };
            for (map, values) in of_pods {
                let Value::Object(values) = values else {
                    continue;
                };
                for (name, value) in values {
                    object["metadata"][&map][name] = value;
                }
            }
        }
        object
    }

    fn spec(self, first: &str, life: &Life) -> Value {
        match self {
            Self::Job => {
                let mut spec = life.job(first, life.pods);
                spec["suspend"] = true.into();
                spec["ttlSecondsAfterFinished"] = 20.into();
                spec
            }
            Self::JobSet => life.job_set(first),
            Self::PipelineRun => life.pipeline_run(),
        }
    }
}

impl Life {
    /// The metadata of its pods.
    fn metadata(&self, first: &str) -> Value {
        json!({
            "labels": { POD_LABEL: first },
            "annotations": {
                "bed.consul-semaphore.io/runs": format!("{}ms", self.runs_ms),
                "bed.consul-semaphore.io/terminates-in": format!("{}ms", self.terminates_ms),
                "bed.consul-semaphore.io/fails": self.fails.to_string(),
            },
        })
    }

    fn job(&self, first: &str, pods: u32) -> Value {
        json!({
            "backoffLimit": 0,
            "parallelism": pods,
            "completions": pods,
            "template": {
                "metadata": self.metadata(first),
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": self.terminates_ms / 1000 + 1,
                    "containers": [{ "name": "work", "image": "none" }],
                },
            },
        })
    }

    /// With two pods, it is Completed when the first of them has ended: the second one then terminates.
    fn job_set(&self, first: &str) -> Value {
        let mut driver = json!({ "name": "driver", "template": { "spec": self.job(first, 1) } });
        if self.child_asks {
            driver["template"]["metadata"] = json!({ "annotations": { SEMAPHORE: first } });
        }
        let workers = Self {
            runs_ms: self.runs_ms * 2,
            ..*self
        };
        let workers = json!({ "name": "workers", "template": { "spec": workers.job(first, 1) } });
        let mut jobs = vec![driver];
        jobs.extend((self.pods > 1).then_some(workers));
        json!({
            "ttlSecondsAfterFinished": 20,
            "successPolicy": { "operator": "All", "targetReplicatedJobs": ["driver"] },
            "replicatedJobs": jobs,
        })
    }

    /// Its pods run one after another. Without a command, Tekton asks a registry for that of the image.
    fn pipeline_run(&self) -> Value {
        let steps = json!([{ "name": "work", "image": "none", "command": ["work"] }]);
        let task = |name: &str| json!({ "name": name, "taskSpec": { "steps": steps } });
        let mut tasks = vec![task("first")];
        if self.pods > 1 {
            let mut second = task("second");
            second["runAfter"] = json!(["first"]);
            tasks.push(second);
        }
        json!({ "pipelineSpec": { "tasks": tasks } })
    }
}

/// The API of a kind.
pub(crate) fn api(world: &World, kind: WorkloadKind, namespace: &str) -> Api<DynamicObject> {
    let client = world.kubernetes.client.clone();
    Api::namespaced_with(client, namespace, &kind.resource())
}
