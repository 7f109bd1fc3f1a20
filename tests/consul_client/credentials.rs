//! Certificates that are replaced while the client works.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use consul_client::{Client, PutMode, WatchOptions};
use serde_json::json;
use testbed::{Certificates, Consul, Folder, Link, eventually, same};
use tokio::time::timeout;

use crate::{
    faults::Calls,
    server::{DEADLINE, config, free_port, is_old},
};

/// The configuration of a server that accepts clients with a certificate of its CA, on this port.
pub(crate) fn over_tls(ca: &Path, certificate: &Path, key: &Path, port: u16) -> serde_json::Value {
    let verify = if is_old() {
        "verify_incoming_https"
    } else {
        "verify_incoming"
    };
    let tls = json!({ "ca_file": ca, "cert_file": certificate, "key_file": key, verify: true });
    let mut configuration = if is_old() {
        tls
    } else {
        json!({ "tls": { "https": tls } })
    };
    configuration["ports"] = json!({ "https": port });
    configuration
}

/// The files that are replaced, in this order.
const FILES: [&str; 3] = ["ca", "certificate", "key"];

fn of_server(of: &Certificates) -> [PathBuf; 3] {
    let [certificate, key] = of.server();
    [of.authority(), certificate, key]
}

fn of_client(of: &Certificates) -> [PathBuf; 3] {
    let [certificate, key] = of.client();
    [of.authority(), certificate, key]
}

fn exchange(from: &[PathBuf], into: &Folder) {
    for (file, name) in from.iter().zip(FILES) {
        fs::copy(file, into.path().join(name)).unwrap();
    }
}

#[tokio::test]
async fn exchanged_certificates_are_used_by_new_connections_and_end_none() {
    let made = Folder::new().unwrap();
    let first = Certificates::make(&made.path().join("1")).await.unwrap();
    let second = Certificates::make(&made.path().join("2")).await.unwrap();
    let (servers, clients) = (Folder::new().unwrap(), Folder::new().unwrap());
    exchange(&of_server(&first), &servers);
    exchange(&of_client(&first), &clients);
    let at = |folder: &Folder, name: &str| folder.path().join(name);
    let [ca, certificate, key] = FILES.map(|name| at(&servers, name));
    let port = free_port();
    let configuration = over_tls(&ca, &certificate, &key, port);
    let consul = Consul::builder().config(configuration).start().await;
    let link = Link::start(format!("127.0.0.1:{port}")).await.unwrap();
    let address = format!("https://{}", link.address());
    let [ca, certificate, key] = FILES.map(|name| at(&clients, name).display().to_string());
    let mut config = config(&[
        ("CONSUL_HTTP_ADDR", &address),
        ("CONSUL_CACERT", &ca),
        ("CONSUL_CLIENT_CERT", &certificate),
        ("CONSUL_CLIENT_KEY", &key),
    ]);
    let calls = Arc::new(Calls::default());
    config.observer = Some(calls.clone());
    let client = Client::new(config.clone()).unwrap();
    assert!(client.put("p/a", b"", 0, PutMode::Set).await.unwrap());
    let mut readings = client.readings("p/", WatchOptions::default());
    let reading = timeout(DEADLINE, readings.recv()).await.unwrap().unwrap();
    assert_eq!(reading.unwrap().entries.len(), 1);
    let before = link.made();

    // The certificate without its key: a new client can't use it, and an existing client continues with the old pair.
    exchange(&of_client(&second)[..2], &clients);
    let Err(refused) = Client::new(config) else {
        panic!("taken");
    };
    assert_eq!(refused.variable, "CONSUL_CLIENT_CERT");
    assert!(client.get("p/a").await.unwrap().is_some());

    exchange(&of_server(&second), &servers);
    consul.process().signal("HUP").unwrap();
    exchange(&of_client(&second), &clients);
    eventually("there are connections with the new ones", async || {
        client.get("p/a").await.map_err(|error| error.to_string())?;
        same(link.made() > before, true)
    })
    .await;
    // The waiting call is not disturbed.
    assert!(client.put("p/b", b"", 0, PutMode::Set).await.unwrap());
    let reading = timeout(DEADLINE, readings.recv()).await.unwrap().unwrap();
    assert_eq!(reading.unwrap().entries.len(), 2);
    let mut watched = calls.all();
    watched.retain(|(kind, _)| *kind == "kv_watch");
    assert_eq!(watched, [("kv_watch", "ok"); 2]);

    // No old connection is left that could live on.
    link.cut();
    link.mend();
    eventually("it is trusted both ways", async || {
        client
            .get("p/a")
            .await
            .map(|entry| assert!(entry.is_some()))
    })
    .await;
}
