//! Jobs, Consul's Go client and `consul lock`, concurrently on one prefix.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use testbed::Bed;

#[tokio::test]
async fn jobs_and_programs_of_others_share_a_limit() {
    let bed = Bed::shared().await;
    let team = bed.namespace("together").await;
    let db = team.semaphore("db").limit(3).create().await;
    let prefix = db.lock_prefix();
    db.is_ready().await;
    let observer = bed.watch_limit(&prefix).await;

    let hold = Duration::from_millis(100);
    let mut others = Vec::new();
    for number in 1..=3 {
        let go = bed.go_semaphore(&format!("go-{number}"), &prefix, 3);
        others.push(go.hold(hold).times(8).start().await);
        let cli = bed.consul_lock(&format!("cli-{number}"), &prefix, 3);
        others.push(cli.hold(hold).times(4).start().await);
    }
    let mut jobs = Vec::new();
    for number in 1..=12 {
        let job = team.job(&format!("job-{number}")).semaphore("db");
        jobs.push(job.runs("100ms").create().await);
    }
    for job in &jobs {
        job.is_complete().await;
        job.has_event("SlotReleased").await;
    }
    for other in &others {
        other.is_done().await;
    }
    let seen = observer.seen();
    assert_eq!(seen.peak_holders, 3);
    assert_eq!(seen.all_jobs.len(), 12, "every Job had its turn");
    assert_eq!(observer.errors(), Vec::<String>::new());
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
    db.is_ready().await;
}

/// The first one creates the lock key, and the others use it unchanged.
#[tokio::test]
async fn the_lock_key_may_be_the_others() {
    let bed = Bed::shared().await;
    let team = bed.namespace("theirs-first").await;
    let (go, cli) = (
        team.semaphore("go").limit(2),
        team.semaphore("cli").limit(2),
    );
    let theirs = [
        bed.go_semaphore("go", &go.lock_prefix(), 2).start().await,
        bed.consul_lock("cli", &cli.lock_prefix(), 2).start().await,
    ];
    for other in &theirs {
        other.holds().await;
    }
    for semaphore in [go, cli] {
        let name = semaphore.name().to_owned();
        let semaphore = semaphore.create().await;
        let job = team.job(&name).semaphore(&name).create().await;
        job.is_complete().await;
        semaphore.is_ready().await;
        semaphore.shows(json!({ "held": 1, "heldHere": 0 })).await;
    }
    for other in &theirs {
        other.stop().await;
    }
}

/// More than a transaction of an old Consul accepts, which only reports that then.
#[tokio::test]
async fn eighty_jobs_have_slots_at_once() {
    let bed = Bed::shared().await;
    let team = bed.namespace("eighty").await;
    let db = team.semaphore("db").limit(80).paused(true).create().await;
    let names: Vec<_> = (0..80).map(|number| format!("job-{number}")).collect();
    let jobs = join_all(names.iter().map(|name| {
        let job = team.job(name).semaphore("db").runs("1h");
        job.create()
    }))
    .await;
    db.shows(json!({ "held": 0, "waiting": 80 })).await;
    db.resume().await;
    for job in &jobs {
        job.is_running().await;
    }
    db.shows(json!({ "held": 80, "heldHere": 80, "waiting": 0 }))
        .await;
}
