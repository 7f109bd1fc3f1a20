//! Several beds with controllers, beside each other.

use std::path::Path;

use serde_json::{Value, json};
use testbed::{Bed, Controller, Namespace, eventually, same};

use crate::controllers::stage::{has, metadata, team};

/// A held `TaskRun`, by its controller, and with the default that its webhook sets.
async fn holds(team: &Namespace) {
    let task = json!({ "steps": [{ "name": "work", "image": "none", "command": ["work"] }] });
    let run = team
        .create(json!({
            "apiVersion": "tekton.dev/v1", "kind": "TaskRun", "metadata": metadata("held"),
            "spec": { "status": "TaskRunPending", "taskSpec": task },
        }))
        .await;
    let held = |it: &Value| has(it, "Succeeded", "Unknown", "TaskRunPending");
    let run = run.is("held", held).await;
    assert_eq!(run["spec"]["timeout"], "1h0m0s");
}

#[tokio::test]
async fn two_beds_have_controllers_of_their_own_and_nothing_is_left_of_one() {
    let here = team("here").await;
    let other = Bed::builder().without_operator();
    let other = other.controllers([Controller::Tekton]).start().await;
    let there = other.namespace("there").await;
    holds(&there).await;
    holds(&here).await;
    let ids = other.folder().ids();
    drop(there);
    other.end().await.unwrap();
    eventually("all its processes have ended", || async {
        let left = ids
            .iter()
            .filter(|id| Path::new(&format!("/proc/{id}")).exists());
        same(left.count(), 0)
    })
    .await;
    holds(&team("after").await).await;
}
