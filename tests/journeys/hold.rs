//! A Job on hold stays out of the queue, and others pass it.
use testbed::{
    Bed,
    helpers::event_reasons,
    proof::{
        End, HOLD, all_is_decided, grant_of, has_no_session, nothing_is_left, pods_end, queue_is,
        runs_in_a_slot, uid_of,
    },
};

#[tokio::test]
async fn others_pass_a_job_on_hold_until_the_hold_is_taken_away() {
    let bed = Bed::shared().await;
    let team = bed.namespace("hold").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let job = |name| team.job(name).semaphore("db").runs("1h");

    // On hold from the start, it does not even take a free slot.
    let held = job("x-held").hold().create().await;
    let said = held.has_event("OnHold").await;
    assert!(said.contains(HOLD) && said.contains("db"), "{said}");
    let a = job("a").create().await;
    runs_in_a_slot(&bed, &db, &a).await;
    let b = job("b").create().await;
    let c = job("c").create().await;
    queue_is(&db, [&b, &c]).await;
    pods_end(&team, &a, End::Succeeded).await;
    runs_in_a_slot(&bed, &db, &b).await;
    assert_eq!(grant_of(&held).await, None);
    has_no_session(&bed, &uid_of(&held).await).await;
    let reasons: Vec<_> = held.events().await;
    assert!(
        reasons
            .iter()
            .all(|event| event.reason.as_deref() != Some("SlotWaiting"))
    );

    // Put on hold while it is next, it leaves the queue, and the session made ahead for it is destroyed.
    c.annotate(HOLD, Some("true")).await;
    queue_is(&db, []).await;
    has_no_session(&bed, &uid_of(&c).await).await;
    c.has_event("OnHold").await;

    // Off hold, it is queued.
    held.annotate(HOLD, None).await;
    held.has_event("SlotWaiting").await;
    queue_is(&db, [&held]).await;
    pods_end(&team, &b, End::Succeeded).await;
    runs_in_a_slot(&bed, &db, &held).await;
    c.is_waiting().await;

    c.annotate(HOLD, Some("false")).await;
    queue_is(&db, [&c]).await;
    // A hold does not affect a running Job, and there is one event for each hold.
    held.annotate(HOLD, Some("true")).await;
    all_is_decided(&team, &db).await;
    held.is_running().await;
    for job in [&held, &c] {
        let reasons = event_reasons(job).await;
        let on_hold = reasons.iter().filter(|reason| *reason == "OnHold");
        assert_eq!(on_hold.count(), 1, "{reasons:?}");
    }
    pods_end(&team, &held, End::Succeeded).await;
    held.is_complete().await;
    runs_in_a_slot(&bed, &db, &c).await;
    pods_end(&team, &c, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
}
