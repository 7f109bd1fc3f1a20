//! Which calls wait behind which when Consul's raft is slow.

use std::{sync::Arc, time::Duration};

use consul_client::{Client, Error, Op, PutMode, SessionId, clock::Moment};
use testbed::{eventually, same};
use tokio::{task::JoinSet, time::timeout};
use wiremock::{
    Mock, MockServer,
    matchers::{method, path, path_regex},
};

use crate::{
    faults::{Calls, bed, listing, says},
    server::DEADLINE,
};

const RENEWED: &str =
    r#"[{"ID":"s","Name":"","Node":"n","TTL":"30s","LockDelay":0,"CreateIndex":1}]"#;

fn set() -> [Op; 1] {
    [Op::Set {
        key: "k".to_owned(),
        value: Vec::new(),
        flags: 0,
    }]
}

/// A Consul that never commits, with as many transactions as are sent to it at once, and more.
async fn without_commits() -> (MockServer, Client, Arc<Calls>, JoinSet<()>) {
    let (server, client, calls) = bed().await;
    let never = || says(200, "true").set_delay(10 * DEADLINE);
    for commits in ["/v1/txn", "/v1/session/create", "/v1/session/destroy/.*"] {
        let commits = Mock::given(path_regex(commits)).respond_with(never());
        commits.mount(&server).await;
    }
    let mut writers = JoinSet::new();
    for _ in 0..100 {
        let client = client.clone();
        writers.spawn(async move {
            let _ = client.transaction(&set()).await;
        });
    }
    eventually("as many are under way as may be", async || {
        same(transactions(&server).await >= 12, true)
    })
    .await;
    (server, client, calls, writers)
}

async fn transactions(server: &MockServer) -> usize {
    let requests = server.received_requests().await.unwrap();
    let transactions = requests.iter().filter(|r| r.url.path() == "/v1/txn");
    transactions.count()
}

#[tokio::test]
async fn renewals_readings_and_the_election_do_not_wait_for_commits() {
    let (server, client, calls, _writers) = without_commits().await;
    Mock::given(path("/v1/session/renew/s"))
        .respond_with(says(200, RENEWED))
        .mount(&server)
        .await;
    Mock::given(method("GET"))
        .respond_with(listing(9, &["p/a"]))
        .mount(&server)
        .await;
    Mock::given(path("/v1/kv/leader"))
        .respond_with(says(200, "true"))
        .mount(&server)
        .await;
    let all = async {
        let session = SessionId::from("s");
        client.renew_session(&session).await.unwrap();
        assert_eq!(client.list("p/").await.unwrap().index, 9);
        let election = client.apart();
        let mode = PutMode::Acquire(session);
        assert!(election.put("leader", b"", 0, mode).await.unwrap());
    };
    timeout(DEADLINE, all).await.unwrap();
    let calls: Vec<_> = calls.all().into_iter().map(|(kind, _)| kind).collect();
    let expected = ["session_renew", "kv_list", "kv_put"];
    assert_eq!(calls, expected, "before any transaction ended");
}

#[tokio::test]
async fn a_call_with_too_little_time_left_is_not_sent() {
    let (server, client, _, _writers) = without_commits().await;
    let before = transactions(&server).await;
    let soon = client.by(Moment::now() + Duration::from_secs(1));
    let error = soon.transaction(&set()).await.unwrap_err();
    assert!(matches!(error, Error::NotSent(_)), "{error}");
    assert!(!error.may_have_been_applied());
    let too_late = client.by(Moment::now());
    let error = too_late.renew_session(&"s".into()).await.unwrap_err();
    assert!(!error.may_have_been_applied(), "{error}");
    let requests = server.received_requests().await.unwrap();
    assert!(requests.iter().all(|r| !r.url.path().contains("renew")));
    assert_eq!(transactions(&server).await, before);
}
