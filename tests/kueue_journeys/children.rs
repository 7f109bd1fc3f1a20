//! What a workload in a queue makes, and what is annotated there.

use serde_json::json;

use crate::stage::{ASKS, Stage, is};

/// It is warned of, and runs as its owner wants.
#[tokio::test]
async fn a_child_with_an_annotation_of_its_own_is_its_owners() {
    let stage = Stage::new("children").await;
    let holder = stage.is_held().await;
    let pods = json!({
        "metadata": { "annotations": { "bed.consul-semaphore.io/runs": "2s" } },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "work", "image": "none" }] },
    });
    let template = json!({
        "metadata": { "annotations": { ASKS: "db" } }, "spec": { "template": pods },
    });
    let set = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": { "name": "set", "labels": { "kueue.x-k8s.io/queue-name": "queue" } },
        "spec": { "suspend": true, "replicatedJobs": [{ "name": "work", "template": template }] },
    });
    let set = stage.team.create(set).await;
    let child = stage.team.job("set-work-0");
    let note = child.has_event("ManagedElsewhere").await;
    assert!(note.contains("JobSet set created it"), "{note}");
    set.is("completed", |it| is(it, "Completed", "True")).await;
    holder.finish().await;
    stage.is_over(1).await;
}
