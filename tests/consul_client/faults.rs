//! Answers that a real Consul can't be made to give on demand: recorded from a real one, and sent by a mock server.

use std::{pin::pin, sync::Arc, time::Duration};

use consul_client::{
    Client, Error, NewSession, Observer, Op, PutMode, Scope, SessionId, WatchOptions, clock::Moment,
};
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::time::timeout;
use wiremock::{
    Mock, MockServer, ResponseTemplate,
    matchers::{any, body_string_contains, header, method, path, query_param},
};

use crate::server::{DEADLINE, config};

const TOKEN: &str = "s3cr3t-t0ken";

#[derive(Default)]
pub(crate) struct Calls(Mutex<Vec<(&'static str, &'static str)>>);

impl Observer for Calls {
    fn call(&self, kind: &'static str, result: &'static str, _took: Duration) {
        self.0.lock().push((kind, result));
    }
}

impl Calls {
    pub(crate) fn all(&self) -> Vec<(&'static str, &'static str)> {
        self.0.lock().clone()
    }
}

pub(crate) async fn bed() -> (MockServer, Client, Arc<Calls>) {
    let server = MockServer::start().await;
    let calls = Arc::new(Calls::default());
    let client = connect(&server.uri(), &calls);
    (server, client, calls)
}

pub(crate) fn connect(addresses: &str, calls: &Arc<Calls>) -> Client {
    let mut config = config(&[
        ("CONSUL_HTTP_ADDR", addresses),
        ("CONSUL_HTTP_TOKEN", TOKEN),
        ("CONSUL_HTTP_AUTH", "me:hunter2"),
    ]);
    config.timeout = Duration::from_secs(20);
    config.observer = Some(calls.clone());
    Client::new(config).unwrap()
}

pub(crate) fn says(status: u16, body: &str) -> ResponseTemplate {
    ResponseTemplate::new(status).set_body_string(body)
}

pub(crate) fn listing(index: u64, keys: &[&str]) -> ResponseTemplate {
    let entry = |key: &&str| serde_json::json!({"Key": key, "Value": null, "CreateIndex": 5, "ModifyIndex": 5});
    let entries: Vec<_> = keys.iter().map(entry).collect();
    ResponseTemplate::new(200)
        .insert_header("X-Consul-Index", index.to_string().as_str())
        .set_body_json(entries)
}

fn set() -> Op {
    Op::Set {
        key: "k".to_owned(),
        value: Vec::new(),
        flags: 0,
    }
}

#[tokio::test]
async fn a_read_outlasts_an_election_and_too_many_requests() {
    let (server, client, calls) = bed().await;
    for answer in [
        says(500, "No cluster leader"),
        says(429, "Your IP is issuing too many concurrent connections"),
        says(503, "upstream connect error"),
    ] {
        Mock::given(any())
            .respond_with(answer)
            .up_to_n_times(1)
            .mount(&server)
            .await;
    }
    Mock::given(header("X-Consul-Token", TOKEN))
        .and(header("Authorization", "Basic bWU6aHVudGVyMg=="))
        .respond_with(listing(9, &["p/a"]))
        .mount(&server)
        .await;
    assert_eq!(client.list("p/").await.unwrap().index, 9);
    let expected = ["NoLeader", "TooManyRequests", "UnexpectedAnswer", "ok"];
    assert_eq!(calls.all(), expected.map(|result| ("kv_list", result)));
}

#[tokio::test]
async fn an_answer_that_does_not_end_is_an_error_with_a_reason() {
    for (status, body, reason) in [
        (500, "rpc error making call: No cluster leader", "NoLeader"),
        (429, "Your IP is issuing too many", "TooManyRequests"),
        (502, "bad gateway", "UnexpectedAnswer"),
    ] {
        let (server, client, calls) = bed().await;
        Mock::given(any())
            .respond_with(says(status, body))
            .mount(&server)
            .await;
        assert_eq!(client.list("p/").await.unwrap_err().reason(), reason);
        assert!(calls.all().len() > 1, "it is tried more than once");
    }
}

