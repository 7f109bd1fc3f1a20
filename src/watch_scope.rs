//! Defines the scope of a watch: the cluster or a namespace.

use std::{fmt::Debug, sync::Arc};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Namespace};
use kube::{
    Api, Client, Resource,
    api::{DynamicObject, ListParams},
    core::{ApiResource, DynamicResourceScope},
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;

use crate::{
    call::{CallError, call, watch_refusal},
    streamed,
};
use consul_semaphore_api::scope::Namespaces;

/// The scope of a watch. The whole cluster needs a `ClusterRole`, a namespace needs a `Role` there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WatchScope {
    /// All namespaces.
    Cluster,
    /// The namespace of this name.
    Namespace(Arc<str>),
}

impl WatchScope {
    /// Returns the scopes of the watches that together cover these namespaces.
    pub(crate) fn over(namespaces: &Namespaces) -> Vec<Self> {
        match namespaces {
            Namespaces::All => vec![Self::Cluster],
            Namespaces::Only(names) => {
                let names = names.iter().map(|name| name.as_str().into());
                names.map(Self::Namespace).collect()
            }
        }
    }

    /// Returns the API for a kind in this scope.
    fn api<K>(&self, client: Client) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
    {
        match self {
            Self::Cluster => Api::all(client),
            Self::Namespace(name) => Api::namespaced(client, name),
        }
    }

    /// Returns the API for a resource in this scope.
    fn api_of<K>(&self, client: Client, resource: &ApiResource) -> Api<K>
    where
        K: Resource<Scope = DynamicResourceScope, DynamicType = ApiResource>,
    {
        match self {
            Self::Cluster => Api::all_with(client, resource),
            Self::Namespace(name) => Api::namespaced_with(client, name, resource),
        }
    }

    /// Lists one object of a resource, to find out whether the operator can list it.
    ///
    /// # Errors
    /// Fails if the operator can't list it, and the namespace is not deleted.
    pub(crate) async fn list_one(
        &self,
        client: &Client,
        resource: &ApiResource,
    ) -> Result<(), CallError> {
        let api: Api<DynamicObject> = self.api_of(client.clone(), resource);
        match call(api.list_metadata(&ListParams::default().limit(1))).await {
            Err(error)
                if matches!(error.refusal(), Some((403, _))) && self.is_gone(client).await =>
            {
                Ok(())
            }
            listed => listed.map(drop),
        }
    }

    /// Returns the events of a watch of a kind. A deleted namespace takes its Roles with it, so the API server
    /// refuses the watch instead of reporting the deletions; this function reports them.
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
        let scope = self.clone();
        self.of_api(client, move |client| scope.api::<K>(client), config)
    }

    /// Returns the events of a watch like [`Self::watch`], for a resource that the cluster may not have (any more).
    /// While the cluster has none, there are no such objects. `if_missing` is what the log then says, for people.
    pub(crate) fn watch_resource<K>(
        &self,
        client: &Client,
        resource: ApiResource,
        config: watcher::Config,
        if_missing: String,
    ) -> BoxStream<'static, watcher::Result<Event<K>>>
    where
        K: Resource<Scope = DynamicResourceScope, DynamicType = ApiResource>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let (scope, of) = (self.clone(), resource.clone());
        let api = move |client| scope.api_of(client, &of);
        let mut was_absent = false;
        let events = self.of_api(client, api, config).map(move |event| {
            let absent = event.as_ref().err().is_some_and(is_absent);
            if absent != was_absent {
                let (group, plural) = (&resource.group, &resource.plural);
                if absent {
                    tracing::info!(%group, %plural, "{if_missing}. The operator serves it as soon as it is installed");
                } else {
                    tracing::info!(
                        %group,
                        %plural,
                        "a resource that was missing is now installed, and the operator serves it"
                    );
                }
                was_absent = absent;
            }
            if absent {
                vec![Ok(Event::Init), Ok(Event::InitDone)]
            } else {
                vec![event]
            }
        });
        events.flat_map(stream::iter).boxed()
    }

    fn of_api<K>(
        &self,
        client: &Client,
        api: impl Fn(Client) -> Api<K> + 'static,
        config: watcher::Config,
    ) -> BoxStream<'static, watcher::Result<Event<K>>>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let (reach, client) = (self.clone(), client.clone());
        let events = streamed::watch(&client, api, config).then(move |event| {
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

    /// Returns whether the scope includes a namespace.
    pub(crate) fn covers(&self, namespace: &str) -> bool {
        match self {
            Self::Cluster => true,
            Self::Namespace(name) => name.as_ref() == namespace,
        }
    }

    /// Returns whether the namespace of this scope is deleted. A namespace that can't be read counts as existing.
    async fn is_gone(&self, client: &Client) -> bool {
        match self {
            Self::Cluster => false,
            Self::Namespace(name) => {
                let namespaces = Api::<Namespace>::all(client.clone());
                matches!(call(namespaces.get_opt(name)).await, Ok(None))
            }
        }
    }

    /// Returns the title of a watch in this scope, for people: `jobs`, or `jobs in team-a`.
    pub(crate) fn of(&self, what: &str) -> String {
        match self {
            Self::Cluster => what.to_owned(),
            Self::Namespace(name) => format!("{what} in {name}"),
        }
    }
}

/// Returns whether the API server does not know the resource.
fn is_absent(error: &watcher::Error) -> bool {
    watch_refusal(error).is_some_and(|status| status.code == 404)
}

fn is_forbidden(error: &watcher::Error) -> bool {
    watch_refusal(error).is_some_and(|status| status.code == 403)
}
