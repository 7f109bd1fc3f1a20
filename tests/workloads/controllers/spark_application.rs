//! `SparkApplication`. Spark itself is played: `crates/testbed/spark-submit`.

use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::{Namespace, Object};

use super::stage::{
    SEMAPHORE, change_present, grant, is_granted, metadata, now, phase, pods, running, runs, set,
    stale_is_a_conflict, team, terminating,
};

/// One with a driver and two executors, held.
fn application(name: &str, time: &str) -> Value {
    json!({
        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication",
        "metadata": metadata(name),
        "spec": {
            "suspend": true, "type": "Python", "mode": "cluster", "image": "none",
            "sparkVersion": "4.0.0", "mainApplicationFile": "local:///work.py",
            "restartPolicy": { "type": "Never" },
            "driver": { "annotations": runs(time) },
            "executor": { "instances": 2, "annotations": runs("1h") },
        },
    })
}

async fn held(team: &Namespace, name: &str, time: &str) -> Object {
    let held = team.create(application(name, time)).await;
    state(&held, "SUSPENDED").await;
    held
}

/// Waits until its state is this.
async fn state(application: &Object, state: &str) -> Value {
    application
        .is(state, |it| {
            it["status"]["applicationState"]["state"] == state
        })
        .await
}

/// The change that starts it and writes to the metadata of its pods.
fn release() -> Value {
    let mut change = vec![set("/spec/suspend", false)];
    change.extend(
        ["/spec/driver", "/spec/executor"]
            .iter()
            .flat_map(|part| grant(part)),
    );
    change.into()
}

async fn started(team: &Namespace, name: &str) -> Object {
    let held = held(team, name, "1h").await;
    change_present(&held, release()).await;
    running(team, &of(&held), 3).await;
    state(&held, "RUNNING").await;
    held
}

/// The label of its pods, which names it and not its uid.
fn of(application: &Object) -> String {
    format!("sparkoperator.k8s.io/app-name={}", application.name())
}

fn failed() -> Value {
    json!([
        set(
            "/status/applicationState",
            json!({ "state": "FAILED", "errorMessage": "it waited" })
        ),
        set("/status/terminationTime", now()),
    ])
}

/// So its being finished proves nothing about its pods: here the executors of a driver that has not ended them.
#[tokio::test]
async fn one_patch_starts_it_and_it_is_completed_before_its_pods_are_gone() {
    let team = team("release").await;
    let held = held(&team, "held", "3s").await;
    assert_eq!(team.pods_with("").await.len(), 0);
    stale_is_a_conflict(&held, json!([set("/spec/suspend", false)])).await;
    change_present(&held, release()).await;
    let pods = pods(&team, &of(&held), 3).await;
    assert!(pods.iter().all(is_granted), "{pods:?}");
    // Its own labels are copied, and its own annotations are not.
    for pod in &pods {
        assert!(pod.labels().contains_key("consul-semaphore.io/waits"));
        assert!(!pod.annotations().contains_key(SEMAPHORE));
    }
    state(&held, "COMPLETED").await;
    let left = team.pods_with(&of(&held)).await;
    let left = left.iter().filter(|pod| phase(pod) == "Running");
    assert_eq!(left.count(), 2);
}

/// Only a LIST of the pods says when it may start again.
#[tokio::test]
async fn suspended_it_says_so_before_its_pods_are_gone() {
    let team = team("again").await;
    let runs = started(&team, "runs").await;
    runs.change(json!([set("/spec/suspend", true)]))
        .await
        .unwrap();
    state(&runs, "SUSPENDED").await;
    terminating(&team, &of(&runs), 1).await;
    running(&team, &of(&runs), 2).await;
}

#[tokio::test]
async fn a_held_one_can_be_failed_in_its_status_for_good() {
    let team = team("fail-held").await;
    let held = held(&team, "held", "1h").await;
    held.change_status(failed()).await.unwrap();
    held.change(json!([set("/spec/suspend", false)]))
        .await
        .unwrap();
    // Something that its controller has done after that.
    started(&team, "after").await;
    assert_eq!(team.pods_with(&of(&held)).await.len(), 0);
    state(&held, "FAILED").await;
}

/// So it is suspended first.
#[tokio::test]
async fn the_pods_of_a_running_one_outlive_a_failure_in_its_status() {
    let team = team("fail-running").await;
    let runs = started(&team, "runs").await;
    runs.change_status(failed()).await.unwrap();
    // Something that its controller has done after that.
    started(&team, "after").await;
    running(&team, &of(&runs), 3).await;
    state(&runs, "FAILED").await;
}
