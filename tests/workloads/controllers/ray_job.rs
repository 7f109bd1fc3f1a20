//! `RayJob`, of `KubeRay`. The dashboard, which says how the work in the cluster goes, is played here.

use axum::{Router, routing::get};
use serde_json::{Value, json};
use testbed::{Namespace, Object};
use tokio::net::TcpListener;

use super::stage::{
    HOLDER, change_present, grant, is_granted, metadata, now, pod_spec, pods, running, runs, set,
    stale_is_a_conflict, team, terminating,
};

/// One with a head and a worker, held.
fn ray_job(name: &str) -> Value {
    let template = json!({ "metadata": { "annotations": runs("1h") }, "spec": { "containers": pod_spec()["containers"] } });
    json!({
        "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata(name),
        "spec": {
            "suspend": true,
            "entrypoint": "work",
            "shutdownAfterJobFinishes": true,
            "rayClusterSpec": {
                "headGroupSpec": { "rayStartParams": {}, "template": template },
                "workerGroupSpecs": [{
                    "groupName": "workers", "replicas": 1, "minReplicas": 1, "maxReplicas": 1,
                    "rayStartParams": {}, "template": template,
                }],
            },
        },
    })
}

async fn held(team: &Namespace, name: &str) -> Object {
    let held = team.create(ray_job(name)).await;
    deployment(&held, "Suspended").await;
    held
}

/// Waits until its deployment is so.
async fn deployment(ray_job: &Object, status: &str) -> Value {
    let what = format!("deployed: {status}");
    ray_job
        .is(&what, |it| it["status"]["jobDeploymentStatus"] == status)
        .await
}

/// The change that starts it and writes to the metadata of its pods.
fn release() -> Value {
    let cluster = "/spec/rayClusterSpec";
    let mut change = vec![set("/spec/suspend", false)];
    for group in ["headGroupSpec", "workerGroupSpecs/0"] {
        change.extend(grant(&format!("{cluster}/{group}/template/metadata")));
    }
    change.into()
}

/// The label of its head and of its workers, which a grant writes: they have none with its name or its uid.
fn granted() -> String {
    format!("{HOLDER}=b")
}

async fn started(team: &Namespace, name: &str) -> Object {
    let held = held(team, name).await;
    change_present(&held, release()).await;
    running(team, &granted(), 2).await;
    held
}

fn failed() -> Value {
    json!([
        set("/status/jobDeploymentStatus", "Failed"),
        set("/status/reason", "DeadlineExceeded"),
        set("/status/message", "it waited for too long"),
        set("/status/endTime", now()),
    ])
}

/// A dashboard that says that all work has succeeded, and its address.
async fn dashboard() -> String {
    let answer =
        json!({ "submission_id": "a", "entrypoint": "work", "status": "SUCCEEDED", "message": "" });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let work = get(async move || answer.to_string());
    let app = Router::new().route("/api/jobs/{id}", work);
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

#[tokio::test]
async fn a_held_one_has_no_cluster_and_no_pods() {
    let team = team("held").await;
    let held = held(&team, "held").await.get().await;
    assert!(held["status"]["rayClusterName"].is_null(), "{held}");
    assert_eq!(team.pods_with("").await.len(), 0);
}

/// So its being finished proves nothing about its pods.
#[tokio::test]
async fn one_patch_starts_it_and_it_is_complete_before_its_pods_are_gone() {
    let team = team("release").await;
    let held = held(&team, "held").await;
    stale_is_a_conflict(&held, json!([set("/spec/suspend", false)])).await;
    let played = json!([set("/status/dashboardURL", dashboard().await)]);
    held.change_status(played).await.unwrap();
    change_present(&held, release()).await;
    let pods = pods(&team, &granted(), 2).await;
    assert!(pods.iter().all(is_granted), "{pods:?}");
    deployment(&held, "Complete").await;
    terminating(&team, &granted(), 2).await;
    // The pod that submitted the work is made from no template of the user's.
    let submitter = team.pods_with("batch.kubernetes.io/job-name=held").await;
    assert_eq!(submitter.len(), 1);
    assert!(!is_granted(&submitter[0]));
}

/// Only a LIST of the pods says when it may start again.
#[tokio::test]
async fn suspended_it_says_so_before_its_pods_are_gone() {
    let team = team("again").await;
    let runs = started(&team, "runs").await;
    runs.change(json!([set("/spec/suspend", true)]))
        .await
        .unwrap();
    deployment(&runs, "Suspended").await;
    terminating(&team, &granted(), 2).await;
}

#[tokio::test]
async fn a_held_one_can_be_failed_in_its_status_for_good() {
    let team = team("fail-held").await;
    let held = held(&team, "held").await;
    held.change_status(failed()).await.unwrap();
    held.change(json!([set("/spec/suspend", false)]))
        .await
        .unwrap();
    // Something that its controller has done after that.
    started(&team, "after").await;
    let still = held.get().await;
    assert_eq!(still["status"]["jobDeploymentStatus"], "Failed");
    assert!(still["status"]["rayClusterName"].is_null(), "{still}");
}

#[tokio::test]
async fn a_running_one_can_be_failed_in_its_status_and_its_pods_terminate_then() {
    let team = team("fail-running").await;
    let runs = started(&team, "runs").await;
    runs.change_status(failed()).await.unwrap();
    terminating(&team, &granted(), 2).await;
    pods(&team, &granted(), 0).await;
    deployment(&runs, "Failed").await;
}

/// So that policies must refuse it.
#[tokio::test]
async fn one_that_does_not_shut_down_is_failed_for_being_held() {
    let team = team("stays").await;
    let mut one = ray_job("stays");
    one["spec"]["shutdownAfterJobFinishes"] = false.into();
    let one = team.create(one).await;
    deployment(&one, "ValidationFailed").await;
}
