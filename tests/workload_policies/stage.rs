//! The bed with the policies in force, the kinds, and the people who use them.

use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, Request},
};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use testbed::{Bed, Controller, Namespace, eventually};
use tokio::sync::OnceCell;

pub(crate) const SEMAPHORE: &str = "consul-semaphore.io/semaphore";
pub(crate) const HOLD: &str = "consul-semaphore.io/hold";
pub(crate) const WAITS: &str = "consul-semaphore.io/waits";
pub(crate) const KUEUE: &str = "kueue.x-k8s.io/queue-name";

/// What only the operator may write.
pub(crate) const REPORTS: [&str; 4] = [
    "consul-semaphore.io/session",
    "consul-semaphore.io/lock-key",
    "consul-semaphore.io/granted-to",
    "consul-semaphore.io/failed",
];

/// A label that only the operator may write.
pub(crate) const HOLDER: &str = "consul-semaphore.io/holder";

/// The bed that all tests here share, with the policies in force.
pub(crate) async fn bed() -> Bed {
    static IN_FORCE: OnceCell<()> = OnceCell::const_new();
    let bed = Bed::builder().without_operator().shared().await;
    IN_FORCE.get_or_init(|| install(&bed)).await;
    bed
}

async fn install(bed: &Bed) {
    for controller in [
        Controller::JobSet,
        Controller::Tekton,
        Controller::Argo,
        Controller::KubeRay,
        Controller::Trainer,
        Controller::Mpi,
        Controller::Spark,
    ] {
        controller.define(bed).await;
    }
    in_force(bed, &Kind::ALL).await;
}

