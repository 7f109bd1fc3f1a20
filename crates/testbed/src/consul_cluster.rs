//! Several Consul servers with data on disk, as in production. Any of them can be killed.
use std::{panic::Location, sync::Arc, time::Duration};

use anyhow::{Context as _, Error, Result, bail};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    consul::Consul,
    consul_server::{ConsulServer, forget_port, has_nodes},
    folder::Folder,
    ports,
    process::{Process, Recipe},
    programs,
    story::story,
    wait,
};

const PATIENCE: Duration = Duration::from_mins(5);

/// Consul servers that keep their data and their ports: each can be killed and restarted, paused and resumed. They
/// end when this is dropped.
#[derive(Debug)]
pub struct ConsulCluster {
    servers: Vec<ConsulServer>,
    /// Where the servers reach each other; Consul names its leader by this address.
    peers: Vec<String>,
}

/// The ports of a server: HTTP, RPC between servers, gossip.
type Ports = [u16; 3];

impl Consul {
    /// Starts this many servers, and waits until each of them knows the leader.
    #[track_caller]
    pub fn cluster(servers: usize) -> impl Future<Output = ConsulCluster> {
        story(Location::caller(), async move {
            ConsulCluster::start_in(Arc::new(Folder::new()?), servers, None).await
        })
    }
}

impl ConsulCluster {
    /// Starts this many servers in a folder, and waits until each of them knows the leader. With a `token`, which may
    /// do everything, all other access is denied by default.
    ///
    /// # Errors
    /// A server does not start.
    pub async fn start_in(folder: Arc<Folder>, count: usize, token: Option<&str>) -> Result<Self> {
        let ports = (0..count).map(|_| ports::lasting());
        let ports: Vec<Ports> = ports.collect::<Result<_>>()?;
        let all: Vec<_> = ports
            .iter()
            .map(|[_, _, gossip]| format!("127.0.0.1:{gossip}"))
            .collect();
        let mut servers = Vec::new();
        for (number, ports) in ports.iter().enumerate() {
            servers.push(start(&folder, number, *ports, &all, token)?);
        }
        let this = Self {
            servers,
            peers: ports
                .iter()
                .map(|[_, peer, _]| format!("127.0.0.1:{peer}"))
                .collect(),
        };
        for server in &this.servers {
            knows_leader(server).await?;
        }
        Ok(this)
    }

    /// All servers.
    pub fn servers(&self) -> &[ConsulServer] {
        &self.servers
    }

    /// Waits until a server leads and can be read from. Returns its number.
    #[track_caller]
    pub fn leader(&self) -> impl Future<Output = usize> {
        story(Location::caller(), self.try_leader())
    }

    /// Like [`Self::leader`], for programs other than tests.
    ///
    /// # Errors
    /// No server leads for minutes.
    pub async fn try_leader(&self) -> Result<usize> {
        wait::until("Consul has a leader", PATIENCE, || async {
            for (number, (server, peer)) in self.servers.iter().zip(&self.peers).enumerate() {
                let leads = async {
                    // Only the leader's own answer counts: others may not have noticed yet that it is down.
                    let leader = server.try_get("status/leader").await?;
                    wait::same(leader, json!(peer)).map_err(Error::msg)?;
                    has_nodes(server, "catalog/nodes?consistent").await
                };
                // A killed or stopped server does not answer.
                if let Ok(Ok(())) = timeout(Duration::from_secs(2), leads).await {
                    return Ok(number);
                }
            }
            Err("no server leads")
        })
        .await
    }

    /// Kills a server (SIGKILL).
    #[track_caller]
    pub fn kill(&self, server: usize) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            self.server(server)?.process().kill().await
        })
    }

    /// Restarts killed servers with the data that they have, and waits until they know the leader.
    #[track_caller]
    pub fn start_again(&self, servers: &[usize]) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            for number in servers {
                self.server(*number)?.process().start_again()?;
            }
            for number in servers {
                knows_leader(self.server(*number)?).await?;
            }
            Ok(())
        })
    }

    /// Removes the data of a killed server.
    #[track_caller]
    pub fn forget(&self, server: usize) -> impl Future<Output = ()> {
        story(Location::caller(), async move { self.try_forget(server) })
    }

    /// Like [`Self::forget`], for programs other than tests.
    ///
    /// # Errors
    /// The server runs, or has no data.
    pub fn try_forget(&self, server: usize) -> Result<()> {
        if self.server(server)?.process().is_running() {
            bail!("server {server} still runs");
        }
        let data = self.server(server)?.folder().path().join(data(server));
        std::fs::remove_dir_all(&data).with_context(|| data.display().to_string())
    }

    fn server(&self, number: usize) -> Result<&ConsulServer> {
        let server = self.servers.get(number);
        server.with_context(|| format!("there is no server {number}"))
    }
}

fn data(number: usize) -> String {
    format!("consul-{number}-data")
}

fn start(
    folder: &Arc<Folder>,
    number: usize,
    [http, peer, gossip]: Ports,
    all: &[String],
    token: Option<&str>,
) -> Result<ConsulServer> {
    let name = format!("consul-{number}");
    let mut config = json!({
        "node_name": name,
        "server": true,
        "bootstrap_expect": all.len(),
        "data_dir": folder.path().join(data(number)),
        "bind_addr": "127.0.0.1",
        "client_addr": "127.0.0.1",
        "retry_join": all,
        "retry_interval": "1s",
        "ports": {
            "http": http, "server": peer, "serf_lan": gossip, "serf_wan": -1,
            "grpc": -1, "grpc_tls": -1, "dns": -1,
        },
        "connect": { "enabled": false },
        "disable_update_check": true,
        // Elections take a second, and a server that was down for long remains a member.
        "performance": { "raft_multiplier": 1 },
        "autopilot": { "cleanup_dead_servers": false },
    });
    if let Some(token) = token {
        config["acl"] = json!({
            "enabled": true, "default_policy": "deny",
            "tokens": { "initial_management": token, "agent": token },
        });
        // In a campaign, a single process makes the calls of all clients.
        config["limits"] = json!({ "http_max_conns_per_client": 1000 });
    }
    if programs::consul_minor()? < 14 {
        forget_port(&mut config);
    }
    let file = folder.write(&format!("{name}.json"), config.to_string())?;
    let recipe = Recipe::new(&name, programs::server("consul")?)
        .args(["agent", "-config-file"])
        .arg(file);
    Ok(ConsulServer::new(
        Consul::at(&format!("127.0.0.1:{http}"), token)?,
        Process::start(folder, &recipe)?,
        folder.clone(),
    ))
}

/// Waits until a server knows the leader.
async fn knows_leader(server: &ConsulServer) -> Result<()> {
    let nodes = || has_nodes(server, "catalog/nodes");
    server.process().ready(PATIENCE, nodes).await
}
