//! Reports line by line what works and what does not, with what to do about it: for people and scripts that set the
//! operator up or diagnose a problem.
//!
//! The check only reads in Kubernetes. In Consul it tries what the operator does: it registers the external node that
//! owns the operator's sessions, as the operator would, and uses scratch keys and a scratch session, which it removes.
//!
//! | file | subject |
//! |---|---|
//! | `report` | lines, as text and as JSON |
//! | `consul`, `kubernetes`, `semaphore` | the parts that are read and tried |
//! | `election` | the replica that leads |
//! | `identity` | the use of the cluster's identity by another API server |
//! | `api_server` | one request to the API server |
//! | `rights` | the rights that the operator needs in Kubernetes: a table |
//! | `judge` | turns the facts into lines, without IO |

mod api_server;
mod consul;
mod election;
mod identity;
mod judge;
mod kubernetes;
mod report;
pub(crate) mod rights;
mod semaphore;

use std::{str::FromStr, time::Duration};

pub use self::report::{Area, CheckReport, Line, Outcome};
use self::{
    consul::{Scratch, ScratchKeys},
    kubernetes::CheckedCluster,
};
use crate::controller;
use consul_client::{Client, Config, ConfigError, Exposure};
use consul_semaphore as algorithm;
use consul_semaphore_api::{annotations::is_object_name, scope::Namespaces};

/// The choices for a check.
#[derive(Clone, Debug)]
pub struct CheckSettings {
    /// The settings of the operator.
    pub operator: controller::OperatorSettings,
    /// A semaphore to check closely.
    pub semaphore: Option<NamespacedName>,
    /// The user whose rights are checked; `None`: the user of the kubeconfig.
    pub as_user: Option<String>,
    /// The time that each answer may take.
    pub timeout: Duration,
}

/// The namespace and the name of an object: of a `ConsulSemaphore`, or of the `ConfigMap` with rows of kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespacedName {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object in that namespace.
    pub name: String,
}

/// The error of a text that is no [`NamespacedName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use NAMESPACE/NAME, such as batch/db-migrations")]
pub struct InvalidName;

impl FromStr for NamespacedName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = text.split_once('/').ok_or(InvalidName)?;
        if !is_object_name(namespace) || !is_object_name(name) {
            return Err(InvalidName);
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

/// Checks everything. Returns `None` if the check is interrupted; nothing is left behind in that case either.
pub async fn check(
    settings: CheckSettings,
    consul: Config,
    stop: impl Future<Output = ()>,
) -> Option<CheckReport> {
    let each_address = consul.addresses.iter().map(ToString::to_string);
    let addresses = each_address.collect::<Vec<_>>().join(", ");
    let exposures = consul.exposures();
    let client = Client::new(Config {
        timeout: settings.timeout,
        ..consul
    });
    let scratch = Scratch::default();
    let looked = tokio::select! {
        report = look(&settings, &client, (addresses, exposures), &scratch) => Some(report),
        () = stop => None,
    };
    scratch.end().await;
    if let Ok(client) = &client {
        client.log_out().await;
    }
    looked
}

/// The operator's identity in Consul.
struct OperatorIdentity {
    /// Cluster of the operator; the id is empty if the cluster is unknown.
    cluster: algorithm::Cluster,
    /// The external node that owns the operator's sessions, if known.
    node: Option<String>,
}

impl OperatorIdentity {
    /// Returns the identity of the operator for a cluster with this id, if the id is known.
    fn new(settings: &CheckSettings, id: Option<&str>) -> Self {
        let node = settings.operator.consul_node.clone();
        let name = settings.operator.cluster_name.clone();
        let beginning = || id.unwrap_or_default().chars().take(8).collect();
        Self {
            node: node.or_else(|| id.map(controller::default_node)),
            cluster: algorithm::Cluster {
                name: name.unwrap_or_else(beginning),
                id: id.unwrap_or_default().to_owned(),
            },
        }
    }
}

async fn look(
    settings: &CheckSettings,
    consul: &Result<Client, ConfigError>,
    (addresses, exposures): (String, Vec<Exposure>),
    scratch: &Scratch,
) -> CheckReport {
    let cluster = CheckedCluster::find(settings).await;
    // Kubernetes is read first, because names in Consul contain the cluster's id.
    let kubernetes = match &cluster {
        Ok(cluster) => Ok(cluster.look(settings).await),
        Err(why) => Err(why.clone()),
    };
    let id_there = kubernetes
        .as_ref()
        .ok()
        .and_then(kubernetes::KubernetesFacts::id);
    let id = settings.operator.cluster_id.as_deref().or(id_there);
    let operator = OperatorIdentity::new(settings, id);

    let mut lines = Vec::new();
    // Consul is tried if it answers.
    let mut answering = None;
    match consul {
        Ok(client) => {
            let keys = tenants_keys(settings, cluster.as_ref().ok());
            let seen = consul::look(settings, client, &operator, keys, scratch).await;
            answering = seen.tried.is_some().then_some(client);
            lines.extend(judge::consul::lines(&addresses, &seen));
        }
        Err(error) => lines.push(judge::consul::unusable(error)),
    }
    lines.extend(exposures.iter().map(judge::consul::exposed));
    if let (Some(client), Ok(kubernetes)) = (answering, &kubernetes) {
        let seen = identity::look(&operator, kubernetes, client).await;
        lines.extend(seen.as_ref().map(identity::line));
    }
    lines.extend(judge::kubernetes::lines(&kubernetes));
    if let (Some(name), Ok(cluster)) = (&settings.semaphore, &cluster) {
        let way = semaphore::Way {
            operator,
            consul: answering.cloned(),
        };
        let seen = semaphore::look(settings, name, cluster, &way, scratch).await;
        lines.extend(judge::semaphore::lines(name, &seen));
    }
    CheckReport { lines }
}

/// Returns the folder of one of the namespaces that the operator works in.
fn tenants_keys(settings: &CheckSettings, cluster: Option<&CheckedCluster>) -> ScratchKeys {
    let asked = settings
        .semaphore
        .as_ref()
        .map(|name| name.namespace.as_str());
    let first = match &settings.operator.scope.namespaces {
        Namespaces::All => None,
        Namespaces::Only(names) => names.first().map(String::as_str),
    };
    let current = cluster.map(|cluster| cluster.namespace.as_str());
    let namespace = asked.or(first).or(current).unwrap_or("default");
    let folder = settings.operator.tenancy.folder(namespace);
    let common = settings.operator.tenancy.common_folder();
    let rule = if common.is_empty() {
        folder.clone()
    } else {
        common
    };
    ScratchKeys { folder, rule }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_namespace_and_a_name() {
        let name: NamespacedName = "batch/db-migrations".parse().unwrap();
        assert_eq!(
            (name.namespace.as_str(), name.name.as_str()),
            ("batch", "db-migrations")
        );
        for text in [
            "",
            "db",
            "/db",
            "batch/",
            "batch/db/x",
            "Batch/db",
            "batch/ db",
        ] {
            assert_eq!(text.parse::<NamespacedName>(), Err(InvalidName), "{text}");
        }
    }
}
