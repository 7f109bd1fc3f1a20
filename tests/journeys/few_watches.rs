//! More semaphores than watches.

use std::time::Duration;

use testbed::{Bed, Namespace, Operator};

/// A bed whose operator watches one prefix at a time, and a namespace with this name.
async fn watching_one(name: &str) -> (Bed, Operator, Namespace) {
    let bed = Bed::builder().without_operator().start().await;
    let operator = bed.another_operator(name, ["--consul-max-watches", "1"], []);
    operator.start().await;
    let team = bed.namespace(name).await;
    (bed, operator, team)
}

#[tokio::test]
async fn slots_released_by_others_are_noticed_at_a_polled_prefix() {
    let (bed, _operator, team) = watching_one("few-watches").await;
    let consul = bed.consul();
    let mut waiting = Vec::new();
    for name in ["a", "b", "c"] {
        let db = team.semaphore(name).limit(1).create().await;
        db.is_ready().await;
        let other = consul.take_slot(&db.lock_prefix(), 1).await;
        let job = team.job(name).semaphore(name).runs("1h").create().await;
        job.has_event("SlotWaiting").await;
        waiting.push((db, other, job));
    }
    for (db, other, job) in &waiting {
        consul.give_back(&db.lock_prefix(), other).await;
        testbed::proof::runs_in_a_slot(&bed, db, job).await;
    }
}

/// If all known contenders are its own Jobs, an operator that does not watch the prefix may leave it unread for up to
/// a fifth of the TTL.
#[tokio::test]
async fn a_program_at_a_polled_prefix_is_served_before_the_whole_queue() {
    let (bed, _operator, team) = watching_one("newcomer").await;
    // At most one of them is watched.
    tokio::join!(
        a_newcomer_is_served(&bed, &team, "a"),
        a_newcomer_is_served(&bed, &team, "b")
    );
}

async fn a_newcomer_is_served(bed: &Bed, team: &Namespace, name: &str) {
    const LINE: usize = 40;
    let db = team.semaphore(name).limit(2).ttl("1h").create().await;
    db.is_ready().await;
    let job = |number: usize| team.job(&format!("{name}-{number}")).semaphore(name);
    for number in 0..LINE {
        job(number).runs("200ms").create().await;
    }
    job(0).is_complete().await;
    let newcomer = bed.consul_lock(name, &db.lock_prefix(), 2);
    let newcomer = newcomer.hold(Duration::from_millis(100)).start().await;
    newcomer.is_done().await;
    let waiting = db.status().await["waiting"].as_u64();
    assert!(waiting > Some(0), "all Jobs at {name} went first");
}
