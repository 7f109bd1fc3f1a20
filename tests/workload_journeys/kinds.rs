//! The kinds, as these journeys need to know them: a row for each.

use serde_json::{Value, json};

/// A kind of workload.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) api_version: &'static str,
    /// The spec of a held one.
    pub(crate) spec: fn() -> Value,
    /// The field of that which holds it.
    pub(crate) hold: &'static str,
    /// Where the metadata of its pods is.
    pub(crate) pods: &'static [&'static str],
    /// How many pods it has at once.
    pub(crate) size: usize,
    /// Whether a controller has seen it held.
    pub(crate) is_held: fn(&Value) -> bool,
    /// How its user ends it early: some of its pods then go on terminating.
    pub(crate) ending: Ending,
    /// Whether it is finished, or being deleted, also if pods of it are left.
    pub(crate) is_over: fn(&Value) -> bool,
    /// Whether it has failed.
    pub(crate) has_failed: fn(&Value) -> bool,
    /// Whether it can be suspended while it runs.
    pub(crate) can_be_suspended: bool,
}

/// How a user ends a workload early.
pub(crate) enum Ending {
    /// This pod succeeds, which is the end of all others.
    PodSucceeds(&'static str),
    /// The driver succeeds, and ends the executors.
    #[allow(dead_code, reason = "a row of tests/row_journeys ends so")]
    DriverSucceeds(&'static str, &'static str),
    /// These fields of its status get these values.
    #[allow(dead_code, reason = "the same")]
    Status(&'static [(&'static str, &'static str)]),
    /// A JSON Patch.
    Change(&'static str, &'static str),
    /// It is deleted.
    Delete,
}

pub(crate) const JOB_SET: Kind = Kind {
    name: "JobSet",
    api_version: "jobset.x-k8s.io/v1alpha2",
    spec: || {
        let template = json!({ "spec": { "template": { "metadata": {}, "spec": pod() } } });
        json!({
            "suspend": true,
            "successPolicy": { "operator": "All", "targetReplicatedJobs": ["driver"] },
            "replicatedJobs": [
                { "name": "driver", "template": template },
                { "name": "workers", "template": template },
            ],
        })
    },
    hold: "suspend",
    pods: &[
        "/spec/replicatedJobs/0/template/spec/template/metadata",
        "/spec/replicatedJobs/1/template/spec/template/metadata",
    ],
    size: 2,
    is_held: |it| condition(it, "Suspended") == Some(("True", "SuspendedJobs")),
    ending: Ending::PodSucceeds("jobset.sigs.k8s.io/replicatedjob-name=driver"),
    is_over: |it| is(it, "Completed", "True") || is(it, "Failed", "True"),
    has_failed: |it| is(it, "Failed", "True") && it["status"]["terminalState"] == "Failed",
    can_be_suspended: true,
};

pub(crate) const PIPELINE_RUN: Kind = Kind {
    name: "PipelineRun",
    api_version: "tekton.dev/v1",
    spec: || {
        json!({
            "status": "PipelineRunPending",
            "pipelineSpec": { "tasks": [{ "name": "first", "taskSpec": task() }] },
        })
    },
    hold: "status",
    pods: &["/metadata"],
    size: 1,
    is_held: |it| condition(it, "Succeeded") == Some(("Unknown", "PipelineRunPending")),
    ending: Ending::Change("/spec/status", "Cancelled"),
    is_over: |it| is(it, "Succeeded", "True") || is(it, "Succeeded", "False"),
    has_failed: |it| condition(it, "Succeeded") == Some(("False", "Cancelled")),
    can_be_suspended: false,
};

pub(crate) const TASK_RUN: Kind = Kind {
    name: "TaskRun",
    spec: || json!({ "status": "TaskRunPending", "taskSpec": task() }),
    is_held: |it| condition(it, "Succeeded") == Some(("Unknown", "TaskRunPending")),
    ending: Ending::Change("/spec/status", "TaskRunCancelled"),
    has_failed: |it| condition(it, "Succeeded") == Some(("False", "TaskRunCancelled")),
    ..PIPELINE_RUN
};

pub(crate) const WORKFLOW: Kind = Kind {
    name: "Workflow",
    api_version: "argoproj.io/v1alpha1",
    spec: || {
        json!({
            "suspend": true,
            "entrypoint": "work",
            "podMetadata": {},
            "templates": [{ "name": "work", "container": { "image": "none", "command": ["work"] } }],
        })
    },
    hold: "suspend",
    pods: &["/spec/podMetadata"],
    size: 1,
    is_held: |it| it["status"]["phase"] == "Running" && it["status"]["progress"] == "0/0",
    ending: Ending::Change("/spec/shutdown", "Terminate"),
    is_over: |it| {
        matches!(
            it["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed" | "Error")
        )
    },
    has_failed: |it| {
        let message = it["status"]["message"].as_str().unwrap_or_default();
        it["status"]["phase"] == "Failed" && message.starts_with("Stopped with strategy")
    },
    can_be_suspended: false,
};

pub(crate) const POD: Kind = Kind {
    name: "Pod",
    api_version: "v1",
    spec: || {
        let mut spec = pod();
        spec["schedulingGates"] = json!([{ "name": "consul-semaphore.io/slot" }]);
        spec
    },
    hold: "schedulingGates",
    pods: &["/metadata"],
    size: 1,
    is_held: |it| condition(it, "PodScheduled") == Some(("False", "SchedulingGated")),
    ending: Ending::Delete,
    is_over: |it| {
        let phase = it["status"]["phase"].as_str();
        matches!(phase, Some("Succeeded" | "Failed"))
            || it["metadata"]["deletionTimestamp"].is_string()
    },
    has_failed: |it| it["status"]["phase"] == "Failed",
    can_be_suspended: false,
};

/// A pod's spec.
pub(crate) fn pod() -> Value {
    json!({ "restartPolicy": "Never", "containers": [{ "name": "work", "image": "none" }] })
}

/// The spec of a held one that runs one more pod when it ends: an exit handler, or a finally task.
pub(crate) fn with_a_last_pod(kind: &Kind) -> Value {
    let mut spec = (kind.spec)();
    match kind.name {
        "Workflow" => spec["onExit"] = "work".into(),
        "PipelineRun" => {
            spec["pipelineSpec"]["finally"] = json!([{ "name": "last", "taskSpec": task() }]);
        }
        name => panic!("a {name} has no such pod"),
    }
    spec
}

/// A task of Tekton. Without a command, Tekton asks a registry for that of the image.
fn task() -> Value {
    json!({ "steps": [{ "name": "work", "image": "none", "command": ["work"] }] })
}

/// The status and the reason of the condition of this type.
pub(crate) fn condition<'a>(object: &'a Value, of: &str) -> Option<(&'a str, &'a str)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions
        .iter()
        .find(|condition| condition["type"] == of)?;
    Some((found["status"].as_str()?, found["reason"].as_str()?))
}

pub(crate) fn is(object: &Value, of: &str, status: &str) -> bool {
    condition(object, of).is_some_and(|(seen, _)| seen == status)
}
