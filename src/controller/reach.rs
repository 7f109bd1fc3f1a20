//! How far a watch reaches.

use std::sync::Arc;

use k8s_openapi::{NamespaceResourceScope, api::core::v1::Namespace};
use kube::{Api, Client, Resource};

use super::call::call;
use consul_semaphore_api::scope::Namespaces;

/// How far a watch reaches. One of the whole cluster needs a `ClusterRole`, one of a namespace a `Role` there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reach {
    /// Over all namespaces.
    Cluster,
    /// Over this one.
    Namespace(Arc<str>),
}

impl Reach {
    /// The reaches of the watches that together see these namespaces.
    pub(super) fn over(namespaces: &Namespaces) -> Vec<Self> {
        match namespaces {
            Namespaces::All => vec![Self::Cluster],
            Namespaces::Only(names) => {
                let names = names.iter().map(|name| name.as_str().into());
                names.map(Self::Namespace).collect()
            }
        }
    }

    /// The objects of a kind as far as this reaches.
    pub(super) fn api<K>(&self, client: Client) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
    {
        match self {
            Self::Cluster => Api::all(client),
            Self::Namespace(name) => Api::namespaced(client, name),
        }
    }

    /// Whether it reaches into a namespace.
    pub(super) fn covers(&self, namespace: &str) -> bool {
        match self {
            Self::Cluster => true,
            Self::Namespace(name) => name.as_ref() == namespace,
        }
    }

    /// Whether the one namespace that this reaches into is not there. Of one that may not be asked about, or could not
    /// be, that is not known, and it counts as there.
    pub(super) async fn is_gone(&self, client: &Client) -> bool {
        match self {
            Self::Cluster => false,
            Self::Namespace(name) => {
                let namespaces = Api::<Namespace>::all(client.clone());
                matches!(call(namespaces.get_opt(name)).await, Ok(None))
            }
        }
    }

    /// What is watched so far, for people: `jobs`, or `jobs in team-a`.
    pub(super) fn of(&self, what: &'static str) -> String {
        match self {
            Self::Cluster => what.to_owned(),
            Self::Namespace(name) => format!("{what} in {name}"),
        }
    }
}
