use serde_json::json;
use testbed::{Bed, same};

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn operations() {
    let bed = Bed::shared().await;
    let consul = bed.consul();
    let team = bed.namespace("operations").await;
    let mut shell = Shell::with(&bed, team.name()).await;
    let mut page = Page::open("docs/operations.md");

    let db = team.semaphore("db-migrations").limit(1).create().await;
    let holder = team.job("holder").semaphore("db-migrations").runs("1h");
    holder.create().await.is_running().await;

    // A holder took a slot and died.
    let session = consul.take_slot("semaphores/old", 1).await;
    shell.set("SESSION", &session);
    page.run(&shell, "curl -X PUT").await;
    same(consul.contenders("semaphores/old").await.len(), 0)
        .expect("its contender key goes with it");

    // A cluster is gone for good.
    let node = "k8s-11111111-2222-3333-4444-555555555555";
    consul
        .put_json(
            "catalog/register",
            json!({ "Node": node, "Address": "203.0.113.1" }),
        )
        .await;
    let session = consul
        .create_session(json!({ "Node": node, "Checks": [] }))
        .await;
    shell.set("NODE", node);
    let listed = page.run(&shell, "curl -H").await;
    assert!(listed.contains(&session), "{listed}");
    page.run(&shell, "curl -X PUT").await;
    let left = consul.sessions().await;
    assert!(!left.iter().any(|left| left["ID"] == session), "{left:?}");

    // The metrics over TLS: tests/web/metrics.rs shows what it does.
    for file in ["tls.crt", "tls.key", "ca.crt"] {
        shell.write(file, "its content");
    }
    page.run(&shell, "kubectl -n consul-semaphore-system create secret")
        .await;
    page.run(&shell, "kubectl create clusterrolebinding").await;

    // The semaphore waits for the Job that holds its slot, and must be deleted at once.
    shell
        .run("kubectl delete csem db-migrations --wait=false")
        .await;
    db.has_condition("Ready", "False", "Terminating").await;
    page.run(&shell, "kubectl patch csem db-migrations").await;
    db.is_gone().await;
}
