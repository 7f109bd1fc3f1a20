//! A semaphore is paused: running Jobs continue, waiting Jobs keep waiting.

use std::fs;

use serde_json::{Value, json};
use testbed::{Bed, Namespace, eventually, same};

#[tokio::test]
async fn a_paused_semaphore_grants_nothing_and_takes_nothing_away() {
    let bed = Bed::shared().await;
    let team = bed.namespace("paused").await;
    let db = team.semaphore("db").limit(1).create().await;
    let running = team
        .job("running")
        .semaphore("db")
        .runs("1h")
        .create()
        .await;
    running.is_running().await;
    let next = team.job("next").semaphore("db").create().await;

    db.pause().await;
    db.has_condition("Ready", "True", "Paused").await;
    db.has_condition("SlotsAvailable", "False", "Paused").await;
    db.has_condition("ConsulReachable", "True", "Reachable")
        .await;
    running.is_running().await;
    running.finish().await;
    running.has_event("SlotReleased").await;
    db.shows(json!({ "held": 0, "waiting": 1 })).await;
    // A later Job of another semaphore has had its turn, and this one still has not.
    let other = team.semaphore("other").limit(1).create().await;
    let later = team.job("later").semaphore("other").create().await;
    later.is_complete().await;
    next.is_waiting().await;

    db.resume().await;
    next.is_complete().await;
    db.is_ready().await;
    other.is_ready().await;
}

#[tokio::test]
async fn a_semaphore_can_be_made_paused() {
    let bed = Bed::shared().await;
    let team = bed.namespace("made-paused").await;
    let db = team.semaphore("db").limit(2).paused(true).create().await;
    let job = team.job("a").semaphore("db").create().await;
    job.has_event("SlotWaiting").await;
    db.has_condition("Ready", "True", "Paused").await;
    db.shows(json!({ "held": 0, "waiting": 1 })).await;
    job.is_waiting().await;
    db.resume().await;
    job.is_complete().await;
}

#[tokio::test]
async fn the_status_reports_an_observed_generation_only_for_its_own_findings() {
    let bed = Bed::shared().await;
    let team = bed.namespace("paused-observed").await;
    let one = team.semaphore("one").create().await;
    let keyed = team.semaphore("keyed").spec(json!({ "keyed": true }));
    let keyed = keyed.create().await;
    for semaphore in [&one, &keyed] {
        let job = team.job(semaphore.name()).semaphore(semaphore.name());
        let job = job.annotation("consul-semaphore.io/key", "k").runs("1h");
        let job = job.create().await;
        job.is_running().await;
        semaphore.is_ready().await;
        for (paused, expected) in [(true, "Paused"), (false, "Reconciled"), (true, "Paused")] {
            semaphore
                .patch(json!({ "spec": { "paused": paused } }))
                .await;
            let observed = eventually("the change has been observed", || async {
                let object = semaphore.get().await.unwrap_or_default();
                let generation = &object["metadata"]["generation"];
                same(
                    object["status"]["observedGeneration"].clone(),
                    generation.clone(),
                )
                .map(|_| object)
            })
            .await;
            let conditions = observed["status"]["conditions"].as_array().cloned();
            let mut conditions = conditions.unwrap_or_default().into_iter();
            let ready = conditions.find(|condition| condition["type"] == "Ready");
            let ready = ready.expect("the condition Ready");
            assert_eq!(ready["reason"], expected, "{ready}");
            assert_eq!(
                ready["observedGeneration"],
                observed["metadata"]["generation"]
            );
        }
        job.finish().await;
    }
}

/// Helm's `--wait` goes by kstatus, as Flux does: <https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus>.
#[tokio::test]
async fn helm_waits_for_no_paused_semaphore_and_for_one_that_cannot_work() {
    let bed = Bed::shared().await;
    let team = bed.namespace("paused-helm").await;
    let paused =
        json!({ "limit": 1, "prefix": format!("semaphores/{}/a", team.name()), "paused": true });
    installs(&bed, &team, "paused", &paused, "3m")
        .await
        .unwrap();
    let secret = json!({ "limit": 1, "prefix": format!("semaphores/{}/b", team.name()),
        "consul": { "tokenSecretRef": { "name": "missing" } } });
    let refused = installs(&bed, &team, "broken", &secret, "10s").await;
    let said = refused.unwrap_err();
    assert!(said.contains("broken"), "{said}");
}

/// Installs a chart with a semaphore and waits, for so long at most.
async fn installs(
    bed: &Bed,
    team: &Namespace,
    name: &str,
    spec: &Value,
    most: &str,
) -> Result<String, String> {
    let chart = bed.folder().path().join(name);
    fs::create_dir_all(chart.join("templates")).unwrap();
    let about = json!({ "apiVersion": "v2", "name": name, "version": "0.1.0" });
    fs::write(chart.join("Chart.yaml"), about.to_string()).unwrap();
    let semaphore = json!({
        "apiVersion": "consul-semaphore.io/v1alpha1",
        "kind": "ConsulSemaphore",
        "metadata": { "name": name },
        "spec": spec,
    });
    fs::write(
        chart.join("templates/semaphore.yaml"),
        semaphore.to_string(),
    )
    .unwrap();
    let chart = chart.display().to_string();
    let kubernetes = bed.kubernetes().expect("an API server of its own");
    let (timeout, team) = (format!("--timeout={most}"), team.name());
    let install = ["install", name, &chart, "-n", team, "--wait", &timeout];
    let installed = kubernetes.try_helm(install).await;
    installed.map_err(|error| format!("{error:#}"))
}
