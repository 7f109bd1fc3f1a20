//! Jobs that are deleted and created again under the same name: each waits like any other, and no decision about the
//! earlier one starts it.
use testbed::{
    Bed,
    proof::{
        End, all_is_decided, grant_of, holders_are, is_given_back, nothing_is_left, pods_end,
        pods_run, queue_is, runs_in_a_slot, uid_of,
    },
};

#[tokio::test]
async fn while_pods_of_the_one_before_are_still_there() {
    let bed = Bed::shared().await;
    let team = bed.namespace("made-again").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let job = || team.job("a").semaphore("db").runs("1h").terminates_in("1h");
    let a = job().create().await;
    let of_first = runs_in_a_slot(&bed, &db, &a).await;
    pods_run(&a, 1).await;
    for _ in 0..5 {
        a.delete().await;
        a.is_gone().await;
        job().create().await;
    }
    let b = team.job("b").semaphore("db").runs("1h").create().await;
    all_is_decided(&team, &db).await;
    queue_is(&db, [&a, &b]).await;
    holders_are(&bed, &db, [&of_first]).await;
    assert_eq!((a.session().await, grant_of(&a).await), (None, None));
    assert_ne!(uid_of(&a).await, of_first.granted_to);

    pods_end(&team, &a, End::Failed).await;
    let of_last = runs_in_a_slot(&bed, &db, &a).await;
    assert_ne!(of_last.session, of_first.session);
    assert!(of_first.fencing_token < of_last.fencing_token);
    is_given_back(&bed, &db, &of_first).await;
    pods_end(&team, &a, End::Succeeded).await;
    runs_in_a_slot(&bed, &db, &b).await;
    pods_end(&team, &b, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
    let seen = observer.seen();
    assert_eq!((seen.peak_holders, seen.peak_jobs), (1, 1));
    assert_eq!(seen.all_holders.len(), 3, "those in between had no slot");
}

#[tokio::test]
async fn again_and_again_while_a_slot_is_free() {
    let bed = Bed::shared().await;
    let team = bed.namespace("churned").await;
    let db = team.semaphore("db").limit(1).create().await;
    db.is_ready().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let job = |name| team.job(name).semaphore("db").runs("1h");
    // Wherever the operator is with the earlier Job: before its grant, between grant and start, or after it.
    for _ in 0..30 {
        let a = job("a").create().await;
        a.delete().await;
        a.is_gone().await;
    }
    // Another name, because the Job controller itself can lose track of a Job for minutes if the previous one was
    // deleted while its pods were being created.
    let mut before = None;
    for _ in 0..5 {
        let b = job("b").create().await;
        let grant = runs_in_a_slot(&bed, &db, &b).await;
        pods_run(&b, 1).await;
        assert_eq!(grant.granted_to, uid_of(&b).await);
        assert!(before < Some(grant.fencing_token));
        before = Some(grant.fencing_token);
        b.delete().await;
        b.is_gone().await;
    }
    let last = job("c").create().await;
    let grant = runs_in_a_slot(&bed, &db, &last).await;
    holders_are(&bed, &db, [&grant]).await;
    pods_end(&team, &last, End::Succeeded).await;
    last.is_complete().await;
    nothing_is_left(&bed, &team, &db).await;
    assert_eq!(observer.peak_holders(), 1);
}
