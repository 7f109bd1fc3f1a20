//! A slot stays held for a while after its Job is done.

use jiff::Timestamp;
use serde_json::{Value, json};
use testbed::{
    Bed, Job, Semaphore, eventually,
    proof::{End, pods_end},
    same,
};

/// The body of the only contender of a semaphore, once it says until when its slot cools.
async fn cooling(bed: &Bed, db: &Semaphore) -> Value {
    eventually("the slot cools", || async {
        let contenders = bed.consul().contenders(&db.lock_prefix()).await;
        let bodies = contenders.iter().map(testbed::Entry::json);
        let mut cooling = bodies.filter(|body| body["coolsUntil"].is_string());
        cooling.next().ok_or(format!("{contenders:?}"))
    })
    .await
}

/// A time in a contender's body, by the operator's clock.
fn time(body: &Value, field: &str) -> Timestamp {
    let time = body[field].as_str().expect("a time");
    time.parse().expect("a time")
}

/// When the slot of this Job was granted.
async fn granted_at(bed: &Bed, db: &Semaphore, job: &Job) -> Timestamp {
    job.is_running().await;
    let session = job.session().await.expect("it runs in a slot");
    let key = format!("{}/{session}", db.lock_prefix());
    let contender = bed.consul().kv(&key).await.expect("its contender");
    time(&contender.json(), "time")
}

#[tokio::test]
async fn a_slot_stays_taken_until_it_has_cooled() {
    let bed = Bed::shared().await;
    let team = bed.namespace("cooldown").await;
    let db = team.semaphore("db").spec(json!({ "cooldown": "20s" }));
    let db = db.create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let short = team.job("short").semaphore("db").runs("1h");
    let short = short.create().await;
    short.is_running().await;
    let session = short.session().await.expect("its session");
    // A changed cooldown applies to slots that are granted from now on.
    db.patch(json!({ "spec": { "cooldown": "0s" } })).await;
    let next = team.job("next").semaphore("db").runs("1h").create().await;

    pods_end(&team, &short, End::Succeeded).await;
    let body = cooling(&bed, &db).await;
    assert_eq!(body["cooldown"], 20);
    assert_eq!(body["name"], "short");
    short.is_complete().await;
    let note = short.has_event("SlotCooling").await;
    assert!(note.contains("stays held until"), "{note}");
    assert!(note.contains(&session), "{note}");

    let granted = granted_at(&bed, &db, &next).await;
    let until = time(&body, "coolsUntil");
    assert!(granted >= until, "{granted} is before {until}");
    short.has_event("SlotReleased").await;
    next.finish().await;
    next.has_event("SlotReleased").await;
    db.shows(json!({ "held": 0, "heldHere": 0 })).await;
    let events = next.events().await;
    let mut reasons = events.iter().filter_map(|event| event.reason.as_deref());
    assert!(reasons.all(|reason| reason != "SlotCooling"), "{events:?}");
    assert_eq!(observer.peak_holders(), 1);
}

#[tokio::test]
async fn a_slot_that_cools_is_shown_and_outlives_its_job() {
    let bed = Bed::shared().await;
    let team = bed.namespace("cooldown-shown").await;
    let db = team.semaphore("db").spec(json!({ "cooldown": "1h" }));
    let db = db.create().await;
    let gone = team.job("gone").semaphore("db").runs("1h").create().await;
    gone.is_running().await;
    let session = gone.session().await.expect("its session");
    gone.delete().await;
    let body = cooling(&bed, &db).await;
    let until = time(&body, "coolsUntil");
    let shown = Timestamp::from_second(until.as_second()).expect("a time");
    eventually("the status shows it", || async {
        let holders = db.status().await["holders"].take();
        let found = (holders[0]["session"] == *session).then_some(holders[0]["coolsUntil"].clone());
        same(found, Some(json!(shown.to_string())))
    })
    .await;
    db.shows(json!({ "held": 1, "heldHere": 1 })).await;
    let words = ["1 of 1 slots are held, one of them"];
    db.has_condition_that_says("SlotsAvailable", "False", "AllSlotsHeld", &words)
        .await;

    // Deleting the semaphore waits for it, too, unless somebody frees the slot by hand.
    db.delete().await;
    db.has_condition_that_says("Ready", "False", "Terminating", &["its cooldown is over"])
        .await;
    assert_eq!(
        bed.consul().holders(&db.lock_prefix()).await,
        [session.clone()].into()
    );
    bed.consul().destroy_session(&session).await;
    db.is_gone().await;
}

#[tokio::test]
async fn a_job_that_was_never_started_has_no_cooldown() {
    let bed = Bed::shared().await;
    let team = bed.namespace("cooldown-unstarted").await;
    let db = team.semaphore("db").spec(json!({ "cooldown": "1h" }));
    let db = db.create().await;
    let stopped = team
        .job("stopped")
        .semaphore("db")
        .runs("1h")
        .create()
        .await;
    stopped.is_running().await;
    let next = team.job("next").semaphore("db").create().await;
    // Its user stops it: it gives the slot back, and is not done.
    stopped.suspend().await;
    stopped.is_on_hold().await;
    next.is_complete().await;
    cooling(&bed, &db).await;
}

#[tokio::test]
async fn a_restart_keeps_the_end_of_a_cooldown() {
    let bed = Bed::start().await;
    let team = bed.namespace("cooldown-restart").await;
    let db = team.semaphore("db").spec(json!({ "cooldown": "45s" }));
    let db = db.create().await;
    let done = team.job("done").semaphore("db").create().await;
    let body = cooling(&bed, &db).await;
    done.is_complete().await;
    let next = team.job("next").semaphore("db").runs("1h").create().await;
    bed.operator().kill().await;
    bed.operator().start().await;
    assert_eq!(cooling(&bed, &db).await, body, "it is not written anew");
    let granted = granted_at(&bed, &db, &next).await;
    let until = time(&body, "coolsUntil");
    assert!(granted >= until, "{granted} is before {until}");
}
