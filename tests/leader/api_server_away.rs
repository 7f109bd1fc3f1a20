//! The API server is away for longer than a TTL: nobody can lead, but no slot is lost.

use serde_json::json;
use testbed::{Bed, Fault, eventually};

use crate::{load::Load, replicas::leader_of};

#[tokio::test]
async fn sessions_are_renewed_while_nobody_can_lead() {
    let bed = Bed::builder().without_operator().start().await;
    let (link, kubeconfig) = bed.link_to_kubernetes().await;
    let by_link = [("KUBECONFIG", kubeconfig.display().to_string())];
    let a = bed.another_operator("a", ["--lease-duration", "5s"], by_link);
    a.start().await;
    let mut load = Load::start(&bed, "10s").await;
    let hold = load.hold().await;
    link.cut();
    eventually("it has lost the lead", || async {
        let logs = a.logs();
        logs.contains("no longer the leader")
            .then_some(())
            .ok_or(logs)
    })
    .await;

    // A session with the same TTL that nobody renews shows when Consul would have ended it.
    let (consul, node) = (bed.consul(), "another");
    let register = json!({ "Node": node, "Address": "127.0.0.1" });
    consul.put_json("catalog/register", register).await;
    let session = json!({ "Node": node, "NodeChecks": [], "TTL": "10s" });
    let measure = consul.create_session(session).await;
    eventually("a session that is not renewed is gone", || async {
        let sessions = consul.sessions().await;
        !sessions.iter().any(|session| session["ID"] == *measure)
    })
    .await;

    let holders = consul.holders(&load.db.lock_prefix()).await;
    let contenders = consul.contenders(&load.db.lock_prefix()).await;
    assert_eq!(holders, hold.0.iter().cloned().collect());
    let live = contenders.iter().filter_map(|key| key.session.clone());
    assert!(live.collect::<Vec<_>>().contains(&hold.0.clone().unwrap()));
    link.mend();
    assert_eq!(leader_of(&[&a]).await.name(), "a");
    assert_eq!(load.hold().await, hold);
    load.goes_on().await;
    load.was_kept().await;
}

#[tokio::test]
async fn completed_work_has_its_event_even_if_the_lead_was_lost() {
    let bed = Bed::builder().without_operator().start().await;
    let (api, kubeconfig) = bed.proxy_to_kubernetes().await;
    let by_proxy = [("KUBECONFIG", kubeconfig.display().to_string())];
    let operator = bed.another_operator("late", ["--lease-duration", "6s"], by_proxy);
    operator.start().await;
    let says = async |words: &'static str| {
        eventually(words, || async {
            let logs = operator.logs();
            logs.contains(words).then_some(()).ok_or(logs)
        })
        .await;
    };
    let team = bed.namespace("told-late").await;
    team.semaphore("db").create().await;
    let job = team.job("a").semaphore("db").runs("1h").create().await;
    job.is_running().await;
    job.has_event("SlotGranted").await;

    api.faults(|call| call.path.ends_with("/events").then_some(Fault::Held));
    job.finish().await;
    says(" released").await;
    api.faults(|call| {
        let held = call.path.ends_with("/events") || call.path.contains("/leases");
        held.then_some(Fault::Held)
    });
    says("no longer the leader").await;
    api.heal();
    job.has_event("SlotReleased").await;
}
