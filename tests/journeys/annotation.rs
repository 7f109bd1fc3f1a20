//! The annotation that names the semaphore, changed, removed and added at any time.
use serde_json::json;
use testbed::{
    Bed, Job,
    proof::{
        End, SEMAPHORE, all_is_decided, grant_of, has_no_session, holders_are, is_given_back,
        is_warned, nothing_is_left, pods_end, pods_run, queue_is, runs_in_a_slot, uid_of,
    },
};

#[tokio::test]
async fn changed_on_a_waiting_job_moves_it_between_queues() {
    let bed = Bed::shared().await;
    let team = bed.namespace("moved-waiting").await;
    let db = team.semaphore("db").limit(1).create().await;
    let mail = team.semaphore("mail").limit(1).create().await;
    let job = |name, semaphore| team.job(name).semaphore(semaphore).runs("1h");
    let a = job("a", "db").create().await;
    let m = job("m", "mail").create().await;
    runs_in_a_slot(&bed, &db, &a).await;
    runs_in_a_slot(&bed, &mail, &m).await;
    let b = job("b", "db").create().await;
    let c = job("c", "db").create().await;
    queue_is(&db, [&b, &c]).await;

    b.annotate(SEMAPHORE, Some("mail")).await;
    queue_is(&db, [&c]).await;
    queue_is(&mail, [&b]).await;
    pods_end(&team, &a, End::Succeeded).await;
    runs_in_a_slot(&bed, &db, &c).await;
    b.is_waiting().await;
    pods_end(&team, &m, End::Succeeded).await;
    runs_in_a_slot(&bed, &mail, &b).await;

    // Without the annotation a Job belongs to its user alone: it stays as it is until the user starts it, and then it
    // runs without a slot.
    let d = job("d", "db").create().await;
    queue_is(&db, [&d]).await;
    d.annotate(SEMAPHORE, None).await;
    queue_is(&db, []).await;
    has_no_session(&bed, &uid_of(&d).await).await;
    d.is_suspended().await;
    d.unsuspend().await;
    pods_run(&d, 1).await;
    all_is_decided(&team, &db).await;
    d.is_running().await;
    assert_eq!((grant_of(&d).await, d.session().await), (None, None));

    pods_end(&team, &b, End::Succeeded).await;
    pods_end(&team, &c, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
    nothing_is_left(&bed, &team, &mail).await;
}

#[tokio::test]
async fn changed_on_a_running_job_keeps_its_slot() {
    let bed = Bed::shared().await;
    let team = bed.namespace("moved-running").await;
    let db = team.semaphore("db").limit(2).create().await;
    let mail = team.semaphore("mail").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let job = |name| team.job(name).semaphore("db").runs("1h");
    let changed = job("a").create().await;
    let removed = job("b").terminates_in("1h").create().await;
    let of_changed = runs_in_a_slot(&bed, &db, &changed).await;
    let of_removed = runs_in_a_slot(&bed, &db, &removed).await;
    let c = job("c").create().await;
    let d = job("d").create().await;
    queue_is(&db, [&c, &d]).await;

    changed.annotate(SEMAPHORE, Some("mail")).await;
    removed.annotate(SEMAPHORE, None).await;
    all_is_decided(&team, &db).await;
    holders_are(&bed, &db, [&of_changed, &of_removed]).await;
    holders_are(&bed, &mail, []).await;
    for job in [&changed, &removed] {
        job.is_running().await;
    }
    pods_end(&team, &changed, End::Succeeded).await;
    changed.is_complete().await;
    changed.has_event("SlotReleased").await;
    let of_c = runs_in_a_slot(&bed, &db, &c).await;
    is_given_back(&bed, &db, &of_changed).await;

    // It may also end by being deleted.
    pods_run(&removed, 1).await;
    removed.delete().await;
    removed.is_gone().await;
    all_is_decided(&team, &db).await;
    holders_are(&bed, &db, [&of_c, &of_removed]).await;
    pods_end(&team, &removed, End::Failed).await;
    runs_in_a_slot(&bed, &db, &d).await;
    is_given_back(&bed, &db, &of_removed).await;
    pods_end(&team, &c, End::Succeeded).await;
    pods_end(&team, &d, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
    holders_are(&bed, &mail, []).await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (2, 2));
}

#[tokio::test]
async fn changed_on_a_suspended_job_moves_it_to_the_other_queue() {
    let bed = Bed::shared().await;
    let team = bed.namespace("moved-suspended").await;
    let db = team.semaphore("db").limit(1).create().await;
    let mail = team.semaphore("mail").limit(1).create().await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    let of_a = runs_in_a_slot(&bed, &db, &a).await;
    a.annotate(SEMAPHORE, Some("mail")).await;
    a.suspend().await;
    a.is_on_hold().await;
    is_given_back(&bed, &db, &of_a).await;
    a.unsuspend().await;
    runs_in_a_slot(&bed, &mail, &a).await;
    pods_end(&team, &a, End::Succeeded).await;
    a.is_complete().await;
    nothing_is_left(&bed, &team, &db).await;
    nothing_is_left(&bed, &team, &mail).await;
}

#[tokio::test]
async fn added_to_a_job_that_runs_suspends_it_until_it_has_a_slot() {
    let bed = Bed::shared().await;
    let team = bed.namespace("annotated-late").await;
    let db = team.semaphore("db").limit(1).create().await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    let of_a = runs_in_a_slot(&bed, &db, &a).await;
    let late = team.job("late").unsuspended().runs("1h").create().await;
    pods_run(&late, 1).await;

    late.annotate(SEMAPHORE, Some("db")).await;
    is_warned(&late, "RanWithoutSlot", "it ran without a slot of db").await;
    late.is_waiting().await;
    queue_is(&db, [&late]).await;
    holders_are(&bed, &db, [&of_a]).await;
    pods_end(&team, &a, End::Succeeded).await;
    runs_in_a_slot(&bed, &db, &late).await;
    done(&late).await;
    pods_end(&team, &late, End::Succeeded).await;
    late.is_complete().await;
    nothing_is_left(&bed, &team, &db).await;
}

/// Its first pod is gone, so the next pod that ends is the one with the slot.
async fn done(job: &Job) {
    pods_run(job, 1).await;
    job.is("at rest but for one pod", |job| {
        let status = serde_json::to_value(&job.status).unwrap_or_default();
        status["terminating"] == json!(0)
    })
    .await;
}
