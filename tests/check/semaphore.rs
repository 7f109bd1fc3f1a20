//! One semaphore: who holds, who waits, and why the first workload in the queue does not run.

use serde_json::json;
use testbed::{Bed, Namespace, Semaphore, eventually, same};

use crate::stage::Said;

async fn look(bed: &Bed, team: &Namespace, semaphore: &str) -> Said {
    let name = format!("{}/{semaphore}", team.name());
    Said::of_bed(bed, bed.kubeconfig(), &["--semaphore", &name]).await
}

/// Checks until the first Job in the queue waits for this reason.
async fn first_waits(bed: &Bed, team: &Namespace, db: &Semaphore, job: &str, why: &str) -> Said {
    let what = format!("first: {job}");
    eventually(&format!("{job} waits because {why}"), async || {
        let said = look(bed, team, db.name()).await;
        let line = said.find("semaphore", &what).cloned();
        let message = line.map(|line| line["message"].to_string());
        match message {
            Some(message) if message.contains(why) => Ok(said),
            message => Err(message.unwrap_or_else(|| format!("{said:?}"))),
        }
    })
    .await
}

#[tokio::test]
async fn a_semaphore_that_works_is_reported() {
    let bed = Bed::shared().await;
    let team = bed.namespace("check-works").await;
    let db = team.semaphore("db").limit(1).create().await;
    db.is_ready().await;
    let running = team
        .job("running")
        .semaphore("db")
        .runs("1h")
        .create()
        .await;
    running.is_running().await;
    team.job("low")
        .semaphore("db")
        .create()
        .await
        .has_event("SlotWaiting")
        .await;
    let high = team.job("high").semaphore("db").priority(5).create().await;
    high.has_event("SlotWaiting").await;
    team.job("held").semaphore("db").hold().create().await;
    db.shows(json!({ "held": 1, "waiting": 2 })).await;

    let said = look(&bed, &team, "db").await;
    let holder = format!("{}/running", team.name());
    said.assert("semaphore", "object", "ok", &[]);
    said.assert("semaphore", "condition Ready", "ok", &["Reconciled"]);
    said.assert(
        "semaphore",
        "condition SlotsAvailable",
        "ok",
        &["AllSlotsHeld"],
    );
    said.assert("semaphore", "prefix", "ok", &[db.lock_prefix().as_str()]);
    said.assert("semaphore", "lock", "ok", &["1 of 1 slots are held"]);
    said.assert(
        "semaphore",
        "waiting Jobs",
        "ok",
        &["2, next first: high, low"],
    );
    said.assert(
        "semaphore",
        "first: high",
        "ok",
        &["no slot is free", holder.as_str()],
    );
    said.assert("semaphore", "Jobs on hold", "ok", &["held"]);
    assert_eq!(said.bad("semaphore"), Vec::<String>::new());
    assert_eq!(said.code, Some(0), "{said:#?}");
    // The attempts have left nothing behind.
    let left = bed
        .consul()
        .list(&format!("{}/check-", db.lock_prefix()))
        .await;
    assert_eq!(left, []);
    running.is_running().await;
    running.finish().await;
    high.is_complete().await;
}

#[tokio::test]
async fn a_missing_semaphore_is_reported() {
    let bed = Bed::shared().await;
    let team = bed.namespace("check-none").await;
    let said = look(&bed, &team, "db").await;
    said.assert(
        "semaphore",
        "object",
        "failed",
        &["there is no ConsulSemaphore db", "kubectl get csem"],
    );
    assert_eq!(said.code, Some(1));
}

#[tokio::test]
async fn obstacles_are_reported() {
    let bed = Bed::shared().await;
    let team = bed.namespace("check-way").await;
    let db = team.semaphore("db").limit(2).create().await;
    db.is_ready().await;
    db.pause().await;
    db.has_condition("Ready", "True", "Paused").await;
    team.job("a")
        .semaphore("db")
        .create()
        .await
        .has_event("SlotWaiting")
        .await;
    team.job("bad")
        .semaphore("db")
        .annotation("consul-semaphore.io/priority", "high")
        .create()
        .await;
    let said = first_waits(&bed, &team, &db, "a", "spec.paused").await;
    said.assert(
        "semaphore",
        "first: a",
        "warning",
        &["set spec.paused to false"],
    );
    said.assert(
        "semaphore",
        "condition SlotsAvailable",
        "warning",
        &["Paused"],
    );
    said.assert(
        "semaphore",
        "Job not queued",
        "warning",
        &["bad: ", "priority"],
    );

    let lock = format!("{}/.lock", db.lock_prefix());
    bed.consul()
        .put(
            &lock,
            testbed::SEMAPHORE_FLAGS,
            r#"{"Limit":5,"Holders":{}}"#,
        )
        .await;
    let said = first_waits(&bed, &team, &db, "a", "the limits don't agree").await;
    said.assert(
        "semaphore",
        "lock",
        "failed",
        &["limit is 5", "spec.limit is 2", "limitPolicy"],
    );
    said.each_failure_says_what_to_do();
    assert_eq!(said.code, Some(1));

    bed.consul().put(&lock, 0, "somebody's").await;
    let said = first_waits(&bed, &team, &db, "a", "the lock can't be used").await;
    said.assert(
        "semaphore",
        "lock",
        "failed",
        &["is not JSON", "delete the key"],
    );
    bed.consul().delete(&lock).await;
}

