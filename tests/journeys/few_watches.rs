//! More semaphores than may be watched at once.

use testbed::Bed;

#[tokio::test]
async fn slots_that_others_give_back_are_noticed_also_where_nobody_watches() {
    let bed = Bed::builder().without_operator().start().await;
    let operator = bed.another_operator("few", ["--consul-max-watches", "1"], []);
    operator.start().await;
    let team = bed.namespace("few-watches").await;
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
        crate::proof::runs_in_a_slot(&bed, db, job).await;
    }
}
