//! Who may do what, and where.

use std::{fs, path::Path, pin::pin, time::Duration};

use consul_client::{Client, Error, ExternalNode, NewSession, Op, PutMode, Scope, WatchOptions};
use futures::StreamExt;
use serde_json::json;
use testbed::{Consul, ConsulServer, consul_minor, eventually};
use tokio::time::{sleep, timeout};

use crate::server::{DEADLINE, client, config, session_on_node, start};

const ROOT: &str = "7a1c0e5e-0000-4000-8000-000000000001";

async fn with_acls() -> (ConsulServer, Client) {
    let consul = Consul::builder().acls(ROOT).start().await;
    let root = with_token(&consul, ROOT);
    (consul, root)
}

fn with_token(consul: &Consul, token: &str) -> Client {
    client(&[
        ("CONSUL_HTTP_ADDR", consul.address()),
        ("CONSUL_HTTP_TOKEN", token),
    ])
}

/// A new token with these rules.
async fn token(consul: &Consul, name: &str, rules: &str) -> String {
    let policy = json!({ "Name": name, "Rules": rules });
    consul.put_json("acl/policy", policy).await;
    let token = json!({ "Policies": [{ "Name": name }] });
    let token = consul.put_json("acl/token", token).await;
    token["SecretID"].as_str().unwrap().to_owned()
}

fn set(key: &str) -> Op {
    Op::Set {
        key: key.to_owned(),
        value: Vec::new(),
        flags: 0,
    }
}

/// Everything is denied, and the error names this rule: from Consul 1.12 on.
fn assert_denied<T: std::fmt::Debug>(result: Result<T, Error>, rule: &str, token: &str) {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Denied(_)), "{text}");
    let named = consul_minor().unwrap() >= 12;
    assert!(!named || text.contains(rule), "{text}");
    assert!(
        !text.contains(token) && !error.may_have_been_applied(),
        "{text}"
    );
}

