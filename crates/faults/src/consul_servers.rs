//! Consul servers with data and ports of their own, which can be killed and started as often as it takes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde_json::json;

use crate::{access::MANAGEMENT, server::Server};

/// How many there are: one can be lost.
pub(crate) const CONSULS: usize = 3;

/// How many ports each needs.
pub(crate) const PORTS: usize = 4;

/// Where a server keeps what it knows.
pub(crate) fn data(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("consul-{number}-data"))
}

/// The servers, not started yet, and their URLs.
pub(crate) fn servers(folder: &Path, ports: &[u16]) -> Result<(Vec<Server>, Vec<String>)> {
    let program = testbed::servers().join("consul");
    let joins: Vec<_> = (0..CONSULS)
        .map(|number| format!("127.0.0.1:{}", ports[number * PORTS + 2]))
        .collect();
    let mut servers = Vec::new();
    let mut urls = Vec::new();
    for number in 0..CONSULS {
        let name = format!("consul-{number}");
        let [http, server, lan, wan] = [0, 1, 2, 3].map(|port| ports[number * PORTS + port]);
        let config = json!({
            "node_name": name,
            "server": true,
            "bootstrap_expect": CONSULS,
            "retry_join": joins,
            "retry_interval": "1s",
            "data_dir": data(folder, number),
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "ports": {
                "http": http, "server": server, "serf_lan": lan, "serf_wan": wan,
                "grpc": -1, "grpc_tls": -1, "dns": -1,
            },
            "acl": {
                "enabled": true, "default_policy": "deny",
                "tokens": { "initial_management": MANAGEMENT, "agent": MANAGEMENT },
            },
            // One that is away comes back.
            "autopilot": { "cleanup_dead_servers": false },
            "connect": { "enabled": false },
            "disable_update_check": true,
            "leave_on_terminate": false,
            "limits": { "http_max_conns_per_client": 1000 },
            "performance": { "raft_multiplier": 1 },
        });
        let file = folder.join(format!("{name}.json"));
        fs::write(&file, config.to_string())?;
        servers.push(Server::new(&name, &program, folder).args([
            "agent".into(),
            "-config-file".into(),
            file.into_os_string(),
        ]));
        urls.push(format!("http://127.0.0.1:{http}"));
    }
    Ok((servers, urls))
}

/// Free ports that nobody else gets while their servers are away.
pub(crate) fn free_ports(count: usize) -> Result<Vec<u16>> {
    (0..count).map(|_| testbed::lasting_port()).collect()
}
