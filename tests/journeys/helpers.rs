//! Steps that several journeys share and the bed does not have.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;
use testbed::{Bed, Job, Namespace};

/// Waits until a Job has an event of this reason, checks that it is a warning, and returns what it says.
pub(crate) async fn warning(job: &Job, reason: &str) -> String {
    let note = job.has_event(reason).await;
    let events = job.events().await;
    let told = events
        .iter()
        .find(|event| event.reason.as_deref() == Some(reason));
    let kind = told.and_then(|event| event.type_.as_deref());
    assert_eq!(kind, Some("Warning"), "{reason} of {}: {note}", job.name());
    note
}

/// Ends the pods of a Job well, whatever they were to run, and waits until the Job is Complete.
pub(crate) async fn finish(team: &Namespace, job: &Job) {
    let pods = team.api::<Pod>();
    for pod in job.pods().await {
        let ended = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &ended)
            .await
            .expect("the pod's end");
    }
    job.is_complete().await;
}

/// What the operator knows its cluster by: the uid of the namespace kube-system.
pub(crate) async fn cluster_id(bed: &Bed) -> String {
    let uid = [
        "get",
        "namespace",
        "kube-system",
        "-o",
        "jsonpath={.metadata.uid}",
    ];
    bed.kubectl(uid).await
}

/// A figure on a page of metrics, by its name without this program's prefix, with its labels.
pub(crate) fn metric(page: &str, name: &str) -> Option<f64> {
    let line = format!("consul_semaphore_operator_{name} ");
    let value = page.lines().find_map(|found| found.strip_prefix(&line))?;
    value.parse().ok()
}
