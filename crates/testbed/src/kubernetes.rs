//! A Kubernetes that really runs Jobs, except for their containers, which kwok simulates.
use std::{ops::Deref, panic::Location, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    api_server::{ApiServer, Workloads},
    folder::Folder,
    kubeconfig,
    process::{Process, Recipe},
    programs,
    story::story,
};

const PATIENCE: Duration = Duration::from_mins(5);

const STAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stages.yaml");

const CONTROLLERS: &str = "job-controller,cronjob-controller,garbage-collector-controller,\
    pod-garbage-collector-controller,namespace-controller,ttl-after-finished-controller,serviceaccount-controller,\
    clusterrole-aggregation-controller";

/// What Deployments also need, disruption budgets for their pods, and the authority by which pods trust the API
/// server.
const MORE_CONTROLLERS: &str = "deployment-controller,replicaset-controller,disruption-controller,\
    root-ca-certificate-publisher-controller,clusterrole-aggregation-controller";

/// An API server with the real controllers and scheduler, and a node on which kwok simulates the pods.
///
/// Dereferences to its [`ApiServer`]. Ends when it is dropped.
#[derive(Debug)]
pub struct Kubernetes {
    controller_manager: Process,
    scheduler: Process,
    kwok: Process,
    api_server: ApiServer,
}

impl Kubernetes {
    /// Starts it in its own folder.
    #[track_caller]
    pub fn start() -> impl Future<Output = Self> {
        story(Location::caller(), async {
            Self::start_in(Arc::new(Folder::new()?), Workloads::Jobs, &[]).await
        })
    }

    /// Like [`Self::start`], but Deployments have pods, too, which [`ApiServer::run_pod`] runs.
    #[track_caller]
    pub fn start_with_deployments() -> impl Future<Output = Self> {
        story(Location::caller(), async {
            Self::start_in(Arc::new(Folder::new()?), Workloads::Deployments, &[]).await
        })
    }

    pub(crate) async fn start_in(
        folder: Arc<Folder>,
        workloads: Workloads,
        api_server_args: &[String],
    ) -> Result<Self> {
        let controller_manager = programs::server("kube-controller-manager")?;
        let scheduler = programs::server("kube-scheduler")?;
        let kwok = programs::server("kwok")?;
        let api_server = ApiServer::start_in(folder, workloads, api_server_args).await?;
        let folder = api_server.shared_folder();
        let kubeconfig = format!("--kubeconfig={}", api_server.kubeconfig().display());
        let key = api_server.service_account_key().display();
        let mut controllers = vec![CONTROLLERS];
        controllers.extend((workloads == Workloads::Deployments).then_some(MORE_CONTROLLERS));
        // None of these has a port that could be taken. Their work shows whether they are ready.
        let controller_manager = Process::start(
            folder,
            &Recipe::new("kube-controller-manager", controller_manager)
                .arg(&kubeconfig)
                .arg(format!("--controllers={}", controllers.join(",")))
                .arg(format!("--service-account-private-key-file={key}"))
                .arg(format!(
                    "--root-ca-file={}",
                    api_server.authority_file().display()
                ))
                .args(["--leader-elect=false", "--secure-port=0"])
                .args([
                    "--kube-api-qps=500",
                    "--kube-api-burst=1000",
                    "--concurrent-job-syncs=20",
                ]),
        )?;
        let scheduler = Process::start(
            folder,
            &Recipe::new("kube-scheduler", scheduler)
                .arg(&kubeconfig)
                .args(["--leader-elect=false", "--secure-port=0"])
                .args(["--kube-api-qps=500", "--kube-api-burst=1000"])
                .arg(format!("--authentication-{}", &kubeconfig[2..]))
                .arg(format!("--authorization-{}", &kubeconfig[2..])),
        )?;
        let kwok = Process::start(
            folder,
            &Recipe::new("kwok", kwok)
                .arg(&kubeconfig)
                .arg("--manage-all-nodes")
                .arg("--config")
                .arg(STAGES),
        )?;
        let this = Self {
            controller_manager,
            scheduler,
            kwok,
            api_server,
        };
        this.ready(&kubeconfig::client(this.kubeconfig()).await?)
            .await
            .context("starting Kubernetes")?;
        Ok(this)
    }

    /// All processes.
    pub fn processes(&self) -> [&Process; 5] {
        let [server, etcd] = self.api_server.processes();
        [
            server,
            etcd,
            &self.controller_manager,
            &self.scheduler,
            &self.kwok,
        ]
    }

    /// An admin's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        self.api_server.kubeconfig()
    }

    /// Each program is ready once it has done its work: the controller manager makes the namespace's
    /// `ServiceAccount`, the scheduler assigns a node to a pod, and kwok makes the pod run.
    async fn ready(&self, client: &Client) -> Result<()> {
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": "fake",
                "annotations": { "kwok.x-k8s.io/node": "fake" },
                "labels": { "kubernetes.io/os": "linux" },
            },
        });
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": "ready", "namespace": "default", "annotations": { "bed.consul-semaphore.io/runs": "1h" } },
            "spec": { "containers": [{ "name": "ready", "image": "none" }] },
        });
        let nodes = Api::<Node>::all(client.clone());
        // A copy of another Kubernetes has its node.
        if nodes.get_opt("fake").await?.is_none() {
            create(&nodes, node).await?;
        }
        let accounts = Api::<ServiceAccount>::default_namespaced(client.clone());
        self.controller_manager
            .ready(PATIENCE, || async {
                accounts
                    .get("default")
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string())
            })
            .await?;
        let pods = Api::<Pod>::default_namespaced(client.clone());
        create(&pods, pod).await?;
        self.scheduler
            .ready(PATIENCE, || async {
                let pod = pods.get("ready").await.map_err(|error| error.to_string())?;
                pod.spec
                    .and_then(|spec| spec.node_name)
                    .map(drop)
                    .ok_or_else(|| "no pod gets a node".to_owned())
            })
            .await?;
        self.kwok
            .ready(PATIENCE, || async {
                let pod = pods.get("ready").await.map_err(|error| error.to_string())?;
                match pod.status.and_then(|status| status.phase).as_deref() {
                    Some("Running") => Ok(()),
                    phase => Err(format!("a pod is {phase:?}")),
                }
            })
            .await?;
        pods.delete("ready", &DeleteParams::default().grace_period(0))
            .await?;
        Ok(())
    }
}

impl Deref for Kubernetes {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.api_server
    }
}

async fn create<K>(api: &Api<K>, object: Value) -> Result<K>
where
    K: Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    Ok(api
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?)
}
