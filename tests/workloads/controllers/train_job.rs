//! `TrainJob`, which works through a `JobSet`.

use serde_json::{Value, json};
use testbed::{Namespace, Object};

use super::stage::{
    HOLDER, SESSION, change_present, has, is_granted, metadata, now, pod_spec, pods, running, runs,
    set, stale_is_a_conflict, team, terminating,
};

const API: &str = "trainer.kubeflow.org/v1alpha1";

/// One of two nodes, held, with a runtime of its own.
async fn held(team: &Namespace, name: &str, time: &str) -> Object {
    let mut template = json!({ "metadata": { "annotations": runs(time) }, "spec": pod_spec() });
    template["spec"]["containers"][0]["name"] = "node".into();
    team.create(json!({
        "apiVersion": API, "kind": "TrainingRuntime", "metadata": { "name": name },
        "spec": {
            "mlPolicy": { "numNodes": 2 },
            "template": { "spec": { "replicatedJobs": [{
                "name": "node",
                "template": {
                    "metadata": { "labels": { "trainer.kubeflow.org/trainjob-ancestor-step": "trainer" } },
                    "spec": { "template": template },
                },
            }] } },
        },
    }))
    .await;
    let runtime = json!({ "kind": "TrainingRuntime", "name": name });
    let held = team
        .create(json!({
            "apiVersion": API, "kind": "TrainJob", "metadata": metadata(name),
            "spec": { "suspend": true, "runtimeRef": runtime },
        }))
        .await;
    is_suspended(&held).await;
    // Before that, its controller may overwrite what others write to its conditions at the same time: it names no
    // version when it writes the list of them.
    held.is("at rest", |it| {
        it["status"]["jobsStatus"][0]["suspended"] == 1
    })
    .await;
    held
}

async fn is_suspended(train_job: &Object) {
    train_job
        .is("suspended", |it| has(it, "Suspended", "True", "Suspended"))
        .await;
}

/// The change that writes to the metadata of its pods.
fn grant() -> Value {
    let metadata = json!({ "annotations": { SESSION: "a" }, "labels": { HOLDER: "b" } });
    let template = json!({ "spec": { "template": { "metadata": metadata } } });
    let patch = json!({ "template": { "spec": { "replicatedJobs": [{ "name": "node", "template": template }] } } });
    let ours = json!({ "manager": "consul-semaphore.io/operator", "trainingRuntimeSpec": patch });
    set("/spec/runtimePatches", json!([ours]))
}

fn release() -> Value {
    json!([set("/spec/suspend", false), grant()])
}

async fn started(team: &Namespace, name: &str) -> Object {
    let held = held(team, name, "1h").await;
    change_present(&held, release()).await;
    running(team, &of(&held), 2).await;
    held
}

/// The label of its pods: the name of its `JobSet`, which is its own.
fn of(train_job: &Object) -> String {
    format!("jobset.sigs.k8s.io/jobset-name={}", train_job.name())
}

fn failed() -> Value {
    json!([set(
        "/status/conditions/-",
        json!({
            "type": "Failed", "status": "True", "reason": "DeadlineExceeded",
            "message": "it waited for too long", "lastTransitionTime": now(),
        })
    )])
}

#[tokio::test]
async fn one_patch_starts_it_and_writes_to_its_pods() {
    let team = team("release").await;
    let held = held(&team, "held", "2s").await;
    assert_eq!(team.pods_with("").await.len(), 0);
    // Its own controller, and no other: its webhook sets that.
    assert_eq!(
        held.get().await["spec"]["managedBy"],
        "trainer.kubeflow.org/trainjob-controller"
    );
    stale_is_a_conflict(&held, json!([set("/spec/suspend", false)])).await;
    change_present(&held, release()).await;
    let pods = pods(&team, &of(&held), 2).await;
    assert!(pods.iter().all(is_granted), "{pods:?}");
    held.is("complete", |it| {
        has(it, "Complete", "True", "AllJobsCompleted")
    })
    .await;
}

#[tokio::test]
async fn its_patches_cannot_change_while_it_runs() {
    let team = team("frozen").await;
    let held = held(&team, "runs", "1h").await;
    held.change(json!([set("/spec/suspend", false)]))
        .await
        .unwrap();
    running(&team, &of(&held), 2).await;
    let refusal = held.change(json!([grant()])).await;
    assert_eq!(super::stage::code(&refusal), 403, "{refusal:?}");
}

/// Only a LIST of the pods says when it may start again.
#[tokio::test]
async fn suspended_it_says_so_before_its_pods_are_gone() {
    let team = team("again").await;
    let runs = started(&team, "runs").await;
    runs.change(json!([set("/spec/suspend", true)]))
        .await
        .unwrap();
    is_suspended(&runs).await;
    terminating(&team, &of(&runs), 2).await;
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
    let still = held.get().await;
    let pods = team.pods_with(&of(&held)).await.len();
    assert_eq!(pods, 0, "{still}");
    assert!(has(&still, "Failed", "True", "DeadlineExceeded"), "{still}");
}

/// So it is suspended first.
#[tokio::test]
async fn the_pods_of_a_running_one_outlive_a_failure_in_its_status() {
    let team = team("fail-running").await;
    let runs = started(&team, "runs").await;
    runs.change_status(failed()).await.unwrap();
    // Something that its controller has done after that.
    started(&team, "after").await;
    running(&team, &of(&runs), 2).await;
    assert!(has(&runs.get().await, "Failed", "True", "DeadlineExceeded"));
}
