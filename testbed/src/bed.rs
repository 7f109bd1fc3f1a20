//! The bed: everything at once.
use std::{
    env,
    ffi::OsStr,
    panic::Location,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use anyhow::{Context as _, Result, anyhow, bail};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, api::PostParams};

use crate::{
    consul::Consul,
    consul_server::{ConsulBuilder, ConsulServer},
    folder::Folder,
    kubeconfig,
    kubernetes::Kubernetes,
    limit_watch::LimitWatch,
    manifests,
    namespace::{Cluster, Namespace},
    operator::{Operator, OperatorOptions, Place},
    programs,
    story::story,
    tools,
};

/// How long the operator's token is valid: longer than any bed lives.
const TOKEN_SECONDS: i64 = 7 * 24 * 3600;

/// A Kubernetes, a Consul and the operator.
///
/// A `Bed` is a handle with clients of its own, which belong to the runtime it was asked for in; the
/// servers end when the last handle on them is gone, or with this process.
#[derive(Clone)]
pub struct Bed {
    servers: Arc<Servers>,
    client: Client,
    consul: Consul,
}

/// What a bed has started, or found. The fields end in this order.
#[derive(Debug)]
struct Servers {
    operator: Operator,
    place: Place,
    kubeconfig: PathBuf,
    consul: ConsulEnd,
    kubernetes: Option<Kubernetes>,
}

/// The Consul of a bed.
#[derive(Debug)]
enum ConsulEnd {
    Own(ConsulServer),
    Existing {
        address: String,
        token: Option<String>,
    },
}

/// How a [`Bed`] is to be.
#[derive(Clone, Debug, Default)]
pub struct BedBuilder {
    consul: ConsulBuilder,
    options: OperatorOptions,
    without_operator: bool,
}

impl std::fmt::Debug for Bed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.servers.fmt(f)
    }
}

impl Bed {
    /// The bed that all tests of this program share. The first who asks has it started; it ends
    /// with the program.
    #[track_caller]
    pub fn shared() -> impl Future<Output = Self> {
        story(Location::caller(), async {
            // A runtime of its own, so that no test's end takes the start away from the others.
            let servers = tokio::task::spawn_blocking(|| SHARED.get_or_init(start_shared)).await?;
            match servers {
                Ok(servers) => Self::of(servers.clone()).await,
                Err(error) => bail!("the shared bed: {error}"),
            }
        })
    }

    /// A bed of one's own.
    #[track_caller]
    pub fn start() -> impl Future<Output = Self> {
        Self::builder().start()
    }

    /// A bed of one's own that differs.
    pub fn builder() -> BedBuilder {
        BedBuilder::default()
    }

    /// A new namespace whose name starts with `name`.
    #[track_caller]
    pub fn namespace(&self, name: &str) -> impl Future<Output = Namespace> {
        story(Location::caller(), Namespace::new(self.cluster(), name))
    }

    /// A new namespace of exactly this name.
    #[track_caller]
    pub fn namespace_named(&self, name: &str) -> impl Future<Output = Namespace> {
        story(Location::caller(), Namespace::named(self.cluster(), name))
    }

    /// Consul, as an observer or a troublemaker sees it.
    pub fn consul(&self) -> &Consul {
        &self.consul
    }

    /// Consul as a process, if it is the bed's own.
    pub fn consul_server(&self) -> Option<&ConsulServer> {
        match &self.servers.consul {
            ConsulEnd::Own(server) => Some(server),
            ConsulEnd::Existing { .. } => None,
        }
    }

    /// Kubernetes as processes, if it is the bed's own.
    pub fn kubernetes(&self) -> Option<&Kubernetes> {
        self.servers.kubernetes.as_ref()
    }

    /// The operator.
    pub fn operator(&self) -> &Operator {
        &self.servers.operator
    }

