//! Kueue, with an admission check.

use serde_json::{Value, json};
use testbed::{Namespace, Object, proof};

use super::stage::{
    bed, condition, has, is_granted, now, of_version, pod_spec, pods, running, runs, set,
    terminating,
};

const API: &str = "kueue.x-k8s.io/v1beta2";

/// A namespace whose queue has a check, which works.
async fn team(name: &str) -> (Namespace, Object) {
    let team = bed().await.namespace(name).await;
    // The cluster's objects are named after it.
    let name = team.name();
    let check = team
        .create(json!({
            "apiVersion": API, "kind": "AdmissionCheck", "metadata": { "name": name },
            "spec": { "controllerName": "consul-semaphore.io/slots" },
        }))
        .await;
    let metadata = json!({ "name": name });
    team.create(json!({
        "apiVersion": API, "kind": "ResourceFlavor", "metadata": metadata, "spec": {},
    }))
    .await;
    let queue = team
        .create(json!({
            "apiVersion": API, "kind": "ClusterQueue", "metadata": metadata,
            "spec": {
                "namespaceSelector": {},
                "admissionChecksStrategy": { "admissionChecks": [{ "name": name }] },
                "resourceGroups": [{
                    "coveredResources": ["pods"],
                    "flavors": [{ "name": name, "resources": [{ "name": "pods", "nominalQuota": 10 }] }],
                }],
            },
        }))
        .await;
    team.create(json!({
        "apiVersion": API, "kind": "LocalQueue",
        "metadata": { "name": "queue", "namespace": name }, "spec": { "clusterQueue": name },
    }))
    .await;
    queue
        .is("inactive", |it| {
            has(it, "Active", "False", "AdmissionCheckInactive")
        })
        .await;
    let active = json!([{
        "type": "Active", "status": "True", "reason": "Active", "message": "",
        "lastTransitionTime": now(),
    }]);
    check
        .change_status(json!([set("/status", json!({ "conditions": active }))]))
        .await
        .unwrap();
    queue
        .is("active", |it| has(it, "Active", "True", "Ready"))
        .await;
    (team, check)
}

/// A Job in the queue, and its Workload, once it has its quota.
async fn queued(team: &Namespace, time: &str) -> (Object, Object) {
    let job = team
        .create(json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": { "name": "job", "labels": { "kueue.x-k8s.io/queue-name": "queue" } },
            "spec": { "suspend": true, "template": {
                "metadata": { "annotations": runs(time) }, "spec": pod_spec(),
            } },
        }))
        .await;
    let workload = proof::kueue_workload(team, &job.uid().await).await;
    workload
        .is("in need of its check", |it| {
            has(it, "QuotaReserved", "True", "QuotaReserved") && state(it) == "Pending"
        })
        .await;
    (job, workload)
}

/// What its check says.
fn state(workload: &Value) -> &Value {
    &workload["status"]["admissionChecks"][0]["state"]
}

/// The change of what the check says.
fn says(check: &Object, state: &str, more: Value) -> Value {
    let mut entry = more;
    entry["name"] = check.name().into();
    entry["state"] = state.into();
    entry["message"] = "".into();
    entry["lastTransitionTime"] = now().into();
    set("/status/admissionChecks/0", entry)
}

/// Operations on an element replace it: an `add` would insert another.
fn replaced(mut operation: Value) -> Value {
    operation["op"] = "replace".into();
    operation
}

async fn say(workload: &Object, check: &Object, state: &str, more: Value) {
    let change = replaced(says(check, state, more));
    workload.change_status(json!([change])).await.unwrap();
}

#[tokio::test]
async fn one_patch_of_its_status_starts_it_and_writes_to_its_pods() {
    let (team, check) = team("kueue-ready").await;
    let (job, workload) = queued(&team, "2s").await;
    let updates = json!({ "podSetUpdates": [{
        "name": "main",
        "annotations": { super::stage::SESSION: "a" },
        "labels": { super::stage::HOLDER: "b" },
    }] });
    let change = replaced(says(&check, "Ready", updates));
    let mut stale = workload.get().await;
    stale["metadata"]["resourceVersion"] = "1".into();
    let refusal = workload
        .change_status(of_version(&stale, &json!([change])))
        .await;
    assert_eq!(super::stage::code(&refusal), 409, "{refusal:?}");
    let ready = json!([change]);
    workload.change_status(ready).await.unwrap();
    let label = format!("batch.kubernetes.io/controller-uid={}", job.uid().await);
    let pods = pods(&team, &label, 1).await;
    assert!(is_granted(&pods[0]), "{pods:?}");
    workload
        .is("finished", |it| has(it, "Finished", "True", "Succeeded"))
        .await;
}

/// So it is only ready again when a LIST has shown that they are gone.
#[tokio::test]
async fn retried_it_has_its_quota_again_while_its_pods_terminate() {
    let (team, check) = team("kueue-retry").await;
    let (job, workload) = queued(&team, "1h").await;
    say(&workload, &check, "Ready", json!({})).await;
    let label = format!("batch.kubernetes.io/controller-uid={}", job.uid().await);
    running(&team, &label, 1).await;
    say(
        &workload,
        &check,
        "Retry",
        json!({ "requeueAfterSeconds": 1 }),
    )
    .await;
    workload
        .is("in need of its check", |it| {
            has(it, "QuotaReserved", "True", "QuotaReserved")
                && condition(it, "Evicted").is_some_and(|(status, _)| status == "False")
                && state(it) == "Pending"
        })
        .await;
    terminating(&team, &label, 1).await;
    assert_eq!(job.get().await["spec"]["suspend"], true);
}

#[tokio::test]
async fn rejected_it_is_made_inactive_and_its_job_stays_suspended() {
    let (team, check) = team("kueue-reject").await;
    let (job, workload) = queued(&team, "1h").await;
    say(&workload, &check, "Rejected", json!({})).await;
    let rejected = workload
        .is("rejected", |it| {
            has(it, "Evicted", "True", "DeactivatedDueToAdmissionCheck")
        })
        .await;
    assert_eq!(rejected["spec"]["active"], false);
    workload
        .is("as if it had not been asked", |it| state(it) == "Pending")
        .await;
    assert_eq!(job.get().await["spec"]["suspend"], true);
    assert_eq!(team.pods_with("").await.len(), 0);
}