/// No operator runs here: the report says what one would do.
#[tokio::test]
async fn without_an_operator_the_report_says_what_it_would_do() {
    let bed = Bed::builder().without_operator().start().await;
    let team = bed.namespace("check-would").await;
    let db = team.semaphore("db").limit(1).create().await;
    team.job("a")
        .semaphore("db")
        .create()
        .await
        .is_waiting()
        .await;
    let said = first_waits(&bed, &team, &db, "a", "has not recorded the limit").await;
    said.assert(
        "semaphore",
        "object",
        "warning",
        &["no operator has seen it", "kubectl get pods"],
    );
    assert_eq!(said.code, Some(0), "{said:#?}");

    // Its limit is in Consul, and agreed on.
    let consul = bed.consul();
    let dead = consul.take_slot(&db.lock_prefix(), 1).await;
    consul.destroy_session(&dead).await;
    let said = first_waits(&bed, &team, &db, "a", "which is dead").await;
    said.assert(
        "semaphore",
        "dead holders",
        "warning",
        &[dead.as_str(), "15 s"],
    );

    consul.delete(&format!("{}/.lock", db.lock_prefix())).await;
    let other = consul.take_slot(&db.lock_prefix(), 1).await;
    let said = first_waits(&bed, &team, &db, "a", &other).await;
    said.assert("semaphore", "first: a", "ok", &["no slot is free"]);
    consul.give_back(&db.lock_prefix(), &other).await;
    let said = first_waits(&bed, &team, &db, "a", "this Job is next").await;
    said.assert("semaphore", "first: a", "warning", &["if this lasts"]);
    // Each check has ended its session.
    let sessions = consul.sessions().await;
    assert_eq!(sessions, Vec::<serde_json::Value>::new());
}

/// With the operator's token a semaphore must be in its namespace's folder; with a token of its own Consul decides,
/// if the operator may read that token.
#[tokio::test]
async fn the_report_says_whose_token_it_is_and_where_it_may_be_used() {
    let bed = Bed::shared().await;
    let team = bed.namespace("check-token").await;
    let elsewhere = format!("elsewhere/{}", team.name());
    let db = team.semaphore("db").prefix(&elsewhere).create().await;
    db.is_ready().await;
    let name = format!("{}/db", team.name());
    let confined = ["--semaphore", &name, "--trusted-namespaces", ""];
    let said = Said::of_bed(&bed, bed.kubeconfig(), &confined).await;
    said.assert(
        "semaphore",
        "prefix",
        "failed",
        &["is not below", "--trusted-namespaces"],
    );
    said.assert("semaphore", "slots", "unknown", &["was not asked"]);

    let spec = json!({ "consul": { "tokenSecretRef": { "name": "consul-token" } } });
    let own = team.semaphore("own").spec(spec).create().await;
    let account = "system:serviceaccount:consul-semaphore-system:consul-semaphore-operator";
    let name = format!("{}/{}", team.name(), own.name());
    let arguments = ["--semaphore", &name, "--as", account];
    let said = Said::of_bed(&bed, bed.kubeconfig(), &arguments).await;
    said.assert(
        "semaphore",
        "token",
        "unknown",
        &["there is no Secret consul-token"],
    );
    said.assert(
        "semaphore",
        "Secret",
        "failed",
        &["may not read consul-token", "config/token-secret"],
    );

    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "consul-token" },
        "stringData": { "token": "any" },
    });
    team.apply(secret).await;
    let role = concat!(env!("CARGO_MANIFEST_DIR"), "/config/token-secret");
    team.kubectl(["apply", "-k", role]).await;
    own.is_ready().await;
    eventually("all of it is allowed", async || {
        let said = Said::of_bed(&bed, bed.kubeconfig(), &arguments).await;
        same(said.bad("semaphore"), Vec::new())
    })
    .await;
}
