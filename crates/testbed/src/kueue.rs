//! Kueue, a queue for Jobs within one cluster. Benchmarks compare the operator with it.
use std::{panic::Location, time::Duration};

use anyhow::Result;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::TypeMeta,
};
use serde_json::json;

use crate::{
    bed::Bed,
    controller::{Controller, Running, Site, Webhooks},
    job::Job,
    manifests,
    namespace::Namespace,
    story::story,
    wait,
};

const PATIENCE: Duration = Duration::from_mins(5);

const API: &str = "kueue.x-k8s.io/v1beta2";

/// The `LocalQueue` of each namespace that has one.
const QUEUE: &str = "queue";

/// A Kueue beside the operator, on the same Kubernetes. It ends when this is dropped.
#[derive(Debug)]
pub struct Kueue {
    _process: Running,
    bed: Bed,
}

impl Kueue {
    /// Starts it without its webhooks, which would slow down the operator's Jobs, too. It is tuned for load, as the
    /// bed's controllers are.
    #[track_caller]
    pub fn start(bed: &Bed) -> impl Future<Output = Self> {
        story(Location::caller(), Self::try_start(bed))
    }

    async fn try_start(bed: &Bed) -> Result<Self> {
        let site = Site::of(bed);
        let process = Controller::Kueue.start_at(&site, Webhooks::NotCalled);
        Ok(Self {
            _process: process.await?,
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
