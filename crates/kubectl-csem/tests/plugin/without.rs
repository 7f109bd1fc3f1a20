//! Clusters without `ConsulSemaphores`, and without an operator.

use std::{fs, net::TcpListener, process::Stdio};

use serde_json::{Value, json};
use testbed::{
    ApiServer, Folder, Namespace, eventually,
    helpers::{core_limits, memory_is_private, shows_who_may_see_it},
};
use tokio::process::Command;

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

/// A server that takes connections and says nothing keeps the plugin at work.
#[tokio::test]
async fn the_memory_of_the_plugin_has_tokens_and_is_its_own() {
    let folder = Folder::new().expect("a folder");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let kubeconfig = folder.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{address}") } }],
        "users": [{ "name": "c", "user": { "token": "s3cr3t" } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
    });
    fs::write(&kubeconfig, config.to_string()).expect("a kubeconfig");
    let mut list = Command::new(env!("CARGO_BIN_EXE_kubectl-csem"));
    list.arg("list")
        .env("KUBECONFIG", &kubeconfig)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    shows_who_may_see_it(&mut list);
    let mut plugin = list.kill_on_drop(true).spawn().expect("it starts");
    let id = plugin.id().expect("it runs");
    eventually("nobody else can read its memory", async || {
        testbed::same(memory_is_private(id), true)
    })
    .await;
    let limits = core_limits(id);
    assert_eq!(
        limits.split_whitespace().collect::<Vec<_>>(),
        ["0", "0", "bytes"]
    );
    plugin.kill().await.expect("it ends");
}
