//! Starts a bed, with or without changes to its parts.
use std::{
    panic::Location,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, api::PostParams};

use crate::{
    api_server::Workloads,
    bed::{self, Bed, Servers},
    consul_server::{ConsulBuilder, ConsulServer},
    controller::Controller,
    env::Env,
    existing::Existing,
    folder::Folder,
    kubeconfig,
    kubernetes::Kubernetes,
    manifests,
    operator::{Operator, OperatorOptions, Place},
    programs,
    story::story,
};

/// How long the operator's token is valid, in seconds: longer than any bed lives.
const TOKEN_SECONDS: i64 = 7 * 24 * 3600;

/// The settings of a [`Bed`].
///
/// By default everything is started, or with `BED_EXISTING=1` taken from the environment.
#[derive(Clone, Debug, Default)]
pub struct BedBuilder {
    consul: Option<ConsulChoice>,
    api_server_args: Vec<String>,
    options: OperatorOptions,
    without_operator: bool,
    with_policy: bool,
    controllers: Vec<Controller>,
    /// The bed whose Kubernetes is copied.
    original: Option<Arc<Servers>>,
}

#[derive(Clone, Debug)]
enum ConsulChoice {
    Start(ConsulBuilder),
    Existing(Env),
}

impl BedBuilder {
    /// Starts another kind of Consul.
    #[must_use]
    pub fn consul(mut self, consul: ConsulBuilder) -> Self {
        self.consul = Some(ConsulChoice::Start(consul));
        self
    }

    /// Uses the Consul of another bed, for clusters that share one.
    #[must_use]
    pub fn with_consul_of(mut self, bed: &Bed) -> Self {
        self.consul = Some(ConsulChoice::Existing(bed.consul_env().clone()));
        self
    }

    /// Starts Kubernetes with a copy of all that another bed's etcd has by then, as a restored backup or a cloned
    /// machine does, and uses the Consul of that bed.
    #[must_use]
    pub fn copy_of(mut self, bed: &Bed) -> Self {
        self.original = Some(bed.servers().clone());
        self.with_consul_of(bed)
    }

    /// Uses an existing Consul, as the `CONSUL_*` variables describe it. The operator gets all of them; the observer
    /// only needs the address and the token.
    #[must_use]
    pub fn with_consul(mut self, env: impl IntoIterator<Item = (String, String)>) -> Self {
        self.consul = Some(ConsulChoice::Existing(env.into_iter().collect()));
        self
    }

    /// Adds arguments for the `kube-apiserver`, which runs in the bed's folder.
    #[must_use]
    pub fn api_server_args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.api_server_args
            .extend(args.into_iter().map(Into::into));
        self
    }

    /// Starts these controllers, too, before the operator.
    #[must_use]
    pub fn controllers(mut self, controllers: impl IntoIterator<Item = Controller>) -> Self {
        self.controllers.extend(controllers);
        self
    }

    /// Sets the operator up, but does not start it.
    #[must_use]
    pub fn without_operator(mut self) -> Self {
        self.without_operator = true;
        self
    }

    /// Adds arguments for `consul-semaphore-operator run`.
    #[must_use]
    pub fn operator_args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.options.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable of the operator.
    #[must_use]
    pub fn operator_env(mut self, name: &str, value: &str) -> Self {
        self.options.env.set(name, value);
        self
    }

    /// Starts everything, applies `crds/` and `config/rbac/`, and waits until all of it works.
    #[track_caller]
    pub fn start(self) -> impl Future<Output = Bed> {
        story(Location::caller(), self.try_start())
    }

    /// The bed that all tests of this program share, as the first of them asks for it. It ends with the program. The
    /// admission policy of the operator is in force there, so that whatever it refuses shows.
    #[track_caller]
    pub fn shared(mut self) -> impl Future<Output = Bed> {
        self.with_policy = true;
        story(Location::caller(), bed::shared(self))
    }

    /// Like [`Self::start`], for programs other than tests.
    pub async fn try_start(self) -> Result<Bed> {
        Bed::of(Arc::new(self.servers().await?)).await
    }

    pub(crate) async fn servers(mut self) -> Result<Servers> {
        let existing = Existing::from_env()?.map(|Existing { kubeconfig, consul }| {
            self.consul.get_or_insert(ConsulChoice::Existing(consul));
            kubeconfig
        });
        let folder = Arc::new(Folder::new()?);
        if let Some(original) = self.original.take() {
            let original = original.kubernetes.as_ref();
            let original = original.context("only a bed's own Kubernetes can be copied")?;
            original.copy_data(&folder).await?;
        }
        let ((consul, consul_env), (kubernetes, admin)) = tokio::try_join!(
            start_consul(self.consul.unwrap_or_default(), &folder),
            start_kubernetes(existing, &self.api_server_args, &folder)
        )?;
        let controllers = Controller::start_all(&self.controllers, &folder, &admin).await?;
        let kubeconfig = install(&folder, &admin, self.with_policy)
            .await
            .context("installing the operator")?;
        let place = Place {
            folder,
            kubeconfig,
            consul: consul_env,
        };
        let operator = Operator::new("operator", place.clone(), self.options);
        if !self.without_operator {
            operator.try_start().await?;
        }
        Ok(Servers {
            operator,
            place,
            kubeconfig: admin,
            controllers,
            consul,
            kubernetes,
        })
    }
}

