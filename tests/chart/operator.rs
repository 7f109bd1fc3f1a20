//! A release on a real API server, and the operators of its pods.

use std::time::Duration;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde_json::{Value, json};
use testbed::{Consul, Container, Kubernetes, Namespace, eventually, eventually_within, same};

/// The pods of a release's Deployment, which has the release's name.
pub(crate) struct Release {
    pub(crate) namespace: String,
    pub(crate) name: String,
    client: Client,
}

impl Release {
    pub(crate) async fn new(kubernetes: &Kubernetes, namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            client: kubernetes.client().await,
        }
    }

    /// Waits until all pods are from the Deployment's newest template, and returns their names.
    pub(crate) async fn pods(&self) -> Vec<String> {
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), &self.namespace);
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let of_it = format!(
            "app.kubernetes.io/name=consul-semaphore-operator,app.kubernetes.io/instance={}",
            self.name
        );
        let of_it = ListParams::default().labels(&of_it);
        eventually("the Deployment is rolled out", || async {
            let deployment = deployments
                .get(&self.name)
                .await
                .map_err(|e| e.to_string())?;
            let wanted = deployment.spec.and_then(|spec| spec.replicas);
            let status = deployment.status.unwrap_or_default();
            same(status.observed_generation, deployment.metadata.generation)?;
            for replicas in [
                status.updated_replicas,
                status.available_replicas,
                status.replicas,
            ] {
                same(replicas, wanted)?;
            }
            let pods = pods.list(&of_it).await.map_err(|e| e.to_string())?.items;
            let mut names: Vec<_> = pods.iter().map(ResourceExt::name_any).collect();
            names.sort();
            let wanted = usize::try_from(wanted.unwrap_or_default()).unwrap_or_default();
            same(names.len(), wanted).map(|_| names)
        })
        .await
    }

    /// Runs the operators of all pods, and waits until one leads.
    pub(crate) async fn run(&self, kubernetes: &Kubernetes) -> Vec<Container> {
        let mut containers = Vec::new();
        for pod in self.pods().await {
            let container = kubernetes.run_pod(&self.namespace, &pod).await;
            container.is_alive().await;
            containers.push(container);
        }
        one_leads(&containers).await;
        containers
    }
}

/// Waits until one replica leads, under its pod's name, and the others stand by.
async fn one_leads(containers: &[Container]) {
    eventually("one leads", || async {
        let mut leaders = Vec::new();
        for container in containers {
            // Not 200 while no replica leads.
            let says = container.try_get("/readyz").await;
            let says = says.map_err(|error| format!("{error:#}"))?;
            if says.contains(&format!("{} (this replica) leads", container.name())) {
                leaders.push(container.name().to_owned());
            }
        }
        same(leaders.len(), 1)
    })
    .await;
}

/// Asks all of them to end, as when their pods are deleted; they give back the lead.
pub(crate) async fn stop(containers: Vec<Container>) {
    for container in containers {
        let name = container.name().to_owned();
        let status = container.stop().await;
        assert!(status.success(), "{name}: {status}");
    }
}

/// Takes a Job through its life: it has a slot, its pods run, and the slot is given back.
pub(crate) async fn a_job_goes_its_way(team: &Namespace, semaphore: &str, name: &str) {
    let job = team.job(name).semaphore(semaphore).create().await;
    job.is_complete().await;
    job.has_event("SlotReleased").await;
}

/// Gives the operator's token to a Consul that denies by default.
pub(crate) async fn make_token(consul: &Consul, secret: &str) {
    let policy = json!({ "Name": "operator", "Rules": RULES });
    consul.put_json("acl/policy", policy).await;
    let token = json!({ "SecretID": secret, "Policies": [{ "Name": "operator" }] });
    consul.put_json("acl/token", token).await;
}

/// The operator's rules in Consul: docs/consul-acl.md has narrower ones, which other tests try.
pub(crate) const RULES: &str = r#"
key_prefix "semaphores/" { policy = "write" }
key_prefix "service/consul-semaphore-operator/k8s-" { policy = "write" }
node_prefix "k8s-" { policy = "write" }
session_prefix "k8s-" { policy = "write" }
"#;

/// Waits until a field of an object has this value.
pub(crate) async fn shows(kubernetes: &Kubernetes, get: &[&str], path: &str, value: &str) {
    let path = format!("-o=jsonpath={{{path}}}");
    let what = format!("{get:?} has {value} at {path}");
    eventually_within(Duration::from_secs(100), &what, || async {
        let args = ["get"].iter().chain(get).copied().chain([&*path]);
        let shown = kubernetes.try_kubectl(args).await;
        same(
            shown.map_err(|error| format!("{error:#}"))?,
            value.to_owned(),
        )
    })
    .await;
}

/// Whether a list is empty.
pub(crate) fn is_empty(list: &Value) -> bool {
    list["items"].as_array().is_none_or(Vec::is_empty)
}
