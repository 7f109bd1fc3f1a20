//! All that a campaign runs on: the bed's Kubernetes, three Consul servers, the doors, the operator.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use reqwest::Certificate;
use serde_json::Value;
use testbed::{Bed, ConsulCluster, Link, Process, Recipe};
use tokio::{
    net::TcpListener,
    sync::{RwLock, watch},
    time::{sleep, timeout},
};

use crate::{
    access,
    certificates::Certificates,
    consul_record::{ConsulReader, LockBook},
    etcd::Etcd,
    load::CALL,
    proxy::{Door, Upstream},
    record::Writer,
    timeline::Timeline,
    tls::{self, TlsListener},
    versions::Versions,
    weather::Sky,
};

/// The namespace of all that a campaign makes.
pub(crate) const NAMESPACE: &str = "faults";

/// How many Consul servers there are: one can be lost.
const CONSULS: usize = 3;

/// How long a server may take to get ready.
const PATIENCE: Duration = Duration::from_mins(5);

/// All that a campaign runs on. It ends when this is dropped.
pub(crate) struct World {
    pub(crate) operator: Process,
    /// The same one with a wall clock of its own, if there is a library for that.
    pub(crate) jumping_operator: Option<Process>,
    /// The file that says how far that clock is off.
    pub(crate) clock: PathBuf,
    /// Another one for the same things, which works whoever leads.
    pub(crate) second_operator: Process,
    /// The operator's HTTP address.
    operator_address: String,
    api_url: String,
    pub(crate) consuls: ConsulCluster,
    /// What the operator meets on its way to Consul.
    pub(crate) to_consul: Sky,
    /// What it shows and is shown there.
    pub(crate) certificates: Certificates,
    /// The first part of that way: its connections can be cut.
    pub(crate) link: Link,
    /// What the operator meets on its way to the API server.
    pub(crate) to_api: Sky,
    /// The versions of objects that it is shown there.
    pub(crate) versions: Versions,
    pub(crate) etcd: Etcd,
    /// Reads Consul past the proxy.
    pub(crate) consul: ConsulReader,
    /// What is known of each `.lock`.
    pub(crate) book: LockBook,
    /// The external node in Consul that the operator's sessions belong to.
    pub(crate) node: String,
    /// The doors to Consul, as URLs.
    pub(crate) doors: Doors,
    pub(crate) timeline: Timeline,
    /// An admin's, past the proxy.
    pub(crate) client: Client,
    http: reqwest::Client,
    /// To be read by who changes a `ConsulSemaphore`, and written by who takes all of them away.
    pub(crate) semaphores: RwLock<()>,
    pub(crate) bed: Bed,
}

/// The doors to Consul, as URLs.
pub(crate) struct Doors {
    pub(crate) operator: String,
    pub(crate) foreign: String,
    pub(crate) fault: String,
}

impl World {
    /// Starts everything, and waits until all of it works.
    pub(crate) async fn start(timeline: &Timeline) -> Result<Self> {
        // The bed starts none, and asks none: its own helpers for Consul are not used.
        let bed = Bed::builder()
            .with_consul([("CONSUL_HTTP_ADDR".to_owned(), "127.0.0.1:1".to_owned())])
            .without_operator()
            .try_start()
            .await?;
        let kubernetes = bed.kubernetes().context("the bed has no Kubernetes")?;
        let shared = bed.shared_folder();
        let folder = shared.path().to_owned();
        let node = node(bed.client()).await?;
        let token = Some(access::MANAGEMENT);
        let consuls = ConsulCluster::start_in(shared.clone(), CONSULS, token).await?;
        let consul_urls = consuls.servers().iter();
        let consul_urls: Vec<_> = consul_urls
            .map(|server| server.address().to_owned())
            .collect();
        let [api_server, etcd, ..] = kubernetes.processes();
        let etcd = Etcd::at(&etcd.argument("--listen-client-urls=")?)?;
        let port = api_server.argument("--secure-port=")?;
        let api_url = format!("https://127.0.0.1:{port}");

        let consul = ConsulReader::at(consul_urls.clone())?;
        let book = LockBook::new(consul.clone(), etcd.clone(), timeline.clone());
        let to_consul = Sky::new();
        let consul_door = |writer, sky: &Sky| {
            open_consul_door(writer, &consul_urls, sky.clone(), timeline, &book)
        };
        let certificates = Certificates::make(&folder).await?;
        let doors = Doors {
            operator: consul_door(Writer::Operator, &to_consul).await?,
            foreign: consul_door(Writer::Foreign, &Sky::new()).await?,
            fault: consul_door(Writer::Fault, &Sky::new()).await?,
        };
        let sky = to_consul.clone();
        let door = consul_door_of(Writer::Operator, &consul_urls, sky, timeline, &book)?;
        let link = open_with_tls(door, &certificates).await?;
        let to_api = Sky::new();
        let versions = Versions::new();
        let sky = to_api.clone();
        let (http, door_url) =
            open_api_door(&folder, &api_url, sky, timeline, versions.clone()).await?;

        let kubeconfig = through(bed.operator_kubeconfig(), &door_url, &folder)?;
        let program = testbed::operator_program()?;
        let log = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
        let operator = |name, address: &str, election: &str| {
            certificates
                .given_to(Recipe::new(name, &program))
                .args(["run", "--http-address", address])
                .env("LEADER_ELECTION", election)
                // Started again under its name it takes its own lead over at once.
                .env("LEADER_ELECTION_IDENTITY", name)
                .env("KUBECONFIG", kubeconfig.display().to_string())
                .env("CONSUL_HTTP_ADDR", format!("https://{}", link.address()))
                .env("CONSUL_HTTP_TOKEN", access::OPERATOR.secret)
                .env("RUST_LOG", &log)
        };
        let [operator_address, second_address] =
            [testbed::lasting_port()?, testbed::lasting_port()?]
                .map(|port| format!("127.0.0.1:{port}"));
        let (jumping_operator, clock) = jumping(
            operator("operator", &operator_address, "kubernetes"),
            &folder,
        )?;
        let idle = |recipe| Process::idle(shared, recipe);
        let world = Self {
            jumping_operator: jumping_operator.map(idle),
            clock,
            second_operator: idle(operator("second-operator", &second_address, "off")),
            operator: idle(operator("operator", &operator_address, "kubernetes")),
            operator_address,
            api_url,
            consuls,
            to_consul,
            certificates,
            link,
            to_api,
            versions,
            etcd,
            consul,
            book,
            node,
            doors,
            timeline: timeline.clone(),
            client: bed.client().clone(),
            http,
            semaphores: RwLock::default(),
            bed,
        };
        access::grant(&world).await?;
        world.operator.start_again()?;
        world.operator_ready().await?;
        Ok(world)
    }

