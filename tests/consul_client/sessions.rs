//! Sessions and the nodes that they belong to.

use std::time::Duration;

use consul_client::{Behavior, Error, ExternalNode, NewSession, PutMode, SessionId};

use crate::server::{is_old, on_server, start};

fn on(node: &str) -> NewSession {
    NewSession {
        name: "prod-eu batch/migrate-42".to_owned(),
        node: Some(node.to_owned()),
        ttl: Some(Duration::from_mins(2)),
        lock_delay: Duration::from_secs(1),
    }
}

#[tokio::test]
async fn a_session_is_made_renewed_read_and_destroyed() {
    let (_consul, client) = start().await;
    let id = client.create_session(&on("bed")).await.unwrap();
    let session = client.renew_session(&id).await.unwrap().session;
    assert_eq!(session.id, id);
    assert_eq!(session.name, "prod-eu batch/migrate-42");
    assert_eq!(session.node, "bed");
    assert_eq!(session.ttl, Some(Duration::from_mins(2)));
    assert_eq!(session.lock_delay, Duration::from_secs(1));
    assert_eq!(session.behavior, Behavior::Delete);
    assert_eq!(client.session(&id).await.unwrap(), Some(session.clone()));
    let all = [session];
    assert_eq!(client.node_sessions("bed").await.unwrap(), all);
    assert_eq!(client.node_sessions("other").await.unwrap(), []);
    assert_eq!(client.sessions().await.unwrap(), all);

    // Its locked key is deleted with it.
    assert!(
        client
            .put("k", b"", 0, PutMode::Acquire(id.clone()))
            .await
            .unwrap()
    );
    client.destroy_session(&id).await.unwrap();
    assert_eq!(client.get("k").await.unwrap(), None);
    assert_eq!(client.renew_session(&id).await, Err(Error::Gone));
    assert_eq!(client.session(&id).await.unwrap(), None);
    client.destroy_session(&id).await.unwrap();
}

#[tokio::test]
async fn an_id_that_never_was_is_gone() {
    let (_consul, client) = start().await;
    let id = SessionId::from("11111111-2222-3333-4444-555555555555");
    assert_eq!(client.renew_session(&id).await, Err(Error::Gone));
    let odd = SessionId::from("../list");
    let renewed = client.renew_session(&odd).await;
    assert!(renewed == Err(Error::Gone) || (is_old() && renewed.is_err()));
}

#[tokio::test]
async fn a_session_without_ttl_has_none() {
    let (_consul, client) = start().await;
    let id = client.create_session(&on_server()).await.unwrap();
    assert_eq!(client.session(&id).await.unwrap().unwrap().ttl, None);
}

#[tokio::test]
async fn a_ttl_that_consul_refuses_is_said_in_its_words() {
    let (_consul, client) = start().await;
    let short = NewSession {
        ttl: Some(Duration::from_secs(1)),
        ..on("bed")
    };
    let error = client.create_session(&short).await.unwrap_err();
    assert!(
        error.to_string().contains("must be between [10s=24h0m0s]"),
        "{error}"
    );
}

/// Consul servers leave the catalog when they are restarted in the usual way on Kubernetes.
#[tokio::test]
async fn a_session_on_an_external_node_outlives_the_server_in_the_catalog() {
    let (consul, client) = start().await;
    let on_external = client.create_session(&on("k8s-1")).await;
    assert_eq!(on_external, Err(Error::MissingNode));
    let node = ExternalNode {
        name: "k8s-1".to_owned(),
        address: "127.0.0.1".to_owned(),
    };
    client.register_node(&node).await.unwrap();
    client.register_node(&node).await.unwrap();
    let ours = client.create_session(&on("k8s-1")).await.unwrap();
    let theirs = client.create_session(&on_server()).await.unwrap();
    let acquire = PutMode::Acquire(ours.clone());
    assert!(client.put("k", b"", 0, acquire).await.unwrap());

    let nodes = consul.get("catalog/node/k8s-1").await;
    assert_eq!(nodes["Node"]["Meta"]["external-node"], "true");
    let leave = serde_json::json!({ "Node": "bed" });
    consul.put_json("catalog/deregister", leave).await;
    assert_eq!(client.renew_session(&theirs).await, Err(Error::Gone));
    assert_eq!(
        client.renew_session(&ours).await.unwrap().session.node,
        "k8s-1"
    );
    assert_eq!(client.get("k").await.unwrap().unwrap().session, Some(ours));
}
