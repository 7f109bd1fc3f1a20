//! Objects for tests.

use consul_client::clock::Moment;
use consul_semaphore_api::ConsulSemaphore;
use consul_semaphore_workload::TrackedWorkload;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::recorded::RecordedEvent;

/// Returns the current time of the tests: half an hour after the semaphore was made.
pub(super) fn now() -> Timestamp {
    "2026-01-01T00:30:00Z".parse().unwrap()
}

/// Returns a semaphore with two held slots and this status.
pub(super) fn semaphore(status: &Value) -> ConsulSemaphore {
    let condition = |type_: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": type_, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let mut all = json!({
        "observedGeneration": 1,
        "limit": 2,
        "appliedLimits": [2],
        "held": 2, "heldHere": 1, "waiting": 0,
        "holders": [
            { "session": "9704f651-b12d-3412-5f37-488d4d7d4b4d", "kind": "Job", "cluster": "prod-eu",
              "namespace": "batch", "name": "migrate-1", "since": "2026-01-01T00:28:00Z" },
            { "session": "2dc6ddd5-7ea9-3f5a-6114-52cd8a300ace", "kind": "Process", "host": "ci-7", "name": "deploy",
              "since": "2026-01-01T00:29:30Z" },
        ],
        "conditions": [
            condition("Ready", "True", "Reconciled", "slots are granted and released"),
            condition("ConsulReachable", "True", "Reachable", "Consul can be read and written"),
            condition("LimitAgreed", "True", "LimitsMatch", "Consul's limit is the spec's: 2"),
            condition("SlotsAvailable", "False", "AllSlotsHeld", "2 of 2 slots are held"),
        ],
    });
    for (name, value) in status.as_object().unwrap() {
        all[name] = value.clone();
    }
    say_why(&mut all);
    let semaphore = json!({
        "apiVersion": "consul-semaphore.io/v1alpha1",
        "kind": "ConsulSemaphore",
        "metadata": {
            "name": "db", "namespace": "batch", "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": { "limit": 2 },
        "status": all,
    });
    serde_json::from_value(semaphore).unwrap()
}

/// Adds the reasons of queued workloads that have none: the first one waits for a slot, and the others are behind it. A
/// semaphore that is not Ready, or is paused, stops all of them.
fn say_why(status: &mut Value) {
    let ready = &status["conditions"][0];
    let stops = ready["status"] != "True" || ready["reason"] == "Paused";
    let stop = stops.then(|| (ready["reason"].clone(), ready["message"].clone()));
    let mut before: Option<Value> = None;
    let queue = status.get_mut("queue").and_then(Value::as_array_mut);
    for queued in queue.into_iter().flatten() {
        let (reason, message) = match (&stop, before.replace(queued["name"].clone())) {
            (Some(stop), _) => stop.clone(),
            (None, None) => (json!("AllSlotsHeld"), json!("2 of 2 slots are held")),
            (None, Some(before)) => {
                let message = format!("behind {}", before.as_str().unwrap());
                (json!("Behind"), json!(message))
            }
        };
        if queued["reason"].is_null() {
            queued["reason"] = reason;
            queued["message"] = message;
        }
    }
}

/// Returns a Job that waits for `db`, with these additional annotations.
pub(super) fn workload(name: &str, more: &Value) -> TrackedWorkload {
    let mut annotations = json!({ "consul-semaphore.io/semaphore": "db" });
    for (name, value) in more.as_object().unwrap() {
        annotations[name] = value.clone();
    }
    let job = json!({
        "metadata": {
            "name": name, "namespace": "batch", "uid": format!("uid-{name}"), "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:20:00Z", "annotations": annotations,
        },
        "spec": { "suspend": true, "template": { "metadata": { "annotations": {} } } },
        "status": { "conditions": [{ "type": "Suspended", "status": "True" }] },
    });
    TrackedWorkload::read(&serde_json::from_value(job).unwrap(), Moment::default()).unwrap()
}

/// Returns an event at this second after 00:29, which is a minute before the current time.
pub(super) fn recorded(
    second: i64,
    kind: &str,
    name: &str,
    uid: &str,
    reason: &str,
) -> RecordedEvent {
    let normal = ["SlotWaiting", "SlotGranted", "SlotReleased"];
    RecordedEvent {
        time: Timestamp::from_second(now().as_second() - 60 + second).unwrap(),
        warning: !normal.contains(&reason),
        reason: reason.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: Some(uid.to_owned()),
        message: format!("the note of {reason}"),
        count: 1,
    }
}
