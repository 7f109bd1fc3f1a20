//! Five Jobs use a semaphore of two slots, in order.
use serde_json::json;
use testbed::{
    Bed,
    proof::{
        End, grant_of, holders_are, is_given_back, nothing_is_left, pods_end, queue_is,
        runs_in_a_slot,
    },
};

#[tokio::test]
async fn five_jobs_pass_through_two_slots() {
    let bed = Bed::shared().await;
    let team = bed.namespace("hand-over").await;
    // It grants nothing until all are queued: a Job that the Job controller has not marked as suspended yet does not
    // keep others waiting.
    let db = team.semaphore("db").limit(2).paused(true).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let mut jobs = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        jobs.push(team.job(name).semaphore("db").runs("1h").create().await);
    }
    let [a, b, c, d, e] = &jobs[..] else {
        unreachable!("five were made")
    };
    queue_is(&db, [a, b, c, d, e]).await;
    for job in &jobs {
        job.has_event("SlotWaiting").await;
        assert_eq!((job.session().await, grant_of(job).await), (None, None));
    }

    db.resume().await;
    let mut holders = [
        runs_in_a_slot(&bed, &db, a).await,
        runs_in_a_slot(&bed, &db, b).await,
    ];
    // One write may have granted both.
    assert!(holders[0].fencing_token <= holders[1].fencing_token);
    for (job, next, waiting) in [(a, c, 2), (b, d, 1), (c, e, 0)] {
        holders_are(&bed, &db, holders.each_ref()).await;
        pods_end(&team, job, End::Succeeded).await;
        job.is_complete().await;
        let grant = runs_in_a_slot(&bed, &db, next).await;
        let token = grant.fencing_token;
        assert!(
            holders[1].fencing_token < token,
            "a later grant has a greater token"
        );
        db.shows(json!({ "held": 2, "heldHere": 2, "waiting": waiting, "fencingToken": token }))
            .await;
        let [done, other] = holders;
        is_given_back(&bed, &db, &done).await;
        holders = [other, grant];
    }
    for job in [d, e] {
        pods_end(&team, job, End::Succeeded).await;
        job.is_complete().await;
    }
    for job in &jobs {
        job.has_event("SlotGranted").await;
        job.has_event("SlotReleased").await;
        // Its grant stays recorded on it.
        let grant = grant_of(job).await.expect("it was started by a grant");
        assert_eq!(job.session().await.as_ref(), Some(&grant.session));
    }
    nothing_is_left(&bed, &team, &db).await;
    db.shows(json!({ "held": 0, "heldHere": 0, "waiting": 0, "limit": 2 }))
        .await;
    let seen = observer.seen();
    assert_eq!((seen.peak_holders, seen.peak_jobs), (2, 2));
    assert_eq!((seen.all_holders.len(), seen.all_jobs.len()), (5, 5));
}
