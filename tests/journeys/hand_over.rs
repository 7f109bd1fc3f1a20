//! Five Jobs pass through a semaphore of two slots, in order.
use serde_json::json;
use testbed::Bed;

use crate::proof::{
    grant_of, holders_are, is_given_back, line_is, nothing_is_left, runs_in_a_slot,
};

#[tokio::test]
async fn five_jobs_pass_through_two_slots() {
    let bed = Bed::shared().await;
    let team = bed.namespace("hand-over").await;
    let db = team.semaphore("db").limit(2).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    db.is_ready().await;

    let mut jobs = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        jobs.push(team.job(name).semaphore("db").runs("2s").create().await);
    }
    let [a, b, c, d, e] = &jobs[..] else {
        unreachable!("five were made")
    };
    let of_a = runs_in_a_slot(&bed, &db, a).await;
    let of_b = runs_in_a_slot(&bed, &db, b).await;
    holders_are(&bed, &db, [&of_a, &of_b]).await;
    line_is(&db, [c, d, e]).await;
    for waits in [c, d, e] {
        waits.has_event("SlotWaiting").await;
        assert_eq!(grant_of(waits).await, None);
        assert_eq!(waits.session().await, None);
    }

    let mut tokens = Vec::new();
    for job in &jobs {
        job.is_complete().await;
        job.has_event("SlotGranted").await;
        job.has_event("SlotReleased").await;
        let grant = grant_of(job).await.expect("it was started by a grant");
        assert_eq!(job.session().await.as_ref(), Some(&grant.session));
        is_given_back(&bed, &db, &grant).await;
        tokens.push(grant.fencing_token);
    }
    // Those that one write grants share its index.
    assert!(
        tokens.is_sorted() && tokens[0] < tokens[4],
        "a later grant has a greater token: {tokens:?}"
    );
    db.shows(
        json!({ "held": 0, "heldHere": 0, "waiting": 0, "limit": 2, "fencingToken": tokens[4] }),
    )
    .await;
    nothing_is_left(&bed, &team, &db).await;
    let seen = observer.seen();
    assert_eq!((seen.peak_holders, seen.peak_jobs), (2, 2));
    assert_eq!((seen.all_holders.len(), seen.all_jobs.len()), (5, 5));
}