    /// Of logs, and of what the `consul lock`s of the load say.
    pub(crate) fn folder(&self) -> &Path {
        self.bed.folder().path()
    }

    /// One of the Consul servers, counted on and on.
    pub(crate) fn consul_process(&self, number: usize) -> &Process {
        let servers = self.consuls.servers();
        servers[number % servers.len()].process()
    }

    /// The API server; and those who work with it: the Job controller, the scheduler and kwok.
    fn kubernetes(&self) -> Result<(&Process, [&Process; 3])> {
        let kubernetes = self.bed.kubernetes().context("the bed has no Kubernetes")?;
        let [api_server, _etcd, controllers @ ..] = kubernetes.processes();
        Ok((api_server, controllers))
    }

    /// The API server.
    pub(crate) fn api_server(&self) -> Result<&Process> {
        Ok(self.kubernetes()?.0)
    }

    /// Waits until the operator leads and has listed what there is.
    pub(crate) async fn operator_ready(&self) -> Result<()> {
        let url = format!("http://{}/readyz", self.operator_address);
        within("the operator leads", || async {
            let answer = self.http.get(&url).timeout(Duration::from_secs(5));
            let body = answer.send().await?.error_for_status()?.text().await?;
            // A replica that stands by is ready, and nobody does the work yet.
            if body.contains("nobody leads") {
                bail!("{body}")
            }
            Ok(())
        })
        .await
    }

    /// Starts the API server again, and waits until it serves. Those who work with it are started
    /// again too: they would find out only after a pause of up to a minute, and the load would stand
    /// still as long.
    pub(crate) async fn start_api_server(&self) -> Result<()> {
        let (api_server, controllers) = self.kubernetes()?;
        api_server.start_again()?;
        self.answers("the API server", &format!("{}/readyz", self.api_url))
            .await?;
        for controller in controllers {
            if controller.is_running() {
                controller.end("KILL").await?;
            }
            controller.start_again()?;
        }
        Ok(())
    }

