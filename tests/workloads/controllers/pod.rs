//! Pods by themselves.

use serde_json::{Value, json};
use testbed::{Namespace, Object};

use super::stage::{
    change_present, code, grant, has, is_granted, metadata, pod_spec, pods, runs, set,
    stale_is_a_conflict, team, unset,
};

const GATE: &str = "consul-semaphore.io/slot";

/// A pod with these gates.
async fn gated(team: &Namespace, name: &str, time: &str, gates: &[&str]) -> Object {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata(name), "spec": pod_spec(),
    });
    let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.extend(runs(time).as_object().cloned().unwrap());
    let gates: Vec<_> = gates.iter().map(|name| json!({ "name": name })).collect();
    pod["spec"]["schedulingGates"] = gates.into();
    let pod = team.create(pod).await;
    pod.is("gated", |it| {
        has(it, "PodScheduled", "False", "SchedulingGated")
    })
    .await;
    pod
}

async fn started(team: &Namespace, name: &str) -> Object {
    let pod = gated(team, name, "1h", &[GATE]).await;
    pod.change(json!([unset("/spec/schedulingGates/0")]))
        .await
        .unwrap();
    pod.is("running", |it| it["status"]["phase"] == "Running")
        .await;
    pod
}

#[tokio::test]
async fn one_patch_removes_the_gate_and_writes_to_the_pod() {
    let team = team("release").await;
    let pod = gated(&team, "held", "2s", &["example.com/first", GATE]).await;
    let open = unset("/spec/schedulingGates/1");
    stale_is_a_conflict(&pod, json!([open])).await;
    let mut change = vec![open];
    change.extend(grant("/metadata"));
    let changed = change_present(&pod, change.into()).await;
    assert_eq!(changed["spec"]["nodeName"], Value::Null);
    assert!(is_granted(&pods(&team, "", 1).await[0]));
    // The last gate, which is another's, starts it.
    pod.change(json!([unset("/spec/schedulingGates/0")]))
        .await
        .unwrap();
    pod.is("succeeded", |it| it["status"]["phase"] == "Succeeded")
        .await;
}

#[tokio::test]
async fn no_gate_is_added_after_its_creation() {
    let team = team("late").await;
    let runs = started(&team, "runs").await;
    let gate = set("/spec/schedulingGates", json!([{ "name": GATE }]));
    assert_eq!(code(&runs.change(json!([gate])).await), 422);
    let gated = gated(&team, "gated", "1h", &["example.com/first"]).await;
    let gate = set("/spec/schedulingGates/-", json!({ "name": GATE }));
    assert_eq!(code(&gated.change(json!([gate])).await), 422);
}

#[tokio::test]
async fn a_gated_one_can_be_failed_in_its_status_for_good() {
    let team = team("fail-gated").await;
    let pod = gated(&team, "held", "1h", &[GATE]).await;
    let failed = json!([
        set("/status/phase", "Failed"),
        set("/status/reason", "DeadlineExceeded"),
    ]);
    pod.change_status(failed).await.unwrap();
    pod.change(json!([unset("/spec/schedulingGates/0")]))
        .await
        .unwrap();
    // Something that the scheduler has done after that.
    started(&team, "after").await;
    let still = pod.get().await;
    assert_eq!(still["status"]["phase"], "Failed");
    assert_eq!(still["spec"]["nodeName"], Value::Null);
}

#[tokio::test]
async fn a_gated_one_is_gone_when_it_is_deleted() {
    let team = team("gone").await;
    let pod = gated(&team, "held", "1h", &[GATE]).await;
    pod.delete().await;
    pod.is_gone().await;
}

/// What the kubelet does then, kwok plays here.
#[tokio::test]
async fn a_running_one_can_be_ended_by_a_deadline() {
    let team = team("deadline").await;
    let pod = started(&team, "runs").await;
    pod.change(json!([set("/spec/activeDeadlineSeconds", 1)]))
        .await
        .unwrap();
    let failed = pod
        .is("failed", |it| it["status"]["phase"] == "Failed")
        .await;
    assert_eq!(failed["status"]["reason"], "DeadlineExceeded");
}
