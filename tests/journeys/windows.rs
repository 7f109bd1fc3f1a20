//! Slots are granted in windows, and the last ones are reserved.

use consul_client::clock;
use jiff::{ToSpan as _, Zoned, tz::TimeZone};
use serde_json::{Value, json};
use testbed::Bed;

/// The clock in UTC, this much later.
fn later(minutes: i64) -> Zoned {
    clock::time().to_zoned(TimeZone::UTC) + minutes.minutes()
}

/// A window of five minutes that opens once a day, when the clock shows this time.
fn daily(time: &Zoned) -> Value {
    json!({
        "schedule": format!("{} {} * * *", time.minute(), time.hour()),
        "duration": "5m",
        "timeZone": "Etc/UTC",
    })
}

#[tokio::test]
async fn a_job_waits_for_the_window_and_a_running_one_continues_after_it() {
    let bed = Bed::shared().await;
    let team = bed.namespace("windows").await;
    let always = json!([{ "schedule": "* * * * *", "duration": "2m" }]);
    let db = team.semaphore("db").limit(2);
    let db = db.spec(json!({ "windows": always })).create().await;
    let running = team.job("running").semaphore("db").runs("1h");
    let running = running.create().await;
    running.is_running().await;

    db.patch(json!({ "spec": { "windows": [daily(&later(12 * 60))] } }))
        .await;
    db.has_condition("SlotsAvailable", "False", "OutsideWindow")
        .await;
    db.is_ready().await;
    let waits = team.job("waits").semaphore("db").create().await;
    let event = waits.has_event("SlotWaiting").await;
    assert!(event.contains("outside spec.windows"), "{event}");
    running.is_running().await;

    // This one opens by itself.
    db.patch(json!({ "spec": { "windows": [daily(&later(1))] } }))
        .await;
    waits.is_complete().await;
    running.is_running().await;
}

#[tokio::test]
async fn inside_a_window_its_limit_counts_and_the_last_slots_are_reserved() {
    let bed = Bed::shared().await;
    let team = bed.namespace("reserved").await;
    let db = team.semaphore("db").limit(5).spec(json!({
        "windows": [{ "schedule": "* * * * *", "duration": "2m", "limit": 2 }],
        "reserved": { "slots": 1, "minPriority": 100 },
    }));
    let db = db.create().await;
    let plain = team.job("plain").semaphore("db").runs("1h");
    let plain = plain.create().await;
    plain.is_running().await;
    db.has_condition("SlotsAvailable", "True", "Reserved").await;
    let waits = team.job("waits").semaphore("db").create().await;
    let event = waits.has_event("SlotWaiting").await;
    assert!(event.contains("priority 100"), "{event}");
    let urgent = team.job("urgent").semaphore("db").runs("1h");
    let urgent = urgent.annotation("consul-semaphore.io/priority", "100");
    let urgent = urgent.create().await;
    urgent.is_running().await;
    db.has_condition("SlotsAvailable", "False", "AllSlotsHeld")
        .await;
    waits.is_waiting().await;
    db.patch(json!({ "spec": { "windows": null, "reserved": null } }))
        .await;
    waits.is_complete().await;
}

#[tokio::test]
async fn a_window_that_can_not_open_is_named_and_the_others_open() {
    let bed = Bed::shared().await;
    let team = bed.namespace("windows-invalid").await;
    let never = json!({ "schedule": "0 0 30 2 *", "duration": "1h" });
    let nowhere = json!({ "schedule": "0 0 * * *", "duration": "1h", "timeZone": "Mars/Olympus" });
    let db = team
        .semaphore("db")
        .spec(json!({ "windows": [never, nowhere] }));
    let db = db.create().await;
    let words = [
        "spec.windows[0]",
        "four years",
        "spec.windows[1]",
        "Europe/Berlin",
    ];
    db.has_condition_that_says("Ready", "False", "InvalidWindow", &words)
        .await;
    let job = team.job("a").semaphore("db").create().await;
    job.has_event("SlotWaiting").await;
    let always = json!({ "schedule": "* * * * *", "duration": "2m" });
    db.patch(json!({ "spec": { "windows": [never, always] } }))
        .await;
    job.is_complete().await;
    db.has_condition("Ready", "True", "InvalidWindow").await;
}
