//! A Consul of a test's own, ended with it.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use consul_semaphore_operator::consul::{Client, Config, NewSession};

/// How long anything may take: far more than it does.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// A `consul agent` on free ports of 127.0.0.1, in a folder of its own.
pub(crate) struct Consul {
    child: Child,
    arguments: Vec<String>,
    pub(crate) folder: PathBuf,
    pub(crate) port: u16,
}

/// A client with these `CONSUL_*` variables.
pub(crate) fn client(variables: &[(&str, &str)]) -> Client {
    Client::new(config(variables)).unwrap()
}

pub(crate) fn config(variables: &[(&str, &str)]) -> Config {
    let lookup = |name: &str| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    Config::from_lookup(lookup).unwrap()
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

pub(crate) fn new_folder() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = format!("consul-client-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// `consul` with these words, in the folder.
pub(crate) fn command(folder: &Path, words: &[&str]) -> Command {
    let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join(".servers/bin/consul");
    let mut command = Command::new(binary);
    command.args(words).current_dir(folder).stdin(Stdio::null());
    command
}

impl Consul {
    /// One that lets everybody do everything, and a client of it.
    pub(crate) async fn start() -> (Self, Client) {
        Self::with(new_folder(), &["-dev"], "", "http", |consul| {
            client(&[("CONSUL_HTTP_ADDR", &consul.address())])
        })
        .await
    }

    /// One with other arguments and more configuration, and a client that `connect` makes.
    pub(crate) async fn with(
        folder: PathBuf,
        arguments: &[&str],
        configuration: &str,
        listener: &str,
        connect: impl Fn(&Self) -> Client,
    ) -> (Self, Client) {
        fs::write(folder.join("more.hcl"), configuration).unwrap();
        for _ in 0..5 {
            let port = free_port();
            let mut all: Vec<_> = arguments.iter().map(ToString::to_string).collect();
            all.push(format!("-{listener}-port={port}"));
            for other in ["server", "serf-lan", "serf-wan"] {
                all.push(format!("-{other}-port={}", free_port()));
            }
            let mut consul = Self {
                child: spawn(&folder, &all),
                arguments: all,
                folder: folder.clone(),
                port,
            };
            let client = connect(&consul);
            if consul.answers(&client).await {
                return (consul, client);
            }
            // It has ended: somebody else was quicker to take one of the ports.
        }
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        panic!("consul does not start: {log}");
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills it; what it has not written to its folder is lost.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, with what its folder holds.
    pub(crate) async fn start_again(&mut self, client: &Client) {
        self.child = spawn(&self.folder, &self.arguments);
        assert!(self.answers(client).await);
    }

    async fn answers(&mut self, client: &Client) -> bool {
        let ready = async {
            loop {
                if self.child.try_wait().unwrap().is_some() {
                    return false;
                }
                // A new leader's work is done when it has registered itself.
                if let Ok(session) = client.create_session(&on_server()).await {
                    return client.destroy_session(&session).await.is_ok();
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(DEADLINE, ready).await.unwrap_or(false)
    }

    /// A raw `PUT`, for what the client does not do.
    pub(crate) async fn put_json(&self, path: &str, token: &str, body: &str) -> serde_json::Value {
        let url = format!("http://{}/v1/{path}", self.address());
        let request = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = request.put(url).header("X-Consul-Token", token);
        let answer = request.body(body.to_owned()).send().await.unwrap();
        let answer = answer.error_for_status().unwrap();
        answer.json().await.unwrap()
    }
}

/// A session on the server's own node, that nothing but its destruction ends.
pub(crate) fn on_server() -> NewSession {
    NewSession {
        name: "holder".to_owned(),
        node: "server".to_owned(),
        ttl: None,
        lock_delay: Duration::ZERO,
    }
}

fn spawn(folder: &Path, arguments: &[String]) -> Child {
    let log = fs::File::create(folder.join("log")).unwrap();
    command(folder, &["agent", "-bind=127.0.0.1", "-node=server"])
        .args(["-config-file=more.hcl", "-log-level=warn"])
        .args(["-grpc-port=-1", "-grpc-tls-port=-1", "-dns-port=-1"])
        .args(arguments)
        .stdout(log)
        .stderr(Stdio::null())
        .spawn()
        .expect("`make servers` builds .servers/bin/consul")
}

impl Drop for Consul {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
