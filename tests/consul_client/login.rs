//! Logging in to Consul, with tokens of a real API server.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use consul_client::{self as consul, Client, Error, Observer, PutMode};
use futures::future::join_all;
use parking_lot::Mutex;
use serde_json::Value;
use testbed::{ApiServer, AuthMethod, Consul, ConsulServer, eventually, same};

use crate::server::{config, is_old, session_on_node};

/// More calls than a client makes at once.
const MANY: usize = 40;

const ROOT: &str = "7a1c0e5e-0000-4000-8000-000000000001";
/// Kubernetes uses this `ServiceAccount` for pods that name none. Without the controllers the test creates it.
const ACCOUNT: [&str; 2] = ["default", "guest"];
const RULES: &str = r#"key_prefix "ours/" { policy = "write" }
    node "k8s-1" { policy = "write" }
    session "k8s-1" { policy = "write" }"#;

/// An API server, and a Consul that gives tokens to clients with one of the API server's tokens.
struct House {
    consul: ConsulServer,
    server: ApiServer,
    bearer_token_file: PathBuf,
    by: AuthMethod,
}

impl House {
    async fn open(by: AuthMethod) -> Self {
        let (consul, server) =
            tokio::join!(Consul::builder().acls(ROOT).start(), ApiServer::start());
        let [namespace, name] = ACCOUNT;
        server
            .kubectl(["create", "serviceaccount", "-n", namespace, name])
            .await;
        server.auth_method(&consul, by, None).await;
        let house = Self {
            bearer_token_file: consul.folder().path().join("bearer"),
            consul,
            server,
            by,
        };
        house.bring(&house.bearer_token().await);
        house
    }

    /// The same, with a binding rule for the account.
    async fn for_guests(by: AuthMethod) -> Self {
        let house = Self::open(by).await;
        house.invite().await;
        house
    }

    async fn invite(&self) {
        let guests = self
            .server
            .let_log_in(&self.consul, self.by, ACCOUNT, RULES);
        guests.await;
    }

    async fn bearer_token(&self) -> String {
        self.server.bearer_token(self.by, ACCOUNT).await
    }

    fn bring(&self, token: &str) {
        fs::write(&self.bearer_token_file, format!("{token}\n")).unwrap();
    }

    /// A client that logs in, and the kinds of its calls.
    fn guest(&self) -> (Client, Arc<Calls>) {
        let calls = Arc::new(Calls::default());
        let mut config = config(&[("CONSUL_HTTP_ADDR", self.consul.address())]);
        config.observer = Some(calls.clone());
        // Many calls wait for one login.
        config.timeout = Duration::from_mins(1);
        config.login = Some(consul::AuthMethod {
            name: self.by.name().to_owned(),
            bearer_token_file: self.bearer_token_file.clone(),
            meta: [("pod".to_owned(), "guest-1".to_owned())].into(),
            scope: consul::Scope::default(),
        });
        (Client::new(config).unwrap(), calls)
    }

    /// The tokens that logins returned, by their accessors.
    async fn given(&self) -> Vec<String> {
        let tokens = self.consul.get("acl/tokens").await;
        let given = tokens.as_array().unwrap().iter();
        let given = given.filter(|token| token["AuthMethod"] == self.by.name());
        let accessor = |token: &Value| token["AccessorID"].as_str().unwrap().to_owned();
        given.map(accessor).collect()
    }

    async fn delete_given(&self) {
        for accessor in self.given().await {
            self.consul
                .delete_at(&format!("acl/token/{accessor}"))
                .await;
        }
    }
}

#[derive(Default)]
struct Calls(Mutex<Vec<(&'static str, &'static str)>>);

impl Observer for Calls {
    fn call(&self, kind: &'static str, result: &'static str, _took: Duration) {
        self.0.lock().push((kind, result));
    }
}

impl Calls {
    fn of(&self, kind: &str, result: &str) -> usize {
        let calls = self.0.lock();
        calls.iter().filter(|call| **call == (kind, result)).count()
    }
}

async fn put(client: &Client) -> Result<bool, Error> {
    client.put("ours/a", b"", 0, PutMode::Set).await
}

/// Waits until a client has the rights that it needs, and returns when it has written.
async fn is_let_in(client: &Client) {
    eventually("it is let in", || async { put(client).await }).await;
}

fn assert_login_fails(result: Result<bool, Error>, words: &[&str]) {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::LoginFailed(_)), "{text}");
    let said = words.iter().all(|word| text.contains(word));
    assert!(said || is_old(), "{text}");
    assert!(!error.may_have_been_applied());
}

#[tokio::test]
async fn who_the_api_server_vouches_for_is_let_in_and_leaves_nothing() {
    leaves_nothing(AuthMethod::Kubernetes).await;
}

#[tokio::test]
async fn who_has_a_signed_token_is_let_in_and_leaves_nothing() {
    leaves_nothing(AuthMethod::Jwt).await;
}

