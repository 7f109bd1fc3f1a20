//! Jobs that run, or are unsuspended, before they have a slot.
use testbed::{
    Bed,
    proof::{
        End, HOLD, SESSION, all_is_decided, holders_are, is_given_back, is_warned, nothing_is_left,
        pods_end, pods_run, queue_is, runs_in_a_slot,
    },
};

#[tokio::test]
async fn made_running_they_are_suspended_on_sight_and_run_in_order() {
    let bed = Bed::shared().await;
    let team = bed.namespace("made-running").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let job = |name| team.job(name).semaphore("db").unsuspended().runs("1h");
    let a = job("a").create().await;
    is_warned(&a, "RanWithoutSlot", "it ran without a slot of db").await;
    let mut last = runs_in_a_slot(&bed, &db, &a).await;
    let b = job("b").create().await;
    let c = job("c").create().await;
    for waits in [&b, &c] {
        is_warned(waits, "RanWithoutSlot", "it ran without a slot of db").await;
        waits.is_waiting().await;
        waits.has_event("SlotWaiting").await;
    }
    queue_is(&db, [&b, &c]).await;
    holders_are(&bed, &db, [&last]).await;

    for [job, next] in [[&a, &b], [&b, &c]] {
        pods_end(&team, job, End::Succeeded).await;
        job.is_complete().await;
        let grant = runs_in_a_slot(&bed, &db, next).await;
        assert!(last.fencing_token < grant.fencing_token);
        is_given_back(&bed, &db, &last).await;
        last = grant;
    }
    pods_end(&team, &c, End::Succeeded).await;
    c.is_complete().await;
    nothing_is_left(&bed, &team, &db).await;
    assert_eq!(observer.peak_holders(), 1);
}

#[tokio::test]
async fn unsuspended_without_a_slot_they_are_suspended_again_and_keep_their_place() {
    let bed = Bed::shared().await;
    let team = bed.namespace("unsuspended").await;
    let db = team.semaphore("db").limit(1).create().await;
    let job = |name| team.job(name).semaphore("db").runs("1h");
    let a = job("a").create().await;
    let of_a = runs_in_a_slot(&bed, &db, &a).await;
    let b = job("b").create().await;
    let c = job("c").create().await;
    queue_is(&db, [&b, &c]).await;

    b.unsuspend().await;
    is_warned(&b, "RanWithoutSlot", "it ran without a slot of db").await;
    b.is_waiting().await;
    queue_is(&db, [&b, &c]).await;
    holders_are(&bed, &db, [&of_a]).await;

    // On hold it is not queued; unsuspending it removes the hold.
    let d = job("d").hold().create().await;
    all_is_decided(&team, &db).await;
    queue_is(&db, [&b, &c]).await;
    // Only then can the operator tell that it was its user who started it.
    d.is_at_rest().await;
    d.unsuspend().await;
    is_warned(&d, "RanWithoutSlot", "it ran without a slot of db").await;
    d.is_waiting().await;
    d.is("off hold", |job| {
        let annotations = job.metadata.annotations.as_ref();
        annotations.is_some_and(|annotations| !annotations.contains_key(HOLD))
    })
    .await;
    queue_is(&db, [&b, &c, &d]).await;

    for [job, next] in [[&a, &b], [&b, &c], [&c, &d]] {
        pods_end(&team, job, End::Succeeded).await;
        let grant = runs_in_a_slot(&bed, &db, next).await;
        holders_are(&bed, &db, [&grant]).await;
    }
    pods_end(&team, &d, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
}

/// The Job controller may be creating pods while the Job is suspended again: they must be gone before it is started,
/// or they would continue in a slot that they know nothing of.
#[tokio::test]
async fn unsuspended_while_a_slot_is_free_it_runs_with_that_slot() {
    let bed = Bed::shared().await;
    let team = bed.namespace("unsuspended-free").await;
    let db = team.semaphore("db").limit(5).create().await;
    db.is_ready().await;
    let mut jobs = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        let job = team.job(name).semaphore("db").hold().runs("1h");
        jobs.push(job.create().await);
    }
    for job in &jobs {
        job.is_waiting().await;
        job.is_at_rest().await;
    }
    for job in &jobs {
        job.unsuspend().await;
    }
    for job in &jobs {
        let grant = runs_in_a_slot(&bed, &db, job).await;
        pods_run(job, 1).await;
        for pod in job.pods().await {
            let annotations = pod.metadata.annotations.unwrap_or_default();
            let ends = pod.metadata.deletion_timestamp.is_some();
            assert!(ends || annotations.get(SESSION) == Some(&grant.session));
        }
        pods_end(&team, job, End::Succeeded).await;
        job.is_complete().await;
    }
    nothing_is_left(&bed, &team, &db).await;
}
