//! The election by a Lease.

use std::time::Duration;

use testbed::{Bed, Operator, eventually, same};

use crate::{
    load::Load,
    replicas::{changes_in_consul, leader_of, others},
};

const LEASE: [&str; 2] = ["--lease-duration", "15s"];

#[tokio::test]
async fn jobs_go_on_whatever_becomes_of_the_leader() {
    let bed = Bed::builder().without_operator().start().await;
    let (link, kubeconfig) = bed.link_to_kubernetes().await;
    let by_link = [("KUBECONFIG", kubeconfig.display().to_string())];
    let a = bed.another_operator("a", LEASE, by_link);
    let b = bed.another_operator("b", LEASE, []);
    let c = bed.another_operator("c", LEASE, []);
    a.start().await;
    let mut load = Load::start(&bed, "120s").await;
    b.start().await;
    c.start().await;
    assert_eq!(leader_of(&[&a, &b, &c]).await.name(), "a");

    // Cut off from the API server.
    let hold = load.hold().await;
    link.cut();
    leader_of(&[&b, &c]).await;
    assert_eq!(load.hold().await, hold);
    load.goes_on().await;
    eventually("a says that it is cut off", || async {
        let says = a.get("/readyz").await;
        let cut_off = says.contains("can't find out who leads: Lease consul-semaphore-system/");
        cut_off.then_some(()).ok_or(says)
    })
    .await;
    link.mend();
    let all = [&a, &b, &c];
    let leader = leader_of(&all).await;
    load.goes_on().await;

    let leader = asleep(&all, leader, &mut load).await;

    // Killed, while Jobs are created and completed.
    let hold = load.hold().await;
    leader.kill().await;
    let rest = others(&all, leader);
    leader_of(&rest).await;
    assert_eq!(load.hold().await, hold);
    load.goes_on().await;

    // Its Lease is deleted by hand.
    let lease = ["-n", "consul-semaphore-system", "delete", "lease"];
    bed.kubectl(lease.into_iter().chain(["consul-semaphore-operator"]))
        .await;
    load.goes_on().await;
    leader_of(&rest).await;
    load.was_kept().await;
}

/// The leader sleeps longer than its lease, wakes with work waiting for it, and does none of it.
async fn asleep<'a>(all: &[&'a Operator], leader: &'a Operator, load: &mut Load) -> &'a Operator {
    // All that it has started for the Jobs so far is answered, and counted.
    let changes = eventually("it changes nothing more", || async {
        let before = changes_in_consul(leader).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        same(changes_in_consul(leader).await, before)
    })
    .await;
    let hold = load.hold().await;
    leader.pause().await;
    let next = leader_of(&others(all, leader)).await;
    assert_eq!(load.hold().await, hold);
    load.goes_on().await;
    let log = leader.logs().len();
    leader.resume().await;
    // It has received all of this by the time it follows and one more round is done.
    assert_eq!(leader_of(all).await.name(), next.name());
    load.goes_on().await;
    assert_eq!(changes_in_consul(leader).await, changes);
    let logs = leader.logs().split_off(log);
    assert!(logs.contains("no longer the leader"), "{logs}");
    // It may report in any words that it may no longer change anything.
    let logged = logs
        .lines()
        .filter(|line| !line.contains("readiness: not ready "));
    for (line, word) in logged.flat_map(|line| {
        [" granted", " released", " adopted", " suspended"].map(|word| (line, word))
    }) {
        assert!(!line.contains(word), "{line}");
    }
    next
}
