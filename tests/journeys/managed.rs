//! Jobs that something else starts and stops are left alone, and get an event that says so.
use serde_json::json;
use testbed::{
    Bed,
    proof::{
        End, all_is_decided, grant_of, has_no_session, is_warned, nothing_is_left, pods_end,
        pods_run, queue_is, runs_in_a_slot, uid_of,
    },
};

const QUEUE: &str = "kueue.x-k8s.io/queue-name";

#[tokio::test]
async fn a_job_of_kueues_is_left_alone_until_the_label_is_removed() {
    let bed = Bed::shared().await;
    let team = bed.namespace("kueue").await;
    let db = team.semaphore("db").limit(1).create().await;
    let queued = json!({ "metadata": { "labels": { QUEUE: "batch" } } });
    let unqueued = json!({ "metadata": { "labels": { QUEUE: null } } });
    let job = |name| team.job(name).semaphore("db").runs("1h");
    let waits = job("waits").with(queued.clone()).create().await;
    let runs = job("runs").with(queued).unsuspended().create().await;
    for job in [&waits, &runs] {
        is_warned(job, "ManagedElsewhere", "Kueue's queue batch").await;
        has_no_session(&bed, &uid_of(job).await).await;
    }
    let a = job("a").create().await;
    runs_in_a_slot(&bed, &db, &a).await;
    all_is_decided(&team, &db).await;
    queue_is(&db, []).await;
    waits.is_suspended().await;
    pods_run(&runs, 1).await;
    assert_eq!(grant_of(&waits).await, None);
    assert_eq!(grant_of(&runs).await, None);

    waits.patch(unqueued.clone()).await;
    waits.has_event("SlotWaiting").await;
    queue_is(&db, [&waits]).await;
    pods_end(&team, &a, End::Succeeded).await;
    runs_in_a_slot(&bed, &db, &waits).await;

    // A Job that runs without a slot is suspended as soon as nobody else manages it.
    runs.patch(unqueued).await;
    is_warned(&runs, "RanWithoutSlot", "it ran without a slot of db").await;
    runs.is_waiting().await;
    pods_end(&team, &waits, End::Succeeded).await;
    runs_in_a_slot(&bed, &db, &runs).await;
    pods_run(&runs, 1).await;
    pods_end(&team, &runs, End::Succeeded).await;
    runs.is_complete().await;
    nothing_is_left(&bed, &team, &db).await;
}

#[tokio::test]
async fn a_job_of_another_controller_is_left_alone() {
    let bed = Bed::shared().await;
    let team = bed.namespace("managed-by").await;
    let db = team.semaphore("db").limit(1).create().await;
    let managed_by = |by: &str| json!({ "spec": { "managedBy": by } });
    let job = |name| team.job(name).semaphore("db").runs("1h");
    let others = job("others")
        .with(managed_by("example.com/multikueue"))
        .create()
        .await;
    let says = "spec.managedBy names example.com/multikueue";
    is_warned(&others, "ManagedElsewhere", says).await;
    let unsuspended = job("unsuspended").with(managed_by("example.com/multikueue"));
    let unsuspended = unsuspended.unsuspended().create().await;
    is_warned(&unsuspended, "ManagedElsewhere", says).await;

    // Naming the built-in controller is the same as naming none.
    let a = job("a")
        .with(managed_by("kubernetes.io/job-controller"))
        .create()
        .await;
    runs_in_a_slot(&bed, &db, &a).await;
    all_is_decided(&team, &db).await;
    queue_is(&db, []).await;
    for job in [&others, &unsuspended] {
        assert_eq!((grant_of(job).await, job.session().await), (None, None));
        has_no_session(&bed, &uid_of(job).await).await;
    }
    others.is_suspended().await;
    unsuspended
        .is("not suspended", |job| {
            job.spec
                .as_ref()
                .is_some_and(|spec| spec.suspend != Some(true))
        })
        .await;
    pods_end(&team, &a, End::Succeeded).await;
    a.is_complete().await;
    nothing_is_left(&bed, &team, &db).await;
}