impl Default for ConsulChoice {
    fn default() -> Self {
        Self::Start(ConsulBuilder::default())
    }
}

async fn start_consul(
    choice: ConsulChoice,
    folder: &Arc<Folder>,
) -> Result<(Option<ConsulServer>, Env)> {
    match choice {
        ConsulChoice::Existing(env) => Ok((None, env)),
        ConsulChoice::Start(builder) => {
            let server = builder.start_in(folder.clone()).await?;
            let env = server.env();
            Ok((Some(server), env))
        }
    }
}

/// Starts Kubernetes. Also returns an admin's kubeconfig.
async fn start_kubernetes(
    existing: Option<PathBuf>,
    api_server_args: &[String],
    folder: &Arc<Folder>,
) -> Result<(Option<Kubernetes>, PathBuf)> {
    if let Some(kubeconfig) = existing {
        return Ok((None, kubeconfig));
    }
    let kubernetes = Kubernetes::start_in(folder.clone(), Workloads::Jobs, api_server_args).await?;
    let kubeconfig = kubernetes.kubeconfig().to_owned();
    Ok((Some(kubernetes), kubeconfig))
}

/// Does what a user does before the first start: applies the CRD and RBAC manifests that the project ships, and the
/// operator's policy if asked to, and gets a kubeconfig for their `ServiceAccount`.
async fn install(folder: &Folder, admin: &Path, with_policy: bool) -> Result<PathBuf> {
    let client = kubeconfig::client(admin).await?;
    let root = programs::manifests();
    let mut objects = manifests::read(&root.join("crds"))?;
    objects.extend(manifests::read(&root.join("config/rbac"))?);
    if with_policy {
        objects.extend(manifests::read_file(
            &root.join("config/policies/operator.yaml"),
        )?);
    }
    manifests::apply(&client, &objects).await?;
    let (namespace, name) = manifests::service_account(&objects)
        .context("config/rbac has no ServiceAccount for the operator")?;
    let kubeconfig = kubeconfig_of(&client, admin, &namespace, &name).await?;
    folder.write("operator.kubeconfig", kubeconfig)
}

/// A kubeconfig for a `ServiceAccount`, with its namespace, derived from an admin's.
pub(crate) async fn kubeconfig_of(
    client: &Client,
    admin: &Path,
    namespace: &str,
    name: &str,
) -> Result<String> {
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(TOKEN_SECONDS),
            ..Default::default()
        },
        ..Default::default()
    };
    let token = Api::<ServiceAccount>::namespaced(client.clone(), namespace)
        .create_token_request(name, &PostParams::default(), &request)
        .await?
        .status
        .context("no token in the answer")?
        .token;
    Ok(kubeconfig::as_someone_else(admin, &token, namespace)?.to_string())
}
