//! What works and what does not, line by line, with what to do: for people and scripts that set the
//! operator up, or look why something does not go.
//!
//! In Kubernetes it only reads. In Consul it tries what the operator does: on the external node that owns the
//! operator's sessions, which it registers as the operator would, and on scratch keys and a scratch session of which
//! nothing is left.
//!
//! | file | subject |
//! |---|---|
//! | `report` | lines, as text and as JSON |
//! | `consul`, `kubernetes`, `semaphore` | what is read, and tried |
//! | `api_server` | one question to the API server |
//! | `rights` | what the operator must be allowed in Kubernetes: a table |
//! | `judge` | from what was read to lines, without IO |

mod api_server;
mod consul;
mod judge;
mod kubernetes;
mod report;
mod rights;
mod semaphore;

use std::{str::FromStr, time::Duration};

pub use self::report::{Area, Line, Outcome, Report};
use self::{
    consul::{Keys, Scratch},
    kubernetes::Cluster,
};
use crate::controller;
use consul_client::{Client, Config, ConfigError};
use consul_semaphore as algorithm;
use consul_semaphore_api::{annotations::is_object_name, scope::Namespaces};

/// What is to be looked at.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How the operator is set up.
    pub operator: controller::Settings,
    /// A semaphore to look at closely.
    pub semaphore: Option<Name>,
    /// As which user it is asked what the operator may do; as that of the kubeconfig without.
    pub as_user: Option<String>,
    /// How long each answer may take.
    pub timeout: Duration,
}

/// The name of a `ConsulSemaphore`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

/// The text is no [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("give NAMESPACE/NAME, such as batch/db-migrations")]
pub struct InvalidName;

impl FromStr for Name {
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

/// Looks at everything. `None` if it is asked to stop before that is done; nothing is left then either.
pub async fn check(
    settings: Settings,
    consul: Config,
    stop: impl Future<Output = ()>,
) -> Option<Report> {
    let addresses = consul.addresses.iter().map(ToString::to_string);
    let addresses = addresses.collect::<Vec<_>>().join(", ");
    let client = Client::new(Config {
        timeout: settings.timeout,
        ..consul
    });
    let scratch = Scratch::default();
    let looked = tokio::select! {
        report = look(&settings, &client, addresses, &scratch) => Some(report),
        () = stop => None,
    };
    scratch.end().await;
    if let Ok(client) = &client {
        client.log_out().await;
    }
    looked
}

/// Who the operator is in Consul.
struct Operator {
    /// Its cluster; the id is empty where it is not known.
    cluster: algorithm::Cluster,
    /// The external node of its sessions, if it is known.
    node: Option<String>,
}

impl Operator {
    /// `id` is the cluster's, if it is known.
    fn new(settings: &Settings, id: Option<&str>) -> Self {
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
    settings: &Settings,
    consul: &Result<Client, ConfigError>,
    addresses: String,
    scratch: &Scratch,
) -> Report {
    let cluster = Cluster::find(settings).await;
    // First, for the cluster's id is a part of names in Consul.
    let kubernetes = match &cluster {
        Ok(cluster) => Ok(cluster.look(settings).await),
        Err(why) => Err(why.clone()),
    };
    let id = kubernetes.as_ref().ok().and_then(kubernetes::Seen::id);
    let operator = Operator::new(settings, id);

    let mut lines = Vec::new();
    // Consul, if somebody can answer there.
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
    lines.extend(judge::kubernetes::lines(&kubernetes));
    if let (Some(name), Ok(cluster)) = (&settings.semaphore, &cluster) {
        let way = semaphore::Way {
            operator,
            consul: answering.cloned(),
        };
        let seen = semaphore::look(settings, name, cluster, &way, scratch).await;
        lines.extend(judge::semaphore::lines(name, &seen));
    }
    Report { lines }
}

/// The folder of some namespace that the operator works in.
fn tenants_keys(settings: &Settings, cluster: Option<&Cluster>) -> Keys {
    let asked = settings.semaphore.as_ref();
    let asked = asked.map(|name| name.namespace.as_str());
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
    Keys { folder, rule }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_namespace_and_a_name() {
        let name: Name = "batch/db-migrations".parse().unwrap();
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
            assert_eq!(text.parse::<Name>(), Err(InvalidName), "{text}");
        }
    }
}
