//! All Consul servers are killed and come back: the one that leads first has its log to replay, and answers from what
//! it has replayed so far unless a client asks for more consistency.

use std::{pin::pin, time::Duration};

use consul_client::{Client, Error, Op, PutMode, SessionId, WatchOptions};
use futures::StreamExt;
use testbed::{Consul, eventually};

use crate::server::{client, session_on_node};

/// This many transactions with this many keys take a while to replay.
const LOG: (usize, usize) = (600, 64);

#[tokio::test]
async fn a_leader_that_replays_its_log_is_not_taken_for_data_loss() {
    let cluster = Consul::cluster(3).await;
    let addresses = cluster.servers().iter().map(|server| server.address());
    let addresses: Vec<_> = addresses.collect();
    let client = client(&[("CONSUL_HTTP_ADDR", &addresses.join(","))]);
    for _ in 0..LOG.0 {
        // The leader may change meanwhile, and writing the same again does no harm.
        eventually("it is in the log", || async {
            client.transaction(&load(LOG.1)).await
        })
        .await;
    }
    let session = holder(&client).await;
    let quick = WatchOptions {
        wait: Duration::from_secs(1),
        ..WatchOptions::default()
    };
    let mut watch = pin!(client.watch("p/", quick));
    let first = loop {
        if let Ok(reading) = watch.next().await.unwrap() {
            break reading;
        }
    };
    assert_eq!(first.entries.len(), 1);

    for number in 0..3 {
        cluster.kill(number).await;
    }
    let back = cluster.start_again(&[0, 1, 2]);
    let renewed = eventually("the session is renewed", || async {
        match client.renew_session(&session).await {
            Err(Error::Gone) => Ok(false),
            renewed => renewed.map(|_| true),
        }
    });
    let seen = async {
        loop {
            if let Ok(reading) = watch.next().await.unwrap() {
                break (reading.entries.len(), reading.reset);
            }
        }
    };
    let listed = eventually("the prefix is listed", || async {
        let listing = client.list("p/").await;
        listing.map(|listing| listing.entries.len())
    });
    let ((), renewed, seen, listed) = tokio::join!(back, renewed, seen, listed);
    assert!(renewed, "it was said to be gone");
    assert_eq!(seen, (1, false));
    assert_eq!(listed, 1);
}

/// A transaction that writes this many keys.
fn load(keys: usize) -> Vec<Op> {
    let set = |number| Op::Set {
        key: format!("load/{number}"),
        value: vec![b'x'; 200],
        flags: 0,
    };
    (0..keys).map(set).collect()
}

/// A session that locks a key.
async fn holder(client: &Client) -> SessionId {
    let session = session_on_node(client, Duration::from_mins(2)).await;
    let acquire = PutMode::Acquire(session.clone());
    assert!(client.put("p/a", b"", 0, acquire).await.unwrap());
    session
}
