//! Clusters without `ConsulSemaphores`, and without an operator.

use serde_json::{Value, json};
use testbed::{ApiServer, Namespace};

use crate::stage::User;

#[tokio::test]
async fn what_is_not_there_is_said_and_how_to_get_it() {
    let server = ApiServer::start().await;
    let team = server.namespace("team").await;
    let user = User::with(server.kubeconfig(), &team);
    for words in [
        &["list"][..],
        &["list", "-A"],
        &["show", "db"],
        &["why", "a"],
        &["watch"],
        &["watch", "db"],
        &["hold", "a"],
        &["unhold", "a"],
        &["bump", "a", "5"],
        &["pause", "db"],
        &["resume", "db"],
        &["release", "db", "s"],
    ] {
        let said = user.csem(words).await;
        said.is(
            66,
            &["not installed in this cluster", "kubectl apply -f crds/"],
        );
        assert!(!said.err.contains("csem list` shows"), "{said}");
    }

    let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crds");
    server.kubectl(["apply", "-f", crds]).await;
    server
        .kubectl([
            "wait",
            "--for=condition=Established",
            "crd/consulsemaphores.consul-semaphore.io",
        ])
        .await;
    user.csem(&["list"])
        .await
        .is(0, &["there are no ConsulSemaphores"]);
    team.apply(json!({
        "apiVersion": "consul-semaphore.io/v1alpha1", "kind": "ConsulSemaphore",
        "metadata": { "name": "db" }, "spec": { "limit": 1, "keyed": true },
    }))
    .await;
    without_an_operator(&user, &team).await;
    without_the_annotation(&user, &team).await;
}

async fn without_an_operator(user: &User, team: &Namespace) {
    // No Lease says nothing.
    let listed = user.sees(&["list"]).await;
    assert!(
        listed.contains("1/key") && !listed.contains("no operator"),
        "{listed}"
    );
    team.apply(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "consul-semaphore-operator" },
        "spec": {
            "holderIdentity": "gone", "leaseDurationSeconds": 15,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    }))
    .await;
    let silent = "no operator has reported for ";
    for words in [&["list"][..], &["list", "-A"], &["show", "db"]] {
        user.csem(words)
            .await
            .is(0, &[silent, "may be out of date"]);
    }
    let read = user.reads(&["show", "db"]).await;
    assert!(
        read["gaps"][0]
            .as_str()
            .is_some_and(|gap| gap.contains(silent)),
        "{read}"
    );
}

async fn without_the_annotation(user: &User, team: &Namespace) {
    let cron_job = team.apply(cron_job()).await;
    let owner = json!([{
        "apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly",
        "uid": cron_job.metadata.uid, "controller": true,
    }]);
    let job = |name: &str, metadata: Value| {
        let mut job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
            "spec": { "suspend": true, "template": pod() },
        });
        job["metadata"]["name"] = json!(name);
        team.apply(job)
    };
    job("nightly-1", json!({ "ownerReferences": owner })).await;
    job(
        "typo",
        json!({ "annotations": { "consul-semaphore.io/semaphor": "db" } }),
    )
    .await;
    job(
        "keyless",
        json!({ "annotations": { "consul-semaphore.io/semaphore": "db" } }),
    )
    .await;
    for (job, words) in [
        (
            "nightly-1",
            [
                "The CronJob nightly",
                "spec.jobTemplate.metadata.annotations",
            ],
        ),
        (
            "typo",
            ["AnnotationIgnored", "write consul-semaphore.io/semaphore"],
        ),
        ("keyless", ["Malformed", "consul-semaphore.io/key"]),
    ] {
        user.csem(&["why", job]).await.is(0, &words);
    }
}

fn cron_job() -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "CronJob",
        "metadata": {
            "name": "nightly", "annotations": { "consul-semaphore.io/semaphore": "db" },
        },
        "spec": { "schedule": "0 0 * * *", "jobTemplate": { "spec": { "template": pod() } } },
    })
}

fn pod() -> Value {
    json!({ "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "a", "image": "busybox" }],
    } })
}

#[tokio::test]
async fn without_a_command_there_is_help() {
    let server = ApiServer::start().await;
    let team = server.namespace("team").await;
    let user = User::with(server.kubeconfig(), &team);
    let help = user.csem_anywhere(&[], "").await;
    help.is(0, &["Usage: kubectl csem", "why", "release"]);
    assert!(help.err.is_empty(), "{help}");
    user.csem(&["get"]).await.is(2, &["'list'"]);
    user.csem(&["describe", "db"]).await.is(2, &["'show'"]);
}