    /// Waits until Consul has a leader who can be read from.
    pub(crate) async fn consul_leads(&self) -> Result<()> {
        within("Consul has a leader", || async {
            match self.consul.json("catalog/nodes?consistent").await {
                Ok(Value::Array(nodes)) if !nodes.is_empty() => Ok(()),
                Ok(other) => bail!("{other}"),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Which of the Consul servers leads.
    pub(crate) async fn leader(&self) -> Result<usize> {
        let leader = self.consul.json("status/leader").await?;
        let peers = self.consul.json("catalog/service/consul").await?;
        let leader = leader.as_str().unwrap_or_default();
        let node = peers.as_array().into_iter().flatten().find(|peer| {
            format!(
                "{}:{}",
                peer["Address"].as_str().unwrap_or_default(),
                peer["ServicePort"]
            ) == leader
        });
        node.and_then(|node| node["Node"].as_str()?.strip_prefix("consul-")?.parse().ok())
            .with_context(|| format!("nobody knows the leader {leader}"))
    }

    /// A write to Consul by the campaign's own door; what it answers. Another fault may be in the way
    /// for a while.
    pub(crate) async fn put(&self, path: &str, body: impl Into<String>) -> Result<Value> {
        self.insist(reqwest::Method::PUT, path, body.into()).await
    }

    /// Deletes something in Consul by the campaign's own door.
    pub(crate) async fn delete(&self, path: &str) -> Result<Value> {
        self.insist(reqwest::Method::DELETE, path, String::new())
            .await
    }

    async fn insist(&self, method: reqwest::Method, path: &str, body: String) -> Result<Value> {
        let door = &self.doors.fault;
        let start = Instant::now();
        loop {
            let answer = self.meddle(door, method.clone(), path, body.clone()).await;
            if answer.is_ok() || start.elapsed() > PATIENCE {
                return answer;
            }
            sleep(Duration::from_millis(300)).await;
        }
    }

    /// A write to Consul by any door.
    pub(crate) async fn meddle(
        &self,
        door: &str,
        method: reqwest::Method,
        path: &str,
        body: String,
    ) -> Result<Value> {
        let request = self.http.request(method, format!("{door}/v1/{path}"));
        let request = request.headers(access::headers()).body(body);
        let request = request.timeout(Duration::from_secs(30));
        let answer = request.send().await?.error_for_status()?;
        Ok(serde_json::from_slice(&answer.bytes().await?).unwrap_or_default())
    }

    async fn answers(&self, what: &str, url: &str) -> Result<()> {
        within(what, || async {
            let request = self.http.get(url).bearer_auth("admin");
            let request = request.timeout(Duration::from_secs(5));
            request.send().await?.error_for_status()?;
            Ok(())
        })
        .await
    }
}

/// Asks until the answer is good.
async fn within<F>(what: &str, mut ask: impl FnMut() -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let start = Instant::now();
    loop {
        match ask().await {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > PATIENCE => {
                return Err(error.context(format!("not within a minute: {what}")));
            }
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Also a client that knows the API server's certificate.
async fn open_api_door(
    folder: &Path,
    api_url: &str,
    sky: Sky,
    timeline: &Timeline,
    versions: Versions,
) -> Result<(reqwest::Client, String)> {
    let certificate = folder.join("apiserver/apiserver.crt");
    let key = folder.join("apiserver/apiserver.key");
    // Nobody exchanges it: what was sent last stays current.
    let current = watch::channel(tls::server(&certificate, &key, None)?).1;
    let listener = TlsListener::bind(current).await?;
    let url = format!("https://{}", axum::serve::Listener::local_addr(&listener)?);
    let http = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only(Certificate::from_pem_bundle(&fs::read(&certificate)?)?)
        .connect_timeout(Duration::from_secs(5))
        .build()?;
    let upstream = Upstream::new(http.clone(), vec![api_url.to_owned()]);
    Door::to_api(upstream, sky, timeline.clone(), versions).open(listener);
    Ok((http, url))
}

/// Opens a door to Consul for one kind of writer, and returns its URL.
pub(crate) async fn open_consul_door(
    writer: Writer,
    servers: &[String],
    sky: Sky,
    timeline: &Timeline,
    book: &LockBook,
) -> Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    consul_door_of(writer, servers, sky, timeline, book)?.open(listener);
    Ok(url)
}

fn consul_door_of(
    writer: Writer,
    servers: &[String],
    sky: Sky,
    timeline: &Timeline,
    book: &LockBook,
) -> Result<Door> {
    let http = reqwest::Client::builder()
        .no_proxy()
        .connect_timeout(Duration::from_secs(5))
        .build()?;
    let upstream = Upstream::new(http, servers.to_vec());
    let (timeline, book) = (timeline.clone(), book.clone());
    Ok(Door::to_consul(writer, upstream, sky, timeline, book))
}

/// Opens a door for those who know the certificates, and returns the way to it.
async fn open_with_tls(door: Door, certificates: &Certificates) -> Result<Link> {
    let listener = TlsListener::bind(certificates.server()).await?;
    let address = axum::serve::Listener::local_addr(&listener)?;
    door.open(listener);
    Link::start(address.to_string()).await
}

/// The external node's name, from the uid of a namespace that every cluster has.
async fn node(client: &Client) -> Result<String> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let system = timeout(CALL, namespaces.get("kube-system")).await??;
    let id = system.metadata.uid.context("a namespace without a uid")?;
    Ok(format!("k8s-{id}"))
}

/// A program whose wall clock is off by what is in a file.
fn jumping(program: Recipe, folder: &Path) -> Result<(Option<Recipe>, PathBuf)> {
    let clock = folder.join("clock");
    fs::write(&clock, "+0")?;
    let jumping = testbed::faketime().map(|library| {
        program
            .env("LD_PRELOAD", library.display().to_string())
            .env("FAKETIME_TIMESTAMP_FILE", clock.display().to_string())
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1")
    });
    Ok((jumping, clock))
}

/// The operator's kubeconfig, with the door instead of the API server.
fn through(kubeconfig: &Path, door: &str, folder: &Path) -> Result<PathBuf> {
    let mut config: Value = serde_json::from_str(&fs::read_to_string(kubeconfig)?)?;
    config["clusters"][0]["cluster"]["server"] = door.into();
    let file = folder.join("through-the-door.kubeconfig");
    fs::write(&file, config.to_string())?;
    Ok(file)
}
