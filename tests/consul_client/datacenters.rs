//! Two datacenters that know each other, and one of them hangs.

use std::{sync::Arc, time::Duration};

use consul_client::{Client, ExternalNode, NewSession, PutMode, Scope, SessionId, WatchOptions};
use serde_json::json;
use testbed::{Consul, ConsulServer, eventually, same};
use tokio::{task::JoinSet, time::timeout};

use crate::{
    faults::Calls,
    server::{DEADLINE, config},
};

/// A datacenter that does not notice that another one hangs: a real WAN takes half a minute or more.
async fn datacenter(name: &str) -> ConsulServer {
    let patient = json!({ "probe_interval": "10m", "probe_timeout": "5m" });
    let config = json!({ "datacenter": name, "gossip_wan": patient });
    Consul::builder().config(config).start().await
}

async fn session(client: &Client) -> SessionId {
    let node = ExternalNode {
        name: "k8s-1".to_owned(),
        address: "127.0.0.1".to_owned(),
    };
    client.register_node(&node).await.unwrap();
    let request = NewSession {
        name: String::new(),
        node: Some(node.name),
        ttl: Some(Duration::from_mins(2)),
        lock_delay: Duration::ZERO,
    };
    client.create_session(&request).await.unwrap()
}

#[tokio::test]
async fn a_hanging_datacenter_does_not_delay_another() {
    let (near, far) = (datacenter("dc1").await, datacenter("dc2").await);
    near.federate(&far).await;
    let calls = Arc::new(Calls::default());
    let mut config = config(&[("CONSUL_HTTP_ADDR", near.address())]);
    config.timeout = Duration::from_secs(5);
    config.observer = Some(calls.clone());
    let here = Client::new(config).unwrap();
    let there = here.scoped(Scope {
        datacenter: Some("dc2".to_owned()),
        ..Scope::default()
    });
    let (ours, theirs) = (session(&here).await, session(&there).await);
    assert!(there.put("p/far", b"", 0, PutMode::Set).await.unwrap());
    assert!(here.put("p/a", b"", 0, PutMode::Set).await.unwrap());
    let mut readings = here.readings("p/", WatchOptions::default());
    let first = timeout(DEADLINE, readings.recv()).await.unwrap().unwrap();
    assert_eq!(first.unwrap().entries[0].key, "p/a");

    far.pause().await;
    let mut hanging = JoinSet::new();
    for _ in 0..50 {
        let (there, theirs) = (there.clone(), theirs.clone());
        hanging.spawn(async move {
            let renewed = there.renew_session(&theirs).await;
            let written = there.put("p/b", b"", 0, PutMode::Set).await;
            (renewed.is_ok(), written.is_ok())
        });
    }
    // The calls that may have been sent and were not answered: the server itself answers all the time.
    eventually("forwarded calls are not answered in time", async || {
        let calls = calls.all();
        let silent = |kind| calls.contains(&(kind, "ConsulUnreachable"));
        same((silent("session_renew"), silent("kv_put")), (true, true))
    })
    .await;
    timeout(DEADLINE, here.renew_session(&ours))
        .await
        .unwrap()
        .unwrap();
    let written = timeout(DEADLINE, here.put("p/b", b"", 0, PutMode::Set)).await;
    assert_eq!(written.unwrap(), Ok(true));
    let second = timeout(DEADLINE, readings.recv()).await.unwrap().unwrap();
    assert_eq!(second.unwrap().entries.len(), 2);
    // It waited for the change all the time, and did not read again.
    let mut watched = calls.all();
    watched.retain(|(kind, _)| *kind == "kv_watch");
    assert_eq!(watched, [("kv_watch", "ok"); 2]);
    assert_eq!(hanging.len(), 50, "all of it was while the other hangs");
    hanging.abort_all();

    far.resume().await;
    eventually("the other datacenter answers again", async || {
        there.put("p/c", b"", 0, PutMode::Set).await
    })
    .await;
}