async fn leaves_nothing(by: AuthMethod) {
    let house = House::for_guests(by).await;
    let (client, calls) = house.guest();
    // Many calls need a token at once; one login is enough.
    let puts = join_all((0..MANY).map(|_| put(&client))).await;
    assert!(puts.iter().all(|put| *put == Ok(true)), "{puts:?}");
    assert_eq!(calls.of("acl_login", "ok"), 1);
    let given = house.given().await;
    assert_eq!(given.len(), 1);
    let token = house.consul.get(&format!("acl/token/{}", given[0])).await;
    let noted = token["Description"].as_str().unwrap();
    assert!(noted.contains(r#""pod":"guest-1""#), "{noted}");

    // It may do what its rules say, and a missing rule is no reason to log in again.
    let denied = client.put("theirs/a", b"", 0, PutMode::Set).await;
    let denied = denied.unwrap_err().to_string();
    let named = denied.contains(r#"'key:write' on "theirs/a""#);
    assert!(named || is_old(), "{denied}");
    put(&client).await.unwrap();
    assert_eq!(house.given().await, given);

    // A client with another token is not affected.
    client
        .with_token(consul::TokenCell::default())
        .log_out()
        .await;
    put(&client).await.unwrap();
    client.clone().log_out().await;
    eventually("its token is given back", || async {
        same(house.given().await, Vec::new())
    })
    .await;
    assert_eq!(put(&client).await, Err(Error::NoToken));
    assert_eq!(calls.of("acl_login", "ok"), 1);
}

#[tokio::test]
async fn a_deleted_login_token_is_replaced_without_an_error() {
    let house = House::for_guests(AuthMethod::Jwt).await;
    let (client, calls) = house.guest();
    let session = session_on_node(&client, Duration::from_mins(1)).await;
    let first = house.given().await;

    house.delete_given().await;
    let puts = join_all((0..MANY).map(|_| put(&client))).await;
    assert!(puts.iter().all(|put| *put == Ok(true)), "{puts:?}");
    assert!(calls.of("kv_put", "PermissionDenied") > 0);
    assert_eq!(calls.of("acl_login", "ok"), 2, "one login for all");
    // A session created with the old token lives on with the new one.
    client.renew_session(&session).await.unwrap();
    client.destroy_session(&session).await.unwrap();

    // Reads notice a lost token like writes.
    house.delete_given().await;
    assert_eq!(client.list("ours/").await.unwrap().entries.len(), 1);
    let last = house.given().await;
    assert_eq!(last.len(), 1);
    assert_ne!(first, last);
}

#[tokio::test]
async fn two_replicas_log_in_each_for_itself() {
    let house = House::for_guests(AuthMethod::Jwt).await;
    let [(a, _), (b, _)] = [house.guest(), house.guest()];
    put(&a).await.unwrap();
    put(&b).await.unwrap();
    assert_eq!(house.given().await.len(), 2);
    a.log_out().await;
    eventually("one is given back", || async {
        same(house.given().await.len(), 1)
    })
    .await;
    put(&b).await.unwrap();
}

#[tokio::test]
async fn what_is_missing_for_a_login_is_said_and_heals() {
    let house = House::open(AuthMethod::Jwt).await;
    let (client, _) = house.guest();
    let secret = house.bearer_token().await;
    // No binding rule says what the account may do.
    let denied = put(&client).await;
    assert!(!format!("{denied:?}").contains(&secret));
    assert_login_fails(
        denied,
        &[r#"by the auth method "jwt""#, "Permission denied"],
    );
    house.invite().await;
    is_let_in(&client).await;

    // The file is read for each login: an unusable one is reported, and the next one is used.
    house.bring("n0t.a.t0ken");
    house.delete_given().await;
    let refused = put(&client).await;
    assert!(!format!("{refused:?}").contains("n0t.a.t0ken"));
    assert_login_fails(refused, &["status 500"]);
    fs::remove_file(&house.bearer_token_file).unwrap();
    eventually("the file is missing", || async {
        let error = put(&client).await.unwrap_err().to_string();
        if error.contains("cannot read") {
            Ok(())
        } else {
            Err(error)
        }
    })
    .await;
    house.bring(&secret);
    is_let_in(&client).await;
}

#[tokio::test]
async fn an_auth_method_that_is_not_there_is_named() {
    let house = House::open(AuthMethod::Jwt).await;
    let mut config = config(&[("CONSUL_HTTP_ADDR", house.consul.address())]);
    config.login = Some(consul::AuthMethod {
        name: "nowhere".to_owned(),
        bearer_token_file: house.bearer_token_file.clone(),
        meta: [].into(),
        scope: consul::Scope::default(),
    });
    let client = Client::new(config).unwrap();
    assert_login_fails(put(&client).await, &[r#""nowhere" not found"#]);
    // Having no token to give back is no problem.
    client.log_out().await;
    assert_eq!(put(&client).await, Err(Error::NoToken));
}
