//! Rates: at most so many Jobs start in any period. Judged by when the API server says that they were started.

use std::time::Duration;

use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::{Bed, Job, eventually};

fn rate(period: &str) -> Value {
    json!({ "mode": "Rate", "period": period })
}

/// When the API server took the operator's last write to a Job that only its start wrote to, in whole seconds.
async fn started(job: &Job) -> i64 {
    let job = job.get().await.expect("it is there");
    let writes = job.managed_fields().iter();
    let ours = writes.filter(|write| {
        let manager = write.manager.as_deref().unwrap_or_default();
        manager.starts_with("consul-semaphore-operator")
    });
    let times = ours.filter_map(|write| write.time.as_ref());
    let last = times.map(|time| time.0.as_second()).max();
    last.expect("it was started")
}

/// Checks that at most `limit` of these times lie in any period of so many seconds. They are rounded to seconds.
fn keeps_the_rate(mut starts: Vec<i64>, limit: usize, period: i64) {
    starts.sort_unstable();
    for (earlier, later) in starts.iter().zip(&starts[limit..]) {
        assert!(later - earlier >= period - 1, "{starts:?}");
    }
}

#[tokio::test]
async fn at_most_so_many_start_in_any_period_among_two_semaphores_of_one_prefix_and_exec() {
    const PERIOD: i64 = 8;
    let bed = Bed::shared().await;
    let team = bed.namespace("rates").await;
    let prefix = format!("shared/{}", team.name());
    let mut jobs = Vec::new();
    for name in ["x", "y"] {
        let semaphore = team.semaphore(name).prefix(&prefix).limit(2);
        semaphore.spec(rate("8s")).create().await.is_ready().await;
        for number in 0..3 {
            let job = team.job(&format!("{name}-{number}")).semaphore(name);
            jobs.push(job.create().await);
        }
    }
    let journal = bed.folder().path().join(team.name());
    let command = format!("date +%s >> {}", journal.display());
    let exec = bed.exec("exec", &prefix, 2).period(Duration::from_secs(8));
    let exec = exec.running(["sh", "-c", &command]).start().await;
    exec.is_done().await;
    let mut starts: Vec<i64> = std::fs::read_to_string(journal)
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    for job in &jobs {
        job.is_complete().await;
        starts.push(started(job).await);
    }
    assert_eq!(starts.len(), 7);
    keeps_the_rate(starts, 2, PERIOD);
    eventually("all slots are free", || async {
        let left = bed.consul().contenders(&prefix).await.len();
        testbed::same(left, 0)
    })
    .await;
}

#[tokio::test]
async fn a_job_that_outlives_its_period_runs_on_and_holds_no_slot() {
    let bed = Bed::shared().await;
    let team = bed.namespace("rate-outlived").await;
    let api = team.semaphore("api").limit(1).spec(rate("2s"));
    let api = api.create().await;
    let first = team.job("first").semaphore("api").runs("1h").create().await;
    first.is_running().await;
    let second = team.job("second").semaphore("api").runs("1h");
    let second = second.create().await;
    second.is_running().await;
    api.shows(json!({ "held": 0, "waiting": 0 })).await;
    first.is_running().await;
    keeps_the_rate(vec![started(&first).await, started(&second).await], 1, 2);

    // A start after a suspension is a start.
    api.patch(json!({ "spec": { "period": "1h" } })).await;
    let third = team.job("third").semaphore("api").runs("1h").create().await;
    third.is_running().await;
    second.suspend().await;
    second.is_on_hold().await;
    second.annotate("consul-semaphore.io/hold", None).await;
    let words = ["the next start is allowed at"];
    api.has_condition_that_says("SlotsAvailable", "False", "AllSlotsHeld", &words)
        .await;
    second.is_waiting().await;
}

#[tokio::test]
async fn a_limit_on_what_runs_and_a_rate_are_granted_together() {
    let bed = Bed::shared().await;
    let team = bed.namespace("rate-and-limit").await;
    let db = team.semaphore("db").limit(2).create().await;
    let api = team.semaphore("api").limit(1).spec(rate("3s"));
    let api = api.create().await;
    let mut jobs = Vec::new();
    for name in ["a", "b", "c"] {
        let job = team.job(name).semaphore("db, api").runs("1h");
        jobs.push(job.create().await);
    }
    for job in &jobs[..2] {
        job.is_running().await;
    }
    // The rate allows the third one again, but two run.
    api.shows(json!({ "held": 0 })).await;
    db.shows(json!({ "held": 2 })).await;
    jobs[2].is_waiting().await;
    jobs[0].finish().await;
    jobs[2].is_running().await;
    jobs[1].is_running().await;
    let mut starts = Vec::new();
    for job in &jobs {
        starts.push(started(job).await);
    }
    keeps_the_rate(starts, 1, 3);
}

#[tokio::test]
async fn a_slot_of_a_rate_outlives_the_operator_and_its_session() {
    let bed = Bed::start().await;
    let team = bed.namespace("rate-restart").await;
    let api = team.semaphore("api").limit(1).spec(rate("15s"));
    let api = api.create().await;
    let prefix = api.lock_prefix();
    let mut starts = Vec::new();
    let first = team.job("first").semaphore("api").create().await;
    first.is_complete().await;
    starts.push(started(&first).await);
    first.delete().await;
    first.is_gone().await;
    bed.operator().kill().await;
    bed.operator().start().await;
    let second = team.job("second").semaphore("api").create().await;
    second.is_complete().await;
    starts.push(started(&second).await);

    // Another session takes the slot over.
    let holders = || bed.consul().holders(&prefix);
    let session = holders().await.pop_first().expect("it is held");
    bed.consul().destroy_session(&session).await;
    eventually("another session holds the slot", || async {
        let now = holders().await;
        testbed::same(now.len() == 1 && !now.contains(&session), true)
    })
    .await;
    let third = team.job("third").semaphore("api").create().await;
    third.is_complete().await;
    starts.push(started(&third).await);
    keeps_the_rate(starts, 1, 15);

    // The finalizer leaves slots to their sessions.
    api.delete().await;
    api.is_gone().await;
    assert_eq!(bed.consul().contenders(&prefix).await.len(), 1);
}
