//! Blocking queries.

use std::{pin::pin, time::Duration};

use consul_client::{Client, Error, Listing, PutMode, WatchOptions};
use futures::{Stream, StreamExt};
use testbed::{Consul, Folder};
use tokio::{sync::watch, time::timeout};

use crate::server::{DEADLINE, client, config, kill, on_server, socket, start, start_at};

/// The first reading that matches.
async fn until(
    readings: &mut (impl Stream<Item = Result<Listing, Error>> + Unpin),
    wanted: impl Fn(&Listing) -> bool,
) -> Listing {
    let search = async {
        loop {
            match readings.next().await {
                Some(Ok(listing)) if wanted(&listing) => return listing,
                Some(_) => {}
                None => panic!("the stream has ended"),
            }
        }
    };
    timeout(DEADLINE, search).await.expect("in time")
}

#[tokio::test]
async fn a_watch_sees_changes_and_the_end_of_a_session() {
    let (_consul, client) = start().await;
    let mut readings = pin!(client.watch("p/", WatchOptions::default()));
    let first = until(&mut readings, |_| true).await;
    assert!(first.entries.is_empty());

    client.put("p/a", b"1", 0, PutMode::Set).await.unwrap();
    let made = until(&mut readings, |l| l.entries.len() == 1).await;
    assert!(made.index > first.index && made.sent >= first.sent && !made.reset);

    let session = client.create_session(&on_server()).await.unwrap();
    let acquire = PutMode::Acquire(session.clone());
    assert!(client.put("p/b", b"", 0, acquire).await.unwrap());
    let locked = |l: &Listing| l.entries.last().is_some_and(|e| e.session.is_some());
    until(&mut readings, locked).await;
    client.destroy_session(&session).await.unwrap();
    let released = until(&mut readings, |l| l.entries.len() == 1).await;
    assert!(!released.reset);
}

#[tokio::test]
async fn there_is_a_reading_after_every_wait_though_nothing_changes() {
    let (_consul, client) = start().await;
    client.put("p/a", b"1", 0, PutMode::Set).await.unwrap();
    let options = WatchOptions {
        wait: Duration::from_millis(100),
        ..WatchOptions::default()
    };
    let mut readings = pin!(client.watch("p/", options));
    let first = until(&mut readings, |_| true).await;
    let second = until(&mut readings, |_| true).await;
    let third = until(&mut readings, |_| true).await;
    assert!(first.sent < second.sent && second.sent < third.sent);
    assert_eq!(first.index, third.index);
}

#[tokio::test]
async fn a_watch_reports_that_consul_is_away_and_that_it_has_lost_its_data() {
    let (one, _) = start().await;
    let folder = Folder::new().unwrap();
    let addresses = format!("{},{}", one.address(), socket(&folder));
    let client = client(&[("CONSUL_HTTP_ADDR", &addresses)]);
    // To raise its index well above that of the other.
    for _ in 0..100 {
        client.put("p/a", b"1", 0, PutMode::Set).await.unwrap();
    }
    let mut readings = pin!(client.watch("p/", WatchOptions::default()));
    until(&mut readings, |l| l.entries.len() == 1).await;

    kill(&one).await;
    let failure = async {
        loop {
            if let Some(Err(error)) = readings.next().await {
                return error;
            }
        }
    };
    let error = timeout(DEADLINE, failure).await.unwrap();
    assert_eq!(error.reason(), "ConsulUnreachable");

    let _other = start_at(&folder).await;
    let without = until(&mut readings, |_| true).await;
    assert!(without.entries.is_empty() && without.reset);
    client.put("p/b", b"1", 0, PutMode::Set).await.unwrap();
    let filled = until(&mut readings, |l| l.entries.len() == 1).await;
    assert!(!filled.reset);
}

/// Watches beyond the maximum read periodically, and soon if somebody waits for a change.
#[tokio::test]
async fn a_watch_that_may_not_wait_for_changes_reads_again_when_it_is_urgent() {
    let consul = Consul::start().await;
    let mut config = config(&[("CONSUL_HTTP_ADDR", consul.address())]);
    config.max_watches = 0;
    let client = Client::new(config).unwrap();
    let (urgent, is_urgent) = watch::channel(false);
    let options = WatchOptions {
        wait: Duration::from_mins(10),
        urgent: is_urgent,
        ..WatchOptions::default()
    };
    let mut readings = client.readings("p/", options);
    let first = readings.recv().await.unwrap().unwrap();
    assert!(first.entries.is_empty());
    client.put("p/a", b"1", 0, PutMode::Set).await.unwrap();
    urgent.send(true).unwrap();
    let second = timeout(DEADLINE, readings.recv()).await;
    let second = second.expect("soon").unwrap().unwrap();
    assert_eq!(second.entries.len(), 1);
    assert!(second.index > first.index);
}

#[tokio::test]
async fn changes_share_a_reading_until_there_is_enough_time_since_the_last_one() {
    let (_consul, client) = start().await;
    let (spacing, wanted) = watch::channel(Duration::from_mins(5));
    let options = WatchOptions {
        wait: Duration::from_mins(10),
        spacing: wanted,
        ..WatchOptions::default()
    };
    let mut readings = client.readings("p/", options);
    let first = readings.recv().await.unwrap().unwrap();
    assert!(first.entries.is_empty());
    let mut each = pin!(client.watch("p/", WatchOptions::default()));
    for (count, key) in [(1, "p/a"), (2, "p/b")] {
        client.put(key, b"1", 0, PutMode::Set).await.unwrap();
        until(&mut each, |listing| listing.entries.len() == count).await;
    }
    spacing.send(Duration::ZERO).unwrap();
    let second = timeout(DEADLINE, readings.recv()).await;
    let second = second.expect("soon").unwrap().unwrap();
    assert_eq!(second.entries.len(), 2);
}
