//! Tekton's `TaskRun` and `PipelineRun`.

use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::{Namespace, Object, same};

use super::stage::{
    HOLDER, SEMAPHORE, change_present, code, grant, has, is_granted, metadata, phase, pods,
    running, runs, set, stale_is_a_conflict, team, terminating, unset,
};

/// A held `TaskRun`, or a `PipelineRun` of two tasks.
fn run(kind: Kind, name: &str, time: &str) -> Value {
    // Without a command, Tekton asks a registry for that of the image.
    let task = json!({ "steps": [{ "name": "work", "image": "none", "command": ["work"] }] });
    let mut run = json!({
        "apiVersion": "tekton.dev/v1", "kind": kind.name(), "metadata": metadata(name),
        "spec": { "status": kind.pending() },
    });
    match kind {
        Kind::TaskRun => run["spec"]["taskSpec"] = task,
        Kind::PipelineRun => {
            run["spec"]["pipelineSpec"] = json!({ "tasks": [
                { "name": "first", "taskSpec": task },
                { "name": "second", "taskSpec": task, "runAfter": ["first"] },
            ] });
        }
    }
    let annotations = run["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.extend(runs(time).as_object().cloned().unwrap());
    run
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    TaskRun,
    PipelineRun,
}

const BOTH: [Kind; 2] = [Kind::TaskRun, Kind::PipelineRun];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::TaskRun => "TaskRun",
            Self::PipelineRun => "PipelineRun",
        }
    }

    fn pending(self) -> &'static str {
        match self {
            Self::TaskRun => "TaskRunPending",
            Self::PipelineRun => "PipelineRunPending",
        }
    }

    fn cancelled(self) -> &'static str {
        match self {
            Self::TaskRun => "TaskRunCancelled",
            Self::PipelineRun => "Cancelled",
        }
    }

    /// The label of its pods.
    async fn of(self, run: &Object) -> String {
        let label = match self {
            Self::TaskRun => "taskRunUID",
            Self::PipelineRun => "pipelineRunUID",
        };
        format!("tekton.dev/{label}={}", run.uid().await)
    }

    async fn held(self, team: &Namespace, time: &str) -> Object {
        let held = team.create(run(self, "held", time)).await;
        held.is("held", |it| has(it, "Succeeded", "Unknown", self.pending()))
            .await;
        held
    }

    async fn started(self, team: &Namespace) -> Object {
        let run = self.held(team, "1h").await;
        run.change(json!([unset("/spec/status")])).await.unwrap();
        running(team, &self.of(&run).await, 1).await;
        // Its controller makes the pods first, and Tekton's webhook goes by the status.
        run.is("started", |it| it["status"]["startTime"].is_string())
            .await;
        run
    }

    async fn is_cancelled(self, run: &Object) -> Value {
        run.is("cancelled", |it| {
            has(it, "Succeeded", "False", self.cancelled())
        })
        .await
    }
}

async fn task_runs(team: &Namespace, run: &Object, name: &str) -> Object {
    let child = format!("{}-{name}", run.name());
    let child = team.object("tekton.dev/v1", "TaskRun", &child).await;
    child.is("there", |_| true).await;
    child
}

#[tokio::test]
async fn a_held_one_has_not_started_and_has_no_pods() {
    for kind in BOTH {
        let team = team("held").await;
        let held = kind.held(&team, "1h").await.get().await;
        assert_eq!(held["status"]["startTime"], Value::Null);
        assert_eq!(held["status"]["childReferences"], Value::Null);
        assert_eq!(team.pods_with("").await.len(), 0);
    }
}

