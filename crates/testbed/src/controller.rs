//! The controllers of other workloads than Jobs, with their webhooks, as in a cluster.
//!
//! The API server calls a webhook by its Service. A Service has a `ClusterIP` on loopback here, and a program listens
//! there at the Service's port, so nothing has to forward anything. Each bed has ports of its own, so several beds run
//! beside each other.
//!
//! What is installed is what the controller's module ships, except its Deployments, which run as processes with an
//! admin's rights, and what nothing here uses.
//!
//! kwok runs the pods of all of them (`stages.yaml`), and plays what their containers would do:
//! - Tekton: the containers of a `TaskRun` run no entrypoint, so they write no results. The controller reads the
//!   status of the containers whose name starts with `step-`.
//! - Argo Workflows: its `wait` container reports nothing. The signals by which it ends a pod reach no container, so a
//!   pod that it labels as completed ends.
//! - Spark: `spark-submit` makes the pods that Spark would make.
//! - `KubeRay`: there is no dashboard. A test that needs one writes its address into the status of the `RayJob`.
use std::{
    panic::Location,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::future::try_join_all;
use kube::{
    Client,
    api::{DynamicObject, PostParams},
};
use serde_json::{Value, json};

use crate::{
    bed::Bed,
    certificates::Certificates,
    folder::Folder,
    kubeconfig, manifests, ports,
    process::{Process, Recipe},
    programs,
    story::story,
    wait::until,
};

mod recipes;

const PATIENCE: Duration = Duration::from_mins(5);

/// A controller of other workloads than Jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// `JobSet`, of `JobSets`.
    JobSet,
    /// Tekton, of `PipelineRuns` and `TaskRuns`: its controller, and its webhook, a program of its own.
    Tekton,
    /// Argo Workflows, of Workflows. It has no webhook.
    Argo,
    /// Kueue, which admits Jobs and `JobSets` that are in a queue.
    Kueue,
    /// `KubeRay`, of `RayJobs`.
    KubeRay,
    /// Kubeflow Trainer, of `TrainJobs`. It works through [`Self::JobSet`].
    Trainer,
    /// The MPI operator, of `MPIJobs`. It has no webhook.
    Mpi,
    /// The Spark operator, of `SparkApplications`: its controller, and its webhook, a process of its own.
    Spark,
}

/// A controller that runs. It ends when this is dropped.
#[derive(Debug)]
pub struct Running {
    controller: Controller,
    /// The port at which it says whether it is ready.
    health: u16,
    processes: Vec<Process>,
}

/// Where a controller is installed, and where its files go.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) folder: Arc<Folder>,
    /// An admin's.
    pub(crate) kubeconfig: PathBuf,
    pub(crate) client: Client,
}

impl Site {
    pub(crate) fn of(bed: &Bed) -> Self {
        Self {
            folder: bed.shared_folder().clone(),
            kubeconfig: bed.kubeconfig().to_owned(),
            client: bed.client().clone(),
        }
    }
}