#[tokio::test]
async fn a_write_is_done_again_only_when_nothing_was_written() {
    let (server, client, calls) = bed().await;
    Mock::given(any())
        .respond_with(says(500, "No cluster leader"))
        .up_to_n_times(1)
        .mount(&server)
        .await;
    Mock::given(any())
        .respond_with(says(200, "true"))
        .mount(&server)
        .await;
    assert!(client.put("k", b"", 0, PutMode::Cas(3)).await.unwrap());
    assert_eq!(calls.all(), [("kv_put", "NoLeader"), ("kv_put", "ok")]);
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_not_done_again() {
    let (server, client, calls) = bed().await;
    let lost = "rpc error making call: EOF";
    Mock::given(any())
        .respond_with(says(500, lost))
        .mount(&server)
        .await;
    let request = NewSession {
        name: String::new(),
        node: Some("n".to_owned()),
        ttl: None,
        lock_delay: Duration::ZERO,
    };
    for error in [
        client.put("k", b"", 0, PutMode::Set).await.unwrap_err(),
        client.delete("k", None).await.unwrap_err(),
        client.transaction(&[set()]).await.unwrap_err(),
        client.create_session(&request).await.unwrap_err(),
    ] {
        assert!(error.may_have_been_applied());
    }
    assert_eq!(calls.all().len(), 4);
}

#[tokio::test]
async fn what_may_be_done_twice_is() {
    let (server, client, calls) = bed().await;
    let lost = "rpc error making call: EOF";
    Mock::given(any())
        .respond_with(says(500, lost))
        .up_to_n_times(1)
        .mount(&server)
        .await;
    Mock::given(path("/v1/session/renew/s"))
        .and(method("PUT"))
        .respond_with(says(
            200,
            r#"[{"ID":"s","Name":"","Node":"n","TTL":"30s","LockDelay":0,"CreateIndex":1}]"#,
        ))
        .mount(&server)
        .await;
    let began = Moment::now();
    let renewed = client.renew_session(&SessionId::from("s")).await.unwrap();
    // The proof is the request that was answered, not the failed one before it: there is a pause between them.
    assert!(renewed.sent > began + Duration::from_millis(90));
    let session = renewed.session;
    // Consul grants a longer TTL than requested.
    assert_eq!(session.ttl, Some(Duration::from_secs(30)));
    assert_eq!(calls.all().len(), 2);
}

const SESSION: &str =
    r#"[{"ID":"s","Name":"","Node":"n","TTL":"30s","LockDelay":0,"CreateIndex":1}]"#;

/// A new leader has not replayed all of its log.
#[tokio::test]
async fn a_session_is_gone_when_a_consistent_read_says_so() {
    for (found, end) in [("[]", Err(Error::Gone)), (SESSION, Ok(()))] {
        let (server, client, calls) = bed().await;
        let renewal = || Mock::given(method("PUT")).and(path("/v1/session/renew/s"));
        renewal()
            .respond_with(says(404, "Session id 's' not found"))
            .up_to_n_times(1)
            .mount(&server)
            .await;
        Mock::given(path("/v1/session/info/s"))
            .and(query_param("consistent", ""))
            .respond_with(says(200, found))
            .mount(&server)
            .await;
        renewal()
            .respond_with(says(200, SESSION))
            .mount(&server)
            .await;
        let renewed = client.renew_session(&SessionId::from("s")).await;
        assert_eq!(renewed.map(drop), end);
        let last = calls.all().pop().unwrap();
        assert_eq!(last.0 == "session_renew", end.is_ok(), "{last:?}");
    }
}

/// The same for a prefix: what was seen is not lost because a new leader has not replayed it yet.
#[tokio::test]
async fn a_reading_that_went_back_is_read_again_consistently() {
    let (server, client, _) = bed().await;
    Mock::given(query_param("consistent", ""))
        .respond_with(listing(100, &["p/a"]))
        .mount(&server)
        .await;
    Mock::given(query_param("index", "100"))
        .respond_with(listing(7, &[]))
        .mount(&server)
        .await;
    Mock::given(path("/v1/kv/p/.absent"))
        .respond_with(says(404, "").insert_header("X-Consul-Index", "7"))
        .mount(&server)
        .await;
    let mut readings = pin!(client.watch("p/", WatchOptions::default()));
    for _ in 0..3 {
        let reading = timeout(DEADLINE, readings.next()).await.unwrap().unwrap();
        let reading = reading.unwrap();
        assert_eq!((reading.entries.len(), reading.reset), (1, false));
    }
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_and_the_write_is_undecided() {
    let (server, client, calls) = bed().await;
    let late = says(200, "true").set_delay(DEADLINE);
    Mock::given(any()).respond_with(late).mount(&server).await;
    let error = timeout(DEADLINE / 2, client.transaction(&[set()]))
        .await
        .unwrap();
    let error = error.unwrap_err();
    assert_eq!(error.reason(), "ConsulUnreachable");
    assert!(error.may_have_been_applied());
    assert_eq!(calls.all(), [("txn", "ConsulUnreachable")]);
}

#[tokio::test]
async fn a_connection_that_is_refused_decides_that_nothing_was_written() {
    let calls = Arc::new(Calls::default());
    let address = format!("127.0.0.1:{}", crate::server::free_port());
    let client = connect(&address, &calls);
    let error = client.transaction(&[set()]).await.unwrap_err();
    assert_eq!(error.reason(), "ConsulUnreachable");
    assert!(error.to_string().contains(&address), "{error}");
    assert!(!error.may_have_been_applied());
    assert!(calls.all().len() > 1, "it is tried more than once");
}

#[tokio::test]
async fn reads_go_to_the_next_address_at_once() {
    let (bad, _, _) = bed().await;
    let (good, _, calls) = bed().await;
    let client = connect(&format!("{},{}", bad.uri(), good.uri()), &calls);
    let no_leader = says(500, "No cluster leader");
    Mock::given(any()).respond_with(no_leader).mount(&bad).await;
    Mock::given(any())
        .respond_with(listing(9, &["p/a"]))
        .mount(&good)
        .await;
    client.list("p/").await.unwrap();
    client.list("p/").await.unwrap();
    // The second read begins when the first one ends.
    let expected = ["NoLeader", "ok", "ok"];
    assert_eq!(calls.all(), expected.map(|result| ("kv_list", result)));
}

#[tokio::test]
async fn the_limit_of_64_operations_is_learned_from_an_old_consul() {
    let (server, client, _) = bed().await;
    let too_many = says(413, "Transaction contains too many operations (65 > 64)");
    Mock::given(path("/v1/txn"))
        .respond_with(too_many)
        .mount(&server)
        .await;
    let clone = client.scoped(Scope::default());
    let error = client.transaction(&vec![set(); 65]).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge(_)) && !error.may_have_been_applied());
    assert_eq!(clone.transaction_capacity(), 64);
}

