//! The admission checks themselves, and Workloads that can't be served.

use serde_json::json;

use crate::stage::{API, Stage, entry, is};

#[tokio::test]
async fn its_check_is_said_to_be_active_again() {
    let stage = Stage::new("check").await;
    let active = stage.check.get().await;
    assert_eq!(active["status"]["conditions"][0]["observedGeneration"], 1);
    let gone = json!([{ "op": "add", "path": "/status", "value": {} }]);
    stage
        .check
        .change_status(gone)
        .await
        .expect("it can be changed");
    stage
        .check
        .is("active again", |it| is(it, "Active", "True"))
        .await;
    stage
        .queue
        .is("active", |it| is(it, "Active", "True"))
        .await;
}

#[tokio::test]
async fn one_whose_owner_is_of_no_known_kind_says_so() {
    let stage = Stage::new("unowned").await;
    let pod =
        json!({ "restartPolicy": "Never", "containers": [{ "name": "work", "image": "none" }] });
    let workload = stage
        .team
        .create(json!({
            "apiVersion": API, "kind": "Workload",
            "metadata": { "name": "bare" },
            "spec": {
                "queueName": "queue", "active": true,
                "podSets": [{ "name": "main", "count": 1, "template": { "spec": pod } }],
            },
        }))
        .await;
    let says = |it: &serde_json::Value| {
        let message = entry(it)["message"].as_str().unwrap_or_default();
        entry(it)["state"] == "Pending" && message.contains("no controller owns this Workload")
    };
    let waits = workload.is("told why it waits", says).await;
    let message = entry(&waits)["message"].as_str().expect("a message");
    assert!(message.ends_with("Job, JobSet"), "{message}");
}
