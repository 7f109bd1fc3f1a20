//! Consul does not exist yet, goes away, hangs, and comes back with its data.

use kube::ResourceExt;
use serde_json::json;
use testbed::{Bed, Consul, Job, Semaphore, eventually};

async fn unreachable(semaphore: &Semaphore) {
    for kind in ["Ready", "ConsulReachable"] {
        semaphore
            .has_condition(kind, "False", "ConsulUnreachable")
            .await;
    }
}

/// The names of a Job's pods: different ones later mean that it was stopped in between.
async fn pods(job: &Job) -> Vec<String> {
    job.pods().await.iter().map(ResourceExt::name_any).collect()
}

#[tokio::test]
async fn jobs_wait_and_go_on_while_consul_is_away() {
    let bed = Bed::builder().without_operator().start().await;
    let server = Consul::cluster(1).await;
    let address = server.servers()[0].address();
    server.kill(0).await;
    let variables = [("CONSUL_HTTP_ADDR", address.to_owned())];
    let operator = bed.another_operator("far", [""; 0], variables);
    operator.start().await;
    let team = bed.namespace("consul-away").await;

    // Consul is not running. A Job that must not run is suspended nevertheless.
    let db = team.semaphore("db").limit(2).ttl("300s");
    let db = db.create().await;
    let long = team.job("a-long").semaphore("db").runs("1h");
    let long = long.unsuspended().create().await;
    long.is_waiting().await;
    unreachable(&db).await;
    db.has_condition_that_says("Ready", "False", "ConsulUnreachable", &[address])
        .await;

    server.start_again(&[0]).await;
    long.is_running().await;
    db.is_ready().await;

    // It goes away: running Jobs continue, and end, and no Job takes their place.
    let short = team.job("b-short").semaphore("db").runs("1h");
    let short = short.create().await;
    short.is_running().await;
    let next = team.job("c-next").semaphore("db").create().await;
    next.has_event("SlotWaiting").await;
    let quick = team.semaphore("quick").ttl("10s").create().await;
    quick.is_ready().await;
    let (session, running) = (long.session().await, pods(&long).await);
    server.kill(0).await;
    unreachable(&db).await;
    db.shows(json!({ "held": 2, "waiting": 1 })).await;
    short.finish().await;
    let later = team.job("d-later").semaphore("db").create().await;
    later.has_event("SlotWaiting").await;
    next.is_waiting().await;
    // A semaphore that is deleted meanwhile loses its finalizer once its sessions must have expired.
    quick.delete().await;
    quick.is_gone().await;
    eventually("it is said what may be left", || async {
        let left = ["get", "events", "--field-selector", "reason=LeftBehind"];
        let output = team.kubectl(left).await;
        let key = format!("{}/.lock", quick.lock_prefix());
        output.contains(&key).then_some(()).ok_or(output)
    })
    .await;

    server.start_again(&[0]).await;
    short.has_event("SlotReleased").await;
    next.is_complete().await;
    later.is_complete().await;
    db.is_ready().await;
    db.shows(json!({ "held": 1, "waiting": 0 })).await;
    long.is_running().await;
    assert_eq!(
        (long.session().await, pods(&long).await),
        (session, running)
    );

    // It hangs: requests get no answer.
    server.servers()[0].pause().await;
    let last = team.job("e-last").semaphore("db").create().await;
    unreachable(&db).await;
    last.is_waiting().await;
    server.servers()[0].resume().await;
    last.is_complete().await;
    db.is_ready().await;
    long.finish().await;
    db.shows(json!({ "held": 0, "heldHere": 0, "waiting": 0 }))
        .await;
}