/// Installs the policies, and waits until they are in force for these kinds, which the API server knows.
pub(crate) async fn in_force(bed: &Bed, kinds: &[Kind]) {
    bed.kubectl(["apply", "-k", "config/policies"]).await;
    bed.kubectl(["apply", "-k", "config/workloads"]).await;
    let team = bed.namespace("in-force").await;
    let (admin, operator) = people(bed, &team).await;
    for kind in kinds.iter().copied() {
        // They know a new kind only after a while, and refuse it until then.
        let what = format!("a {kind:?} can be made");
        eventually(&what, || async {
            admin.create(kind, &kind.held("held")).await
        })
        .await;
        let what = format!("the policies on {kind:?} are in force");
        eventually(&what, || async {
            let made = admin.would_create(kind, &kind.running("probe")).await?;
            let forged = json!({ "metadata": { "annotations": { REPORTS[0]: "probe" } } });
            let written = admin.would_change(kind, "held", &forged).await;
            let taken = json!({ "metadata": { "finalizers": ["example.com/a"] } });
            let taken = operator.would_change(kind, "held", &taken).await;
            match (kind.is_held(&made), written, taken) {
                (true, Err(_), Err(_)) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
}

/// A kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    JobSet,
    PipelineRun,
    TaskRun,
    Workflow,
    Pod,
    RayJob,
    TrainJob,
    MPIJob,
    SparkApplication,
}

impl Kind {
    pub(crate) const ALL: [Self; 9] = [
        Self::JobSet,
        Self::PipelineRun,
        Self::TaskRun,
        Self::Workflow,
        Self::Pod,
        Self::RayJob,
        Self::TrainJob,
        Self::MPIJob,
        Self::SparkApplication,
    ];

    /// Those that are known in code.
    pub(crate) const CODED: [Self; 5] = [
        Self::JobSet,
        Self::PipelineRun,
        Self::TaskRun,
        Self::Workflow,
        Self::Pod,
    ];

    /// Those that are rows.
    pub(crate) const ROWS: [Self; 4] = [
        Self::RayJob,
        Self::TrainJob,
        Self::MPIJob,
        Self::SparkApplication,
    ];

    /// Whether it can be held again while it runs.
    pub(crate) fn can_be_suspended(self) -> bool {
        self == Self::JobSet || Self::ROWS.contains(&self)
    }

    /// A merge patch that writes this to the field that suspends it.
    pub(crate) fn suspend(self, value: &Value) -> Value {
        if self == Self::MPIJob {
            return json!({ "spec": { "runPolicy": { "suspend": value } } });
        }
        json!({ "spec": { "suspend": value } })
    }

    fn resource(self) -> ApiResource {
        let (group, version, plural) = match self {
            Self::JobSet => ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
            Self::PipelineRun => ("tekton.dev", "v1", "pipelineruns"),
            Self::TaskRun => ("tekton.dev", "v1", "taskruns"),
            Self::Workflow => ("argoproj.io", "v1alpha1", "workflows"),
            Self::Pod => ("", "v1", "pods"),
            Self::RayJob => ("ray.io", "v1", "rayjobs"),
            Self::TrainJob => ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
            Self::MPIJob => ("kubeflow.org", "v2beta1", "mpijobs"),
            Self::SparkApplication => ("sparkoperator.k8s.io", "v1beta2", "sparkapplications"),
        };
        let api_version = match group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        };
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version,
            kind: format!("{self:?}"),
            plural: plural.to_owned(),
        }
    }

    /// One that asks for no slot.
    pub(crate) fn stranger(self, name: &str) -> Value {
        let pod = json!({ "restartPolicy": "Never", "containers": [{ "name": "work", "image": "none" }] });
        let steps = json!([{ "name": "work", "image": "none", "command": ["work"] }]);
        let spec = match self {
            Self::JobSet => json!({ "replicatedJobs": [
                { "name": "a", "template": { "spec": { "template": { "spec": pod } } } },
                { "name": "b", "template": { "spec": { "template": {
                    "metadata": { "labels": { "app": "b" }, "annotations": { "app": "b" } }, "spec": pod,
                } } } },
            ] }),
            Self::PipelineRun => json!({ "pipelineSpec": { "tasks": [
                { "name": "a", "taskSpec": { "steps": steps } },
            ] } }),
            Self::TaskRun => json!({ "taskSpec": { "steps": steps } }),
            Self::Workflow => json!({
                "entrypoint": "a",
                "templates": [{ "name": "a", "container": { "image": "none", "command": ["work"] } }],
            }),
            Self::RayJob => json!({
                "entrypoint": "work", "shutdownAfterJobFinishes": true,
                "rayClusterSpec": {
                    "headGroupSpec": { "rayStartParams": {}, "template": { "spec": pod } },
                    "workerGroupSpecs": [{
                        "groupName": "a", "replicas": 1, "minReplicas": 1, "maxReplicas": 1, "rayStartParams": {},
                        "template": {
                            "metadata": { "labels": { "app": "b" }, "annotations": { "app": "b" } }, "spec": pod,
                        },
                    }],
                },
            }),
            Self::TrainJob => json!({ "runtimeRef": { "name": "a" } }),
            Self::MPIJob => json!({
                "runPolicy": { "cleanPodPolicy": "All" },
                "mpiReplicaSpecs": {
                    "Launcher": { "template": { "spec": pod } },
                    "Worker": { "replicas": 1, "template": { "metadata": {
                        "labels": { "app": "b" }, "annotations": { "app": "b" },
                    }, "spec": pod } },
                },
            }),
            Self::SparkApplication => json!({
                "type": "Python", "mode": "cluster", "sparkVersion": "4.0.0", "mainApplicationFile": "local:///work.py",
                "driver": { "cores": 1 }, "executor": { "instances": 1, "labels": { "app": "b" } },
            }),
            Self::Pod => {
                // The API server takes such a list, though its schema calls it a map.
                let mut pod = pod;
                let twice = ["a", "b"].map(|value| json!({ "name": "TWICE", "value": value }));
                pod["containers"][0]["env"] = json!(twice);
                pod
            }
        };
        let ApiResource {
            api_version, kind, ..
        } = self.resource();
        json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": name }, "spec": spec })
    }

    /// One that names a semaphore, and is not held.
    pub(crate) fn running(self, name: &str) -> Value {
        let mut object = self.stranger(name);
        object["metadata"]["annotations"] = json!({ SEMAPHORE: "db" });
        object
    }

    /// One that names a semaphore, and that its user holds.
    pub(crate) fn held(self, name: &str) -> Value {
        let mut object = self.running(name);
        match self {
            Self::MPIJob => object["spec"]["runPolicy"]["suspend"] = true.into(),
            Self::JobSet
            | Self::Workflow
            | Self::RayJob
            | Self::TrainJob
            | Self::SparkApplication => object["spec"]["suspend"] = true.into(),
            Self::PipelineRun => object["spec"]["status"] = "PipelineRunPending".into(),
            Self::TaskRun => object["spec"]["status"] = "TaskRunPending".into(),
            Self::Pod => {
                object["spec"]["schedulingGates"] = json!([
                    { "name": "example.com/other" }, { "name": "consul-semaphore.io/slot" },
                ]);
            }
        }
        object
    }

    pub(crate) fn is_held(self, object: &Value) -> bool {
        let spec = &object["spec"];
        match self {
            Self::MPIJob => spec["runPolicy"]["suspend"] == true,
            Self::JobSet
            | Self::Workflow
            | Self::RayJob
            | Self::TrainJob
            | Self::SparkApplication => spec["suspend"] == true,
            Self::PipelineRun => spec["status"] == "PipelineRunPending",
            Self::TaskRun => spec["status"] == "TaskRunPending",
            Self::Pod => spec["schedulingGates"].as_array().is_some_and(|gates| {
                gates.contains(&json!({ "name": "consul-semaphore.io/slot" }))
            }),
        }
    }
}

/// Somebody who creates and changes workloads in a namespace. Errors are the API server's messages.
pub(crate) struct Person {
    client: Client,
    namespace: String,
}

/// An admin and the operator.
pub(crate) async fn people(bed: &Bed, team: &Namespace) -> (Person, Person) {
    (Person::admin(bed, team), Person::operator(bed, team).await)
}

impl Person {
    /// An admin, who may do everything.
    pub(crate) fn admin(bed: &Bed, team: &Namespace) -> Self {
        Self {
            client: bed.client().clone(),
            namespace: team.name().to_owned(),
        }
    }

    /// The operator's own account.
    pub(crate) async fn operator(bed: &Bed, team: &Namespace) -> Self {
        Self {
            client: bed.client_of(bed.operator_kubeconfig()).await,
            namespace: team.name().to_owned(),
        }
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind.resource())
    }

    pub(crate) async fn create(&self, kind: Kind, object: &Value) -> Result<Value, String> {
        self.make(kind, object, false).await
    }

    /// One as it is now.
    pub(crate) async fn get(&self, kind: Kind, name: &str) -> Result<Value, String> {
        shown(self.api(kind).get(name).await)
    }

    /// What would be created: a dry run.
    pub(crate) async fn would_create(&self, kind: Kind, object: &Value) -> Result<Value, String> {
        self.make(kind, object, true).await
    }

    async fn make(&self, kind: Kind, object: &Value, dry_run: bool) -> Result<Value, String> {
        let object = serde_json::from_value(object.clone()).expect("an object");
        let params = PostParams {
            dry_run,
            ..PostParams::default()
        };
        shown(self.api(kind).create(&params, &object).await)
    }

    /// Changes one by a merge patch.
    pub(crate) async fn change(
        &self,
        kind: Kind,
        name: &str,
        change: &Value,
    ) -> Result<Value, String> {
        let params = PatchParams::default();
        shown(
            self.api(kind)
                .patch(name, &params, &Patch::Merge(change))
                .await,
        )
    }

    /// What would come of a change: a dry run.
    pub(crate) async fn would_change(
        &self,
        kind: Kind,
        name: &str,
        change: &Value,
    ) -> Result<Value, String> {
        self.would_patch(kind, name, "", change).await
    }

    /// What would come of a change of a subresource, or of the object itself: a merge patch, or a JSON Patch if it is a
    /// list.
    pub(crate) async fn would_patch(
        &self,
        kind: Kind,
        name: &str,
        part: &str,
        change: &Value,
    ) -> Result<Value, String> {
        let params = PatchParams::default().dry_run();
        let patch = Patch::Merge(change);
        let request = Request::new(self.api(kind).resource_url());
        let request = match part {
            "" => request.patch(name, &params, &patch),
            part => request.patch_subresource(part, name, &params, &patch),
        };
        let mut request = request.expect("a request");
        if change.is_array() {
            // Without its feature for it, kube writes the same for another kind of patch.
            let json_patch = HeaderValue::from_static("application/json-patch+json");
            request.headers_mut().insert(CONTENT_TYPE, json_patch);
        }
        shown(self.client.request(request).await)
    }

    /// Whether it could be deleted.
    pub(crate) async fn would_delete(&self, kind: Kind, name: &str) -> Result<(), String> {
        let params = DeleteParams::default().dry_run();
        let deleted = self.api(kind).delete(name, &params).await;
        deleted.map(drop).map_err(|error| error.to_string())
    }
}

fn shown(answer: Result<DynamicObject, kube::Error>) -> Result<Value, String> {
    let object = answer.map_err(|error| error.to_string())?;
    serde_json::to_value(object).map_err(|error| error.to_string())
}

/// The value of an annotation.
pub(crate) fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][name].as_str()
}

/// The value of a label.
pub(crate) fn label<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["labels"][name].as_str()
}

/// What another controller makes.
pub(crate) fn owned_by(mut object: Value, kind: &str) -> Value {
    let api_version = match kind {
        "CronJob" => "batch/v1",
        "CronWorkflow" => "argoproj.io/v1alpha1",
        _ => "example.com/v1",
    };
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": api_version, "kind": kind, "name": "owner", "uid": "u", "controller": true,
    }]);
    object
}
