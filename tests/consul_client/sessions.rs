//! Sessions and the nodes that they belong to.

use std::time::Duration;

use consul_semaphore_operator::consul::{
    Behavior, Error, ExternalNode, NewSession, PutMode, SessionId,
};

use crate::server::{Consul, client, new_folder, on_server};

fn on(node: &str) -> NewSession {
    NewSession {
        name: "prod-eu batch/migrate-42".to_owned(),
        node: node.to_owned(),
        ttl: Some(Duration::from_mins(2)),
        lock_delay: Duration::from_secs(1),
    }
}

#[tokio::test]
async fn a_session_is_made_renewed_read_and_destroyed() {
    let (_consul, client) = Consul::start().await;
    let id = client.create_session(&on("server")).await.unwrap();
    let session = client.renew_session(&id).await.unwrap();
    assert_eq!(session.id, id);
    assert_eq!(session.name, "prod-eu batch/migrate-42");
    assert_eq!(session.node, "server");
    assert_eq!(session.ttl, Some(Duration::from_mins(2)));
    assert_eq!(session.lock_delay, Duration::from_secs(1));
    assert_eq!(session.behavior, Behavior::Delete);
    assert_eq!(client.session(&id).await.unwrap(), Some(session.clone()));
    let all = [session];
    assert_eq!(client.node_sessions("server").await.unwrap(), all);
    assert_eq!(client.node_sessions("other").await.unwrap(), []);
    assert_eq!(client.sessions().await.unwrap(), all);

    // What it holds goes with it.
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
    let (_consul, client) = Consul::start().await;
    let id = SessionId::from("11111111-2222-3333-4444-555555555555");
    assert_eq!(client.renew_session(&id).await, Err(Error::Gone));
    let odd = SessionId::from("../list");
    assert_eq!(client.renew_session(&odd).await, Err(Error::Gone));
}

#[tokio::test]
async fn a_session_without_ttl_has_none() {
    let (_consul, client) = Consul::start().await;
    let id = client.create_session(&on_server()).await.unwrap();
    assert_eq!(client.session(&id).await.unwrap().unwrap().ttl, None);
}

#[tokio::test]
async fn a_ttl_that_consul_refuses_is_said_in_its_words() {
    let (_consul, client) = Consul::start().await;
    let short = NewSession {
        ttl: Some(Duration::from_secs(1)),
        ..on("server")
    };
    let error = client.create_session(&short).await.unwrap_err();
    assert!(
        error.to_string().contains("must be between [10s=24h0m0s]"),
        "{error}"
    );
}

#[tokio::test]
async fn a_session_on_an_external_node_outlives_the_server() {
    let (mut consul, client) = Consul::with(
        new_folder(),
        &["-server", "-bootstrap-expect=1", "-data-dir=data"],
        "",
        "http",
        |consul| client(&[("CONSUL_HTTP_ADDR", &consul.address())]),
    )
    .await;
    assert_eq!(
        client.create_session(&on("k8s-1")).await,
        Err(Error::MissingNode)
    );
    let node = ExternalNode {
        name: "k8s-1".to_owned(),
        address: "127.0.0.1".to_owned(),
    };
    client.register_node(&node).await.unwrap();
    client.register_node(&node).await.unwrap();
    let id = client.create_session(&on("k8s-1")).await.unwrap();
    assert!(
        client
            .put("k", b"", 0, PutMode::Acquire(id.clone()))
            .await
            .unwrap()
    );

    consul.kill();
    let error = client.renew_session(&id).await.unwrap_err();
    assert_eq!(error.reason(), "ConsulUnreachable");
    consul.start_again(&client).await;
    assert_eq!(client.renew_session(&id).await.unwrap().node, "k8s-1");
    assert_eq!(client.get("k").await.unwrap().unwrap().session, Some(id));
}
