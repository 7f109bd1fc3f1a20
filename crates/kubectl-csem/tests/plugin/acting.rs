//! `hold`, `unhold`, `bump`, `pause` and `resume`.

use serde_json::json;
use testbed::{Bed, eventually, same};

use crate::stage::User;

#[tokio::test]
async fn a_job_leaves_the_queue_and_comes_back() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-hold").await;
    let user = User::admin(&bed, &team);
    let db = team.semaphore("db").limit(1).create().await;
    let job = |name: &str| team.job(name).semaphore("db").runs("1h");
    let first = job("first").create().await;
    first.is_running().await;
    let waits = job("waits").create().await;
    db.shows(json!({ "held": 1, "waiting": 1 })).await;

    let said = user.sees(&["hold", "job.batch/waits"]).await;
    assert!(said.starts_with("job.batch/waits is on hold"), "{said}");
    waits.is_on_hold().await;
    db.shows(json!({ "waiting": 0 })).await;
    assert!(user.sees(&["hold", "waits"]).await.contains("already"));

    user.sees(&["unhold", "waits"]).await;
    db.shows(json!({ "waiting": 1 })).await;
    assert_eq!(db.status().await["queue"][0]["name"], "waits");
    assert!(
        user.sees(&["unhold", "waits"])
            .await
            .contains("not on hold")
    );

    // A running Job continues, and the plugin says so.
    let said = user.sees(&["hold", "first"]).await;
    assert!(said.contains("keeps running"), "{said}");
    user.sees(&["unhold", "first"]).await;
    first.is_running().await;
    first.finish().await;
    user.csem(&["hold", "first"]).await.is(1, &["is done"]);
    waits.is_running().await;
}

#[tokio::test]
async fn a_bumped_job_goes_first() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-bump").await;
    let user = User::admin(&bed, &team);
    let db = team.semaphore("db").limit(1).paused(true).create().await;
    for name in ["a", "b", "c"] {
        team.job(name).semaphore("db").create().await;
    }
    db.shows(json!({ "waiting": 3 })).await;
    user.sees(&["bump", "c", "--priority", "5"]).await;
    user.sees(&["bump", "a", "-5"]).await;
    let line = || async {
        let status = db.status().await;
        let queue = status["queue"].as_array().cloned().unwrap_or_default();
        let jobs: Vec<_> = queue.iter().map(|place| place["name"].clone()).collect();
        same(jobs, vec![json!("c"), json!("b"), json!("a")])
    };
    eventually("the queue has changed", line).await;
    assert!(
        user.sees(&["bump", "c", "--priority", "5"])
            .await
            .contains("already")
    );
    user.csem(&["bump", "c"]).await.is(2, &["--priority"]);
    team.job("plain").create().await;
    let refused = user.csem(&["bump", "plain", "--priority", "1"]).await;
    refused.is(
        1,
        &[
            "needs no slot",
            "no annotation consul-semaphore.io/semaphore",
        ],
    );
}

#[tokio::test]
async fn a_semaphore_is_paused_and_resumed() {
    let bed = Bed::shared().await;
    let team = bed.namespace("csem-pause").await;
    let user = User::admin(&bed, &team);
    let db = team.semaphore("db").limit(1).create().await;
    db.is_ready().await;
    let said = user.sees(&["pause", "csem/db"]).await;
    assert!(said.contains("db paused"), "{said}");
    db.has_condition("Ready", "True", "Paused").await;
    let job = team.job("a").semaphore("db").create().await;
    db.shows(json!({ "waiting": 1 })).await;
    assert!(user.sees(&["pause", "db"]).await.contains("already"));
    let said = user.sees(&["resume", "db"]).await;
    assert!(said.contains("db resumed: 1 waits"), "{said}");
    job.is_complete().await;
    assert!(user.sees(&["resume", "db"]).await.contains("not paused"));
}