    /// Another operator on the same servers, not yet started. `name` is its log's.
    pub fn another_operator<A, E>(&self, name: &str, args: A, env: E) -> Operator
    where
        A: IntoIterator<Item: Into<String>>,
        E: IntoIterator<Item = (&'static str, String)>,
    {
        let options = OperatorOptions {
            args: args.into_iter().map(Into::into).collect(),
            env: env
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        };
        Operator::new(name, self.servers.place.clone(), options)
    }

    /// An admin's client of Kubernetes.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// An admin's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.servers.kubeconfig
    }

    /// The operator's own kubeconfig: its `ServiceAccount`'s token.
    pub fn operator_kubeconfig(&self) -> &Path {
        &self.servers.place.kubeconfig
    }

    /// The folder of logs and data.
    pub fn folder(&self) -> &Folder {
        &self.servers.place.folder
    }

    /// Runs the real kubectl as admin, and returns what it prints.
    #[track_caller]
    pub fn kubectl<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> impl Future<Output = String> {
        story(Location::caller(), self.try_kubectl(args))
    }

    /// As [`Self::kubectl`], for a command that may be refused: the error is what it complains about.
    pub async fn try_kubectl<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Result<String> {
        tools::kubectl(self.kubeconfig(), args).await
    }

    /// Runs the real consul tool, with the operator's rights, and returns what it prints.
    #[track_caller]
    pub fn consul_tool<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> impl Future<Output = String> {
        story(
            Location::caller(),
            tools::consul(&self.servers.place.consul, args),
        )
    }

    /// Watches the semaphore at `prefix` from now on: how many hold a slot, and how many Jobs have pods.
    #[track_caller]
    pub fn watch_limit(&self, prefix: &str) -> impl Future<Output = LimitWatch> {
        story(Location::caller(), LimitWatch::start(self, prefix))
    }

    /// Ends everything, and waits until it is gone. Other handles must be gone already.
    pub async fn end(self) -> Result<()> {
        let Self {
            servers,
            client,
            consul,
        } = self;
        drop((client, consul));
        let servers = Arc::try_unwrap(servers).map_err(|_| anyhow!("the bed is still in use"))?;
        if servers.operator.exit_status().await.is_none() && servers.operator.ids().await.is_some()
        {
            servers.operator.end("TERM").await?;
        }
        let Servers {
            operator,
            place,
            kubeconfig: _,
            consul,
            kubernetes,
        } = servers;
        drop((operator, consul, kubernetes));
        let folder = Arc::try_unwrap(place.folder)
            .map_err(|_| anyhow!("the bed's folder is still in use"))?;
        folder.end().await
    }

    fn cluster(&self) -> Cluster {
        Cluster {
            client: self.client.clone(),
            kubeconfig: self.kubeconfig().to_owned(),
            _servers: Some(self.servers.clone()),
        }
    }

    async fn of(servers: Arc<Servers>) -> Result<Self> {
        let client = kubeconfig::client(&servers.kubeconfig).await?;
        let consul = match &servers.consul {
            ConsulEnd::Own(server) => Consul::at(server.address(), server.token())?,
            ConsulEnd::Existing { address, token } => Consul::at(address, token.as_deref())?,
        };
        Ok(Self {
            servers,
            client,
            consul,
        })
    }
}

/// The servers of [`Bed::shared`]. A static is never dropped; that ends nothing too late, because
/// every server ends with this process's end of its pipe.
static SHARED: OnceLock<Result<Arc<Servers>, String>> = OnceLock::new();

fn start_shared() -> Result<Arc<Servers>, String> {
    let start = || -> Result<_> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(Bed::builder().servers())
    };
    let outcome = std::thread::spawn(start)
        .join()
        .unwrap_or_else(|_| Err(anyhow!("its start panicked")));
    outcome.map(Arc::new).map_err(|error| format!("{error:#}"))
}

impl BedBuilder {
    /// Another kind of Consul.
    #[must_use]
    pub fn consul(mut self, consul: ConsulBuilder) -> Self {
        self.consul = consul;
        self
    }

    /// The operator is set up but not started.
    #[must_use]
    pub fn without_operator(mut self) -> Self {
        self.without_operator = true;
        self
    }

