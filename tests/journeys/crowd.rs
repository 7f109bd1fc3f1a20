//! Many Jobs at once.
use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::json;
use testbed::{
    Bed,
    proof::{GRANTED_TO, grant_of, nothing_is_left, pods_run, uid_of},
};

#[tokio::test]
async fn forty_jobs_all_complete_in_three_slots() {
    let bed = Bed::shared().await;
    let team = bed.namespace("crowd").await;
    let db = team.semaphore("db").limit(3).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    db.is_ready().await;
    let job = |number: usize| team.job(&format!("job-{number:02}")).semaphore("db");
    // At first all slots are held for long enough to see it.
    let first = join_all((0..3).map(|number| job(number).runs("1h").create())).await;
    for job in &first {
        job.is_running().await;
        pods_run(job, 1).await;
    }
    let others = (3..40).map(|number| job(number).runs("200ms").create());
    let jobs = [first.clone(), join_all(others).await].concat();
    for job in &first {
        job.finish().await;
    }
    for job in &jobs {
        job.is_complete().await;
        job.has_event("SlotGranted").await;
        job.has_event("SlotReleased").await;
    }
    nothing_is_left(&bed, &team, &db).await;
    db.shows(json!({ "held": 0, "heldHere": 0, "waiting": 0, "holders": [], "queue": [] }))
        .await;
    let seen = observer.seen();
    // Consul shows the latest state of a key, not every state: a short holder may be missed.
    assert!(seen.peak_holders <= 3, "{seen:?}");
    assert_eq!((seen.peak_jobs, seen.all_jobs.len()), (3, 40));
    assert_eq!(observer.errors(), Vec::<String>::new());
    let mut sessions = BTreeSet::new();
    for job in &jobs {
        let grant = grant_of(job).await.expect("it was started by a grant");
        assert_eq!(grant.granted_to, uid_of(job).await, "{GRANTED_TO}");
        assert!(seen.all_jobs.contains(&grant.granted_to));
        sessions.insert(grant.session);
    }
    assert_eq!(sessions.len(), 40, "one session a Job");
    assert!(seen.all_holders.is_subset(&sessions), "{seen:?}");
}

#[tokio::test]
async fn two_semaphores_do_not_mind_each_other() {
    let bed = Bed::shared().await;
    let team = bed.namespace("two").await;
    let db = team.semaphore("db").limit(2).create().await;
    let mail = team.semaphore("mail").limit(1).create().await;
    let observers = [
        bed.watch_limit(&db.lock_prefix()).await,
        bed.watch_limit(&mail.lock_prefix()).await,
    ];
    let mut jobs = Vec::new();
    for number in 0..6 {
        for semaphore in ["db", "mail"] {
            let name = format!("{semaphore}-{number}");
            // At first both slots of `db` are held for long enough to see it.
            let runs = if number < 2 { "1h" } else { "300ms" };
            jobs.push(
                team.job(&name)
                    .semaphore(semaphore)
                    .runs(runs)
                    .create()
                    .await,
            );
        }
    }
    for job in [&jobs[0], &jobs[2]] {
        pods_run(job, 1).await;
    }
    for job in &jobs {
        if job.name().ends_with(['0', '1']) {
            job.finish().await;
        }
        job.is_complete().await;
        let lock_key = grant_of(job)
            .await
            .expect("it was started by a grant")
            .lock_key;
        let expected = if job.name().starts_with("db") {
            &db
        } else {
            &mail
        };
        let prefix = format!("{}/", expected.lock_prefix());
        assert!(lock_key.starts_with(&prefix), "{lock_key}");
    }
    for (semaphore, limit, observer) in [(&db, 2, &observers[0]), (&mail, 1, &observers[1])] {
        nothing_is_left(&bed, &team, semaphore).await;
        let seen = observer.seen();
        assert_eq!((seen.peak_jobs, seen.all_jobs.len()), (limit, 6));
        assert!(
            seen.peak_holders <= limit && seen.all_holders.len() <= 6,
            "{seen:?}"
        );
    }
}
