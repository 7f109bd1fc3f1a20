//! What the operator may do with workloads, whatever its rights say: each forbidden change is tried as the operator.

use serde_json::{Value, json};

use crate::stage::{HOLDER, Kind, REPORTS, SEMAPHORE, bed, people};

const REFUSED: &str = "ValidatingAdmissionPolicy 'operator.";

/// A change, and of which subresource if not of the object itself.
type Change = (&'static str, Value);

fn metadata() -> Value {
    json!({
        "annotations": { REPORTS[0]: "s", REPORTS[1]: "k" },
        "labels": { HOLDER: "u" },
    })
}

fn set(path: &str, value: impl Into<Value>) -> Value {
    json!({ "op": "add", "path": path, "value": value.into() })
}

fn condition(of: &str) -> Value {
    json!([{
        "type": of, "status": "True", "reason": "WaitTimedOut", "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }])
}

const RAY_HEAD: &str = "/spec/rayClusterSpec/headGroupSpec/template";
const RAY_WORKER: &str = "/spec/rayClusterSpec/workerGroupSpecs/0/template";
const MPI: &str = "/spec/mpiReplicaSpecs";
const JOBS: &str = "/spec/replicatedJobs";
const IMAGE: &str = "/spec/template/spec/containers/0/image";
const TEMPLATE: &str = "template/spec/template/metadata";

/// What it does.
fn allowed(kind: Kind) -> Vec<Change> {
    match kind {
        Kind::JobSet => vec![
            (
                "",
                json!([
                    set("/spec/suspend", false),
                    set(&format!("{JOBS}/0/{TEMPLATE}"), metadata()),
                    set(
                        &format!("{JOBS}/1/{TEMPLATE}/labels/consul-semaphore.io~1holder"),
                        "u"
                    ),
                    set(
                        &format!("{JOBS}/1/{TEMPLATE}/annotations/consul-semaphore.io~1session"),
                        "s"
                    ),
                ]),
            ),
            (
                "",
                json!({ "spec": { "suspend": true }, "metadata": metadata() }),
            ),
            (
                "status",
                json!({ "status": { "conditions": condition("Failed"), "terminalState": "Failed" } }),
            ),
        ],
        Kind::PipelineRun => vec![
            (
                "",
                json!({ "spec": { "status": null }, "metadata": metadata() }),
            ),
            (
                "",
                json!({ "spec": { "status": "Cancelled" }, "metadata": metadata() }),
            ),
            (
                "",
                json!({ "spec": { "status": "StoppedRunFinally" }, "metadata": metadata() }),
            ),
        ],
        Kind::TaskRun => vec![
            (
                "",
                json!({ "spec": { "status": null }, "metadata": metadata() }),
            ),
            ("", json!({ "spec": { "status": "TaskRunCancelled" } })),
        ],
        Kind::Workflow => vec![
            (
                "",
                json!({ "spec": { "suspend": null, "podMetadata": metadata() }, "metadata": metadata() }),
            ),
            (
                "",
                json!({ "spec": { "suspend": null, "shutdown": "Terminate" } }),
            ),
        ],
        Kind::Pod => vec![
            (
                "",
                json!([
                    set("/metadata/labels/consul-semaphore.io~1holder", "u"),
                    json!({ "op": "remove", "path": "/spec/schedulingGates/0" }),
                ]),
            ),
            ("", json!({ "spec": { "activeDeadlineSeconds": 1 } })),
            (
                "status",
                json!({ "status": { "phase": "Failed", "reason": "WaitTimedOut", "message": "m" } }),
            ),
        ],
        Kind::RayJob | Kind::TrainJob | Kind::MPIJob | Kind::SparkApplication => {
            let mut held = kind.suspend(&true.into());
            held["metadata"] = metadata();
            vec![("", start_of_row(kind)), ("", held)]
        }
    }
}

/// What starts a kind that is a row.
fn start_of_row(kind: Kind) -> Value {
    let names = |metadata: &str| {
        [
            set(
                &format!("{metadata}/labels/consul-semaphore.io~1holder"),
                "u",
            ),
            set(
                &format!("{metadata}/annotations/consul-semaphore.io~1session"),
                "s",
            ),
        ]
    };
    let mut start = vec![match kind {
        Kind::MPIJob => set("/spec/runPolicy/suspend", false),
        _ => set("/spec/suspend", false),
    }];
    match kind {
        Kind::RayJob => {
            start.push(set(&format!("{RAY_HEAD}/metadata"), metadata()));
            start.extend(names(&format!("{RAY_WORKER}/metadata")));
        }
        Kind::MPIJob => {
            start.push(set(
                &format!("{MPI}/Launcher/template/metadata"),
                metadata(),
            ));
            start.extend(names(&format!("{MPI}/Worker/template/metadata")));
        }
        Kind::SparkApplication => {
            let annotations = json!({ REPORTS[0]: "s" });
            start.push(set("/spec/driver/labels", json!({ HOLDER: "u" })));
            start.push(set("/spec/driver/annotations", annotations.clone()));
            start.push(names("/spec/executor")[0].clone());
            start.push(set("/spec/executor/annotations", annotations));
        }
        _ => {}
    }
    start.into()
}

/// What the status of a row says when it is to fail.
fn failure(kind: Kind) -> Value {
    json!({ "status": match kind {
        Kind::RayJob => json!({
            "jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded", "message": "m",
            "endTime": "2026-01-01T00:00:00Z",
        }),
        Kind::SparkApplication => json!({
            "applicationState": { "state": "FAILED", "errorMessage": "m" }, "terminationTime": "2026-01-01T00:00:00Z",
        }),
        Kind::MPIJob => json!({
            "conditions": condition("Failed"), "completionTime": "2026-01-01T00:00:00Z",
        }),
        _ => json!({ "conditions": condition("Failed") }),
    } })
}

/// What it may not do with any kind.
fn forbidden_with_all() -> Vec<Change> {
    vec![
        (
            "",
            json!({ "metadata": { "finalizers": ["example.com/a"] } }),
        ),
        (
            "",
            json!({ "metadata": { "ownerReferences": [
                { "apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "u" },
            ] } }),
        ),
    ]
}

fn forbidden(kind: Kind) -> Vec<Change> {
    let job = |path: &str, value: Value| ("", json!([set(&format!("{JOBS}/{path}"), value)]));
    match kind {
        Kind::JobSet => vec![
            job(&format!("0/template{IMAGE}"), "other".into()),
            job("0/replicas", 3.into()),
            job("0/template/spec/parallelism", 2.into()),
            job("0/template/metadata", json!({ "labels": { "a": "b" } })),
            job(&format!("0/{TEMPLATE}"), json!({ "labels": { "a": "b" } })),
            job(&format!("1/{TEMPLATE}/annotations/a"), "b".into()),
            job(&format!("1/{TEMPLATE}/labels"), json!({})),
            ("", json!([{ "op": "remove", "path": format!("{JOBS}/0") }])),
            ("", json!({ "spec": { "ttlSecondsAfterFinished": 1 } })),
            ("", json!({ "spec": { "managedBy": "example.com/other" } })),
            ("status", json!({ "status": { "restarts": 1 } })),
            (
                "status",
                json!({ "status": { "terminalState": "Completed" } }),
            ),
            (
                "status",
                json!({ "status": { "conditions": condition("Completed") } }),
            ),
        ],
        Kind::PipelineRun => vec![
            ("", json!({ "spec": { "status": "CancelledRunFinally" } })),
            (
                "",
                json!([set(
                    "/spec/pipelineSpec/tasks/0/taskSpec/steps/0/image",
                    "other"
                )]),
            ),
            ("", json!({ "spec": { "timeouts": { "pipeline": "1h" } } })),
        ],
        Kind::TaskRun => vec![
            ("", json!({ "spec": { "status": "Other" } })),
            ("", json!([set("/spec/taskSpec/steps/0/image", "other")])),
            ("", json!({ "spec": { "serviceAccountName": "other" } })),
        ],
        Kind::Workflow => vec![
            ("", json!({ "spec": { "shutdown": "Stop" } })),
            ("", json!({ "spec": { "entrypoint": "b" } })),
            (
                "",
                json!({ "spec": { "podMetadata": { "labels": { "a": "b" } } } }),
            ),
            (
                "",
                json!([set("/spec/templates/0/container/image", "other")]),
            ),
            ("", json!({ "status": { "phase": "Succeeded" } })),
        ],
        Kind::Pod => vec![
            (
                "",
                json!({ "metadata": { "annotations": { "example.com/a": "b" } } }),
            ),
            ("", json!({ "metadata": { "labels": { "a": "b" } } })),
            ("", json!([set("/spec/containers/0/image", "other")])),
            ("", json!({ "spec": { "activeDeadlineSeconds": 2 } })),
            ("", json!({ "spec": { "nodeSelector": { "a": "b" } } })),
            ("status", json!({ "status": { "phase": "Succeeded" } })),
            (
                "status",
                json!({ "status": { "podIPs": [{ "ip": "10.0.0.1" }] } }),
            ),
            ("status", json!({ "metadata": { "labels": { "a": "b" } } })),
        ],
        Kind::RayJob | Kind::TrainJob | Kind::MPIJob | Kind::SparkApplication => {
            forbidden_with_row(kind)
        }
    }
}

fn forbidden_with_row(kind: Kind) -> Vec<Change> {
    match kind {
        Kind::RayJob => vec![
            ("", json!({ "spec": { "entrypoint": "other" } })),
            ("", json!({ "spec": { "shutdownAfterJobFinishes": false } })),
            (
                "",
                json!([set(&format!("{RAY_HEAD}/spec/containers/0/image"), "other")]),
            ),
            (
                "",
                json!([set(
                    &format!("{RAY_WORKER}/spec/containers/0/image"),
                    "other"
                )]),
            ),
            (
                "",
                json!([set("/spec/rayClusterSpec/workerGroupSpecs/0/replicas", 5)]),
            ),
            (
                "",
                json!([set(
                    "/spec/rayClusterSpec/workerGroupSpecs/0/template/metadata/labels/app",
                    "c"
                )]),
            ),
            (
                "",
                json!([set("/spec/rayClusterSpec/workerGroupSpecs", json!([]))]),
            ),
            (
                "",
                json!({ "spec": { "rayClusterSpec": { "rayVersion": "2" } } }),
            ),
            ("status", failure(kind)),
        ],
        Kind::TrainJob => vec![
            ("", json!({ "spec": { "trainer": { "image": "other" } } })),
            ("status", failure(kind)),
        ],
        Kind::MPIJob => vec![
            (
                "",
                json!({ "spec": { "runPolicy": { "cleanPodPolicy": "None" } } }),
            ),
            ("", json!({ "spec": { "slotsPerWorker": 3 } })),
            (
                "",
                json!([set(
                    "/spec/mpiReplicaSpecs/Launcher/template/spec/containers/0/image",
                    "other"
                )]),
            ),
            ("", json!([set("/spec/mpiReplicaSpecs/Worker/replicas", 3)])),
            (
                "",
                json!([set(
                    "/spec/mpiReplicaSpecs/Worker/template/metadata/labels/app",
                    "c"
                )]),
            ),
            ("status", failure(kind)),
        ],
        Kind::SparkApplication => vec![
            ("", json!({ "spec": { "image": "other" } })),
            ("", json!({ "spec": { "driver": { "cores": 2 } } })),
            ("", json!({ "spec": { "executor": { "image": "other" } } })),
            (
                "",
                json!({ "spec": { "executor": { "labels": { "app": "c" } } } }),
            ),
            (
                "status",
                json!({ "status": { "driverInfo": {}, "applicationState": { "state": "FAILED" } } }),
            ),
        ],
        _ => Vec::new(),
    }
}

/// Its status says that one failed only if it is to fail, and nothing else.
#[tokio::test]
async fn it_writes_to_a_status_only_of_what_is_to_fail() {
    let bed = bed().await;
    let team = bed.namespace("fails").await;
    let (admin, operator) = people(&bed, &team).await;
    for kind in Kind::ROWS {
        admin.create(kind, &kind.running("a")).await.unwrap();
        let marked = json!({ "metadata": { "annotations": { REPORTS[3]: "WaitTimedOut" } } });
        operator.change(kind, "a", &marked).await.unwrap();
        // As its controller leaves it.
        let known = match kind {
            Kind::SparkApplication => Some(r#"{"status":{"driverInfo":{}}}"#),
            Kind::RayJob => Some(r#"{"status":{}}"#),
            _ => None,
        };
        if let Some(known) = known {
            let object = format!("{kind:?}/a").to_lowercase();
            let status = "--subresource=status";
            team.kubectl(["patch", &object, status, "--type=merge", "-p", known])
                .await;
        }
        let failed = operator
            .would_patch(kind, "a", "status", &failure(kind))
            .await;
        failed.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        let before = admin.get(kind, "a").await.unwrap();
        let status = |of: &Value| of["status"].as_object().cloned().unwrap_or_default();
        for other in [
            json!({ "jobDeploymentStatus": "Running" }),
            json!({ "conditions": condition("Complete") }),
            json!({ "applicationState": { "state": "COMPLETED" } }),
            json!({ "rayClusterName": "other" }),
            json!({ "startTime": "2026-01-01T00:00:00Z" }),
            json!({ "submissionAttempts": 3 }),
        ] {
            let other = json!({ "status": other });
            match operator.would_patch(kind, "a", "status", &other).await {
                Err(refusal) => {
                    // No status at all is left of what its schema does not know.
                    let none_is_left = refusal.contains("at least 1 properties");
                    let refused = refusal.contains(REFUSED) || none_is_left;
                    assert!(refused, "{kind:?} {other}: {refusal}");
                }
                // Its schema knows no such field, so nothing is written.
                Ok(now) => assert_eq!(status(&now), status(&before), "{kind:?} {other}"),
            }
        }
    }
}

#[tokio::test]
async fn it_holds_starts_and_ends_them_and_does_nothing_else() {
    let bed = bed().await;
    let team = bed.namespace("operator").await;
    let (admin, operator) = people(&bed, &team).await;
    for kind in Kind::ALL {
        let mut object = kind.running("a");
        if kind == Kind::Pod {
            object["spec"]["schedulingGates"] = json!([{ "name": "consul-semaphore.io/slot" }]);
        }
        admin.create(kind, &object).await.unwrap();
        for (part, change) in allowed(kind) {
            let changed = operator.would_patch(kind, "a", part, &change).await;
            changed.unwrap_or_else(|error| panic!("{kind:?} {change}: {error}"));
        }
        if kind != Kind::Pod {
            // As a webhook may add to each of its changes.
            let label = json!({ "metadata": { "labels": { "a": "b" } } });
            operator.would_change(kind, "a", &label).await.unwrap();
        }
        for (part, change) in forbidden(kind).into_iter().chain(forbidden_with_all()) {
            let refusal = operator.would_patch(kind, "a", part, &change).await;
            let refusal = refusal.expect_err(&format!("{kind:?} {change}"));
            assert!(refusal.contains(REFUSED), "{kind:?} {change}: {refusal}");
        }
    }
}

/// The gates of others are theirs.
#[tokio::test]
async fn it_removes_no_gate_but_its_own() {
    let bed = bed().await;
    let team = bed.namespace("gates").await;
    let (admin, operator) = people(&bed, &team).await;
    let kind = Kind::Pod;
    admin.create(kind, &kind.held("a")).await.unwrap();
    let remove =
        |place: u32| json!([{ "op": "remove", "path": format!("/spec/schedulingGates/{place}") }]);
    operator.would_change(kind, "a", &remove(1)).await.unwrap();
    let refusal = operator
        .would_change(kind, "a", &remove(0))
        .await
        .unwrap_err();
    assert!(refusal.contains(REFUSED), "{refusal}");
}

/// Whether a pod that runs has failed, its node says.
#[tokio::test]
async fn it_says_only_of_a_pod_that_never_ran_that_it_has_failed() {
    let bed = bed().await;
    let team = bed.namespace("placed").await;
    let (admin, operator) = people(&bed, &team).await;
    let kind = Kind::Pod;
    let mut placed = kind.running("a");
    placed["spec"]["nodeName"] = "nowhere".into();
    admin.create(kind, &placed).await.unwrap();
    let failed = json!({ "status": { "phase": "Failed" } });
    let refusal = operator.would_patch(kind, "a", "status", &failed).await;
    assert!(refusal.unwrap_err().contains(REFUSED));
}

#[tokio::test]
async fn it_deletes_only_what_is_not_to_wait_and_touches_no_strangers() {
    let bed = bed().await;
    let team = bed.namespace("strangers").await;
    let (admin, operator) = people(&bed, &team).await;
    for kind in Kind::ALL {
        admin.create(kind, &kind.running("waits")).await.unwrap();
        let mut skips = kind.running("skips");
        skips["metadata"]["annotations"]["consul-semaphore.io/on-contention"] = "Skip".into();
        admin.create(kind, &skips).await.unwrap();
        let mut stranger = kind.held("stranger");
        let annotations = stranger["metadata"]["annotations"].as_object_mut();
        annotations.unwrap().remove(SEMAPHORE);
        stranger["metadata"]["labels"] = json!({ "app": "a" });
        admin.create(kind, &stranger).await.unwrap();

        operator.would_delete(kind, "skips").await.unwrap();
        for name in ["waits", "stranger"] {
            let refusal = operator.would_delete(kind, name).await.unwrap_err();
            assert!(refusal.contains(REFUSED), "{kind:?}: {refusal}");
        }
        for (part, change) in allowed(kind).into_iter().chain(forbidden_with_all()) {
            let refusal = operator.would_patch(kind, "stranger", part, &change).await;
            let refusal = refusal.expect_err(&format!("{kind:?} {change}"));
            assert!(refusal.contains(REFUSED), "{kind:?} {change}: {refusal}");
        }
    }
}
