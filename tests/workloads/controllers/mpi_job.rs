//! `MPIJob`.

use serde_json::{Value, json};
use testbed::{Namespace, Object};

use super::stage::{
    change_present, grant, has, is_granted, metadata, now, pod_spec, pods, running, runs, set,
    stale_is_a_conflict, team, terminating,
};

const SUSPEND: &str = "/spec/runPolicy/suspend";

/// One with a launcher and two workers, held.
fn mpi_job(name: &str, time: &str) -> Value {
    let template = |time| json!({ "metadata": { "annotations": runs(time) }, "spec": { "containers": pod_spec()["containers"] } });
    json!({
        "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": metadata(name),
        "spec": {
            "runPolicy": { "suspend": true, "cleanPodPolicy": "Running" },
            "mpiReplicaSpecs": {
                "Launcher": { "template": template(time) },
                "Worker": { "replicas": 2, "template": template("1h") },
            },
        },
    })
}

async fn held(team: &Namespace, name: &str, time: &str) -> Object {
    let held = team.create(mpi_job(name, time)).await;
    is_suspended(&held).await;
    held
}

async fn is_suspended(mpi_job: &Object) {
    mpi_job
        .is("suspended", |it| {
            has(it, "Suspended", "True", "MPIJobSuspended")
        })
        .await;
}

/// The change that starts it and writes to the metadata of its pods.
fn release() -> Value {
    let mut change = vec![set(SUSPEND, false)];
    for role in ["Launcher", "Worker"] {
        let template = format!("/spec/mpiReplicaSpecs/{role}/template/metadata");
        change.extend(grant(&template));
    }
    change.into()
}

async fn started(team: &Namespace, name: &str) -> Object {
    let held = held(team, name, "1h").await;
    change_present(&held, release()).await;
    running(team, &of(&held), 3).await;
    held
}

/// The label of its pods, which names it and not its uid.
fn of(mpi_job: &Object) -> String {
    format!("training.kubeflow.org/job-name={}", mpi_job.name())
}

fn failed() -> Value {
    let now = now();
    json!([
        set("/status/completionTime", now.as_str()),
        set(
            "/status/conditions/-",
            json!({
                "type": "Failed", "status": "True", "reason": "DeadlineExceeded",
                "message": "it waited for too long", "lastTransitionTime": now, "lastUpdateTime": now,
            })
        ),
    ])
}

/// So its being finished proves nothing about its pods.
#[tokio::test]
async fn one_patch_starts_it_and_it_has_succeeded_before_its_pods_are_gone() {
    let team = team("release").await;
    let held = held(&team, "held", "3s").await;
    assert_eq!(team.pods_with("").await.len(), 0);
    stale_is_a_conflict(&held, json!([set(SUSPEND, false)])).await;
    change_present(&held, release()).await;
    let pods = pods(&team, &of(&held), 3).await;
    assert!(pods.iter().all(is_granted), "{pods:?}");
    held.is("succeeded", |it| {
        has(it, "Succeeded", "True", "MPIJobSucceeded")
    })
    .await;
    terminating(&team, &of(&held), 2).await;
}

/// Only a LIST of the pods says when it may start again.
#[tokio::test]
async fn suspended_it_says_so_before_its_pods_are_gone() {
    let team = team("again").await;
    let runs = started(&team, "runs").await;
    runs.change(json!([set(SUSPEND, true)])).await.unwrap();
    is_suspended(&runs).await;
    terminating(&team, &of(&runs), 3).await;
}

#[tokio::test]
async fn a_held_one_can_be_failed_in_its_status_for_good() {
    let team = team("fail-held").await;
    let held = held(&team, "held", "1h").await;
    held.change_status(failed()).await.unwrap();
    held.change(json!([set(SUSPEND, false)])).await.unwrap();
    // Something that its controller has done after that.
    started(&team, "after").await;
    assert_eq!(team.pods_with(&of(&held)).await.len(), 0);
    let still = held.get().await;
    assert!(has(&still, "Failed", "True", "DeadlineExceeded"), "{still}");
}

/// So it is suspended first.
#[tokio::test]
async fn the_launcher_of_a_running_one_outlives_a_failure_in_its_status() {
    let team = team("fail-running").await;
    let runs = started(&team, "runs").await;
    runs.change_status(failed()).await.unwrap();
    terminating(&team, &of(&runs), 2).await;
    pods(&team, &of(&runs), 1).await;
    running(&team, &of(&runs), 1).await;
}
