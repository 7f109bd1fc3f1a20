//! The kinds, as these journeys need to know them.

use serde_json::{Value, json};

use crate::kinds::{Ending, Kind, condition, is, pod};

pub(crate) const RAY_JOB: Kind = Kind {
    name: "RayJob",
    api_version: "ray.io/v1",
    spec: || {
        let template = || json!({ "metadata": {}, "spec": { "containers": pod()["containers"] } });
        json!({
            "suspend": true,
            "entrypoint": "work",
            "shutdownAfterJobFinishes": true,
            "rayClusterSpec": {
                "headGroupSpec": { "rayStartParams": {}, "template": template() },
                "workerGroupSpecs": [{
                    "groupName": "workers", "replicas": 1, "minReplicas": 1, "maxReplicas": 1,
                    "rayStartParams": {}, "template": template(),
                }],
            },
        })
    },
    hold: "suspend",
    pods: &[
        "/spec/rayClusterSpec/headGroupSpec/template/metadata",
        "/spec/rayClusterSpec/workerGroupSpecs/0/template/metadata",
    ],
    // Its submitter's pod has nothing of its metadata.
    size: 2,
    is_held: |it| it["status"]["jobDeploymentStatus"] == "Suspended",
    // As when the work in it has failed. Without its end it is not shut down.
    ending: Ending::Status(&[
        ("/status/jobDeploymentStatus", "Failed"),
        ("/status/endTime", "2026-01-01T00:00:00Z"),
    ]),
    is_over: |it| {
        let status = it["status"]["jobDeploymentStatus"].as_str();
        matches!(status, Some("Complete" | "Failed"))
    },
    has_failed: |it| {
        it["status"]["jobDeploymentStatus"] == "Failed"
            && it["status"]["reason"] == "DeadlineExceeded"
    },
    can_be_suspended: true,
};

pub(crate) const MPI_JOB: Kind = Kind {
    name: "MPIJob",
    api_version: "kubeflow.org/v2beta1",
    spec: || {
        let template = || json!({ "metadata": {}, "spec": { "containers": pod()["containers"] } });
        json!({
            "runPolicy": { "suspend": true, "cleanPodPolicy": "Running" },
            "mpiReplicaSpecs": {
                "Launcher": { "template": template() },
                "Worker": { "replicas": 2, "template": template() },
            },
        })
    },
    hold: "runPolicy",
    pods: &[
        "/spec/mpiReplicaSpecs/Launcher/template/metadata",
        "/spec/mpiReplicaSpecs/Worker/template/metadata",
    ],
    size: 3,
    is_held: |it| condition(it, "Suspended") == Some(("True", "MPIJobSuspended")),
    ending: Ending::PodSucceeds("training.kubeflow.org/job-role=launcher"),
    is_over: |it| is(it, "Succeeded", "True") || is(it, "Failed", "True"),
    has_failed: |it| is(it, "Failed", "True"),
    can_be_suspended: true,
};

pub(crate) const TRAIN_JOB: Kind = Kind {
    name: "TrainJob",
    api_version: "trainer.kubeflow.org/v1alpha1",
    spec: || {
        let mut node = pod();
        node["containers"][0]["name"] = "node".into();
        let jobs: Value = json!([
            {
                "name": "node",
                "template": {
                    "metadata": { "labels": { "trainer.kubeflow.org/trainjob-ancestor-step": "trainer" } },
                    "spec": { "template": { "metadata": {}, "spec": node } },
                },
            },
            { "name": "helpers", "template": { "spec": { "template": { "metadata": {}, "spec": pod() } } } },
        ]);
        let success = json!({ "operator": "All", "targetReplicatedJobs": ["node"] });
        json!({
            "suspend": true,
            "runtime": {
                "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime",
                "spec": {
                    "mlPolicy": { "numNodes": 1 },
                    "template": { "spec": { "successPolicy": success, "replicatedJobs": jobs } },
                },
            },
        })
    },
    hold: "suspend",
    // It has no place for metadata of its pods: its runtime has.
    pods: &[
        "/spec/runtime/spec/template/spec/replicatedJobs/0/template/spec/template/metadata",
        "/spec/runtime/spec/template/spec/replicatedJobs/1/template/spec/template/metadata",
    ],
    size: 2,
    is_held: |it| condition(it, "Suspended") == Some(("True", "Suspended")),
    ending: Ending::PodSucceeds("jobset.sigs.k8s.io/replicatedjob-name=node"),
    is_over: |it| is(it, "Complete", "True") || is(it, "Failed", "True"),
    has_failed: |it| condition(it, "Failed") == Some(("True", "DeadlineExceeded")),
    can_be_suspended: true,
};

pub(crate) const SPARK_APPLICATION: Kind = Kind {
    name: "SparkApplication",
    api_version: "sparkoperator.k8s.io/v1beta2",
    spec: || {
        json!({
            "suspend": true, "type": "Python", "mode": "cluster", "image": "none",
            "sparkVersion": "4.0.0", "mainApplicationFile": "local:///work.py",
            "restartPolicy": { "type": "Never" },
            "driver": {},
            "executor": { "instances": 2 },
        })
    },
    hold: "suspend",
    pods: &["/spec/driver", "/spec/executor"],
    size: 3,
    is_held: |it| it["status"]["applicationState"]["state"] == "SUSPENDED",
    ending: Ending::DriverSucceeds("spark-role=driver", "spark-role=executor"),
    is_over: |it| {
        let state = it["status"]["applicationState"]["state"].as_str();
        matches!(state, Some("COMPLETED" | "FAILED"))
    },
    has_failed: |it| it["status"]["applicationState"]["state"] == "FAILED",
    can_be_suspended: true,
};
