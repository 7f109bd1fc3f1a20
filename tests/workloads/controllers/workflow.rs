//! Argo's Workflow.

use serde_json::{Value, json};
use testbed::{Namespace, Object};

use super::stage::{
    SEMAPHORE, change_present, grant, is_granted, metadata, pods, running, runs, set,
    stale_is_a_conflict, team, unset,
};
use kube::ResourceExt as _;

/// One of two steps, held.
fn workflow(name: &str, time: &str) -> Value {
    json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": metadata(name),
        "spec": {
            "suspend": true,
            "entrypoint": "main",
            "podMetadata": { "annotations": runs(time) },
            "templates": [
                { "name": "main", "steps": [
                    [{ "name": "first", "template": "work" }],
                    [{ "name": "second", "template": "work" }],
                ] },
                { "name": "work", "container": { "image": "none", "command": ["work"] } },
            ],
        },
    })
}

async fn held(team: &Namespace, time: &str) -> Object {
    let held = team.create(workflow("held", time)).await;
    held.is("seen by its controller", |it| {
        it["status"]["phase"] == "Running"
    })
    .await;
    held
}

async fn started(team: &Namespace) -> Object {
    let run = held(team, "1h").await;
    run.change(json!([unset("/spec/suspend")])).await.unwrap();
    running(team, &of(&run), 1).await;
    run
}

/// The label of its pods, which names it and not its uid.
fn of(workflow: &Object) -> String {
    format!("workflows.argoproj.io/workflow={}", workflow.name())
}

/// The change that ends it. Without the first of the two it does nothing to one that is suspended.
fn terminate() -> Value {
    json!([unset("/spec/suspend"), set("/spec/shutdown", "Terminate")])
}

async fn is_terminated(workflow: &Object) {
    workflow
        .is("terminated", |it| {
            it["status"]["phase"] == "Failed"
                && it["status"]["message"] == "Stopped with strategy 'Terminate'"
        })
        .await;
}

#[tokio::test]
async fn a_held_one_is_running_to_its_controller_and_has_no_pods() {
    let team = team("held").await;
    let held = held(&team, "1h").await.get().await;
    assert_eq!(held["status"]["progress"], "0/0");
    assert_eq!(held["status"]["nodes"], Value::Null);
    assert_ne!(held["status"]["startedAt"], Value::Null);
    assert_eq!(team.pods_with("").await.len(), 0);
}

#[tokio::test]
async fn one_patch_starts_it_and_writes_to_its_pods() {
    let team = team("release").await;
    let held = held(&team, "2s").await;
    let open = unset("/spec/suspend");
    stale_is_a_conflict(&held, json!([open])).await;
    let mut change = vec![open];
    change.extend(grant("/spec/podMetadata"));
    change_present(&held, change.into()).await;
    let done = held
        .is("succeeded", |it| it["status"]["phase"] == "Succeeded")
        .await;
    assert_eq!(
        done["metadata"]["labels"]["workflows.argoproj.io/completed"],
        "true"
    );
    let uid = held.uid().await;
    for pod in pods(&team, &of(&held), 2).await {
        assert!(is_granted(&pod), "{pod:?}");
        assert!(!pod.annotations().contains_key(SEMAPHORE), "{pod:?}");
        assert_eq!(pod.owner_references()[0].uid, uid);
    }
}

#[tokio::test]
async fn suspended_late_it_makes_no_new_pods_and_the_old_ones_go_on() {
    let team = team("late").await;
    let run = held(&team, "3s").await;
    run.change(json!([unset("/spec/suspend")])).await.unwrap();
    running(&team, &of(&run), 1).await;
    run.change(json!([set("/spec/suspend", true)]))
        .await
        .unwrap();
    let ended = pods(&team, &of(&run), 1).await;
    run.is("without running pods", |it| {
        super::stage::condition(it, "PodRunning").is_some_and(|(status, _)| status == "False")
    })
    .await;
    assert_eq!(pods(&team, &of(&run), 1).await[0].uid(), ended[0].uid());
}

#[tokio::test]
async fn a_held_one_can_be_terminated_and_makes_no_pods() {
    let team = team("terminate-held").await;
    let held = held(&team, "1h").await;
    held.change(terminate()).await.unwrap();
    is_terminated(&held).await;
    assert_eq!(team.pods_with("").await.len(), 0);
}

#[tokio::test]
async fn a_suspended_one_is_not_terminated_as_long_as_it_is_suspended() {
    let team = team("terminate-suspended").await;
    let held = held(&team, "1h").await;
    held.change(json!([set("/spec/shutdown", "Terminate")]))
        .await
        .unwrap();
    // Something that its controller has done after that.
    let after = team.create(workflow("after", "1h")).await;
    after.change(terminate()).await.unwrap();
    is_terminated(&after).await;
    assert_eq!(held.get().await["status"]["phase"], "Running");
}

/// So its being finished proves nothing about its pods. kwok ends them: no signal reaches their containers.
#[tokio::test]
async fn a_running_one_is_terminated_before_its_pods_are_gone() {
    let team = team("terminate-running").await;
    let run = started(&team).await;
    run.change(json!([set("/spec/shutdown", "Terminate")]))
        .await
        .unwrap();
    is_terminated(&run).await;
    // A label that proves nothing either.
    let completed = format!("{},workflows.argoproj.io/completed=true", of(&run));
    running(&team, &completed, 1).await;
    running(&team, &of(&run), 0).await;
}

#[tokio::test]
async fn a_terminated_one_runs_again_under_the_same_uid() {
    let team = team("retry").await;
    let held = held(&team, "1h").await;
    held.change(terminate()).await.unwrap();
    is_terminated(&held).await;
    let uid = held.uid().await;
    held.retry_as_argo().await.unwrap();
    running(&team, &of(&held), 1).await;
    assert_eq!(held.uid().await, uid);
}
