//! Kubeconfigs, and clients made from them.
use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tower::{buffer::BufferLayer, retry::RetryLayer};

use crate::{read_again::ReadAgain, tls};

/// How many requests of a client may wait for their turn to be sent.
const QUEUE: usize = 1024;

/// A kubeconfig (as JSON, which is YAML too) for a server, its authority (PEM) and a token.
pub(crate) fn with_token(server: &str, authority: &[u8], token: &str) -> Value {
    of_cluster(
        &json!({ "server": server, "certificate-authority-data": BASE64_STANDARD.encode(authority) }),
        token,
        "default",
    )
}

/// A kubeconfig for the same server as another one's, with another token and default namespace.
pub(crate) fn as_someone_else(kubeconfig: &Path, token: &str, namespace: &str) -> Result<Value> {
    let config = Kubeconfig::read_from(kubeconfig)?;
    let current = config
        .current_context
        .as_deref()
        .context("a kubeconfig without a current context")?;
    let cluster = config
        .contexts
        .iter()
        .find(|context| context.name == current)
        .and_then(|context| context.context.as_ref())
        .and_then(|context| {
            config
                .clusters
                .iter()
                .find(|cluster| cluster.name == context.cluster)
        })
        .context("a kubeconfig without the cluster of its context")?;
    let cluster = serde_json::to_value(&cluster.cluster)?;
    Ok(of_cluster(&cluster, token, namespace))
}

/// The address (`host:port`) of the server in a kubeconfig made here.
pub(crate) fn server(kubeconfig: &Path) -> Result<String> {
    let config: Value = serde_json::from_str(&fs::read_to_string(kubeconfig)?)?;
    let url = config["clusters"][0]["cluster"]["server"].as_str();
    let address = url.and_then(|url| url.strip_prefix("https://"));
    Ok(address.context("a kubeconfig without a server")?.to_owned())
}

/// The authority (PEM) for the server's certificate, from a kubeconfig made here.
pub(crate) fn authority(kubeconfig: &Path) -> Result<Vec<u8>> {
    let config: Value = serde_json::from_str(&fs::read_to_string(kubeconfig)?)?;
    let data = config["clusters"][0]["cluster"]["certificate-authority-data"].as_str();
    Ok(BASE64_STANDARD.decode(data.context("a kubeconfig without an authority")?)?)
}

/// The same kubeconfig, for a server at another URL.
pub(crate) fn through(kubeconfig: &Path, url: &str) -> Result<String> {
    let mut config: Value = serde_json::from_str(&fs::read_to_string(kubeconfig)?)?;
    config["clusters"][0]["cluster"]["server"] = url.into();
    Ok(config.to_string())
}

fn of_cluster(cluster: &Value, token: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "bed", "cluster": cluster }],
        "users": [{ "name": "bed", "user": { "token": token } }],
        "contexts": [{ "name": "bed", "context": { "cluster": "bed", "user": "bed", "namespace": namespace } }],
        "current-context": "bed",
    })
}

/// A client that belongs to the runtime of the caller.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    client_of(Kubeconfig::read_from(kubeconfig)?).await
}

/// Like [`client`], for an admin under another user name, who keeps all rights.
pub(crate) async fn client_as(admin: &Path, user: &str) -> Result<Client> {
    let mut kubeconfig = Kubeconfig::read_from(admin)?;
    for admin in kubeconfig
        .auth_infos
        .iter_mut()
        .filter_map(|named| named.auth_info.as_mut())
    {
        admin.impersonate = Some(user.to_owned());
        admin.impersonate_groups = Some(vec!["system:masters".to_owned()]);
    }
    client_of(kubeconfig).await
}

async fn client_of(kubeconfig: Kubeconfig) -> Result<Client> {
    tls::init();
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // A test wants to see the server's answer at once, also that there is too much to do.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(10));
    if config.cluster_url.host() == Some("127.0.0.1") {
        // A developer's HTTPS_PROXY is not meant for loopback.
        config.proxy_url = None;
    }
    let builder = ClientBuilder::try_from(config)?
        // What is sent again needs a service that can be cloned.
        .with_layer(&BufferLayer::new(QUEUE))
        .with_layer(&RetryLayer::new(ReadAgain::new()));
    Ok(builder.build())
}
