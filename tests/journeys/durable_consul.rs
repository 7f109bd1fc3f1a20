//! A Consul that keeps its data: it can go away and come back with it. The bed's own forgets all.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use testbed::{Bed, Consul, eventually};

/// What ends a server with this process, whatever ends that.
const GUARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/testbed/guard");

/// A Consul server on ports of its own, not running at first. Ends when it is dropped.
pub(crate) struct DurableConsul {
    folder: PathBuf,
    address: String,
    consul: Consul,
    /// The server's guard, whose stdin takes signals.
    guard: Option<Child>,
}

impl DurableConsul {
    /// One whose data are in the bed's folder.
    pub(crate) fn new(bed: &Bed) -> Self {
        let folder = bed.folder().path().join("durable-consul");
        fs::create_dir(&folder).expect("a folder");
        let [http, server, lan, wan] =
            [(); 4].map(|()| testbed::lasting_port().expect("a free port"));
        let config = json!({
            "node_name": "durable",
            "server": true,
            "bootstrap_expect": 1,
            "data_dir": folder.join("data"),
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "ports": {
                "http": http, "server": server, "serf_lan": lan, "serf_wan": wan,
                "grpc": -1, "grpc_tls": -1, "dns": -1,
            },
            "connect": { "enabled": false },
            "disable_update_check": true,
            "performance": { "raft_multiplier": 1 },
        });
        fs::write(folder.join("consul.json"), config.to_string()).expect("its configuration");
        let address = format!("127.0.0.1:{http}");
        let consul = Consul::at(&address, None).expect("a client");
        Self {
            folder,
            address,
            consul,
            guard: None,
        }
    }

    /// Where it is to be found, as in `CONSUL_HTTP_ADDR`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Starts it with the data that it has, and waits until it has a leader.
    pub(crate) async fn start(&mut self) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join("consul.log"))
            .expect("its log");
        let guard = Command::new("bash")
            .args([Path::new(GUARD), &self.folder.join("pid")])
            .arg(testbed::servers().join("consul"))
            .args(["agent", "-config-file"])
            .arg(self.folder.join("consul.json"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("Consul starts");
        self.guard = Some(guard);
        eventually("Consul has a leader", || async {
            match self.consul.try_get("catalog/nodes").await {
                Ok(Value::Array(nodes)) if !nodes.is_empty() => Ok(()),
                Ok(other) => Err(other.to_string()),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await;
    }

    /// Kills it (SIGKILL), and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.signal("KILL");
        if let Some(mut guard) = self.guard.take() {
            guard.wait().expect("its end");
        }
    }

    /// Lets it do nothing: whoever asks it waits (SIGSTOP).
    pub(crate) fn pause(&mut self) {
        self.signal("STOP");
    }

    /// Lets it go on (SIGCONT).
    pub(crate) fn resume(&mut self) {
        self.signal("CONT");
    }

    fn signal(&mut self, signal: &str) {
        let pipe = self.guard.as_mut().and_then(|guard| guard.stdin.as_mut());
        writeln!(pipe.expect("it runs"), "{signal}").expect("the guard listens");
    }
}

impl Drop for DurableConsul {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            // The end of the pipe ends the server.
            drop(guard.stdin.take());
            let _ = guard.wait();
        }
    }
}
