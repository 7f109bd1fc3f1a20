//! A user suspends a running Job to stop it: its slot is given to the next one once its pods are gone, and it waits
//! on hold until its user resumes it.
use serde_json::json;
use testbed::{
    Bed, Job,
    proof::{
        End, HOLD, all_is_decided, gets_event, grant_of, holders_are, is_given_back, is_warned,
        nothing_is_left, pods_end, queue_is, runs_in_a_slot,
    },
};

#[tokio::test]
async fn a_suspended_job_releases_its_slot_and_is_queued_when_its_hold_is_removed() {
    let take_the_hold_away = async |job: &Job| job.annotate(HOLD, None).await;
    Box::pin(journey("suspended", take_the_hold_away)).await;
}

#[tokio::test]
async fn a_suspended_job_releases_its_slot_and_is_queued_when_it_is_unsuspended() {
    let unsuspend = async |job: &Job| {
        job.unsuspend().await;
        is_warned(job, "RanWithoutSlot", "it ran without a slot of db").await;
    };
    Box::pin(journey("suspended", unsuspend)).await;
}

async fn journey(namespace: &str, wants_to_run_again: impl AsyncFnOnce(&Job)) {
    let bed = Bed::shared().await;
    let team = bed.namespace(namespace).await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let job = |name| team.job(name).semaphore("db").runs("1h");
    // Its name is the last one: Jobs created within one second are queued by name.
    let z = job("z").terminates_in("1h").create().await;
    let first = runs_in_a_slot(&bed, &db, &z).await;
    let a = job("a").create().await;
    let b = job("b").create().await;
    queue_is(&db, [&a, &b]).await;

    z.suspend().await;
    z.is("stopping", |job| {
        let status = job.status.as_ref();
        status.and_then(|status| status.terminating) == Some(1)
    })
    .await;
    all_is_decided(&team, &db).await;
    holders_are(&bed, &db, [&first]).await;
    a.is_waiting().await;
    assert_eq!(grant_of(&z).await.as_ref(), Some(&first));

    pods_end(&team, &z, End::Failed).await;
    z.is_on_hold().await;
    gets_event(&z, "Normal", "PutOnHold", HOLD).await;
    z.has_event("SlotReleased").await;
    is_given_back(&bed, &db, &first).await;
    let of_a = runs_in_a_slot(&bed, &db, &a).await;
    holders_are(&bed, &db, [&of_a]).await;
    queue_is(&db, [&b]).await;
    assert_eq!(grant_of(&z).await, None);

    // Its next pods end at once: unsuspended, it may get some before it is suspended again.
    z.patch(
        json!({ "spec": { "template": { "metadata": { "annotations": {
        "bed.consul-semaphore.io/terminates-in": null,
    } } } } }),
    )
    .await;
    wants_to_run_again(&z).await;
    z.is_waiting().await;
    queue_is(&db, [&b, &z]).await;
    for [job, next] in [[&a, &b], [&b, &z]] {
        pods_end(&team, job, End::Succeeded).await;
        runs_in_a_slot(&bed, &db, next).await;
    }
    let second = grant_of(&z).await.expect("it runs again");
    assert!(first.fencing_token < second.fencing_token);
    assert_ne!(first.session, second.session);
    for granted in [&first, &second] {
        gets_event(&z, "Normal", "SlotGranted", &granted.session).await;
    }
    pods_end(&team, &z, End::Succeeded).await;
    z.is_complete().await;
    nothing_is_left(&bed, &team, &db).await;
    assert_eq!(observer.peak_holders(), 1);
}

/// Before Kubernetes 1.36 the status of a suspended Job says on that it was started, and its template can't be changed.
#[tokio::test]
async fn a_start_time_that_is_left_is_cleared() {
    let bed = Bed::shared().await;
    let team = bed.namespace("start-time").await;
    let db = team.semaphore("db").limit(1).create().await;
    let first = team.job("first").semaphore("db").runs("1h").create().await;
    runs_in_a_slot(&bed, &db, &first).await;
    let job = team.job("job").semaphore("db").create().await;
    queue_is(&db, [&job]).await;

    job.set_start_time().await;
    job.is("without a start time", |job| {
        let status = job.status.as_ref();
        status.is_some_and(|status| status.start_time.is_none())
    })
    .await;
    job.is_waiting().await;
    queue_is(&db, [&job]).await;
    pods_end(&team, &first, End::Succeeded).await;
    runs_in_a_slot(&bed, &db, &job).await;
    pods_end(&team, &job, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
}
