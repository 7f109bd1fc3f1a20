//! Jobs with several pods: the slot belongs to the Job, from the start of its first pod to the end of its last.
use serde_json::json;
use testbed::{
    Bed, Job,
    proof::{
        End, all_is_decided, grant_of, holders_are, is_given_back, nothing_is_left, pod_ends,
        pods_end, pods_run, queue_is, running_pods, runs_in_a_slot,
    },
};

#[tokio::test]
async fn in_turn_because_the_first_fails() {
    let bed = Bed::shared().await;
    let team = bed.namespace("backoff").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let job = |name| team.job(name).semaphore("db").runs("1h");
    let a = job("a").backoff_limit(1).create().await;
    let of_a = runs_in_a_slot(&bed, &db, &a).await;
    let b = job("b").create().await;
    queue_is(&db, [&b]).await;

    pods_end(&team, &a, End::Failed).await;
    a.is("between two pods", |job| {
        let status = job.status.as_ref();
        status.is_some_and(|status| status.failed == Some(1) && status.active.unwrap_or(0) == 0)
    })
    .await;
    all_is_decided(&team, &db).await;
    holders_are(&bed, &db, [&of_a]).await;
    assert_eq!(grant_of(&b).await, None);

    // Its second pod runs in the same slot.
    pods_run(&a, 1).await;
    assert_eq!(runs_in_a_slot(&bed, &db, &a).await, of_a);
    pods_end(&team, &a, End::Failed).await;
    a.is_failed().await;
    a.has_event("SlotReleased").await;
    let of_b = runs_in_a_slot(&bed, &db, &b).await;
    holders_are(&bed, &db, [&of_b]).await;
    is_given_back(&bed, &db, &of_a).await;
    pods_end(&team, &b, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
}

#[tokio::test]
async fn side_by_side() {
    let bed = Bed::shared().await;
    let team = bed.namespace("parallel").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let job = |name| team.job(name).semaphore("db").runs("1h");
    let a = job("a").parallelism(3).create().await;
    let of_a = runs_in_a_slot(&bed, &db, &a).await;
    pods_run(&a, 3).await;
    let b = job("b").create().await;
    queue_is(&db, [&b]).await;

    for left in [2, 1] {
        let pods = running_pods(&a).await;
        pod_ends(&team, &pods[0], End::Succeeded).await;
        pods_run(&a, left).await;
        all_is_decided(&team, &db).await;
        holders_are(&bed, &db, [&of_a]).await;
        assert_eq!(grant_of(&b).await, None);
    }
    pods_end(&team, &a, End::Succeeded).await;
    a.is_complete().await;
    runs_in_a_slot(&bed, &db, &b).await;
    is_given_back(&bed, &db, &of_a).await;
    pods_end(&team, &b, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
}

#[tokio::test]
async fn more_than_may_run_at_once() {
    let bed = Bed::shared().await;
    let team = bed.namespace("completions").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let of_five = json!({ "spec": { "parallelism": 2, "completions": 5 } });
    let job = |name| team.job(name).semaphore("db").runs("300ms");
    let a = job("a").with(of_five).create().await;
    a.is("started", |job| {
        job.spec.as_ref().and_then(|spec| spec.suspend) == Some(false)
    })
    .await;
    let b = job("b").create().await;
    a.is_complete().await;
    b.is_complete().await;

    assert_eq!(succeeded(&a).await, 5);
    let [of_a, of_b] = [grant_of(&a).await, grant_of(&b).await].map(Option::unwrap);
    assert!(of_a.fencing_token < of_b.fencing_token);
    for pod in a.pods().await {
        let annotations = pod.metadata.annotations.unwrap_or_default();
        assert_eq!(annotations[testbed::proof::SESSION], of_a.session);
    }
    nothing_is_left(&bed, &team, &db).await;
    let seen = observer.seen();
    assert_eq!((seen.peak_holders, seen.peak_jobs), (1, 1));
    // A short one may be missed.
    assert!(
        seen.all_holders.len() <= 2,
        "one slot for all of its pods: {seen:?}"
    );
}

async fn succeeded(job: &Job) -> i32 {
    let status = job.get().await.and_then(|job| job.status);
    status.and_then(|status| status.succeeded).unwrap_or(0)
}
