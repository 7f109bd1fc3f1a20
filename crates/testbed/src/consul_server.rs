//! A single Consul in development mode, for one test.
use std::{ops::Deref, panic::Location, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::{
    consul::Consul,
    env::Env,
    folder::Folder,
    ports,
    process::{Process, Recipe},
    programs,
    story::story,
    wait,
};

const PATIENCE: Duration = Duration::from_mins(5);

/// A Consul agent in development mode, on free loopback ports. Its data is only in memory.
///
/// Dereferences to [`Consul`], its client. Ends when it is dropped.
#[derive(Debug)]
pub struct ConsulServer {
    client: Consul,
    process: Process,
    folder: Arc<Folder>,
}

/// The settings of a [`ConsulServer`].
#[derive(Clone, Default)]
pub struct ConsulBuilder {
    token: Option<String>,
    config: Option<Value>,
}

impl Consul {
    /// Starts a Consul that allows everything to everybody.
    #[track_caller]
    pub fn start() -> impl Future<Output = ConsulServer> {
        Self::builder().start()
    }

    /// A Consul with other settings.
    pub fn builder() -> ConsulBuilder {
        ConsulBuilder::default()
    }
}

impl ConsulBuilder {
    /// Enables ACLs: `token` may do everything, and all other access is denied by default.
    #[must_use]
    pub fn acls(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// Adds to Consul's own configuration, in its JSON form.
    #[must_use]
    pub fn config(mut self, config: Value) -> Self {
        self.config = Some(config);
        self
    }

    /// Starts it, and waits until it has a leader.
    #[track_caller]
    pub fn start(self) -> impl Future<Output = ConsulServer> {
        story(Location::caller(), self.try_start())
    }

    /// Like [`Self::start`], for a server that is expected to refuse: the error shows the end of its log.
    pub async fn try_start(self) -> Result<ConsulServer> {
        self.start_in(Arc::new(Folder::new()?)).await
    }

    pub(crate) async fn start_in(self, folder: Arc<Folder>) -> Result<ConsulServer> {
        let program = programs::server("consul")?;
        let old = programs::consul_minor()? < 14;
        let (process, client) = ports::on_free(|[http, server, serf_lan, serf_wan]| {
            let folder = folder.clone();
            let recipe = Recipe::new("consul", &program).args(["agent", "-dev", "-node", "bed"]);
            let mut config = json!({
                "bind_addr": "127.0.0.1",
                "client_addr": "127.0.0.1",
                "ports": {
                    "http": http, "server": server, "serf_lan": serf_lan, "serf_wan": serf_wan,
                    "grpc": -1, "grpc_tls": -1, "dns": -1,
                },
                "connect": { "enabled": false },
                "disable_update_check": true,
            });
            if old {
                forget_port(&mut config);
            }
            if let Some(token) = &self.token {
                let management = if old { "master" } else { "initial_management" };
                config["acl"] = json!({
                    "enabled": true, "default_policy": "deny", "tokens": { management: token },
                });
            }
            let more = self.config.clone();
            let token = self.token.clone();
            async move {
                let mut recipe = recipe
                    .arg("-config-file")
                    .arg(folder.write("consul.json", config.to_string())?);
                if let Some(more) = more {
                    recipe = recipe
                        .arg("-config-file")
                        .arg(folder.write("consul-more.json", more.to_string())?);
                }
                let process = Process::start(&folder, &recipe)?;
                let client = Consul::at(&format!("127.0.0.1:{http}"), token.as_deref())?;
                let nodes = || has_nodes(&client, "catalog/nodes");
                process.ready(PATIENCE, nodes).await?;
                Ok((process, client))
            }
        })
        .await
        .context("starting Consul")?;
        Ok(ConsulServer {
            client,
            process,
            folder,
        })
    }
}

/// Lists nodes, which needs a leader, the servers' own nodes in the catalog, and the token.
pub(crate) async fn has_nodes(consul: &Consul, path: &str) -> Result<()> {
    match consul.try_get(path).await? {
        Value::Array(nodes) if !nodes.is_empty() => Ok(()),
        _ => bail!("no node is in the catalog"),
    }
}

/// Removes a port that Consul has only since 1.14: older versions reject its setting.
pub(crate) fn forget_port(config: &mut Value) {
    if let Some(ports) = config["ports"].as_object_mut() {
        ports.remove("grpc_tls");
    }
}

impl std::fmt::Debug for ConsulBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsulBuilder")
            .field("acls", &self.token.is_some())
            .finish_non_exhaustive()
    }
}

impl ConsulServer {
    pub(crate) fn new(client: Consul, process: Process, folder: Arc<Folder>) -> Self {
        Self {
            client,
            process,
            folder,
        }
    }

    /// The variables to reach it, with the token that may do everything, as every Consul tool reads them.
    pub(crate) fn env(&self) -> Env {
        let mut env = Env::default();
        env.set("CONSUL_HTTP_ADDR", self.address());
        if let Some(token) = self.token() {
            env.set("CONSUL_HTTP_TOKEN", token);
        }
        env
    }

    /// Joins the datacenter of another server, so that each forwards requests for the other.
    #[track_caller]
    pub fn federate(&self, other: &Self) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            let agent = other.try_get("agent/self").await?;
            let port = agent["DebugConfig"]["SerfPortWAN"].as_u64();
            let port = port.context("no SerfPortWAN")?;
            let join = format!("agent/join/127.0.0.1:{port}?wan=1");
            self.try_put(&join, json!({})).await?;
            let datacenter = &agent["Config"]["Datacenter"];
            let leader = format!(
                "status/leader?dc={}",
                datacenter.as_str().unwrap_or_default()
            );
            wait::until("the other datacenter answers", PATIENCE, || async {
                match self.try_get(&leader).await {
                    Ok(Value::String(leader)) if !leader.is_empty() => Ok(()),
                    Ok(other) => Err(other.to_string()),
                    Err(error) => Err(format!("{error:#}")),
                }
            })
            .await
        })
    }

    /// The folder of its log.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Stops it from answering (SIGSTOP), as a server that hangs.
    #[track_caller]
    pub fn pause(&self) -> impl Future<Output = ()> {
        story(Location::caller(), self.process.pause())
    }

    /// Lets it continue (SIGCONT).
    #[track_caller]
    pub fn resume(&self) -> impl Future<Output = ()> {
        story(Location::caller(), async { self.process.signal("CONT") })
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }
}

impl Deref for ConsulServer {
    type Target = Consul;

    fn deref(&self) -> &Consul {
        &self.client
    }
}
