//! Kueue, a queue for Jobs within one cluster. Benchmarks compare the operator with it.
use std::{panic::Location, time::Duration};

use anyhow::{Context as _, Result};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::TypeMeta,
};
use serde_json::{Value, json};

use crate::{
    bed::Bed,
    job::Job,
    manifests,
    namespace::Namespace,
    ports,
    process::{Process, Recipe},
    programs,
    story::story,
    wait,
};

const PATIENCE: Duration = Duration::from_mins(5);

const API: &str = "kueue.x-k8s.io/v1beta2";

/// The `LocalQueue` of each namespace that has one.
const QUEUE: &str = "queue";

/// Where Kueue reads the certificate of its metrics, whatever its configuration says.
const CERTIFICATES: &str = "/etc/kueue/metrics/certs";

/// Runs a command with a private `/etc` that has the certificate and the key, and nothing else.
const WITH_CERTIFICATES: &str = r#"
mount -t tmpfs etc /etc
mkdir -p "$0"
cp "$1" "$0/tls.crt"
cp "$2" "$0/tls.key"
shift 2
exec "$@"
"#;

/// A Kueue beside the operator, on the same Kubernetes. It ends when this is dropped.
#[derive(Debug)]
pub struct Kueue {
    _process: Process,
    bed: Bed,
}

impl Kueue {
    /// Applies its CRDs, starts it and waits until it is ready. It is tuned for load, as the bed's controllers are.
    #[track_caller]
    pub fn start(bed: &Bed) -> impl Future<Output = Self> {
        story(Location::caller(), Self::try_start(bed))
    }

    async fn try_start(bed: &Bed) -> Result<Self> {
        let (program, crds) = programs::kueue()?;
        manifests::apply(bed.client(), &manifests::read(&crds)?).await?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        // Its webhooks are never called, so any certificate will do: the API server's.
        let of_the_server = bed.folder().path().join("apiserver");
        let process = ports::on_free(|[webhook, health]| {
            let recipe = Recipe::new("kueue", "unshare")
                .args(["--map-root-user", "--mount"])
                .args(["bash", "-euc", WITH_CERTIFICATES, CERTIFICATES])
                .arg(of_the_server.join("apiserver.crt"))
                .arg(of_the_server.join("apiserver.key"))
                .arg(&program)
                .env("KUBECONFIG", bed.kubeconfig().to_string_lossy());
            let ready = http.get(format!("http://127.0.0.1:{health}/readyz"));
            async move {
                let config = config(webhook, health).to_string();
                let config = bed.folder().write("kueue.json", config)?;
                let recipe = recipe.arg("--config").arg(config);
                let process = Process::start(bed.shared_folder(), &recipe)?;
                let probe = || async {
                    let answer = ready.try_clone().ok_or("a request that has a body")?;
                    let answer = answer.send().await;
                    let answer = answer.and_then(reqwest::Response::error_for_status);
                    answer.map(drop).map_err(|error| error.to_string())
                };
                process.ready(PATIENCE, probe).await?;
                Ok(process)
            }
        })
        .await
        .context("starting Kueue")?;
        Ok(Self {
            _process: process,
            bed: bed.clone(),
        })
    }

    /// A queue for the Jobs of this namespace that lets this many pods run at once. It is stopped: no Job is admitted
    /// before [`Queue::open`].
    #[track_caller]
    pub fn queue(&self, team: &Namespace, pods: usize) -> impl Future<Output = Queue> {
        let client = self.bed.client().clone();
        let namespace = team.name().to_owned();
        story(Location::caller(), async move {
            let flavor = json!({
                "apiVersion": API, "kind": "ResourceFlavor",
                "metadata": { "name": namespace },
                "spec": {},
            });
            let cluster_queue = json!({
                "apiVersion": API, "kind": "ClusterQueue",
                "metadata": { "name": namespace },
                "spec": {
                    "namespaceSelector": {},
                    "stopPolicy": "Hold",
                    "resourceGroups": [{
                        "coveredResources": ["pods"],
                        "flavors": [{
                            "name": namespace,
                            "resources": [{ "name": "pods", "nominalQuota": pods }],
                        }],
                    }],
                },
            });
            let local_queue = json!({
                "apiVersion": API, "kind": "LocalQueue",
                "metadata": { "name": QUEUE, "namespace": namespace },
                "spec": { "clusterQueue": namespace },
            });
            for object in [flavor, cluster_queue, local_queue] {
                manifests::apply_one(&client, &serde_json::from_value(object)?).await?;
            }
            Ok(Queue { client, namespace })
        })
    }
}

/// A queue of Kueue.
#[derive(Clone)]
pub struct Queue {
    client: Client,
    /// Its only namespace. The objects that have no namespace are named after it.
    namespace: String,
}

impl Queue {
    /// Puts a suspended Job into this queue.
    #[must_use]
    pub fn takes(&self, job: Job) -> Job {
        job.with(json!({ "metadata": { "labels": { "kueue.x-k8s.io/queue-name": QUEUE } } }))
    }

    /// Waits until this many Jobs wait in it.
    #[track_caller]
    pub fn shows_waiting(&self, jobs: usize) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            let queues = self.api("LocalQueue").await?;
            let what = format!("{jobs} Jobs wait in Kueue's queue");
            wait::until(&what, PATIENCE, || async {
                let queue = queues.get(QUEUE).await.map_err(|error| error.to_string())?;
                let waiting = queue.data["status"]["pendingWorkloads"].clone();
                wait::same(waiting, jobs.into()).map(drop)
            })
            .await
        })
    }

    /// Starts to admit Jobs.
    #[track_caller]
    pub fn open(&self) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            let queues = self.api("ClusterQueue").await?;
            let open = Patch::Merge(json!({ "spec": { "stopPolicy": "None" } }));
            let params = PatchParams::default();
            queues.patch(&self.namespace, &params, &open).await?;
            Ok(())
        })
    }

    async fn api(&self, kind: &str) -> Result<Api<DynamicObject>, kube::Error> {
        let types = TypeMeta {
            api_version: API.to_owned(),
            kind: kind.to_owned(),
        };
        manifests::api_of(&self.client, &types, Some(&self.namespace)).await
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Queue").field(&self.namespace).finish()
    }
}

fn config(webhook: u16, health: u16) -> Value {
    json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "leaderElection": { "leaderElect": false },
        "internalCertManagement": { "enable": false },
        "webhook": { "host": "127.0.0.1", "port": webhook, "certDir": CERTIFICATES },
        "health": { "healthProbeBindAddress": format!("127.0.0.1:{health}") },
        "metrics": { "bindAddress": "0" },
        "featureGates": { "VisibilityOnDemand": false },
        "integrations": { "frameworks": ["batch/job"] },
        "clientConnection": { "qps": 500, "burst": 1000 },
        "controller": { "groupKindConcurrency": { "Job.batch": 10, "Workload.kueue.x-k8s.io": 10 } },
    })
}
