//! Workloads of other kinds than Job, named as TYPE/NAME. No controller of theirs runs: the test writes their status.

use std::fs;

use serde_json::json;
use testbed::{Bed, Controller, Namespace, Object, server};

use crate::{releasing::user, stage::run};

#[tokio::test]
#[ignore = "the JobSet CRD must be there: make test-workloads"]
async fn a_job_set_is_asked_about_held_bumped_completed_and_released() {
    let (bed, team) = bed().await;
    let user = user(&bed, &team);
    for words in [&["why", "jobset/train"][..], &["hold", "JobSet/train"]] {
        let said = user.csem(words).await;
        said.is(66, &["this cluster has no jobsets.jobset.x-k8s.io"]);
    }
    let said = user.csem(&["why", "cronjob/train"]).await;
    said.is(
        2,
        &["is not a type of workload", "jobset, pipelinerun, taskrun"],
    );
    Controller::JobSet.define(&bed).await;
    bed.operator().start().await;

    // A Job of the same name holds the slot.
    let db = team.semaphore("db").limit(1).create().await;
    let job = team.job("train").semaphore("db").runs("1h").create().await;
    job.is_running().await;
    let train = suspended(&team).await;
    let waiting = json!({ "held": 1, "waiting": 1 });
    db.shows(waiting.clone()).await;
    let name = team.name();
    let waits = format!("JobSet {name}/train waits for a slot of ConsulSemaphore db: 1 of 1");
    let said = user.csem(&["why", "jobset/train"]).await;
    said.is(0, &[&waits, "AllSlotsHeld"]);
    let read = user.reads(&["why", "JobSets/train"]).await;
    assert_eq!(
        (&read["kind"], &read["name"]),
        (&json!("JobSet"), &json!("train"))
    );
    user.csem(&["why", "train"])
        .await
        .is(0, &["runs in a slot"]);

    let said = user.sees(&["hold", "jobsets.jobset.x-k8s.io/train"]).await;
    let begins = said.starts_with("jobset.jobset.x-k8s.io/train is on hold");
    assert!(begins, "{said}");
    db.shows(json!({ "held": 1, "waiting": 0 })).await;
    let said = user.csem(&["why", "jobset/train"]).await;
    said.is(0, &["is on hold", "kubectl csem unhold jobset/train"]);
    user.sees(&["unhold", "jobset/train"]).await;
    db.shows(waiting).await;
    user.sees(&["bump", "jobset/train", "7"]).await;
    let priority = "consul-semaphore.io/priority";
    let is_bumped = |it: &serde_json::Value| it["metadata"]["annotations"][priority] == "7";
    train.is("bumped", is_bumped).await;

    let words = ["__complete", "csem", "why", "-n", name, "jobset/t"];
    let completed = run(
        user.command(server("kubectl").expect("kubectl"), &words),
        "",
    )
    .await;
    let offered = completed.out.starts_with("jobset/train\tof db\n:4");
    assert!(offered, "{completed}");

    let said = user.csem(&["release", "db", "jobset/train"]).await;
    said.is(66, &["the JobSet train holds no slot of db"]);
    job.finish().await;
    train.has_event("SlotGranted").await;
    let said = user.csem(&["why", "jobset/train"]).await;
    said.is(0, &["JobSet", "runs in a slot of ConsulSemaphore db"]);
    let said = user
        .csem_told(&["release", "db", "jobset/train"], "no\n")
        .await;
    let runs = "The JobSet train of this cluster RUNS";
    let delete = format!("kubectl delete jobset train -n {name}");
    said.is(1, &[runs, &delete, "not released"]);
}

/// With an operator that serves `JobSets`, and has not started yet.
async fn bed() -> (Bed, Namespace) {
    let builder = Bed::builder().operator_args(["--workloads=jobsets"]);
    let bed = builder.without_operator().start().await;
    let shipped = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../config/workloads/jobsets/jobsets.yaml"
    );
    // Without the policies: which of them are in effect already when something is created is chance.
    let shipped = fs::read_to_string(shipped).expect("the manifests");
    let rights = shipped.split("---\n");
    let rights: Vec<&str> = rights
        .filter(|document| document.contains("kind: ClusterRole"))
        .collect();
    let file = bed.folder().path().join("rights.yaml");
    fs::write(&file, rights.join("---\n")).expect("a file");
    let file = file.display().to_string();
    bed.kubectl(["apply", "-f", &file]).await;
    let team = bed.namespace("csem-kinds").await;
    (bed, team)
}

/// A `JobSet` that waits, as its controller leaves it.
async fn suspended(team: &Namespace) -> Object {
    let pod = json!({
        "restartPolicy": "Never", "containers": [{ "name": "work", "image": "none" }],
    });
    let template = json!({ "spec": { "template": { "metadata": {}, "spec": pod } } });
    let train = team
        .create(json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {
                "name": "train", "labels": { "consul-semaphore.io/waits": "true" },
                "annotations": { "consul-semaphore.io/semaphore": "db" },
            },
            "spec": { "suspend": true, "replicatedJobs": [{ "name": "work", "template": template }] },
        }))
        .await;
    let condition = json!({
        "type": "Suspended", "status": "True", "reason": "SuspendedJobs", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status =
        json!([{ "op": "add", "path": "/status", "value": { "conditions": [condition] } }]);
    let changed = train.change_status(status).await;
    changed.expect("the API server takes the status");
    train
}
