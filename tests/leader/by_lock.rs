//! The election by a lock in Consul.

use serde_json::{Value, json};
use testbed::{Bed, Consul, Entry, Operator, eventually, helpers::cluster_id};

use crate::{
    load::Load,
    replicas::{leader_of, others},
};

const LOCK: [&str; 4] = ["--leader-election", "consul", "--lease-duration", "10s"];

/// The key, locked.
async fn locked(consul: &Consul, key: &str) -> (Entry, String) {
    eventually("the key is locked", || async {
        let entry = consul.kv(key).await?;
        let session = entry.session.clone()?;
        Some((entry, session))
    })
    .await
}

/// The leader, with the key that names it, and its session. A replica that lost the lead may notice that only later.
async fn named<'a>(
    consul: &Consul,
    key: &str,
    replicas: &[&'a Operator],
) -> (&'a Operator, Entry, String) {
    eventually("the key names the leader", || async {
        let leader = leader_of(replicas).await;
        let (entry, session) = locked(consul, key).await;
        let names_it = entry.json()["identity"] == leader.name();
        names_it.then_some((leader, entry, session))
    })
    .await
}

#[tokio::test]
async fn jobs_go_on_whatever_becomes_of_the_leader() {
    let bed = Bed::builder().without_operator().start().await;
    let consul = bed.consul();
    let link = bed.link_to_consul().await;
    let by_link = [("CONSUL_HTTP_ADDR", link.address().to_owned())];
    let a = bed.another_operator("a", LOCK, by_link);
    let b = bed.another_operator("b", LOCK, []);
    let c = bed.another_operator("c", LOCK, []);
    a.start().await;
    let mut load = Load::start(&bed, "120s").await;
    b.start().await;
    c.start().await;
    let all = [&a, &b, &c];

    // The view of others: a key that says who leads, locked by a session of our node.
    let id = cluster_id(&bed).await;
    let key = format!("service/consul-semaphore-operator/{}/leader", &id[..8]);
    let (leader, entry, session) = named(consul, &key, &all).await;
    let name = leader.name();
    assert_eq!(
        entry.json(),
        json!({ "identity": name, "cluster": &id[..8], "clusterId": id })
    );
    let own = |known: &Value| known["ID"] == *session;
    let sessions = consul.sessions().await;
    let found = sessions
        .iter()
        .find(|known| own(known))
        .expect("its session");
    assert_eq!(found["Node"], format!("k8s-{id}"));

    // Released by hand: some replica gets it again, and it may be the same.
    let hold = load.hold().await;
    consul
        .put_json(&format!("kv/{key}?release={session}"), json!("by hand"))
        .await;
    eventually("it is locked again", || async {
        let (now, _) = locked(consul, &key).await;
        let (now, before) = (now.lock_index, entry.lock_index);
        (now > before).then_some(()).ok_or(now)
    })
    .await;
    leader_of(&all).await;
    assert_eq!(load.hold().await, hold);
    load.goes_on().await;

    // The leader's session is destroyed by hand, so Consul makes all replicas wait for the lock-delay.
    let (leader, _, session) = named(consul, &key, &all).await;
    let log = leader.logs().len();
    consul.destroy_session(&session).await;
    eventually("it stands by", || async {
        let logs = leader.logs().split_off(log);
        logs.contains("no longer the leader")
            .then_some(())
            .ok_or(logs)
    })
    .await;
    let leader = leader_of(&all).await;
    load.goes_on().await;

    // Killed.
    let hold = load.hold().await;
    leader.kill().await;
    leader_of(&others(&all, leader)).await;
    assert_eq!(load.hold().await, hold);
    load.goes_on().await;
    leader.start().await;
    leader_of(&all).await;

    // Cut off from Consul: `a` becomes the leader by stopping the others for a moment.
    b.stop().await;
    c.stop().await;
    assert_eq!(leader_of(&[&a]).await.name(), "a");
    let hold = load.hold().await;
    link.cut();
    b.start().await;
    c.start().await;
    leader_of(&[&b, &c]).await;
    assert_eq!(load.hold().await, hold);
    load.goes_on().await;
    link.mend();
    leader_of(&all).await;
    load.was_kept().await;
}
