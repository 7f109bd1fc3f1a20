//! What the page shows, and when.

use serde_json::json;
use testbed::{Bed, web::replica};

use crate::reader::Reader;

#[tokio::test]
async fn a_hand_over_is_seen_as_it_happens() {
    let bed = Bed::shared().await;
    // A standby replica shows the same as the leader.
    let (operator, address) = replica(&bed, "stands-by", ["--web-auth", "none"]).await;
    assert!(operator.get("/readyz").await.contains("stands by"));
    let team = bed.namespace("live").await;
    let db = team.semaphore("db").limit(1).prefix("shared/web-live");
    let db = db.create().await;
    let id = format!("{}/db", team.name());
    let job = |name: &str| team.job(name).semaphore("db").runs("1h");
    let a = job("a").create().await;
    a.is_running().await;
    let b = job("b").create().await;
    let c = job("c").create().await;
    let [a_name, b_name] = ["a", "b"].map(|name| format!("{}/{name}", team.name()));

    let reader = Reader::open(&address, None);
    let seen = reader
        .until("one holds and two wait", |seen| {
            seen.holders(&id) == [a_name.as_str()] && seen.queue(&id) == ["b", "c"]
        })
        .await;
    let is = seen.is(&id);
    assert_eq!(is["limit"], 1);
    assert_eq!(
        (&is["held"], &is["heldHere"], &is["waiting"]),
        (&json!(1), &json!(1), &json!(2))
    );
    assert_eq!(is["ready"]["reason"], "Reconciled");
    let holder = &is["holders"][0];
    assert_eq!(holder["kind"], "job");
    assert!(
        holder["since"].is_i64() && holder["place"].is_string(),
        "{holder}"
    );
    let why = |place: usize| is["queue"][place]["why"].as_str().unwrap_or_default();
    assert_eq!(why(0), "1 of 1 slots are held");
    assert_eq!(why(1), "behind b");
    assert!(
        seen.operator["remarks"].as_str().unwrap().contains("leads"),
        "{seen:?}"
    );

    let complete = reader.seen().complete;
    a.finish().await;
    reader
        .until("the next one holds", |seen| {
            seen.holders(&id) == [b_name.as_str()] && seen.queue(&id) == ["c"]
        })
        .await;
    assert_eq!(
        reader.seen().complete,
        complete,
        "by the connection that was there"
    );

    // Another program, on the same prefix.
    c.delete().await;
    b.finish().await;
    let program = bed.go_semaphore("somebody-else", "shared/web-live", 1);
    let program = program.start().await;
    let seen = reader
        .until("another program holds", |seen| {
            seen.is(&id)["holders"][0]["kind"] == "program"
        })
        .await;
    let name = seen.is(&id)["holders"][0]["name"].to_string();
    assert!(name.contains("somebody-else"), "{name}");
    let trend = seen.semaphores[&id]["trend"].as_array().unwrap().len();
    assert!(trend > 0, "its use is remembered");
    drop(program);

    db.delete().await;
    reader
        .until("it is not shown any more", |seen| seen.is(&id).is_null())
        .await;
}

#[tokio::test]
async fn a_restart_is_survived() {
    let bed = Bed::shared().await;
    let (operator, address) = replica(&bed, "restarted", ["--web-auth", "none"]).await;
    let team = bed.namespace("restart").await;
    team.semaphore("before").create().await;
    let [before, while_away] =
        ["before", "while-away"].map(|name| format!("{}/{name}", team.name()));
    let reader = Reader::open(&address, None);
    reader
        .until("it is shown", |seen| !seen.is(&before).is_null())
        .await;

    // An open page does not keep the operator from ending.
    assert!(operator.stop().await.success());
    team.semaphore("while-away").create().await;
    team.semaphore("before").delete().await;
    operator.start().await;

    reader
        .until("what has changed is shown", |seen| {
            seen.is(&before).is_null() && !seen.is(&while_away).is_null()
        })
        .await;
}
