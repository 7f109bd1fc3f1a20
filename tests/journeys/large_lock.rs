//! A lock key that Consul accepts as a single write, but not in a transaction.

use testbed::{Bed, SEMAPHORE_FLAGS, eventually};

#[tokio::test]
async fn a_lock_that_is_too_large_says_what_to_do() {
    let bed = Bed::shared().await;
    let team = bed.namespace("large-lock").await;
    let consul = bed.consul();
    let db = team.semaphore("db").limit(2);
    let key = format!("{}/.lock", db.lock_prefix());
    let body = |padding: usize| {
        let padding = "x".repeat(padding);
        format!(r#"{{"Limit":2,"Holders":{{}},"Padding":"{padding}"}}"#)
    };
    consul.put(&key, SEMAPHORE_FLAGS, body(400 << 10)).await;
    let db = db.create().await;
    let job = team.job("a").semaphore("db").create().await;

    let words = [&*key, "512 KiB", "limits.txn_max_req_len"];
    db.has_condition_that_says("Ready", "False", "LockTooLarge", &words)
        .await;
    job.is_waiting().await;
    let not_ready = format!(
        "_ready{{namespace=\"{}\",semaphore=\"db\",reason=\"LockTooLarge\"}} 0",
        team.name()
    );
    eventually("the metrics say so, too", || async {
        let metrics = bed.operator().get("/metrics").await;
        metrics.contains(&not_ready).then_some(()).ok_or(metrics)
    })
    .await;

    consul.put(&key, SEMAPHORE_FLAGS, body(300 << 10)).await;
    job.is_complete().await;
    db.is_ready().await;
    // One line for the problem, and one for its end, whatever else a busy machine causes.
    let of = format!("semaphore={}/db", team.name());
    let logs = bed.operator().logs();
    let lines = |word: &str| {
        let about = |line: &&str| line.contains(&of) && line.contains(word);
        logs.lines().filter(about).count()
    };
    assert_eq!(lines("reason=LockTooLarge"), 1, "{logs}");
    assert!(lines("ready again") >= 1, "{logs}");
}
