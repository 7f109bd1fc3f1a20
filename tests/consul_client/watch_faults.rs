//! How a watch handles answers that a real Consul can't be made to give on demand.

use std::{pin::pin, time::Duration};

use consul_client::{Error, PutMode, WatchOptions};
use futures::StreamExt;
use testbed::{eventually, same};
use tokio::time::timeout;
use wiremock::{
    Mock,
    matchers::{any, method, path},
};

use crate::{
    faults::{bed, connect, listing, says},
    server::DEADLINE,
};

/// Readings at these indexes, one after another, from a store whose own index is `store`.
async fn indexes(readings: &[u64], store: u64) -> (Vec<(u64, bool)>, Vec<Option<String>>) {
    let (server, client, _) = bed().await;
    let of_store = says(404, "").insert_header("X-Consul-Index", store.to_string().as_str());
    Mock::given(path("/v1/kv/p/.absent"))
        .respond_with(of_store)
        .mount(&server)
        .await;
    for index in readings {
        Mock::given(path("/v1/kv/p/"))
            .respond_with(listing(*index, &["p/a"]))
            .up_to_n_times(1)
            .mount(&server)
            .await;
    }
    let watch = pin!(client.watch("p/", WatchOptions::default()));
    // A reading that goes back is read again before it is believed.
    let back = readings.windows(2).filter(|pair| pair[1] < pair[0]);
    let seen = watch
        .take(readings.len() - back.count())
        .map(|l| l.unwrap())
        .map(|l| (l.index, l.reset));
    let seen = timeout(DEADLINE, seen.collect()).await.unwrap();
    let requests = server.received_requests().await.unwrap();
    let lists = requests.iter().filter(|r| r.url.path() == "/v1/kv/p/");
    let asked = lists.map(|request| {
        let mut query = request.url.query_pairs();
        query
            .find(|(name, _)| name == "index")
            .map(|(_, value)| value.into_owned())
    });
    (seen, asked.collect())
}

#[tokio::test]
async fn an_index_that_goes_back_begins_again_and_says_so() {
    let (seen, asked) = indexes(&[100, 7, 7, 8], 9).await;
    assert_eq!(seen, [(100, false), (7, true), (8, false)]);
    let asked: Vec<_> = asked.iter().map(Option::as_deref).collect();
    assert_eq!(asked, [None, Some("100"), None, Some("7")]);
}

#[tokio::test]
async fn an_index_that_goes_back_because_deletions_were_forgotten_is_no_loss() {
    let (seen, asked) = indexes(&[100, 90, 90], 250).await;
    assert_eq!(seen, [(100, false), (90, false)]);
    let asked: Vec<_> = asked.iter().map(Option::as_deref).collect();
    assert_eq!(asked, [None, Some("100"), None]);
}

#[tokio::test]
async fn index_0_is_treated_as_1() {
    let (seen, asked) = indexes(&[0, 0], 1).await;
    assert_eq!(seen, [(1, false), (1, false)]);
    assert_eq!(asked, [None, Some("1".to_owned())]);
}

#[tokio::test]
async fn a_watch_goes_on_after_errors() {
    let (server, client, _) = bed().await;
    Mock::given(any())
        .respond_with(says(403, "Permission denied"))
        .up_to_n_times(2)
        .mount(&server)
        .await;
    Mock::given(any())
        .respond_with(listing(9, &["p/a"]))
        .mount(&server)
        .await;
    let watch = client.watch("p/", WatchOptions::default()).take(3);
    let seen: Vec<_> = timeout(DEADLINE, watch.collect()).await.unwrap();
    let words = seen
        .iter()
        .map(|r| r.as_ref().map_or_else(Error::reason, |_| "ok"));
    let words: Vec<_> = words.collect();
    assert_eq!(words, ["PermissionDenied", "PermissionDenied", "ok"]);
}

#[tokio::test]
async fn a_watch_whose_readings_return_at_once_is_slowed_down() {
    let (server, client, calls) = bed().await;
    Mock::given(any())
        .respond_with(listing(9, &["p/a"]))
        .mount(&server)
        .await;
    let options = WatchOptions {
        burst: 5,
        rate: 0.001,
        ..WatchOptions::default()
    };
    let readings = client.watch("p/", options).for_each(async |_| ());
    let reading = tokio::spawn(readings);
    eventually("the burst is over", async || {
        same(calls.all().len() >= 5, true)
    })
    .await;
    // Without the rate there would be thousands by then. The sixth comes after a quarter of an hour, or on a machine
    // that sleeps for so long.
    tokio::time::sleep(Duration::from_secs(2)).await;
    reading.abort();
    assert!(calls.all().len() <= 6, "{}", calls.all().len());
}

#[tokio::test]
async fn a_watch_does_not_wait_at_a_server_that_hangs_for_others() {
    let (bad, _, _) = bed().await;
    let (good, _, calls) = bed().await;
    let client = connect(&format!("{},{}", bad.uri(), good.uri()), &calls);
    let first = Mock::given(method("GET")).respond_with(listing(9, &["p/a"]));
    first.up_to_n_times(1).mount(&bad).await;
    let for_ever = says(200, "true").set_delay(10 * DEADLINE);
    Mock::given(any()).respond_with(for_ever).mount(&bad).await;
    let second = listing(20, &["p/a"]);
    Mock::given(any()).respond_with(second).mount(&good).await;

    let mut readings = pin!(client.watch("p/", WatchOptions::default()));
    assert_eq!(readings.next().await.unwrap().unwrap().index, 9);
    let write = async { client.put("k", b"", 0, PutMode::Set).await };
    let (written, reading) = tokio::join!(write, timeout(DEADLINE, readings.next()));
    assert!(written.unwrap_err().may_have_been_applied());
    assert_eq!(reading.unwrap().unwrap().unwrap().index, 20);
}
