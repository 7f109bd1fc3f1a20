//! Answers to a login that a real Consul can't be made to give on demand: recorded from a real one.

use std::fs;

use consul_client::{AuthMethod, Client, Error, PutMode, Scope};
use serde_json::json;
use testbed::{Folder, eventually};
use wiremock::{
    Mock, MockServer, ResponseTemplate,
    matchers::{any, header, path},
};

use crate::server::config;

/// A server, and a client that logs in there.
async fn guest(folder: &Folder) -> (MockServer, Client) {
    guest_from(folder, Scope::default(), None).await
}

/// The same, for an auth method in this place and work in this namespace.
async fn guest_from(
    folder: &Folder,
    scope: Scope,
    namespace: Option<&str>,
) -> (MockServer, Client) {
    let server = MockServer::start().await;
    let mut config = config(&[("CONSUL_HTTP_ADDR", &server.uri())]);
    let bearer_token_file = folder.path().join("bearer");
    fs::write(&bearer_token_file, "bearer").unwrap();
    config.login = Some(AuthMethod {
        name: "jwt".to_owned(),
        bearer_token_file,
        meta: [].into(),
        scope,
    });
    config.namespace = namespace.map(str::to_owned);
    (server, Client::new(config).unwrap())
}

/// The next login returns this token, which lives this many seconds.
async fn gives(server: &MockServer, secret: &str, seconds: Option<u32>) {
    let mut given = json!({ "AccessorID": "a", "SecretID": secret });
    if let Some(seconds) = seconds {
        given["CreateTime"] = "2026-01-01T00:00:00.5Z".into();
        given["ExpirationTime"] = format!("2026-01-01T00:00:{seconds:02}.5Z").into();
    }
    Mock::given(path("/v1/acl/login"))
        .respond_with(ResponseTemplate::new(200).set_body_json(given))
        .up_to_n_times(1)
        .mount(server)
        .await;
}

/// For this many requests at this path, Consul does not know the token.
async fn knows_not(server: &MockServer, secret: &str, at: &str, times: u64) {
    Mock::given(header("X-Consul-Token", secret))
        .and(path(at))
        .respond_with(ResponseTemplate::new(403).set_body_string("ACL not found"))
        .up_to_n_times(times)
        .mount(server)
        .await;
}

/// Requests with this token succeed.
async fn knows(server: &MockServer, secret: &str) {
    Mock::given(any())
        .and(header("X-Consul-Token", secret))
        .respond_with(ResponseTemplate::new(200).set_body_string("true"))
        .mount(server)
        .await;
}

/// The requests, in order, and their tokens.
async fn asked(server: &MockServer) -> Vec<(String, String)> {
    let requests = server.received_requests().await.unwrap();
    let token = |request: &wiremock::Request| {
        let token = request.headers.get("X-Consul-Token");
        token.map_or(String::new(), |token| token.to_str().unwrap().to_owned())
    };
    let asked = requests.iter();
    asked
        .map(|request| (request.url.path().to_owned(), token(request)))
        .collect()
}

async fn put(client: &Client) -> Result<bool, Error> {
    client.put("k", b"", 0, PutMode::Set).await
}

const SELF: &str = "/v1/acl/token/self";
const LOGIN: &str = "/v1/acl/login";

fn expected(requests: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = |(path, token): &(&str, &str)| ((*path).to_owned(), (*token).to_owned());
    requests.iter().map(own).collect()
}

#[tokio::test]
async fn a_new_token_is_not_used_before_the_server_knows_it() {
    let folder = Folder::new().unwrap();
    let (server, client) = guest(&folder).await;
    gives(&server, "new", None).await;
    knows_not(&server, "new", SELF, 2).await;
    knows(&server, "new").await;
    assert_eq!(put(&client).await, Ok(true));
    let probe = (SELF, "new");
    assert_eq!(
        asked(&server).await,
        expected(&[(LOGIN, ""), probe, probe, probe, ("/v1/kv/k", "new")])
    );
}

