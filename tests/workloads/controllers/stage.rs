//! The bed with all controllers and without the operator, and steps that the tests share.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::{Bed, Controller, Namespace, Object, Refusal, eventually, same};

/// What a grant writes, stands for all of it.
pub(crate) const SESSION: &str = "consul-semaphore.io/session";
pub(crate) const HOLDER: &str = "consul-semaphore.io/holder";

/// The annotation that names a semaphore, which some controllers copy.
pub(crate) const SEMAPHORE: &str = "consul-semaphore.io/semaphore";

pub(crate) async fn bed() -> Bed {
    let bed = Bed::builder().without_operator();
    let bed = bed.controllers(Controller::ALL);
    bed.shared().await
}

pub(crate) async fn team(name: &str) -> Namespace {
    bed().await.namespace(name).await
}

/// The metadata of an annotated workload.
pub(crate) fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "annotations": { SEMAPHORE: "db" },
        "labels": { "consul-semaphore.io/waits": "true" },
    })
}

/// Annotations of a pod that runs this long, and goes on terminating for 20 seconds once it is deleted.
pub(crate) fn runs(time: &str) -> Value {
    json!({ "bed.consul-semaphore.io/runs": time, "bed.consul-semaphore.io/terminates-in": "20s" })
}

/// A pod's spec.
pub(crate) fn pod_spec() -> Value {
    json!({ "restartPolicy": "Never", "containers": [{ "name": "work", "image": "none" }] })
}

/// Makes a change of the present version of an object. Its controller may be quicker, so a conflict is tried again.
pub(crate) async fn change_present(object: &Object, change: Value) -> Value {
    let what = format!("{} is changed", object.name());
    let answer = eventually(&what, || async {
        let present = object.get().await;
        match object.change(of_version(&present, &change)).await {
            Err(refusal) if refusal.code == 409 => Err(refusal),
            answer => Ok(answer),
        }
    });
    answer.await.unwrap()
}

/// A JSON Patch of this version.
pub(crate) fn of_version(object: &Value, change: &Value) -> Value {
    let version = &object["metadata"]["resourceVersion"];
    let mut patch =
        vec![json!({ "op": "replace", "path": "/metadata/resourceVersion", "value": version })];
    patch.extend(change.as_array().cloned().unwrap_or_default());
    patch.into()
}

/// The time, as conditions have it.
#[expect(clippy::disallowed_methods, reason = "it is what conditions say")]
pub(crate) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The operation that sets a field.
pub(crate) fn set(path: &str, value: impl Into<Value>) -> Value {
    json!({ "op": "add", "path": path, "value": value.into() })
}

/// The operation that removes a field.
pub(crate) fn unset(path: &str) -> Value {
    json!({ "op": "remove", "path": path })
}

/// The operations that write what a grant writes to a metadata that has annotations.
pub(crate) fn grant(metadata: &str) -> [Value; 2] {
    let name = SESSION.replace('/', "~1");
    let annotation = set(&format!("{metadata}/annotations/{name}"), "a");
    [
        annotation,
        set(&format!("{metadata}/labels"), json!({ HOLDER: "b" })),
    ]
}

/// The pods with these labels, once there are so many.
pub(crate) async fn pods(team: &Namespace, labels: &str, number: usize) -> Vec<Pod> {
    let what = format!("there are {number} pods with {labels}");
    eventually(&what, || async {
        let pods = team.pods_with(labels).await;
        same(pods.len(), number).map(|_| pods)
    })
    .await
}

/// Those that run, once there are so many.
pub(crate) async fn running(team: &Namespace, labels: &str, number: usize) -> Vec<Pod> {
    let what = format!("{number} pods with {labels} run");
    eventually(&what, || async {
        let mut pods = team.pods_with(labels).await;
        pods.retain(|pod| phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none());
        same(pods.len(), number).map(|_| pods)
    })
    .await
}

/// Those that terminate, once there are so many: deleted, and not gone.
pub(crate) async fn terminating(team: &Namespace, labels: &str, number: usize) -> Vec<Pod> {
    let what = format!("{number} pods with {labels} terminate");
    eventually(&what, || async {
        let mut pods = team.pods_with(labels).await;
        pods.retain(|pod| phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_some());
        same(pods.len(), number).map(|_| pods)
    })
    .await
}

pub(crate) fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// Whether a pod has what a grant wrote.
pub(crate) fn is_granted(pod: &Pod) -> bool {
    let annotated = pod.annotations().get(SESSION).is_some_and(|it| it == "a");
    annotated && pod.labels().get(HOLDER).is_some_and(|it| it == "b")
}

/// The condition of this type: its status and its reason.
pub(crate) fn condition(object: &Value, of: &str) -> Option<(String, String)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions
        .iter()
        .find(|condition| condition["type"] == of)?;
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason")))
}

/// Whether the condition of this type has this status, and its reason.
pub(crate) fn has(object: &Value, of: &str, status: &str, reason: &str) -> bool {
    condition(object, of) == Some((status.to_owned(), reason.to_owned()))
}

/// A change of a version that is past is a conflict.
pub(crate) async fn stale_is_a_conflict(object: &Object, change: Value) {
    let mut stale = object.get().await;
    stale["metadata"]["resourceVersion"] = "1".into();
    let refusal = object.change(of_version(&stale, &change)).await;
    assert_eq!(code(&refusal), 409, "{refusal:?}");
}

pub(crate) fn code(answer: &Result<Value, Refusal>) -> u16 {
    answer.as_ref().err().map_or(200, |refusal| refusal.code)
}
