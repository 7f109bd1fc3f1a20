//! A namespace of a test.
use std::{
    any::Any,
    ffi::{OsStr, OsString},
    panic::Location,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use k8s_openapi::{NamespaceResourceScope, api::core};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, PostParams},
    core::TypeMeta,
};
use serde_json::{Value, json};

use crate::{
    job::Job,
    kubeconfig, manifests,
    semaphore::Semaphore,
    story::{reads, story},
    tools,
};

/// A namespace with helpers for its objects. Clones are the same namespace. It is deleted, as far as possible, when
/// the last of them and of the objects made in it is dropped.
///
/// If that happens because a test fails, its content is printed.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<Inner>);

/// A Kubernetes, with an admin's access.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) kubeconfig: PathBuf,
    /// Keeps the servers running, if they are the bed's own.
    pub(crate) _servers: Option<Arc<dyn Any + Send + Sync>>,
}

struct Inner {
    cluster: Cluster,
    name: String,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Namespace").field(&self.name).finish()
    }
}

impl Namespace {
    /// A namespace with a unique name that starts with `name`.
    pub(crate) async fn new(cluster: Cluster, name: &str) -> Result<Self> {
        Self::make(cluster, json!({ "generateName": format!("{name}-") })).await
    }

    /// A namespace of exactly this name.
    pub(crate) async fn named(cluster: Cluster, name: &str) -> Result<Self> {
        Self::make(cluster, json!({ "name": name })).await
    }

    /// The namespace of this name, which exists.
    pub(crate) fn existing(cluster: Cluster, name: &str) -> Self {
        let name = name.to_owned();
        Self(Arc::new(Inner { cluster, name }))
    }

    async fn make(cluster: Cluster, metadata: Value) -> Result<Self> {
        let namespace = serde_json::from_value(json!({ "metadata": metadata }))?;
        let api = Api::<core::v1::Namespace>::all(cluster.client.clone());
        let name = api
            .create(&PostParams::default(), &namespace)
            .await
            .context("creating a namespace")?
            .name_any();
        Ok(Self(Arc::new(Inner { cluster, name })))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The Job of this name, to be described and created, or to be read.
    pub fn job(&self, name: &str) -> Job {
        Job::new(self.clone(), name)
    }

    /// The `ConsulSemaphore` of this name, to be described and created, or to be read.
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(self.clone(), name)
    }

    /// The names of all existing Jobs, in order.
    #[track_caller]
    pub fn jobs(&self) -> impl Future<Output = Vec<String>> {
        reads(Location::caller(), "the Jobs", move || async move {
            let jobs = self
                .api::<k8s_openapi::api::batch::v1::Job>()
                .list(&ListParams::default())
                .await?;
            Ok(jobs.items.iter().map(kube::ResourceExt::name_any).collect())
        })
    }

    /// Creates or updates any object (server-side apply) in this namespace.
    #[track_caller]
    pub fn apply(&self, mut object: Value) -> impl Future<Output = DynamicObject> {
        object["metadata"]["namespace"] = self.name().into();
        story(Location::caller(), async move {
            manifests::apply_one(&self.0.cluster.client, &serde_json::from_value(object)?).await
        })
    }

    /// Runs the real kubectl in this namespace, and returns what it prints.
    #[track_caller]
    pub fn kubectl<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> impl Future<Output = String> {
        let args = self.in_namespace(args);
        story(
            Location::caller(),
            tools::kubectl(&self.0.cluster.kubeconfig, args),
        )
    }

    /// The typed API for a kind, in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
    {
        Api::namespaced(self.client(), self.name())
    }

    /// The API for a kind of which only the name is known, in this namespace.
    pub(crate) async fn api_of(&self, types: &TypeMeta) -> Result<Api<DynamicObject>, kube::Error> {
        manifests::api_of(&self.0.cluster.client, types, Some(self.name())).await
    }

    pub(crate) fn client(&self) -> Client {
        self.0.cluster.client.clone()
    }

    /// The admin's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.0.cluster.kubeconfig
    }

    fn in_namespace<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Vec<OsString> {
        let own = ["-n", self.name()].map(OsString::from);
        own.into_iter()
            .chain(args.into_iter().map(|arg| arg.as_ref().to_owned()))
            .collect()
    }
}

impl Inner {
    /// Prints what the reader of a failed test wants to know first.
    fn show(&self) {
        // In two calls, because kubectl shows nothing at all if one of the kinds does not exist.
        for kinds in ["consulsemaphores", "jobs,pods,events"] {
            let args = ["get", kinds, "-n", &self.name, "--request-timeout=20s"];
            let kubectl = tools::kubectl_command(&self.cluster.kubeconfig);
            let output = kubectl.and_then(|mut kubectl| Ok(kubectl.args(args).output()?));
            let Ok(output) = output else { continue };
            #[expect(clippy::print_stderr, reason = "beside the panic message")]
            {
                eprintln!(
                    "in {}:\n{}",
                    self.name,
                    String::from_utf8_lossy(&output.stdout)
                );
            }
        }
    }

    /// On its own thread: the runtime of a test that ends takes its tasks with it.
    fn delete(&self) {
        let (kubeconfig, name) = (self.cluster.kubeconfig.clone(), self.name.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let namespaces =
                    Api::<core::v1::Namespace>::all(kubeconfig::client(&kubeconfig).await?);
                namespaces.delete(&name, &DeleteParams::default()).await?;
                anyhow::Ok(())
            })
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show();
        } else {
            self.delete();
        }
    }
}
