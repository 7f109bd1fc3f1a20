//! Completion by kubectl's own: what the plugin answers it.

use serde_json::json;
use testbed::{Bed, servers};

use crate::stage::{User, run};

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
        let command = user.command(servers().join("kubectl"), &words);
        async move {
            let said = run(command, "").await;
            said.is(0, &[]);
            let lines = said.out.lines();
            let words = lines.map(|line| line.split('\t').next().unwrap_or_default().to_owned());
            words.collect::<Vec<_>>()
        }
    };
    assert_eq!(complete(&["re"]).await, ["resume", "release", ":4"]);
    assert_eq!(
        complete(&["show", "-n", namespace, ""]).await,
        ["db", "partner-api", ":4"]
    );
    assert_eq!(
        complete(&["-n", namespace, "pause", "p"]).await,
        ["partner-api", ":4"]
    );
    assert_eq!(
        complete(&["hold", "-n", namespace, ""]).await,
        ["migrate-1", ":4"]
    );
    assert_eq!(
        complete(&["release", "-n", namespace, "db", ""]).await,
        [session.as_str(), ":4"]
    );
    assert_eq!(complete(&["list", "-o", "j"]).await, ["json", ":4"]);
    assert!(
        complete(&["list", "--namespace", "csem-comp"])
            .await
            .contains(&namespace.to_owned())
    );
    assert_eq!(
        complete(&["show", "--context", ""])
            .await
            .last()
            .map(String::as_str),
        Some(":4")
    );
}

#[tokio::test]
async fn a_cluster_that_is_away_spoils_nothing() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-complete-away").await;
    let user = User::admin(&bed, &team).set("KUBECONFIG", "/dev/null");
    let words = ["__complete", "csem", "show", ""];
    let said = run(user.command(servers().join("kubectl"), &words), "").await;
    said.is(0, &[]);
    assert_eq!(said.out.trim(), ":4");
}
