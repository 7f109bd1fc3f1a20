//! The bed: Kubernetes, Consul and the operator together.
use std::{
    ffi::OsStr,
    panic::Location,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use anyhow::{Result, anyhow, bail};
use kube::Client;

use crate::{
    bed_builder::{self, BedBuilder},
    consul::Consul,
    consul_server::ConsulServer,
    controller::Running,
    env::Env,
    existing,
    folder::Folder,
    kubeconfig,
    kubernetes::Kubernetes,
    limit_watch::LimitWatch,
    link::Link,
    namespace::{Cluster, Namespace},
    operator::{Operator, OperatorOptions, Place},
    proxy::Proxy,
    slot_client::SlotClientBuilder,
    story::story,
    tools,
};

/// A Kubernetes, a Consul and the operator.
///
/// A `Bed` is a handle with its own clients, which belong to the runtime of the caller. The servers end when the last
/// handle is dropped, or with this process.
#[derive(Clone)]
pub struct Bed {
    servers: Arc<Servers>,
    client: Client,
    consul: Consul,
}

/// The servers that a bed has started or found. The fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) operator: Operator,
    pub(crate) place: Place,
    /// The admin's kubeconfig.
    pub(crate) kubeconfig: PathBuf,
    /// Those that were asked for.
    pub(crate) controllers: Vec<Running>,
    /// `None` if it existed before.
    pub(crate) consul: Option<ConsulServer>,
    /// `None` if it existed before.
    pub(crate) kubernetes: Option<Kubernetes>,
}

impl std::fmt::Debug for Bed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.servers.fmt(f)
    }
}

impl Bed {
    /// The bed that all tests of this program share. The first call starts it; it ends with the program.
    #[track_caller]
    pub fn shared() -> impl Future<Output = Self> {
        Self::builder().shared()
    }

    /// A separate bed.
    #[track_caller]
    pub fn start() -> impl Future<Output = Self> {
        Self::builder().start()
    }

    /// A separate bed with other settings.
    pub fn builder() -> BedBuilder {
        BedBuilder::default()
    }

    /// What this is a handle of.
    pub(crate) fn servers(&self) -> &Arc<Servers> {
        &self.servers
    }

