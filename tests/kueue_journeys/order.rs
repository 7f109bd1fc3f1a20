//! Who waits, who starts, and when.

use serde_json::json;

use crate::stage::{Stage, is_stopping};

#[tokio::test]
async fn one_after_another_also_beside_a_job_that_kueue_does_not_queue() {
    let stage = Stage::new("order").await;
    let a = stage.job("a").create().await;
    stage.runs(&a).await;
    a.has_event("SlotGranted").await;
    let b = stage.job("b").create().await;
    stage.waits(&b).await;
    let plain = stage.waits_beside("plain").await;
    // Its pod goes on for 20 s: the next one must not start before.
    a.delete().await;
    stage.runs(&b).await;
    plain.is_waiting().await;
    b.finish().await;
    plain.is_complete().await;
    stage.is_over(3).await;
}

#[tokio::test]
async fn one_that_asks_for_no_slot_starts_at_once() {
    let stage = Stage::new("none").await;
    let holder = stage.is_held().await;
    let none = json!({ "metadata": { "annotations": null } });
    let free = stage.job("free").with(none).runs("2s").create().await;
    free.is_complete().await;
    assert_eq!(
        stage.workload_of(&free).await.get().await["status"]["admissionChecks"][0]["state"],
        "Ready"
    );
    holder.finish().await;
}

#[tokio::test]
async fn what_its_owner_says_later_counts_while_it_waits() {
    let stage = Stage::new("changed").await;
    let holder = stage.is_held().await;
    let first = stage.job("first").create().await;
    stage.waits(&first).await;
    let second = stage.job("second").create().await;
    stage.waits(&second).await;
    second
        .annotate("consul-semaphore.io/priority", Some("9"))
        .await;
    first.annotate("consul-semaphore.io/semaphore", None).await;
    // It asks for nothing any more, and the slot is taken.
    first.is_running().await;
    first.delete().await;
    is_stopping(&first).await;
    holder.finish().await;
    stage.runs(&second).await;
    second.finish().await;
}

#[tokio::test]
async fn a_job_set_with_two_sets_of_pods_waits_for_one_slot() {
    let stage = Stage::new("set").await;
    let holder = stage.is_held().await;
    let template = json!({ "spec": { "template": {
        "metadata": {
            "labels": { testbed::SEMAPHORE_LABEL: "db", testbed::WORKLOAD_LABEL: "set" },
            "annotations": { "bed.consul-semaphore.io/runs": "2s" },
        },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "work", "image": "none" }] },
    } } });
    let set = stage
        .team
        .create(json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {
                "name": "set", "labels": { "kueue.x-k8s.io/queue-name": "queue" },
                "annotations": { "consul-semaphore.io/semaphore": "db" },
            },
            "spec": { "suspend": true, "replicatedJobs": [
                { "name": "driver", "template": template },
                { "name": "workers", "template": template },
            ] },
        }))
        .await;
    set.has_event("SlotWaiting").await;
    holder.finish().await;
    set.is("completed", |it| crate::stage::is(it, "Completed", "True"))
        .await;
    let uid = set.uid().await;
    let label = format!("consul-semaphore.io/holder={uid}");
    assert_eq!(stage.team.pods_with(&label).await.len(), 2);
    stage.is_over(2).await;
}
