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
    let paused = Release::new(&bed, &team, "paused", json!({ "paused": true })).await;
    paused.shows("Paused").await;
    paused.upgrade("3m").await.unwrap();
    let token = json!({ "consul": { "tokenSecretRef": { "name": "missing" } } });
    let broken = Release::new(&bed, &team, "broken", token).await;
    broken.shows("TokenNotFound").await;
    let said = broken.upgrade("30s").await.unwrap_err();
    assert!(said.contains("broken"), "{said}");
}

/// A release of a chart with a semaphore of its name. Helm counts one without a status as ready.
struct Release<'a> {
    bed: &'a Bed,
    team: &'a Namespace,
    name: &'a str,
    chart: String,
}

impl<'a> Release<'a> {
    async fn new(bed: &'a Bed, team: &'a Namespace, name: &'a str, spec: Value) -> Self {
        let chart = bed.folder().path().join(name);
        fs::create_dir_all(chart.join("templates")).unwrap();
        let about = json!({ "apiVersion": "v2", "name": name, "version": "0.1.0" });
        fs::write(chart.join("Chart.yaml"), about.to_string()).unwrap();
        let mut semaphore = json!({
            "apiVersion": "consul-semaphore.io/v1alpha1",
            "kind": "ConsulSemaphore",
            "metadata": { "name": name },
            "spec": spec,
        });
        semaphore["spec"]["limit"] = 1.into();
        fs::write(
            chart.join("templates/semaphore.yaml"),
            semaphore.to_string(),
        )
        .unwrap();
        let release = Self {
            bed,
            team,
            name,
            chart: chart.display().to_string(),
        };
        release.helm(&["install"]).await.unwrap();
        release
    }

    async fn helm(&self, args: &[&str]) -> Result<String, String> {
        let release = [self.name, &self.chart, "-n", self.team.name()];
        let kubernetes = self.bed.kubernetes().expect("the bed's own");
        let done = kubernetes.try_helm([args, &release].concat()).await;
        done.map_err(|error| format!("{error:#}"))
    }

    /// Waits until the condition Ready has this reason.
    async fn shows(&self, reason: &str) {
        let shown = r#"{.status.conditions[?(@.type=="Ready")].reason}"#;
        let (shown, object) = (
            format!("--for=jsonpath={shown}={reason}"),
            format!("csem/{}", self.name),
        );
        let wait = ["wait", &shown, &object, "--timeout=100s"];
        self.team.kubectl(wait).await;
    }

    /// Upgrades to the same and waits, for so long at most.
    async fn upgrade(&self, most: &str) -> Result<String, String> {
        let timeout = format!("--timeout={most}");
        self.helm(&["upgrade", "--wait", &timeout]).await
    }
}
