//! More commands that wait than Consul takes connections from one address.

use std::{fs, net::SocketAddr, time::Duration};

use serde_json::json;
use testbed::{Consul, eventually};
use tokio::time::sleep;

use crate::{
    stage::{PREFIX, Running, Stage},
    waiting::so_many_wait,
};

/// How many slots there are.
const LIMIT: usize = 3;

/// A Consul that takes so many connections from one address.
async fn with_connections(most: usize) -> Stage {
    let limits = json!({ "limits": { "http_max_conns_per_client": most } });
    Stage::with(Consul::builder().config(limits)).await
}

/// Starts so many commands, the first with the highest priority, beside those that hold the slots, and lets them run
/// once all wait. Returns the numbers of the commands in the order of their grants.
async fn served(stage: &Stage, count: usize, flags: &str) -> Vec<usize> {
    let flags = format!("--limit {LIMIT} {flags}");
    let mut all: Vec<Running> = Vec::new();
    for holder in 0..LIMIT {
        all.push(stage.exec(&flags, &format!("note holds-{holder}; wait_for all")));
        stage.noted(&format!("holds-{holder}")).await;
    }
    for number in 0..count {
        let priority = count - number;
        let note = format!("note $CONSUL_SEMAPHORE_FENCING_TOKEN {number}; sleep 0.05");
        all.push(stage.exec(&format!("{flags} --priority {priority}"), &note));
    }
    so_many_wait(stage, count).await;
    stage.open("all");
    for running in &mut all {
        running.ends_with(0).await;
    }
    let journal = stage.journal();
    let grants = journal.iter().filter_map(|line| line.split_once(' '));
    let mut grants: Vec<(u64, usize)> = grants
        .map(|(token, number)| (token.parse().unwrap(), number.parse().unwrap()))
        .collect();
    grants.sort_unstable();
    grants.into_iter().map(|(_, number)| number).collect()
}

#[tokio::test]
async fn more_commands_than_connections_are_served_in_order() {
    const COMMANDS: usize = 60;
    let mut order = Vec::new();
    // One that does not take its slot for two seconds, as on a busy machine, is passed over, as it should be.
    for _ in 0..3 {
        let stage = with_connections(40).await;
        order = served(&stage, COMMANDS, "").await;
        stage.is_clean().await;
        assert_eq!(order.len(), COMMANDS, "all are served");
        if is_nearly_sorted(&order) {
            return;
        }
    }
    panic!("{order:?}");
}

/// Those who arrive at once take turns to ask, also at an agent that does not answer.
#[tokio::test]
async fn commands_that_arrive_leave_connections_to_other_clients_of_the_agent() {
    const COMMANDS: usize = 200;
    const CONNECTIONS: usize = 160;
    let stage = with_connections(CONNECTIONS).await;
    let address = stage.consul.address().trim_start_matches("http://");
    // Its slot must not be lost while Consul is paused, however long a slow machine takes for all of this.
    let mut first = stage.first("--ttl 1h").await;
    stage.consul.pause().await;
    let all: Vec<_> = (0..COMMANDS).map(|_| stage.exec("", "true")).collect();
    let connections = most_connections(address).await;
    assert!(connections < CONNECTIONS, "{connections} connections");
    stage.consul.resume().await;
    so_many_wait(&stage, COMMANDS).await;
    drop(all);
    stage.open("first");
    first.ends_with(0).await;
}

/// The state of an open connection in `/proc/net/tcp` (`TCP_ESTABLISHED`).
const ESTABLISHED: &str = "01";

/// The most connections that there are to this address at once while commands arrive, once there are some.
async fn most_connections(address: &str) -> usize {
    let address: SocketAddr = address.parse().unwrap();
    let port = format!(":{:04X}", address.port());
    let count = || {
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let open = table.lines().filter(|line| {
            let mut columns = line.split_whitespace().skip(2);
            // One that is closed here stays in the table for a minute, because the other side hangs.
            let is_there = columns.next().is_some_and(|remote| remote.ends_with(&port));
            is_there && columns.next() == Some(ESTABLISHED)
        });
        open.count()
    };
    eventually("some commands connect", || async { count() > 20 }).await;
    let mut most = 0;
    for _ in 0..100 {
        sleep(Duration::from_millis(50)).await;
        most = most.max(count());
    }
    most
}

/// Whether most have their place, and nobody is far from it. While one slot is left to the one who comes first, those
/// behind have the other slots.
fn is_nearly_sorted(order: &[usize]) -> bool {
    let places = order.iter().enumerate();
    let mut off: Vec<_> = places
        .map(|(place, number)| place.abs_diff(*number))
        .collect();
    off.sort_unstable();
    off[off.len() * 3 / 4] < LIMIT && off[off.len() - 1] <= order.len() / 4
}

/// Nobody sees who waits for a mutex, so all watch it for whom there is room.
#[tokio::test]
async fn more_commands_than_connections_have_a_mutex_one_after_the_other() {
    const COMMANDS: usize = 150;
    let stage = with_connections(140).await;
    let flags = "--mode mutex --limit 1";
    let mut first = stage.first(flags).await;
    let mut all: Vec<_> = (0..COMMANDS)
        .map(|number| stage.exec(flags, &format!("note {number}")))
        .collect();
    for waits in &mut all {
        waits.says("waiting for").await;
    }
    stage.open("first");
    first.ends_with(0).await;
    for waits in &mut all {
        waits.ends_with(0).await;
    }
    assert_eq!(stage.journal().len(), 1 + COMMANDS);
    assert_eq!(stage.consul.list(PREFIX).await, []);
}