/// Whether the API server calls a controller's webhooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Webhooks {
    Called,
    NotCalled,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::JobSet,
        Self::Tekton,
        Self::Argo,
        Self::Kueue,
        Self::KubeRay,
        Self::Trainer,
        Self::Mpi,
        Self::Spark,
    ];

    /// Installs it beside the operator, and starts it. When this returns, its webhooks answer.
    #[track_caller]
    pub fn start(self, bed: &Bed) -> impl Future<Output = Running> {
        let site = Site::of(bed);
        story(Location::caller(), async move {
            self.start_at(&site, Webhooks::Called).await
        })
    }

    /// Has the API server know its kinds, and nothing more: neither it nor its webhooks run.
    #[track_caller]
    pub fn define(self, bed: &Bed) -> impl Future<Output = ()> {
        let site = Site::of(bed);
        story(Location::caller(), async move {
            let shipped = manifests::read(&programs::manifests_of(self.name())?)?;
            let mut kinds: Vec<_> = shipped
                .into_iter()
                .filter_map(|object| installed(object, None, None))
                .collect();
            kinds.retain(|object| {
                let types = object.types.as_ref();
                types.is_some_and(|types| types.kind == "CustomResourceDefinition")
            });
            manifests::apply(&site.client, &kinds).await
        })
    }

    /// Installs and starts these, side by side.
    pub(crate) async fn start_all(
        these: &[Self],
        folder: &Arc<Folder>,
        kubeconfig: &Path,
    ) -> Result<Vec<Running>> {
        let site = Site {
            folder: folder.clone(),
            kubeconfig: kubeconfig.to_owned(),
            client: kubeconfig::client(kubeconfig).await?,
        };
        let starts = these
            .iter()
            .map(|this| this.start_at(&site, Webhooks::Called));
        try_join_all(starts).await
    }

    pub(crate) async fn start_at(self, site: &Site, webhooks: Webhooks) -> Result<Running> {
        let shipped = manifests::read(&programs::manifests_of(self.name())?)?;
        let service = WebhookService::named_in(&shipped);
        let certificates = match &service {
            Some(service) => Some(service.certificate(&site.folder).await?),
            None => None,
        };
        ports::on_lasting(|[webhook, health, more]| {
            let installed = shipped.iter().filter_map(|object| {
                let called = (webhooks == Webhooks::Called).then_some(webhook);
                installed(object.clone(), called, certificates.as_ref())
            });
            let installed: Vec<_> = installed.collect();
            let (certificates, service) = (&certificates, &service);
            async move {
                if let Some(service) = service {
                    service.create(&site.client, webhook).await?;
                }
                manifests::apply(&site.client, &installed).await?;
                let certificates = certificates.as_ref().map(|made| made.folder.as_path());
                let ports = recipes::Ports {
                    webhook,
                    health,
                    more,
                };
                let recipes = self.recipes(site, ports, certificates)?;
                let start = |recipe: Recipe| Process::start(&site.folder, &recipe);
                let processes = recipes.into_iter().map(start).collect::<Result<_>>()?;
                let running = Running {
                    controller: self,
                    health,
                    processes,
                };
                self.ready(&running, health).await?;
                if webhooks == Webhooks::Called {
                    self.answers(site, &running).await?;
                }
                Ok(running)
            }
        })
        .await
        .with_context(|| format!("starting {self:?}"))
    }

    /// The name of its program, or the beginning of their names, and of the folder of what it ships.
    fn name(self) -> &'static str {
        match self {
            Self::JobSet => "jobset",
            Self::Tekton => "tekton",
            Self::Argo => "argo",
            Self::Kueue => "kueue",
            Self::KubeRay => "kuberay",
            Self::Trainer => "trainer",
            Self::Mpi => "mpi",
            Self::Spark => "spark",
        }
    }

    /// Waits until its webhooks answer: an object that they set defaults in can be created.
    async fn answers(self, site: &Site, running: &Running) -> Result<()> {
        let Some(probe) = self.probe() else {
            return Ok(());
        };
        let probe: DynamicObject = serde_json::from_value(probe)?;
        let types = probe.types.clone().context("a probe without a kind")?;
        let api = manifests::api_of(&site.client, &types, Some("default")).await?;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        until(&format!("{self:?} answers"), PATIENCE, || async {
            running.all_run()?;
            let made = api.create(&dry_run, &probe).await;
            let made = made.map_err(|error| error.to_string())?;
            // Some of them tell the API server only after a while what they are to be asked about.
            if self.has_defaults(&made.data["spec"]) {
                Ok(())
            } else {
                Err(format!("no defaults: {}", made.data["spec"]))
            }
        })
        .await
    }

    /// Whether its webhook has set the defaults in the spec of the probe.
    fn has_defaults(self, spec: &Value) -> bool {
        match self {
            Self::JobSet => spec["network"].is_object(),
            Self::Tekton => spec["timeout"].is_string(),
            _ => true,
        }
    }

    /// An object that its webhooks are asked about.
    fn probe(self) -> Option<Value> {
        let metadata = json!({ "generateName": "probe-" });
        let pod = json!({ "restartPolicy": "Never", "containers": [{ "name": "work", "image": "none" }] });
        match self {
            Self::JobSet => Some(json!({
                "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata,
                "spec": { "replicatedJobs": [{ "name": "a", "template": { "spec": { "template": { "spec": pod } } } }] },
            })),
            Self::Tekton => Some(json!({
                "apiVersion": "tekton.dev/v1", "kind": "TaskRun", "metadata": metadata,
                "spec": { "taskSpec": { "steps": [{ "name": "work", "image": "none" }] } },
            })),
            Self::Argo | Self::KubeRay | Self::Mpi => None,
            Self::Spark => Some(json!({
                "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "metadata": metadata,
                "spec": {
                    "type": "Python", "sparkVersion": "4.0.0", "mainApplicationFile": "local:///work.py",
                    "suspend": true, "driver": {}, "executor": {},
                },
            })),
            Self::Trainer => Some(json!({
                "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime", "metadata": metadata,
                "spec": { "template": { "spec": { "replicatedJobs": [
                    { "name": "node", "template": { "spec": { "template": { "spec": pod } } } },
                ] } } },
            })),
            Self::Kueue => Some(json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": metadata, "spec": {},
            })),
        }
    }
}