    /// More arguments for `consul-semaphore-operator run`.
    #[must_use]
    pub fn operator_args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.options.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// An environment variable of the operator's.
    #[must_use]
    pub fn operator_env(mut self, name: &str, value: &str) -> Self {
        self.options.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it all, applies `crds/` and `config/rbac/`, and waits until all of it works.
    #[track_caller]
    pub fn start(self) -> impl Future<Output = Bed> {
        story(Location::caller(), self.try_start())
    }

    /// As [`Self::start`], for a program that is no test.
    pub async fn try_start(self) -> Result<Bed> {
        Bed::of(Arc::new(self.servers().await?)).await
    }

    async fn servers(self) -> Result<Servers> {
        let folder = Arc::new(Folder::new()?);
        let (consul, kubernetes, admin) = if use_existing()? {
            let admin = PathBuf::from(required("KUBECONFIG")?);
            let consul = ConsulEnd::Existing {
                address: required("CONSUL_HTTP_ADDR")?,
                token: env::var("CONSUL_HTTP_TOKEN").ok(),
            };
            (consul, None, admin)
        } else {
            let (consul, kubernetes) = tokio::try_join!(
                self.consul.start_in(folder.clone()),
                Kubernetes::start_in(folder.clone())
            )?;
            let admin = kubernetes.kubeconfig().to_owned();
            (ConsulEnd::Own(consul), Some(kubernetes), admin)
        };
        let place = install(folder, &admin, &consul)
            .await
            .context("installing the operator")?;
        let operator = Operator::new("operator", place.clone(), self.options);
        if !self.without_operator {
            operator.try_start().await?;
        }
        Ok(Servers {
            operator,
            place,
            kubeconfig: admin,
            consul,
            kubernetes,
        })
    }
}

/// `BED_EXISTING=1` uses the Kubernetes of `KUBECONFIG` and the Consul of `CONSUL_HTTP_ADDR`. The two
/// alone don't suffice: a developer has them set for other clusters, and tests would run in those.
fn use_existing() -> Result<bool> {
    match env::var("BED_EXISTING").as_deref() {
        Err(_) | Ok("" | "0") => Ok(false),
        Ok("1") => Ok(true),
        Ok(other) => bail!("BED_EXISTING is 1 or 0, not {other}"),
    }
}

fn required(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("BED_EXISTING=1 needs {name}"))
}

/// Does what a user does before the first start: applies the CRD and the RBAC that the project
/// ships, and gets a kubeconfig for the `ServiceAccount` among them.
async fn install(folder: Arc<Folder>, admin: &Path, consul: &ConsulEnd) -> Result<Place> {
    let client = kubeconfig::client(admin).await?;
    let root = programs::manifests();
    let mut objects = manifests::read(&root.join("crds"))?;
    objects.extend(manifests::read(&root.join("config/rbac"))?);
    manifests::apply(&client, &objects).await?;
    let (namespace, name) = manifests::service_account(&objects)
        .context("config/rbac has no ServiceAccount for the operator")?;
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(TOKEN_SECONDS),
            ..Default::default()
        },
        ..Default::default()
    };
    let token = Api::<ServiceAccount>::namespaced(client, &namespace)
        .create_token_request(&name, &PostParams::default(), &request)
        .await?
        .status
        .context("no token in the answer")?
        .token;
    let kubeconfig = folder.write(
        "operator.kubeconfig",
        kubeconfig::as_someone_else(admin, &token)?.to_string(),
    )?;
    let consul = match consul {
        ConsulEnd::Own(server) => {
            let address = ("CONSUL_HTTP_ADDR".to_owned(), server.address().to_owned());
            let token = server
                .token()
                .map(|token| ("CONSUL_HTTP_TOKEN".to_owned(), token.to_owned()));
            [address].into_iter().chain(token).collect()
        }
        ConsulEnd::Existing { .. } => env::vars()
            .filter(|(name, _)| name.starts_with("CONSUL_"))
            .collect(),
    };
    Ok(Place {
        folder,
        kubeconfig,
        consul,
    })
}