    /// A namespace that exists, because this bed is a copy of the one that it was made in.
    pub fn copied_namespace(&self, of: &Namespace) -> Namespace {
        Namespace::existing(self.cluster(), of.name())
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

    /// A client for Consul, to read it and to interfere.
    pub fn consul(&self) -> &Consul {
        &self.consul
    }

    /// Consul as a process, if it is the bed's own.
    pub fn consul_server(&self) -> Option<&ConsulServer> {
        self.servers.consul.as_ref()
    }

    /// The environment variables for Consul, as every Consul tool reads them.
    pub(crate) fn consul_env(&self) -> &Env {
        &self.servers.place.consul
    }

    /// Kubernetes as processes, if it is the bed's own.
    pub fn kubernetes(&self) -> Option<&Kubernetes> {
        self.servers.kubernetes.as_ref()
    }

    /// The controllers of other workloads than Jobs that were asked for.
    pub fn controllers(&self) -> &[Running] {
        &self.servers.controllers
    }

    /// The operator.
    pub fn operator(&self) -> &Operator {
        &self.servers.operator
    }

    /// Another operator on the same servers, not yet started. `name` is also the name of its log.
    pub fn another_operator<A, E>(&self, name: &str, args: A, env: E) -> Operator
    where
        A: IntoIterator<Item: Into<String>>,
        E: IntoIterator<Item = (&'static str, String)>,
    {
        let options = OperatorOptions {
            program: None,
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

    /// A kubeconfig for a `ServiceAccount` of this namespace.
    #[track_caller]
    pub fn kubeconfig_of(
        &self,
        namespace: &Namespace,
        account: &str,
    ) -> impl Future<Output = PathBuf> {
        let namespace = namespace.name().to_owned();
        story(Location::caller(), async move {
            let kubeconfig =
                bed_builder::kubeconfig_of(&self.client, self.kubeconfig(), &namespace, account)
                    .await?;
            let name = format!("{namespace}-{account}.kubeconfig");
            self.folder().write(&name, kubeconfig)
        })
    }

    /// A client for the user of a kubeconfig.
    #[track_caller]
    pub fn client_of(&self, kubeconfig: &Path) -> impl Future<Output = Client> {
        let kubeconfig = kubeconfig.to_owned();
        story(Location::caller(), async move {
            kubeconfig::client(&kubeconfig).await
        })
    }

    /// A link to Kubernetes that can be cut, and the operator's kubeconfig that goes through it.
    #[track_caller]
    pub fn link_to_kubernetes(&self) -> impl Future<Output = (Link, PathBuf)> {
        let direct = &self.servers.place.kubeconfig;
        story(Location::caller(), async move {
            let link = Link::start(kubeconfig::server(direct)?).await?;
            let kubeconfig = self.through(&format!("https://{}", link.address()))?;
            Ok((link, kubeconfig))
        })
    }

    /// A proxy in front of Kubernetes, and the operator's kubeconfig that goes through it. It speaks plain HTTP, so
    /// use it only where the token may be seen.
    #[track_caller]
    pub fn proxy_to_kubernetes(&self) -> impl Future<Output = (Proxy, PathBuf)> {
        let direct = &self.servers.place.kubeconfig;
        story(Location::caller(), async move {
            let server = format!("https://{}", kubeconfig::server(direct)?);
            let authority = kubeconfig::authority(direct)?;
            let proxy = Proxy::before([server]).trusting(authority).start().await?;
            let kubeconfig = self.through(&proxy.url())?;
            Ok((proxy, kubeconfig))
        })
    }

    /// The operator's kubeconfig for an API server at another URL, such as that of a proxy.
    ///
    /// # Errors
    /// It can't be written.
    pub fn through(&self, url: &str) -> Result<PathBuf> {
        let kubeconfig = kubeconfig::through(self.operator_kubeconfig(), url)?;
        let name = url.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        self.folder()
            .write(&format!("{name}.kubeconfig"), kubeconfig)
    }

    /// A link to Consul that can be cut.
    #[track_caller]
    pub fn link_to_consul(&self) -> impl Future<Output = Link> {
        let address = self.consul.address();
        let server = address.strip_prefix("http://").unwrap_or(address);
        story(Location::caller(), Link::start(server.to_owned()))
    }

    /// The folder of logs and data.
    pub fn folder(&self) -> &Folder {
        self.shared_folder()
    }

    /// The same folder, for others who start servers in it: it lives as long as they hold it.
    pub fn shared_folder(&self) -> &Arc<Folder> {
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

    /// Like [`Self::kubectl`], for a command that may be refused: the error is what it prints to stderr.
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

    /// A foreign program, not yet started: Consul's Go client takes slots of the semaphore at `prefix`, as
    /// `api.Semaphore` does. `name` is the name of its session.
    pub fn go_semaphore(&self, name: &str, prefix: &str, limit: u32) -> SlotClientBuilder {
        SlotClientBuilder::go_semaphore(self, name, prefix, limit)
    }

    /// Like [`Self::go_semaphore`], for the lock at `key`, as `api.Lock` does.
    pub fn go_lock(&self, name: &str, key: &str) -> SlotClientBuilder {
        SlotClientBuilder::go_lock(self, name, key)
    }

    /// Like [`Self::go_semaphore`], with `consul lock -n <limit>`: with 1 it is the lock at `<prefix>/.lock`.
    pub fn consul_lock(&self, name: &str, prefix: &str, limit: u32) -> SlotClientBuilder {
        SlotClientBuilder::consul_lock(self, name, prefix, limit)
    }

    /// Like [`Self::go_semaphore`], with this project's own `exec`; `name` is the name of its host.
    pub fn exec(&self, name: &str, prefix: &str, limit: u32) -> SlotClientBuilder {
        SlotClientBuilder::exec(self, name, prefix, limit)
    }

    /// Like [`Self::exec`], with the example `slot_client` of the library.
    pub fn library(&self, name: &str, prefix: &str, limit: u32) -> SlotClientBuilder {
        SlotClientBuilder::library(self, name, prefix, limit)
    }

    /// Like [`Self::exec`], with the example `slot_client` of the Python package: `python` is an interpreter that has it.
    pub fn python(&self, python: &Path, name: &str, prefix: &str, limit: u32) -> SlotClientBuilder {
        SlotClientBuilder::python(self, python, name, prefix, limit)
    }

    /// Watches the semaphore at `prefix` from now on: how many holders it has, and how many of its Jobs have pods.
    #[track_caller]
    pub fn watch_limit(&self, prefix: &str) -> impl Future<Output = LimitWatch> {
        story(Location::caller(), self.try_watch_limit(prefix))
    }

    /// Like [`Self::watch_limit`], for programs other than tests.
    pub async fn try_watch_limit(&self, prefix: &str) -> Result<LimitWatch> {
        LimitWatch::start(&self.consul, &self.client, prefix).await
    }

    /// Ends everything, and waits until it has ended. All other handles must be dropped first.
    pub async fn end(self) -> Result<()> {
        let Self {
            servers,
            client,
            consul,
        } = self;
        drop((client, consul));
        let servers = Arc::try_unwrap(servers).map_err(|_| anyhow!("the bed is still in use"))?;
        if servers.operator.is_running().await {
            servers.operator.end("TERM").await?;
        }
        let Servers {
            operator,
            place,
            kubeconfig: _,
            controllers,
            consul,
            kubernetes,
        } = servers;
        drop((operator, controllers, consul, kubernetes));
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

    pub(crate) async fn of(servers: Arc<Servers>) -> Result<Self> {
        let client = kubeconfig::client(&servers.kubeconfig).await?;
        let consul = existing::consul_of(&servers.place.consul)?;
        Ok(Self {
            servers,
            client,
            consul,
        })
    }
}

/// The servers of [`Bed::shared`]. A static is never dropped, but every server ends with this process, whose end of
/// the pipe then closes.
static SHARED: OnceLock<Result<Arc<Servers>, String>> = OnceLock::new();

/// Starts it at the first call.
pub(crate) async fn shared(builder: BedBuilder) -> Result<Bed> {
    // On its own runtime, so that the end of one test does not abort the start for the others.
    let start = move || SHARED.get_or_init(|| start_shared(builder));
    match tokio::task::spawn_blocking(start).await? {
        Ok(servers) => Bed::of(servers.clone()).await,
        Err(error) => bail!("the shared bed: {error}"),
    }
}

fn start_shared(builder: BedBuilder) -> Result<Arc<Servers>, String> {
    let start = || -> Result<_> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(builder.servers())
    };
    let outcome = std::thread::spawn(start)
        .join()
        .unwrap_or_else(|_| Err(anyhow!("its start panicked")));
    outcome.map(Arc::new).map_err(|error| format!("{error:#}"))
}