impl Running {
    /// Its processes.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// Kills it. Until it is started again, nothing is done about its workloads, and the API server refuses to write
    /// those for which it has a webhook.
    ///
    /// # Errors
    /// A process of it does not end.
    pub async fn kill(&self) -> Result<()> {
        for process in self.processes.iter().filter(|one| one.is_running()) {
            process.kill().await?;
        }
        Ok(())
    }

    /// Starts it again, at its ports, and waits until it is ready and its webhooks answer.
    ///
    /// # Errors
    /// It runs, or does not become ready.
    pub async fn start_again(&self, bed: &Bed) -> Result<()> {
        for process in &self.processes {
            process.start_again()?;
        }
        self.controller.ready(self, self.health).await?;
        self.controller.answers(&Site::of(bed), self).await
    }

    /// The error says which of them has ended.
    fn all_run(&self) -> Result<(), String> {
        match self.processes.iter().find(|process| !process.is_running()) {
            Some(process) => Err(format!("{} has ended:\n{}", process.name(), process.log())),
            None => Ok(()),
        }
    }
}

/// The Service by which the API server calls the webhooks of a controller.
struct WebhookService {
    namespace: String,
    name: String,
}

/// A certificate for a webhook, with its authority.
struct Made {
    /// `tls.crt` and `tls.key`.
    folder: PathBuf,
    authority: String,
}

impl WebhookService {
    /// The one that these manifests name.
    fn named_in(manifests: &[DynamicObject]) -> Option<Self> {
        let mut webhooks = manifests.iter().filter_map(|object| {
            let service = &object.data["webhooks"][0]["clientConfig"]["service"];
            let text = |name: &str| service[name].as_str().map(str::to_owned);
            Some(Self {
                namespace: text("namespace")?,
                name: text("name")?,
            })
        });
        webhooks.next()
    }

    async fn certificate(&self, folder: &Folder) -> Result<Made> {
        let folder = folder.path().join(&self.name);
        let host = format!("{}.{}.svc", self.name, self.namespace);
        let certificates = Certificates::make_for(&folder, &[&host]).await?;
        let [certificate, key] = certificates.server();
        std::fs::copy(certificate, folder.join("tls.crt"))?;
        std::fs::copy(key, folder.join("tls.key"))?;
        let authority = std::fs::read(certificates.authority())?;
        Ok(Made {
            folder,
            authority: BASE64_STANDARD.encode(authority),
        })
    }

    async fn create(&self, client: &Client, port: u16) -> Result<()> {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": self.namespace },
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "namespace": self.namespace, "name": self.name },
            "spec": { "ports": [{ "name": "webhook", "port": port }] },
        });
        for object in [namespace, service] {
            manifests::apply_one(client, &serde_json::from_value(object)?).await?;
        }
        Ok(())
    }
}

/// What becomes of an object that a controller's module ships; nothing here uses the others. With a port, the API
/// server calls the webhooks there.
fn installed(
    mut object: DynamicObject,
    port: Option<u16>,
    made: Option<&Made>,
) -> Option<DynamicObject> {
    let kind = object.types.as_ref()?.kind.clone();
    match kind.as_str() {
        // Its metrics are at the same port in every bed.
        "ConfigMap" if object.metadata.name.as_deref() == Some("workflow-controller-configmap") => {
            object.data["data"]["metricsConfig"] = "enabled: false\n".into();
        }
        "Namespace" | "ConfigMap" | "Secret" | "ServiceAccount" | "ClusterRole" => {}
        "CustomResourceDefinition" => {
            let conversion = &mut object.data["spec"]["conversion"];
            match (conversion["strategy"] == "Webhook", port) {
                (true, Some(port)) => {
                    call(&mut conversion["webhook"]["clientConfig"], port, made);
                }
                (true, None) => *conversion = json!({ "strategy": "None" }),
                (false, _) => {}
            }
        }
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
            let port = port?;
            for webhook in object.data["webhooks"].as_array_mut()? {
                call(&mut webhook["clientConfig"], port, made);
                // Spark's is in force in the namespaces that its installation is asked for, by default in this one.
                let only = &webhook["namespaceSelector"]["matchExpressions"][0]["values"];
                if *only == json!(["default"]) {
                    webhook["namespaceSelector"] = json!({});
                }
            }
        }
        _ => return None,
    }
    Some(object)
}

/// Has the API server call a webhook at this port.
fn call(client_config: &mut Value, port: u16, made: Option<&Made>) {
    client_config["service"]["port"] = port.into();
    if let Some(made) = made {
        client_config["caBundle"] = made.authority.clone().into();
    }
}
