//! Completion by kubectl itself: what the plugin answers.

use std::fs;

use serde_json::json;
use testbed::{Bed, Folder, eventually, same, server};
use tokio::net::TcpListener;

use crate::stage::{User, installed, run};

#[tokio::test]
async fn kubectl_completes_commands_flags_and_names() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-complete").await;
    let user = User::admin(&bed, &team);
    let db = team.semaphore("db").limit(1).create().await;
    team.semaphore("partner-api").limit(1).create().await;
    let job = team
        .job("migrate-1")
        .semaphore("db")
        .runs("1h")
        .create()
        .await;
    team.job("of-nobody").create().await;
    job.is_running().await;
    db.shows(json!({ "held": 1 })).await;
    let session = job.session().await.expect("it holds a slot");

    let namespace = team.name();
    let complete = |words: &[&str]| {
        let words = [&["__complete", "csem"], words].concat();
        let command = user.command(server("kubectl").expect("kubectl"), &words);
        async move {
            let said = run(command, "").await;
            said.is(0, &[]);
            let lines = said.out.lines();
            let words = lines.map(|line| line.split('\t').next().unwrap_or_default().to_owned());
            words.collect::<Vec<_>>()
        }
    };
    // The plugin gives up on names after three seconds, so that a shell is not kept; a busy machine may take longer.
    let completes = async |words: &[&str], expected: &[&str]| {
        eventually(&format!("{words:?} is completed"), async || {
            let expected = expected.iter().map(|word| (*word).to_owned());
            same(complete(words).await, expected.collect())
        })
        .await
    };
    completes(&["re"], &["resume", "release", ":4"]).await;
    let names = ["db", "partner-api", ":4"];
    completes(&["show", "-n", namespace, ""], &names).await;
    completes(&["-n", namespace, "pause", "p"], &["partner-api", ":4"]).await;
    let held = team.job("held").semaphore("db").hold().create().await;
    let done = team.job("done").semaphore("partner-api").create().await;
    done.is_complete().await;
    held.is_waiting().await;
    for (words, name) in [
        (["hold", ""], "migrate-1"),
        (["why", "mig"], "migrate-1"),
        (["unhold", ""], "held"),
        (["hold", "job/"], "job/migrate-1"),
        (["hold", "jobs.batch/m"], "jobs.batch/migrate-1"),
        (["show", "csem/p"], "csem/partner-api"),
    ] {
        let all = [&["-n", namespace], &words[..]].concat();
        completes(&all, &[name, ":4"]).await;
    }
    let both = ["held", "migrate-1", ":4"];
    completes(&["-n", namespace, "bump", ""], &both).await;
    let release = ["release", "-n", namespace, "db", ""];
    completes(&release, &[&session, ":4"]).await;
    completes(&["list", "-o", "j"], &["json", ":4"]).await;
    eventually("the namespace is completed", async || {
        let names = complete(&["list", "--namespace", "csem-comp"]).await;
        let found = names.iter().any(|name| name == namespace);
        found.then_some(()).ok_or(format!("{names:?}"))
    })
    .await;
    let contexts = user.command(
        server("kubectl").expect("kubectl"),
        &["config", "get-contexts", "-o", "name"],
    );
    let contexts = run(contexts, "").await.out;
    let contexts: Vec<_> = contexts.lines().chain([":4"]).collect();
    assert!(contexts.len() > 1);
    completes(&["show", "--context", ""], &contexts).await;
    completes(&["list", "--output=y"], &["yaml", ":4"]).await;
}

/// The server accepts the connection but never answers: without a timeout, the shell would wait forever.
#[tokio::test]
async fn a_cluster_that_is_away_spoils_nothing() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-complete-away").await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = format!("http://{}", silent.local_addr().expect("its address"));
    let folder = Folder::new().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "away",
        "clusters": [{ "name": "away", "cluster": { "server": server } }],
        "users": [{ "name": "nobody", "user": {} }],
        "contexts": [{ "name": "away", "context": { "cluster": "away", "user": "nobody" } }],
    });
    fs::write(&kubeconfig, text.to_string()).expect("the kubeconfig");
    let user = User::with(&kubeconfig, &team);
    let said = run(
        user.command(installed().join("kubectl_complete-csem"), &["show", ""]),
        "",
    )
    .await;
    said.is(0, &[]);
    assert_eq!((said.out.trim(), said.err.as_str()), (":4", ""));

    // If nothing listens at all, a command says what to do.
    fs::write(
        &kubeconfig,
        text.to_string().replace(&server, "http://127.0.0.1:1"),
    )
    .expect("the kubeconfig");
    let said = user.csem(&["list"]).await;
    said.is(69, &["does not answer", "refused", "kubectl config view"]);
}
