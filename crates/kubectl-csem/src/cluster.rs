//! Calls to the API server, with the user's own kubeconfig and rights. Every call has a timeout.

use std::{fmt::Debug, time::Duration};

use consul_semaphore_api::ConsulSemaphore;
use consul_semaphore_workload::{
    Job, Kind as WorkloadKind, Object, WAITING,
    kueue::{OWNER_UID, is_finished, owner},
};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, Client, Config, Resource as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    cli::ClusterFlags,
    failure::{Failure, FailureKind, NeededRight, ResourceKind},
    terminal,
    view::item::Item,
    workload_name::WorkloadName,
};

/// The time that a call may take, including the client's own retries.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The size of a page of a list, and the greatest number of pages.
const PAGE_SIZE: u32 = 500;
const MOST_PAGES: usize = 20;

/// A connection to a cluster, with a default namespace.
#[derive(Clone)]
pub(crate) struct ClusterClient {
    client: Client,
    pub(crate) namespace: String,
    /// Whether the user named the namespace. Otherwise it is the namespace of the context.
    named: bool,
    /// The verb for what will be done with the objects that are read, if that needs another right.
    toward: Option<&'static str>,
}

/// The items of a list. `cut` says that there are more than were read.
pub(crate) struct ListedItems<T> {
    pub(crate) items: Vec<T>,
    pub(crate) cut: bool,
}

