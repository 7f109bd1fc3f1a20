//! `release`: takes a slot from its holder, in Consul.

use std::process::Stdio;

use serde_json::json;
use testbed::{Bed, Namespace, PATIENCE};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use crate::stage::{User, installed};

/// An administrator who can also reach Consul.
pub(crate) fn user(bed: &Bed, team: &Namespace) -> User {
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

    let said = user.csem_told(&["release", "db", "job/a"], "no\n").await;
    said.is(1, &[&told[..], &["not released", &session]].concat());
    team.job("idle").semaphore("db").hold().create().await;
    user.csem(&["release", "db", "idle"])
        .await
        .is(66, &["the Job idle holds no slot of db"]);

    let said = user.csem_told(&["release", "db", &session], "yes\n").await;
    said.is(0, &told);
    said.is(0, &["destroyed"]);
    job.has_event("SlotLost").await;
    // It is first in the queue, so it gets a slot again.
    job.is_running().await;
    let again = user.csem(&["release", "db", &session, "--yes"]).await;
    let refused = match again.code {
        Some(1) => "is already dead",
        _ => "has no slot of db",
    };
    assert!(
        matches!(again.code, Some(1 | 66)) && again.err.contains(refused),
        "{again}"
    );
}

/// Semaphores of several namespaces can share a prefix.
#[tokio::test]
async fn a_job_of_another_namespace_is_found_there() {
    let bed = Bed::shared().await;
    let here = bed.namespace("csem-release-here").await;
    let there = bed.namespace("csem-release-there").await;
    let prefix = format!("shared/{}", here.name());
    let db = here.semaphore("db").limit(1).prefix(&prefix);
    db.create().await.is_ready().await;
    let theirs = there.semaphore("theirs").limit(1).prefix(&prefix);
    let theirs = theirs.spec(json!({ "onSlotLost": "Suspend" }));
    theirs.create().await;
    let job = there.job("a").semaphore("theirs").runs("1h");
    let job = job.create().await;
    job.is_running().await;
    let session = job.session().await.expect("it holds a slot");
    let user = user(&bed, &here);
    let said = user.csem_told(&["release", "db", &session], "no\n").await;
    let delete = format!("kubectl delete job a -n {}", there.name());
    let told = [
        "The Job a of this cluster RUNS",
        "onSlotLost is Suspend",
        &delete,
        bed.consul().address(),
    ];
    said.is(1, &told);
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

/// A person takes time to answer. In the meantime the holder may finish and start something else.
#[tokio::test]
async fn a_slot_that_was_released_in_the_meantime_is_left_alone() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-release-late").await;
    let user = user(&bed, &team);
    let db = team.semaphore("db").limit(1).create().await;
    db.is_ready().await;
    let consul = bed.consul();
    let session = consul.take_slot(&db.lock_prefix(), 1).await;
    let program = installed().join("kubectl-csem");
    let mut release = user.command(program, &["release", "db", &session, "-n", team.name()]);
    let release = release.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut release = release.spawn().expect("it starts");
    let mut asked = release.stderr.take().expect("a pipe");
    let mut said = Vec::new();
    while !said.ends_with(b"Type yes: ") {
        let read = timeout(PATIENCE, asked.read_buf(&mut said)).await;
        assert!(read.expect("it asks").expect("its words") > 0, "{said:?}");
    }
    consul.give_back(&db.lock_prefix(), &session).await;
    let mut answers = release.stdin.take().expect("a pipe");
    answers.write_all(b"yes\n").await.expect("it reads");
    asked.read_to_end(&mut said).await.expect("its words");
    let said = String::from_utf8(said).expect("UTF-8");
    assert!(said.contains("has released its slot of db"), "{said}");
    assert_eq!(release.wait().await.expect("its end").code(), Some(1));
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