#[tokio::test]
async fn one_patch_starts_it_and_writes_to_its_pods() {
    for (kind, number) in BOTH.into_iter().zip([1, 2]) {
        let team = team("release").await;
        let held = kind.held(&team, "2s").await;
        let open = unset("/spec/status");
        stale_is_a_conflict(&held, json!([open])).await;
        let mut change = vec![open];
        change.extend(grant("/metadata"));
        change_present(&held, change.into()).await;
        held.is("succeeded", |it| {
            super::stage::condition(it, "Succeeded").is_some_and(|(status, _)| status == "True")
        })
        .await;
        let pods = pods(&team, &kind.of(&held).await, number).await;
        assert!(pods.iter().all(is_granted), "{pods:?}");
    }
}

/// So a watch by label sees the children, and their annotation is none that a user wrote.
#[tokio::test]
async fn the_metadata_of_a_run_is_copied_to_its_children_and_their_pods() {
    let team = team("copies").await;
    let run = Kind::PipelineRun.started(&team).await;
    let child = task_runs(&team, &run, "first").await.get().await;
    assert_eq!(child["metadata"]["annotations"][SEMAPHORE], "db");
    assert_eq!(
        child["metadata"]["labels"]["consul-semaphore.io/waits"],
        "true"
    );
    let owner = &child["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["controller"]),
        (&json!("PipelineRun"), &json!(true))
    );
    let pod = &running(&team, &Kind::PipelineRun.of(&run).await, 1).await[0];
    assert_eq!(
        pod.annotations().get(SEMAPHORE).map(String::as_str),
        Some("db")
    );
    assert!(pod.labels().contains_key("consul-semaphore.io/waits"));
}

#[tokio::test]
async fn what_has_started_is_not_held_again_and_takes_metadata() {
    for kind in BOTH {
        let team = team("late").await;
        let run = kind.started(&team).await;
        let hold = run.change(json!([set("/spec/status", kind.pending())]));
        let refusal = hold.await.expect_err("a webhook refuses it");
        assert_eq!(refusal.code, 400, "{refusal}");
        assert!(
            refusal
                .message
                .contains("cannot be Pending after it is started"),
            "{refusal}"
        );
        let holder = format!("/metadata/labels/{}", HOLDER.replace('/', "~1"));
        run.change(json!([set(&holder, "b")])).await.unwrap();
    }
}

#[tokio::test]
async fn a_held_one_can_be_cancelled_for_good() {
    for kind in BOTH {
        let team = team("cancel-held").await;
        let held = kind.held(&team, "1h").await;
        held.change(json!([set("/spec/status", kind.cancelled())]))
            .await
            .unwrap();
        kind.is_cancelled(&held).await;
        let again = held.change(json!([unset("/spec/status")])).await;
        assert_eq!(code(&again), 400, "{again:?}");
        assert_eq!(team.pods_with("").await.len(), 0);
    }
}

/// So its being finished proves nothing about its pods.
#[tokio::test]
async fn a_running_one_is_cancelled_before_its_pods_are_gone() {
    for kind in BOTH {
        let team = team("cancel-running").await;
        let run = kind.started(&team).await;
        run.change(json!([set("/spec/status", kind.cancelled())]))
            .await
            .unwrap();
        kind.is_cancelled(&run).await;
        terminating(&team, &kind.of(&run).await, 1).await;
        pods(&team, &kind.of(&run).await, 0).await;
    }
}

/// Such as a sidecar: kwok keeps the pod running after its steps have ended.
#[tokio::test]
async fn one_succeeds_while_its_pod_still_runs() {
    for kind in BOTH {
        let team = team("lingers").await;
        let mut run = run(kind, "lingers", "2s");
        run["spec"].as_object_mut().unwrap().remove("status");
        run["metadata"]["annotations"]["bed.consul-semaphore.io/lingers"] = "20s".into();
        let run = team.create(run).await;
        run.is("succeeded", |it| {
            super::stage::condition(it, "Succeeded").is_some_and(|(status, _)| status == "True")
        })
        .await;
        let pods = team.pods_with(&kind.of(&run).await).await;
        let last = pods.last().expect("its pod");
        same(phase(last), "Running").unwrap();
    }
}