impl ClusterClient {
    pub(crate) async fn connect(connection: &ClusterFlags) -> Result<Self, Failure> {
        let config = config(connection).await?;
        // An empty namespace counts as none, as in kubectl.
        let requested = connection
            .namespace
            .clone()
            .filter(|namespace| !namespace.is_empty());
        let named = requested.is_some();
        let namespace = requested.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| Failure::of_client(&error))?;
        Ok(Self {
            client,
            namespace,
            named,
            toward: None,
        })
    }

    /// Returns a connection to the same cluster with this namespace.
    pub(crate) fn at(&self, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..self.clone()
        }
    }

    /// Returns a connection to the same cluster for a command that changes what it reads.
    pub(crate) fn to_change(&self) -> Self {
        Self {
            toward: Some("patch"),
            ..self.clone()
        }
    }

    /// Returns the scope of `list` and `watch`: the requested namespace, or by default all, which is `None`. A user who
    /// may not list all namespaces gets the namespace of the context.
    pub(crate) async fn reach(&self, all: bool) -> Result<Option<String>, Failure> {
        if all {
            return Ok(None);
        }
        let one = Some(self.namespace.clone());
        if self.named {
            return Ok(one);
        }
        let first = ListParams::default().limit(1);
        let all = self.semaphores(None);
        let asked = timeout(CALL_TIMEOUT, all.list_metadata(&first)).await;
        match asked.map_err(|_| Failure::silent(CALL_TIMEOUT))? {
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                let namespace = &self.namespace;
                terminal::message(&format!(
                    "you may not list the semaphores of all namespaces: only those of {namespace} are shown"
                ));
                Ok(one)
            }
            // Any other error shows in the next call.
            _ => Ok(None),
        }
    }

    /// Returns the semaphores of a namespace, or of all, as they are stored. A semaphore that can't be parsed therefore
    /// does not hide the others.
    pub(crate) fn semaphores(&self, namespace: Option<&str>) -> Api<DynamicObject> {
        let kind = ApiResource::erase::<ConsulSemaphore>(&());
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        }
    }

    pub(crate) fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn workloads(&self, kind: &WorkloadKind) -> Api<Object> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind.resource())
    }

    pub(crate) fn events(&self) -> Api<Event> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Returns the client for other kinds of objects.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    fn right(&self, verb: &'static str, what: ResourceKind) -> NeededRight {
        NeededRight {
            verb,
            toward: self.toward,
            what,
            namespace: Some(self.namespace.clone()),
        }
    }

    pub(crate) async fn semaphore(&self, name: &str) -> Result<DynamicObject, Failure> {
        let semaphores = self.semaphores(Some(&self.namespace));
        let right = self.right("get", ResourceKind::Semaphores);
        let mut semaphore = bounded(&right, semaphores.get(name)).await;
        if let Err(failure) = &mut semaphore
            && failure.kind == FailureKind::NotThere
        {
            let hint = "`kubectl csem list` shows the namespaces of all ConsulSemaphores; select a namespace with -n";
            failure.message = format!(
                "{}, looked for in the namespace {}: {hint}",
                failure.message, self.namespace
            );
        }
        semaphore
    }

    /// Returns a semaphore that can be parsed, after the object from which it was parsed.
    pub(crate) async fn readable(
        &self,
        name: &str,
    ) -> Result<(DynamicObject, ConsulSemaphore), Failure> {
        let object = self.semaphore(name).await?;
        match Item::read(&object) {
            Item::Semaphore(semaphore) => Ok((object, *semaphore)),
            Item::Unreadable { why, .. } => Err(Failure::impossible(format!(
                "the ConsulSemaphore {name} was stored before its schema existed and can't be read: {why}"
            ))),
        }
    }

    pub(crate) async fn workload(&self, named: &WorkloadName) -> Result<Object, Failure> {
        let right = self.right("get", ResourceKind::Workloads(named.kind.clone()));
        let workloads = self.workloads(&named.kind);
        let mut object = bounded(&right, workloads.get(&named.name)).await;
        if let Err(failure) = &mut object
            && failure.kind == FailureKind::NotThere
        {
            failure.message = format!(
                "{}, looked for in the namespace {}: select another one with -n",
                failure.message, self.namespace
            );
        }
        object
    }

    pub(crate) async fn cron_job(&self, name: &str) -> Result<DynamicObject, Failure> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("batch", "v1", "CronJob"));
        let cron_jobs: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        bounded(
            &self.right("get", ResourceKind::CronJobs),
            cron_jobs.get(name),
        )
        .await
    }

    /// Fails if the cluster has no `ConsulSemaphores`, which every user may ask. Other failures are left to the call
    /// that follows.
    pub(crate) async fn installed(&self) -> Result<(), Failure> {
        let version = ConsulSemaphore::api_version(&());
        let asked = self.client.list_api_group_resources(&version);
        match timeout(CALL_TIMEOUT, asked).await {
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                Err(Failure::not_installed())
            }
            _ => Ok(()),
        }
    }

    pub(crate) async fn patch_semaphore(
        &self,
        name: &str,
        patch: &Value,
    ) -> Result<DynamicObject, Failure> {
        let semaphores = self.semaphores(Some(&self.namespace));
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let call = semaphores.patch(name, &params, &patch);
        bounded(&self.right("patch", ResourceKind::Semaphores), call).await
    }

    pub(crate) async fn patch_workload(
        &self,
        named: &WorkloadName,
        patch: &Value,
    ) -> Result<Object, Failure> {
        let WorkloadName { kind, name } = named;
        let workloads = self.workloads(kind);
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let call = workloads.patch(name, &params, &patch);
        bounded(
            &self.right("patch", ResourceKind::Workloads(kind.clone())),
            call,
        )
        .await
    }

    /// Lists the namespace's workloads of this kind that the operator sees, as far as `read` keeps them.
    pub(crate) async fn list_workloads<T>(
        &self,
        kind: &WorkloadKind,
        read: impl Fn(Object) -> Option<T>,
    ) -> Result<ListedItems<T>, Failure> {
        let right = self.right("list", ResourceKind::Workloads(kind.clone()));
        let params = match kind {
            WorkloadKind::Job => ListParams::default(),
            _ => ListParams::default().labels(WAITING),
        };
        list(&right, &self.workloads(kind), &params, read).await
    }

    /// Returns the Workload that Kueue has for the object with this uid, if it has one that is not finished.
    pub(crate) async fn workload_of_kueue(&self, uid: &str) -> Result<Option<Object>, Failure> {
        let kind = WorkloadKind::KueueWorkload;
        let right = self.right("list", ResourceKind::Workloads(kind.clone()));
        let its = ListParams::default().labels(&format!("{OWNER_UID}={uid}"));
        let read = |object: Object| {
            let owner = owner(&object).ok()?;
            (owner.uid.as_ref() == uid && !is_finished(&object)).then_some(object)
        };
        let found = list(&right, &self.workloads(&kind), &its, read).await?;
        Ok(found.items.into_iter().next())
    }

    /// Lists the semaphores of a namespace, or of all, with these labels.
    pub(crate) async fn list_semaphores(
        &self,
        namespace: Option<&str>,
        selector: Option<&str>,
    ) -> Result<ListedItems<DynamicObject>, Failure> {
        let right = NeededRight {
            namespace: namespace.map(str::to_owned),
            ..self.right("list", ResourceKind::Semaphores)
        };
        let semaphores = self.semaphores(namespace);
        let params = ListParams {
            label_selector: selector.map(str::to_owned),
            ..ListParams::default()
        };
        list(&right, &semaphores, &params, Some).await
    }

    /// Lists the namespace's Jobs, as far as `read` keeps them. The API server can't select Jobs by annotation.
    pub(crate) async fn list_jobs<T>(
        &self,
        read: impl Fn(Job) -> Option<T>,
    ) -> Result<ListedItems<T>, Failure> {
        let right = self.right("list", ResourceKind::Workloads(WorkloadKind::Job));
        list(&right, &self.jobs(), &ListParams::default(), read).await
    }

    /// Lists the Jobs of a namespace, or of all, that have not succeeded, as far as `read` keeps them.
    pub(crate) async fn list_unfinished<T>(
        &self,
        namespace: Option<&str>,
        read: impl Fn(Job) -> Option<T>,
    ) -> Result<ListedItems<T>, Failure> {
        let right = NeededRight {
            namespace: namespace.map(str::to_owned),
            ..self.right("list", ResourceKind::Workloads(WorkloadKind::Job))
        };
        let jobs = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let params = ListParams::default().fields("status.successful=0");
        list(&right, &jobs, &params, read).await
    }

    /// Lists the events of the namespace that `fields` select, as far as `read` keeps them.
    pub(crate) async fn list_events<T>(
        &self,
        fields: &str,
        read: impl Fn(Event) -> Option<T>,
    ) -> Result<ListedItems<T>, Failure> {
        let right = self.right("list", ResourceKind::Events);
        let params = ListParams::default().fields(fields);
        list(&right, &self.events(), &params, read).await
    }
}