#[tokio::test]
async fn too_many_bytes_of_one_transaction_say_nothing_of_others() {
    let (server, client, _) = bed().await;
    let words = "Request body(600000 bytes) too large, max size: 524288 bytes. See > 1";
    let too_large = says(413, words);
    Mock::given(path("/v1/txn"))
        .respond_with(too_large)
        .mount(&server)
        .await;
    for operations in [100, 64, 2] {
        let error = client.transaction(&vec![set(); operations]).await;
        assert!(matches!(error, Err(Error::TooLarge(_))));
        assert_eq!(client.transaction_capacity(), 128);
    }
}

#[tokio::test]
async fn an_enterprise_consul_is_told_the_place_in_every_call_and_operation() {
    let (server, client, calls) = bed().await;
    let scoped = client.scoped(Scope {
        namespace: Some("team-a".to_owned()),
        partition: Some("eu".to_owned()),
        datacenter: Some("dc2".to_owned()),
    });
    let place = || {
        Mock::given(query_param("ns", "team-a"))
            .and(query_param("partition", "eu"))
            .and(query_param("dc", "dc2"))
    };
    place()
        .and(method("GET"))
        .respond_with(listing(9, &["k"]))
        .mount(&server)
        .await;
    place()
        .and(path("/v1/txn"))
        .and(body_string_contains(
            r#""Namespace":"team-a","Partition":"eu""#,
        ))
        .respond_with(says(200, r#"{"Results":[],"Errors":null}"#))
        .mount(&server)
        .await;
    scoped.transaction(&[set()]).await.unwrap();
    scoped.transaction(&[set()]).await.unwrap();
    // Whether it is Enterprise is read once.
    assert_eq!(
        calls.all(),
        [("kv_get", "ok"), ("txn", "ok"), ("txn", "ok")]
    );
}

#[tokio::test]
async fn a_404_of_something_else_is_not_an_empty_prefix_nor_the_end_of_a_session() {
    let (server, client, _) = bed().await;
    let elsewhere = says(404, "404 page not found");
    Mock::given(any())
        .respond_with(elsewhere)
        .mount(&server)
        .await;
    let session = SessionId::from("s");
    for error in [
        client.list("p/").await.unwrap_err(),
        client.get("k").await.unwrap_err(),
        client.renew_session(&session).await.unwrap_err(),
        client.session(&session).await.unwrap_err(),
    ] {
        assert_eq!(error.reason(), "UnexpectedAnswer");
        assert!(error.to_string().contains("404 page not found"));
    }
}

#[tokio::test]
async fn answers_that_make_no_sense_are_errors() {
    let (server, client, _) = bed().await;
    let index = |answer: ResponseTemplate| answer.insert_header("X-Consul-Index", "7");
    for answer in [
        index(says(200, "not json")),
        index(says(
            200,
            r#"[{"Key":"p/.lock","Value":"*","CreateIndex":1,"ModifyIndex":1}]"#,
        )),
        says(200, "[]"),
    ] {
        server.reset().await;
        Mock::given(any()).respond_with(answer).mount(&server).await;
        let error = client.list("p/").await.unwrap_err();
        assert!(matches!(error, Error::Decode(_)), "{error}");
    }
}

#[tokio::test]
async fn a_redirection_is_not_followed_with_the_token() {
    let (server, client, _) = bed().await;
    let elsewhere = ResponseTemplate::new(301).insert_header("Location", "/elsewhere");
    Mock::given(path("/v1/kv/k"))
        .respond_with(elsewhere)
        .mount(&server)
        .await;
    let error = client.get("k").await.unwrap_err();
    assert!(matches!(error, Error::Unexpected { status: 301, .. }));
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
}

#[tokio::test]
async fn no_secret_is_ever_repeated() {
    let (server, client, _) = bed().await;
    let chatty = says(400, &format!("bad request by {TOKEN}"));
    Mock::given(any()).respond_with(chatty).mount(&server).await;
    let error = client.list("p/").await.unwrap_err();
    for text in [
        error.to_string(),
        format!("{error:?}"),
        format!("{client:?}"),
    ] {
        assert!(!text.contains(TOKEN) && !text.contains("hunter2"), "{text}");
    }
}