#[tokio::test]
async fn a_denial_names_the_missing_rule() {
    let (consul, root) = with_acls().await;
    root.transaction(&[set("ours/a"), set("theirs/a")])
        .await
        .unwrap();
    let rules = r#"key_prefix "ours/" { policy = "write" }"#;
    let secret = token(&consul, "ours", rules).await;
    let client = with_token(&consul, &secret);
    client.transaction(&[set("ours/a")]).await.unwrap();

    let rule = r#"'key:write' on "theirs/a""#;
    let put = client.put("theirs/a", b"", 0, PutMode::Set).await;
    assert_denied(put, rule, &secret);
    let transaction = client.transaction(&[set("ours/b"), set("theirs/a")]).await;
    assert_denied(transaction, rule, &secret);
    assert_eq!(client.get("ours/b").await.unwrap(), None);
    assert_denied(client.get("theirs/a").await, "'key:read'", &secret);

    let request = NewSession {
        name: String::new(),
        node: Some("k8s-1".to_owned()),
        ttl: None,
        lock_delay: Duration::ZERO,
    };
    let session = client.create_session(&request).await;
    assert_denied(session, r#"'session:write' on "k8s-1""#, &secret);
    let node = ExternalNode {
        name: "k8s-1".to_owned(),
        address: "127.0.0.1".to_owned(),
    };
    let register = client.register_node(&node).await;
    assert_denied(register, r#"'node:write' on "k8s-1""#, &secret);

    let bad = "7a1c0e5e-0000-4000-8000-00000000bad1";
    let unknown = with_token(&consul, bad)
        .put("k", b"", 0, PutMode::Set)
        .await;
    assert_denied(unknown, "ACL not found", bad);
}

#[tokio::test]
async fn entries_that_must_not_be_read_are_a_denial_and_not_an_empty_prefix() {
    let (consul, root) = with_acls().await;
    root.transaction(&[set("ours/a"), set("theirs/a")])
        .await
        .unwrap();
    let rules = r#"key_prefix "ours/" { policy = "write" }"#;
    let secret = token(&consul, "ours", rules).await;
    let client = with_token(&consul, &secret);

    assert_eq!(client.list("ours/").await.unwrap().entries.len(), 1);
    assert!(client.list("ours/none/").await.unwrap().entries.is_empty());
    // Before 1.11 Consul does not report that it filtered a larger listing.
    let more = (consul_minor().unwrap() >= 11).then_some("");
    for prefix in ["theirs/", "theirs/none/"].into_iter().chain(more) {
        assert_denied(client.list(prefix).await, "'key:read'", &secret);
    }
    // Consul does not tell clients without a token that it left entries out.
    let nobody = crate::server::client(&[("CONSUL_HTTP_ADDR", consul.address())]);
    assert_denied(nobody.list("ours/").await, "'key:read'", ROOT);
    let mut readings = pin!(nobody.watch("ours/", WatchOptions::default()));
    let first = timeout(DEADLINE, readings.next()).await.unwrap().unwrap();
    assert_denied(first, "'key:read'", ROOT);
}

#[tokio::test]
async fn the_policy_that_is_documented_is_enough() {
    let (consul, _root) = with_acls().await;
    let rules = r#"key_prefix "semaphores/" { policy = "write" }
                   session_prefix "k8s-1" { policy = "write" }
                   node "k8s-1" { policy = "write" }"#;
    let client = with_token(&consul, &token(&consul, "operator", rules).await);
    let session = session_on_node(&client, Duration::from_mins(1)).await;
    let contender = Op::Lock {
        key: format!("semaphores/a/{session}"),
        value: Vec::new(),
        flags: 0,
        session: session.clone(),
    };
    client
        .transaction(&[contender, set("semaphores/a/.lock")])
        .await
        .unwrap();
    client.renew_session(&session).await.unwrap();
    assert_eq!(client.node_sessions("k8s-1").await.unwrap().len(), 1);
    assert_eq!(client.list("semaphores/a/").await.unwrap().entries.len(), 2);
    client.destroy_session(&session).await.unwrap();
}

/// Each has the rules that are documented for it, on nodes named like an operator's, like two of its tenants', and
/// like one of `exec`.
#[tokio::test]
async fn nobody_ends_sessions_of_another_node() {
    let (consul, _root) = with_acls().await;
    let mut all = Vec::new();
    for (number, name) in ["k8s-1", "k8s-1:team-a", "k8s-1:team-a2", "exec-team-a"]
        .into_iter()
        .enumerate()
    {
        let rules =
            ["node", "session"].map(|kind| format!("{kind} {name:?} {{ policy = \"write\" }}\n"));
        let token = token(&consul, &format!("owner-{number}"), &rules.concat()).await;
        let client = with_token(&consul, &token);
        let node = ExternalNode {
            name: name.to_owned(),
            address: "127.0.0.1".to_owned(),
        };
        client.register_node(&node).await.unwrap();
        let session = NewSession {
            name: "theirs".to_owned(),
            node: Some(name.to_owned()),
            ttl: Some(Duration::from_mins(1)),
            lock_delay: Duration::ZERO,
        };
        let session = client.create_session(&session).await.unwrap();
        all.push((name, token, client, session));
    }
    for (own, token, client, _) in &all {
        for (_, _, _, session) in all.iter().filter(|(name, ..)| name != own) {
            let destroyed = client.destroy_session(session).await;
            assert_denied(destroyed, "'session:write'", token);
        }
    }
    for (name, _, client, session) in &all {
        let listed = client.node_sessions(name).await.unwrap();
        let listed: Vec<_> = listed.into_iter().map(|session| session.id).collect();
        assert_eq!(listed, std::slice::from_ref(session), "{name}");
        assert_eq!(client.is_external(name).await.unwrap(), Some(true));
        client.renew_session(session).await.unwrap();
        client.destroy_session(session).await.unwrap();
    }
}

#[tokio::test]
async fn a_token_file_is_read_again_when_it_changes() {
    let (consul, _root) = with_acls().await;
    let file = consul.folder().path().join("token");
    fs::write(&file, "7a1c0e5e-0000-4000-8000-00000000bad1\n").unwrap();
    let client = client(&[
        ("CONSUL_HTTP_ADDR", consul.address()),
        ("CONSUL_HTTP_TOKEN_FILE", file.to_str().unwrap()),
    ]);
    let denied = client.put("k", b"", 0, PutMode::Set).await;
    assert!(matches!(denied, Err(Error::Denied(_))));
    fs::write(&file, format!("{ROOT}\n")).unwrap();
    let allowed = async {
        while client.put("k", b"", 0, PutMode::Set).await != Ok(true) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(DEADLINE, allowed)
        .await
        .expect("the new token is used");

    // While the file is being written, or is missing, the previous token is kept.
    for away in [
        |file: &Path| fs::write(file, ""),
        |file: &Path| fs::remove_file(file),
    ] {
        away(&file).unwrap();
        sleep(Duration::from_millis(1500)).await;
        assert!(client.put("k", b"", 0, PutMode::Set).await.unwrap());
    }
}

#[tokio::test]
async fn a_token_file_that_comes_later_is_taken_up() {
    let (consul, _root) = with_acls().await;
    let file = consul.folder().path().join("token");
    let mut config = config(&[
        ("CONSUL_HTTP_ADDR", consul.address()),
        ("CONSUL_HTTP_TOKEN_FILE", file.to_str().unwrap()),
    ]);
    let Err(refused) = Client::new(config.clone()) else {
        panic!("taken");
    };
    assert_eq!(refused.variable, "CONSUL_HTTP_TOKEN_FILE");
    config.token_file_may_come = true;
    let client = Client::new(config.clone()).unwrap();
    let denied = client.put("k", b"", 0, PutMode::Set).await;
    assert!(matches!(denied, Err(Error::Denied(_))));
    fs::write(&file, ROOT).unwrap();
    eventually("the token is used", async || {
        client.put("k", b"", 0, PutMode::Set).await
    })
    .await;
    // A path that will never exist.
    config.token_file = Some(consul.folder().path().join("no/token"));
    assert!(Client::new(config).is_err());
}

#[tokio::test]
async fn a_consul_without_enterprise_refuses_its_places_in_every_call() {
    let (_consul, client) = start().await;
    let namespace = Scope {
        namespace: Some("team-a".to_owned()),
        ..Scope::default()
    };
    let partition = Scope {
        partition: Some("eu".to_owned()),
        ..Scope::default()
    };
    let node = ExternalNode {
        name: "k8s-1".to_owned(),
        address: "127.0.0.1".to_owned(),
    };
    // Before 1.11 Consul does not know partitions, and ignores them.
    let refused = usize::from(consul_minor().unwrap() >= 11) + 1;
    for scope in [namespace, partition].into_iter().take(refused) {
        let scoped = client.scoped(scope);
        let unsupported = |error: Error| matches!(error, Error::Unsupported(_));
        assert!(unsupported(scoped.list("p/").await.unwrap_err()));
        // Consul itself would ignore the partition in a transaction, and write elsewhere.
        assert!(unsupported(
            scoped.transaction(&[set("k")]).await.unwrap_err()
        ));
        assert!(unsupported(
            scoped.put("k", b"", 0, PutMode::Set).await.unwrap_err()
        ));
        assert!(unsupported(scoped.node_sessions("n").await.unwrap_err()));
        assert!(unsupported(scoped.register_node(&node).await.unwrap_err()));
    }
    assert_eq!(client.get("k").await.unwrap(), None);
}

#[tokio::test]
async fn a_datacenter_is_named_in_every_call_and_an_unknown_one_is_said_to_be() {
    let (_consul, client) = start().await;
    let scope = |name: &str| Scope {
        datacenter: Some(name.to_owned()),
        ..Scope::default()
    };
    let node = ExternalNode {
        name: "k8s-1".to_owned(),
        address: "127.0.0.1".to_owned(),
    };
    let here = client.scoped(scope("dc1"));
    here.transaction(&[set("k")]).await.unwrap();
    here.register_node(&node).await.unwrap();
    assert_eq!(client.list("k").await.unwrap().entries.len(), 1);

    let nowhere = client.scoped(scope("nowhere"));
    assert_eq!(nowhere.list("k").await, Err(Error::UnknownDatacenter));
    assert_eq!(
        nowhere.transaction(&[set("k")]).await,
        Err(Error::UnknownDatacenter)
    );
    assert_eq!(
        nowhere.register_node(&node).await,
        Err(Error::UnknownDatacenter)
    );
    assert_eq!(nowhere.sessions().await, Err(Error::UnknownDatacenter));
}