#[tokio::test]
async fn a_login_is_made_where_the_auth_method_is() {
    let folder = Folder::new().unwrap();
    let method_is_in = Scope {
        datacenter: Some("dc1".to_owned()),
        namespace: Some("default".to_owned()),
        partition: None,
    };
    let (server, client) = guest_from(&folder, method_is_in, Some("team")).await;
    gives(&server, "new", None).await;
    knows(&server, "new").await;
    assert_eq!(put(&client).await, Ok(true));
    client.log_out().await;
    let requests = server.received_requests().await.unwrap();
    let asked: Vec<_> = requests
        .iter()
        .map(|request| {
            let mut parts: Vec<_> = request.url.query_pairs().collect();
            parts.retain(|(name, _)| ["dc", "ns"].contains(&&**name));
            parts.sort();
            (request.url.path(), parts)
        })
        .collect();
    let there = || vec![("dc".into(), "dc1".into()), ("ns".into(), "default".into())];
    let here = || vec![("ns".into(), "team".into())];
    assert_eq!(
        asked,
        [
            (LOGIN, there()),
            (SELF, here()),
            ("/v1/kv/k", here()),
            ("/v1/acl/logout", there()),
        ]
    );
}

/// Another server does not know it yet, but the leader does: no reason to log in again.
#[tokio::test]
async fn a_token_that_the_leader_knows_is_not_lost() {
    let folder = Folder::new().unwrap();
    let (server, client) = guest(&folder).await;
    gives(&server, "new", None).await;
    knows_not(&server, "new", "/v1/kv/k", 1).await;
    knows(&server, "new").await;
    assert_eq!(put(&client).await, Ok(true));
    let (look, write) = ((SELF, "new"), ("/v1/kv/k", "new"));
    assert_eq!(
        asked(&server).await,
        expected(&[(LOGIN, ""), look, write, look, write])
    );
}

#[tokio::test]
async fn a_token_is_exchanged_before_it_expires_and_given_back() {
    let folder = Folder::new().unwrap();
    let (server, client) = guest(&folder).await;
    gives(&server, "short", Some(2)).await;
    knows(&server, "short").await;
    assert_eq!(put(&client).await, Ok(true));
    gives(&server, "long", None).await;
    knows(&server, "long").await;
    let given_back = ("/v1/acl/logout".to_owned(), "short".to_owned());
    eventually("the first token is given back", || async {
        asked(&server).await.contains(&given_back)
    })
    .await;
    assert_eq!(put(&client).await, Ok(true));
    let last = asked(&server).await.pop().unwrap();
    assert_eq!(last, ("/v1/kv/k".to_owned(), "long".to_owned()));
}

/// Secrets are not repeated, neither from a proxy's answer nor from one that can't be read.
#[tokio::test]
async fn no_secret_is_repeated() {
    for (status, body) in [
        (502, "you sent {\"BearerToken\":\"bearer\"}"),
        (200, "{\"AccessorID\":1,\"SecretID\":\"s3cr3t\"}"),
        (200, "{\"AccessorID\":\"a\",\"SecretID\":[\"s3cr3t\"]}"),
        (200, "{\"AccessorID\":\"a\",\"SecretID\":\"s3cr3t\\n\"}"),
    ] {
        let folder = Folder::new().unwrap();
        let (server, client) = guest(&folder).await;
        Mock::given(path(LOGIN))
            .respond_with(ResponseTemplate::new(status).set_body_string(body))
            .mount(&server)
            .await;
        let error = put(&client).await.unwrap_err();
        let text = format!("{error} {error:?} {client:?}");
        assert!(matches!(error, Error::LoginFailed(_)), "{text}");
        assert!(
            !text.contains("s3cr3t") && !text.contains("\"bearer"),
            "{text}"
        );
    }
}