impl ClusterFlags {
    /// Reads the kubeconfig that the user named, or else the one that kubectl would read.
    pub(crate) fn kubeconfig(&self) -> Result<Kubeconfig, KubeconfigError> {
        match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        }
    }
}

async fn config(connection: &ClusterFlags) -> Result<Config, Failure> {
    let mut config = configured(connection).await?;
    let user = &mut config.auth_info;
    user.impersonate = connection.as_user.clone().or(user.impersonate.take());
    if !connection.as_group.is_empty() {
        user.impersonate_groups = Some(connection.as_group.clone());
    }
    Ok(config)
}

async fn configured(connection: &ClusterFlags) -> Result<Config, Failure> {
    let ClusterFlags {
        kubeconfig,
        context,
        cluster,
        user,
        ..
    } = connection;
    let unknown = |error: String| {
        Failure::impossible(format!(
            "no cluster is configured: {error}. Set KUBECONFIG, or use --kubeconfig and --context"
        ))
    };
    let named = [context, cluster, user].into_iter().any(Option::is_some);
    if kubeconfig.is_none() && !named {
        // The configuration may be that of a pod.
        let config = Config::infer().await;
        return config.map_err(|error| unknown(error.to_string()));
    }
    let read = connection
        .kubeconfig()
        .map_err(|error| unknown(error.to_string()))?;
    if let Some(user) = user
        && !read.auth_infos.iter().any(|known| known.name == *user)
    {
        return Err(unknown(format!(
            "there is no user {user:?} in the kubeconfig"
        )));
    }
    let options = KubeConfigOptions {
        context: context.clone(),
        cluster: cluster.clone(),
        user: user.clone(),
    };
    let config = Config::from_custom_kubeconfig(read, &options).await;
    config.map_err(|error| unknown(error.to_string()))
}

/// Makes a call with a timeout.
async fn bounded<T>(
    right: &NeededRight,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, Failure> {
    match timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(|error| Failure::of_call(right, &error)),
        Err(_) => Err(Failure::silent(CALL_TIMEOUT)),
    }
}

async fn list<K, T>(
    right: &NeededRight,
    api: &Api<K>,
    params: &ListParams,
    read: impl Fn(K) -> Option<T>,
) -> Result<ListedItems<T>, Failure>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut params = params.clone().limit(PAGE_SIZE);
    let mut items = Vec::new();
    for _ in 0..MOST_PAGES {
        let page = bounded(right, api.list(&params)).await?;
        items.extend(page.items.into_iter().filter_map(&read));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(ListedItems { items, cut: false }),
        }
    }
    Ok(ListedItems { items, cut: true })
}
