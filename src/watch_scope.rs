//! How far a watch reaches.

use std::{fmt::Debug, sync::Arc};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Namespace};
use kube::{
    Api, Client, Resource,
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;

use crate::{
    call::{call, watch_refusal},
    streamed,
};
use consul_semaphore_api::scope::Namespaces;

/// How far a watch reaches. One of the whole cluster needs a `ClusterRole`, one of a namespace a `Role` there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WatchScope {
    /// Over all namespaces.
    Cluster,
    /// Over this one.
    Namespace(Arc<str>),
}

impl WatchScope {
    /// The reaches of the watches that together see these namespaces.
    pub(crate) fn over(namespaces: &Namespaces) -> Vec<Self> {
        match namespaces {
            Namespaces::All => vec![Self::Cluster],
            Namespaces::Only(names) => {
                let names = names.iter().map(|name| name.as_str().into());
                names.map(Self::Namespace).collect()
            }
        }
    }

    /// The objects of a kind as far as this reaches.
    fn api<K>(&self, client: Client) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
    {
        match self {
            Self::Cluster => Api::all(client),
            Self::Namespace(name) => Api::namespaced(client, name),
        }
    }

    /// The events of a watch of a kind. A deleted namespace takes the rights in it along, so the watch is refused and
    /// does not report that nothing is left: this reports it.
    pub(crate) fn watch<K>(
        &self,
        client: &Client,
        config: watcher::Config,
    ) -> BoxStream<'static, watcher::Result<Event<K>>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let (reach, client) = (self.clone(), client.clone());
        let events = streamed::watch(reach.api::<K>(client.clone()), config);
        let events = events.then(move |event| {
            let (reach, client) = (reach.clone(), client.clone());
            async move {
                match event {
                    Err(error) if is_forbidden(&error) && reach.is_gone(&client).await => {
                        vec![Ok(Event::Init), Ok(Event::InitDone)]
                    }
                    event => vec![event],
                }
            }
        });
        events.flat_map(stream::iter).boxed()
    }

    /// Whether it reaches into a namespace.
    pub(crate) fn covers(&self, namespace: &str) -> bool {
        match self {
            Self::Cluster => true,
            Self::Namespace(name) => name.as_ref() == namespace,
        }
    }

    /// Whether the one namespace of this scope is gone. If it may not be read, or could not be, it counts as existing.
    async fn is_gone(&self, client: &Client) -> bool {
        match self {
            Self::Cluster => false,
            Self::Namespace(name) => {
                let namespaces = Api::<Namespace>::all(client.clone());
                matches!(call(namespaces.get_opt(name)).await, Ok(None))
            }
        }
    }

    /// What is watched so far, for people: `jobs`, or `jobs in team-a`.
    pub(crate) fn of(&self, what: &'static str) -> String {
        match self {
            Self::Cluster => what.to_owned(),
            Self::Namespace(name) => format!("{what} in {name}"),
        }
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    watch_refusal(error).is_some_and(|status| status.code == 403)
}
