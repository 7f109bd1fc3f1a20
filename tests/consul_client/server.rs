//! Helpers that several of these tests need.

use std::time::Duration;

use consul_client::{Client, Config, ExternalNode, NewSession, SessionId};
use testbed::{Consul, ConsulServer, Folder};

/// How long anything may take: far more than it does.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// A separate Consul for a test, and a client of it.
pub(crate) async fn start() -> (ConsulServer, Client) {
    let consul = Consul::start().await;
    let client = client(&[("CONSUL_HTTP_ADDR", consul.address())]);
    (consul, client)
}

/// One that also listens on a unix socket, and its address.
pub(crate) async fn start_at(folder: &Folder) -> (ConsulServer, String) {
    let socket = socket(folder);
    let both = format!("127.0.0.1 {socket}");
    let configuration = serde_json::json!({ "addresses": { "http": both } });
    let consul = Consul::builder().config(configuration).start().await;
    (consul, socket)
}

/// The address of a Consul that is started with [`start_at`] for this folder.
pub(crate) fn socket(folder: &Folder) -> String {
    format!("unix://{}", folder.path().join("http.sock").display())
}

/// Kills it, and returns when it has ended.
pub(crate) async fn kill(consul: &ConsulServer) {
    consul.process().signal("KILL").unwrap();
    let ended = async || match consul.process().exit_status() {
        Some(_) => Ok(()),
        None => Err("it runs"),
    };
    testbed::eventually("Consul ends", ended).await;
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

/// A port where nothing listens.
pub(crate) fn free_port() -> u16 {
    testbed::lasting_port().unwrap()
}

/// A session on the server's own node, which ends only when it is destroyed.
pub(crate) fn on_server() -> NewSession {
    NewSession {
        name: "holder".to_owned(),
        node: Some("bed".to_owned()),
        ttl: None,
        lock_delay: Duration::ZERO,
    }
}

/// A session with this TTL on the external node `k8s-1`, which is registered first.
pub(crate) async fn session_on_node(client: &Client, ttl: Duration) -> SessionId {
    let node = ExternalNode {
        name: "k8s-1".to_owned(),
        address: "127.0.0.1".to_owned(),
    };
    client.register_node(&node).await.unwrap();
    let request = NewSession {
        name: "x".to_owned(),
        node: Some(node.name),
        ttl: Some(ttl),
        lock_delay: Duration::ZERO,
    };
    client.create_session(&request).await.unwrap()
}

/// Whether the Consul is older than 1.14: it accepts fewer operations in a transaction, configures TLS differently,
/// and redirects requests for a path like `a//b` to a cleaner one.
pub(crate) fn is_old() -> bool {
    testbed::consul_minor().unwrap() < 14
}
