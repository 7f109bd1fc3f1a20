//! `release`: a slot is taken from its holder, in Consul.

use serde_json::json;
use testbed::{Bed, Namespace};

use crate::stage::User;

/// An administrator who can reach Consul, too.
fn user(bed: &Bed, team: &Namespace) -> User {
    let user = User::admin(bed, team).set("CONSUL_HTTP_ADDR", bed.consul().address());
    match bed.consul().token() {
        Some(token) => user.set("CONSUL_HTTP_TOKEN", token),
        None => user,
    }
}

#[tokio::test]
async fn what_becomes_of_a_running_job_is_said_before() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-release").await;
    let user = user(&bed, &team);
    let db = team
        .semaphore("db")
        .limit(1)
        .spec(json!({ "onSlotLost": "Suspend" }));
    let db = db.create().await;
    let job = team.job("a").semaphore("db").runs("1h").create().await;
    job.is_running().await;
    let session = job.session().await.expect("it holds a slot");
    db.shows(json!({ "held": 1 })).await;

    let told = [
        "RUNS",
        "onSlotLost is Suspend",
        "kubectl delete job a",
        "lockDelay",
    ];
    for answer in ["no\n", "\n", ""] {
        let said = user.csem_told(&["release", "db", &session], answer).await;
        said.is(1, &told);
        said.is(1, &["not released"]);
    }
    assert!(
        bed.consul()
            .holders(&db.lock_prefix())
            .await
            .contains(&session)
    );
    job.is_running().await;

    let said = user.csem_told(&["release", "db", &session], "yes\n").await;
    said.is(0, &told);
    said.is(0, &["destroyed"]);
    job.has_event("SlotLost").await;
    // It is first in line, and has a slot again.
    job.is_running().await;
    let again = user.csem(&["release", "db", &session, "--yes"]).await;
    assert!(matches!(again.code, Some(1 | 66)), "{again}");
}

#[tokio::test]
async fn the_slot_of_another_program_goes_to_the_next_job() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-release-others").await;
    let user = user(&bed, &team);
    let db = team
        .semaphore("db")
        .limit(1)
        .spec(json!({ "session": { "lockDelay": "1s" } }));
    let db = db.create().await;
    db.is_ready().await;
    let session = bed.consul().take_slot(&db.lock_prefix(), 1).await;
    let job = team.job("a").semaphore("db").create().await;
    db.shows(json!({ "held": 1, "waiting": 1 })).await;
    let said = user.csem(&["release", "db", &session, "--yes"]).await;
    said.is(0, &["another program", "destroyed"]);
    job.is_complete().await;
}

#[tokio::test]
async fn nothing_else_is_ended() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-release-none").await;
    let user = user(&bed, &team);
    let db = team.semaphore("db").limit(1).create().await;
    db.is_ready().await;
    let stranger = bed
        .consul()
        .create_session(json!({ "Name": "stranger" }))
        .await;
    let said = user.csem(&["release", "db", &stranger, "--yes"]).await;
    said.is(66, &["has no slot of db", &db.lock_prefix()]);
    let alive = bed.consul().sessions().await;
    let alive = alive
        .iter()
        .any(|session| session["ID"] == stranger.as_str());
    assert!(alive, "the session of somebody else is gone");
    bed.consul().destroy_session(&stranger).await;
}

#[tokio::test]
async fn without_consul_it_says_what_is_needed() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-release-away").await;
    let db = team.semaphore("db").limit(1).create().await;
    db.is_ready().await;
    // Nothing listens on port 1.
    let away = User::admin(&bed, &team).set("CONSUL_HTTP_ADDR", "http://127.0.0.1:1");
    away.csem(&["release", "db", "s", "--yes"])
        .await
        .is(69, &["127.0.0.1:1"]);
    let wrong = User::admin(&bed, &team).set("CONSUL_HTTP_ADDR", "ftp://consul");
    wrong
        .csem(&["release", "db", "s"])
        .await
        .is(1, &["CONSUL_HTTP_ADDR"]);
}
