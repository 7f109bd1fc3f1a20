//! `JobSet`.

use k8s_openapi::api::batch::v1::Job;
use kube::{ResourceExt as _, api::ListParams};
use serde_json::{Value, json};
use testbed::{Namespace, Object, eventually, same};

use super::stage::{
    SESSION, change_present, code, grant, has, is_granted, metadata, now, pod_spec, pods, running,
    runs, set, stale_is_a_conflict, team, terminating,
};

/// Two Jobs of one pod each, held.
fn job_set(name: &str, time: &str) -> Value {
    let template = json!({ "spec": { "template": {
        "metadata": { "annotations": runs(time) }, "spec": pod_spec(),
    } } });
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata(name),
        "spec": { "suspend": true, "replicatedJobs": [
            { "name": "first", "template": template },
            { "name": "second", "template": template },
        ] },
    })
}

async fn held(team: &Namespace, job_set: Value) -> Object {
    let held = team.create(job_set).await;
    let suspended = |it: &Value| has(it, "Suspended", "True", "SuspendedJobs");
    held.is("held", suspended).await;
    held
}

/// The change that starts it and writes to the metadata of its pods.
fn release() -> Value {
    let template = |index| format!("/spec/replicatedJobs/{index}/template/spec/template/metadata");
    let mut change = vec![set("/spec/suspend", false)];
    change.extend([0, 1].iter().flat_map(|index| grant(&template(index))));
    change.into()
}

async fn started(team: &Namespace, job_set: Value) -> Object {
    let held = held(team, job_set).await;
    change_present(&held, release()).await;
    running(team, &of(&held).await, 2).await;
    held
}

/// The label of its pods.
async fn of(job_set: &Object) -> String {
    format!("jobset.sigs.k8s.io/jobset-uid={}", job_set.uid().await)
}

/// The operations on the status that fail it.
fn failed() -> Value {
    json!([
        set("/status/terminalState", "Failed"),
        set(
            "/status/conditions/-",
            json!({
                "type": "Failed", "status": "True", "reason": "DeadlineExceeded",
                "message": "it waited for too long", "lastTransitionTime": now(),
            })
        ),
    ])
}

async fn jobs(team: &Namespace, job_set: &Object) -> Vec<Job> {
    let labels = ListParams::default().labels(&of(job_set).await);
    team.api::<Job>().list(&labels).await.unwrap().items
}

#[tokio::test]
async fn a_held_one_has_suspended_jobs_and_no_pods() {
    let team = team("held").await;
    let held = held(&team, job_set("held", "1h")).await;
    let jobs = jobs(&team, &held).await;
    assert_eq!(jobs.len(), 2);
    for job in jobs {
        assert_eq!(job.spec.unwrap().suspend, Some(true));
        let copied = job.metadata.annotations.unwrap_or_default();
        assert!(!copied.contains_key(super::stage::SEMAPHORE), "{copied:?}");
    }
    assert_eq!(team.pods_with("").await.len(), 0);
}

#[tokio::test]
async fn one_patch_starts_it_and_writes_to_its_pods() {
    let team = team("release").await;
    let held = held(&team, job_set("held", "2s")).await;
    stale_is_a_conflict(&held, json!([set("/spec/suspend", false)])).await;
    change_present(&held, release()).await;
    let pods = pods(&team, &of(&held).await, 2).await;
    assert!(pods.iter().all(is_granted), "{pods:?}");
    let done = held
        .is("completed", |it| {
            has(it, "Completed", "True", "AllJobsCompleted")
        })
        .await;
    assert_eq!(done["status"]["terminalState"], "Completed");
}

#[tokio::test]
async fn its_pod_templates_cannot_change_while_it_runs() {
    let team = team("frozen").await;
    let runs = started(&team, job_set("runs", "1h")).await;
    let template = "/spec/replicatedJobs/0/template/spec/template/metadata";
    let changed = runs.change(json!([set(
        &format!("{template}/labels"),
        json!({ "a": "b" })
    )]));
    assert_eq!(code(&changed.await), 422);
}

/// Unlike a Job: only a LIST of the pods says when it may start again.
#[tokio::test]
async fn suspended_and_started_again_it_has_old_and_new_pods_at_once() {
    let team = team("again").await;
    let runs = started(&team, job_set("runs", "1h")).await;
    let suspend = json!([set("/spec/suspend", true)]);
    runs.change(suspend).await.unwrap();
    let suspended = |it: &Value| has(it, "Suspended", "True", "SuspendedJobs");
    runs.is("suspended", suspended).await;
    terminating(&team, &of(&runs).await, 2).await;
    let name = SESSION.replace('/', "~1");
    let template = "/spec/replicatedJobs/0/template/spec/template/metadata";
    let again = json!([
        set("/spec/suspend", false),
        set(&format!("{template}/annotations/{name}"), "c"),
    ]);
    runs.change(again).await.unwrap();
    let new = running(&team, &of(&runs).await, 2).await;
    terminating(&team, &of(&runs).await, 2).await;
    assert!(new.iter().any(|pod| pod.annotations()[SESSION] == "c"));
}

/// So its being finished proves nothing about its pods.
#[tokio::test]
async fn it_is_completed_while_pods_of_it_terminate() {
    let team = team("target").await;
    let mut one = job_set("one", "2s");
    one["spec"]["successPolicy"] = json!({ "operator": "All", "targetReplicatedJobs": ["first"] });
    let other = &mut one["spec"]["replicatedJobs"][1]["template"]["spec"]["template"];
    other["metadata"]["annotations"] = runs("1h");
    let one = started(&team, one).await;
    one.is("completed", |it| {
        has(it, "Completed", "True", "AllJobsCompleted")
    })
    .await;
    terminating(&team, &of(&one).await, 1).await;
}

#[tokio::test]
async fn a_later_job_has_no_pods_yet_and_gets_the_same_metadata() {
    let team = team("order").await;
    let mut one = job_set("one", "3s");
    one["spec"]["replicatedJobs"][1]["dependsOn"] =
        json!([{ "name": "first", "status": "Complete" }]);
    let one = held(&team, one).await;
    change_present(&one, release()).await;
    pods(&team, &of(&one).await, 1).await;
    let both = pods(&team, &of(&one).await, 2).await;
    assert!(both.iter().all(is_granted), "{both:?}");
}

#[tokio::test]
async fn a_held_one_can_be_failed_in_its_status_for_good() {
    let team = team("fail-held").await;
    let held = held(&team, job_set("held", "1h")).await;
    held.change_status(failed()).await.unwrap();
    eventually("its Jobs are gone", || async {
        same(jobs(&team, &held).await.len(), 0)
    })
    .await;
    held.change(json!([set("/spec/suspend", false)]))
        .await
        .unwrap();
    // Something that its controller has done after that.
    let after = started(&team, job_set("after", "1h")).await;
    assert_ne!(after.uid().await, held.uid().await);
    let still = held.get().await;
    assert_eq!(still["status"]["terminalState"], "Failed");
    assert!(has(&still, "Failed", "True", "DeadlineExceeded"));
    assert_eq!(team.pods_with(&of(&held).await).await.len(), 0);
}

#[tokio::test]
async fn a_running_one_can_be_failed_in_its_status_and_its_pods_terminate_then() {
    let team = team("fail-running").await;
    let runs = started(&team, job_set("runs", "1h")).await;
    runs.change_status(failed()).await.unwrap();
    terminating(&team, &of(&runs).await, 2).await;
    pods(&team, &of(&runs).await, 0).await;
    let still = runs.get().await;
    assert_eq!(still["status"]["terminalState"], "Failed");
}
