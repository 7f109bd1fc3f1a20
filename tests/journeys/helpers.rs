//! Steps that several journeys share and the bed does not have.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;
use testbed::{Bed, Job, Namespace, eventually};

/// Waits until a Job has a warning of this reason, and returns what it says.
pub(crate) async fn warning(job: &Job, reason: &str) -> String {
    let what = format!("{} has a warning {reason}", job.name());
    eventually(&what, || async {
        let events = job.events().await;
        // The Job controller has reasons of its own, which may be called alike.
        let warning = events.into_iter().find(|event| {
            event.reason.as_deref() == Some(reason) && event.type_.as_deref() == Some("Warning")
        });
        warning.and_then(|event| event.message)
    })
    .await
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
