//! Waits that end, evictions, and Jobs that are deleted.

use serde_json::json;
use testbed::eventually;

use crate::{
    operator::{STATUS, tries},
    stage::{Stage, entry, is, is_stopping, set_active},
};

const ON_CONTENTION: &str = "consul-semaphore.io/on-contention";

#[tokio::test]
async fn one_that_waits_too_long_is_rejected() {
    let stage = Stage::new("timeout").await;
    let holder = stage.is_held().await;
    let timeout = |job: testbed::Job| job.annotation("consul-semaphore.io/wait-timeout", "2s");
    let late = timeout(stage.job("late")).create().await;
    let note = late.has_event("WaitTimedOut").await;
    assert!(note.contains("has waited for 2s for db"), "{note}");
    let unknown = timeout(stage.job("unknown").semaphore("nowhere"))
        .create()
        .await;
    let note = unknown.has_event("WaitTimedOut").await;
    assert!(note.contains("has no ConsulSemaphore nowhere"), "{note}");
    for job in [&late, &unknown] {
        let workload = stage.workload_of(job).await;
        let rejected = workload
            .is("rejected", |it| is(it, "Evicted", "True"))
            .await;
        assert_eq!(rejected["spec"]["active"], false);
        job.has_no_pods().await;
    }
    holder.finish().await;
    let next = stage.job("next").create().await;
    stage.runs(&next).await;
    next.finish().await;
    stage.is_over(2).await;
}

/// Its user takes it out of the queue, and puts it back while its pods terminate.
#[tokio::test]
async fn an_evicted_one_gives_its_slot_back_when_its_pods_are_gone() {
    let stage = Stage::new("evicted").await;
    let a = stage.job("a").create().await;
    let first = stage.runs(&a).await;
    let next = stage.waits_beside("next").await;
    let workload = stage.workload_of(&a).await;
    set_active(&workload, false).await;
    is_stopping(&a).await;
    set_active(&workload, true).await;
    workload
        .is("in need of its check", |it| {
            is(it, "QuotaReserved", "True") && entry(it)["state"] == "Pending"
        })
        .await;
    assert_ne!(
        testbed::proof::running_pods(&a).await.len(),
        0,
        "its pods terminate for 20 s"
    );
    // It came to the queue after the other one.
    next.is_complete().await;
    let second = stage.runs(&a).await;
    assert_ne!(first, second);
    a.finish().await;
    stage.is_over(2).await;
}

/// A newer one that asks for the same waits in its place.
#[tokio::test]
async fn one_that_waits_is_replaced() {
    let stage = Stage::new("superseded").await;
    let holder = stage.is_held().await;
    let new = |name| {
        stage
            .job(name)
            .annotation(ON_CONTENTION, "ReplaceWaiting")
            .create()
    };
    let older = new("a").await;
    stage.waits(&older).await;
    let newer = new("b").await;
    let note = older.has_event("Superseded").await;
    assert!(note.contains("job-b"), "{note}");
    let workload = stage.workload_of(&older).await;
    let rejected = workload
        .is("rejected", |it| is(it, "Evicted", "True"))
        .await;
    assert_eq!(rejected["spec"]["active"], false);
    older.has_no_pods().await;
    stage.waits(&newer).await;
    holder.finish().await;
    stage.runs(&newer).await;
    newer.finish().await;
    stage.is_over(2).await;
}

/// It holds its slot until its pods are gone.
#[tokio::test]
async fn one_that_runs_is_replaced() {
    let stage = Stage::new("replaced").await;
    let new = |name| {
        stage
            .job(name)
            .annotation(ON_CONTENTION, "ReplaceRunning")
            .create()
    };
    let older = new("a").await;
    let session = stage.runs(&older).await;
    let newer = new("b").await;
    let note = older.has_event("Replaced").await;
    assert!(note.contains("job-b"), "{note}");
    is_stopping(&older).await;
    assert_ne!(stage.runs(&newer).await, session);
    let replaced = stage.workload_of(&older).await.get().await;
    assert_eq!(replaced["spec"]["active"], false);
    newer.finish().await;
    stage.is_over(2).await;
}

/// Its slot is free, and it waits again once that is allowed.
#[tokio::test]
async fn the_slot_of_an_evicted_one_is_free_also_if_that_may_not_be_written() {
    let stage = Stage::new("unwritable").await;
    let a = stage.job("a").create().await;
    let session = stage.runs(&a).await;
    let (team, workload) = (stage.team.name(), stage.workload_of(&a).await);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": team },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["kueue.x-k8s.io"], "apiVersions": ["*"], "resources": ["workloads/status"],
                "operations": ["UPDATE"],
            }] },
            "matchConditions": [{ "name": "here", "expression": format!("request.namespace == '{team}'") }],
            "validations": [{
                "expression": "!request.userInfo.username.endsWith(':consul-semaphore-operator')",
                "message": "nobody writes that here",
            }],
        },
    });
    let policy = stage.team.create(policy).await;
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": team },
        "spec": { "policyName": team, "validationActions": ["Deny"] },
    });
    stage.team.create(binding).await;
    let name = format!("workloads.kueue.x-k8s.io/{}", workload.name());
    let says = json!([{ "op": "add", "path": "/status/admissionChecks/0/message", "value": "a" }]);
    eventually("the policy is in force", || async {
        match tries(&stage, &name, STATUS, &says).await {
            Err(refusal) if refusal.contains("nobody writes") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    let next = stage.waits_beside("next").await;
    set_active(&workload, false).await;
    is_stopping(&a).await;
    let note = a.has_event("StartRefused").await;
    assert!(note.contains("nobody writes that here"), "{note}");
    next.is_complete().await;
    set_active(&workload, true).await;
    policy.delete().await;
    assert_ne!(stage.runs(&a).await, session);
    a.finish().await;
    stage.is_over(2).await;
}

#[tokio::test]
async fn deleted_and_made_again() {
    let stage = Stage::new("deleted").await;
    let first = stage.job("c").create().await;
    let session = stage.runs(&first).await;
    let second = stage.job("a").create().await;
    stage.waits(&second).await;
    second.delete().await;
    second.is_gone().await;
    first.delete().await;
    first.is_gone().await;
    let again = stage.job("c").create().await;
    assert_ne!(stage.runs(&again).await, session);
    again.delete().await;
    stage.is_over(2).await;
}
