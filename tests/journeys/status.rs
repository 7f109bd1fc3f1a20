//! What `kubectl` shows of a semaphore: columns, holders, the queue, conditions.

use std::{collections::BTreeSet, sync::Arc};

use consul_semaphore_api::ConsulSemaphore;
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::{
    ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use testbed::{Bed, Job, eventually, helpers::cluster_id, same};

/// The output of `kubectl get csem`: each line's words, without the last column, the age.
fn table(printed: &str) -> Vec<Vec<&str>> {
    printed
        .lines()
        .map(|line| {
            let mut words: Vec<_> = line.split_whitespace().collect();
            words.pop();
            words
        })
        .collect()
}

fn time(value: &Value) -> Timestamp {
    let text = value.as_str().unwrap_or_default();
    text.parse()
        .unwrap_or_else(|error| panic!("{value}: {error}"))
}

/// The fencing token in a Job's template, which its pods read.
async fn fencing_token(job: &Job) -> i64 {
    let job = job.get().await.expect("the Job");
    let template = job.spec.expect("its spec").template;
    let annotations = template.metadata.and_then(|metadata| metadata.annotations);
    let token = annotations.and_then(|all| all.get("consul-semaphore.io/fencing-token").cloned());
    token.expect("its token").parse().expect("a number")
}

#[tokio::test]
async fn the_status_says_who_holds_and_who_waits() {
    let bed = Bed::shared().await;
    let team = bed.namespace("status").await;
    let db = team.semaphore("db").limit(1).create().await;
    let cluster: String = cluster_id(&bed).await.chars().take(8).collect();
    // One after another, so that their ages differ.
    let mut holders = Vec::new();
    for (limit, name) in [(1, "c"), (2, "a"), (3, "b")] {
        db.set_limit(limit).await;
        let job = team.job(name).semaphore("db").runs("1h").create().await;
        job.is_running().await;
        holders.push(job);
    }
    for (name, priority) in [("x", 0), ("y", 0), ("urgent", 10), ("never", -5)] {
        let job = team.job(name).semaphore("db").priority(priority);
        job.create().await.has_event("SlotWaiting").await;
    }
    team.job("held-back").semaphore("db").hold().create().await;
    let token = fencing_token(&holders[2]).await;
    assert!(fencing_token(&holders[0]).await < token);
    db.shows(json!({
        "limit": 3, "appliedLimits": [3], "held": 3, "heldHere": 3, "waiting": 4, "fencingToken": token,
    }))
    .await;

    let status = db.status().await;
    let shown = status["holders"].as_array().expect("a list");
    assert_eq!(shown.len(), holders.len());
    let mut before = Timestamp::MIN;
    for (shown, job) in shown.iter().zip(&holders) {
        let parts = ["kind", "cluster", "namespace", "name"].map(|part| &shown[part]);
        let expected = ["Job", &cluster, team.name(), job.name()];
        assert_eq!(parts, expected, "oldest first");
        assert_eq!(shown["session"].as_str(), job.session().await.as_deref());
        let since = time(&shown["since"]);
        assert!(before <= since, "{status}");
        before = since;
    }
    let queue = status["queue"].as_array().expect("a list");
    let line: Vec<_> = queue.iter().map(|waiting| &waiting["name"]).collect();
    assert_eq!(line, ["urgent", "x", "y", "never"], "next first");
    for waiting in queue {
        time(&waiting["since"]);
    }

    let printed = team.kubectl(["get", "csem"]).await;
    let expected = [
        vec![
            "NAME", "LIMIT", "HELD", "WAITING", "KEYS", "READY", "REASON",
        ],
        vec!["db", "3", "3", "4", "True", "Reconciled"],
    ];
    assert_eq!(table(&printed), expected, "{printed}");
    let by_category = team.kubectl(["get", "consul"]).await;
    assert_eq!(
        table(&by_category)[1][1..],
        expected[1][1..],
        "{by_category}"
    );
}

#[tokio::test]
async fn what_others_write_into_the_status_does_not_stay() {
    let bed = Bed::shared().await;
    let team = bed.namespace("overwritten").await;
    let db = team.semaphore("db").limit(1).create().await;
    db.is_ready().await;
    let theirs = json!({ "type": "Theirs", "status": "True", "reason": "Own", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    for (what, held) in [("once", 7), ("again", 8)] {
        let before = db.status().await;
        let mut conditions = before["conditions"].as_array().expect("a list").clone();
        conditions[0]["status"] = json!("False");
        conditions[0]["reason"] = json!(what);
        conditions.retain(|condition| condition["type"] != "Theirs");
        conditions.push(theirs.clone());
        let patch = json!({ "held": held, "appliedLimits": [5], "conditions": conditions });
        db.patch_status(&patch).await;
        db.shows(json!({ "held": 0, "appliedLimits": [1] })).await;
        db.is_ready().await;
        let after = db.status().await["conditions"].clone();
        let after = after.as_array().expect("a list");
        assert!(
            after.contains(&theirs),
            "what is nobody else's stays: {after:?}"
        );
    }
}

#[tokio::test]
async fn conditions_say_what_they_are_about() {
    let bed = Bed::shared().await;
    let team = bed.namespace("conditions").await;
    let db = team.semaphore("db").limit(1).create().await;
    let job = team.job("a").semaphore("db").runs("1h").create().await;
    job.is_running().await;
    db.has_condition("SlotsAvailable", "False", "AllSlotsHeld")
        .await;
    db.has_condition("LimitAgreed", "True", "LimitsMatch").await;
    db.is_ready().await;
    let conditions = db.status().await["conditions"].clone();
    let said: Vec<_> = conditions
        .as_array()
        .expect("a list")
        .iter()
        .map(|condition| {
            assert_eq!(condition["observedGeneration"], 1, "{condition}");
            assert!(
                condition["message"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty())
            );
            time(&condition["lastTransitionTime"]);
            ["type", "status", "reason"].map(|field| condition[field].as_str().unwrap_or_default())
        })
        .collect();
    let expected = [
        ["Ready", "True", "Reconciled"],
        ["ConsulReachable", "True", "Reachable"],
        ["LimitAgreed", "True", "LimitsMatch"],
        ["SlotsAvailable", "False", "AllSlotsHeld"],
    ];
    assert_eq!(said, expected);

    // Another spec, and another message: the same status since the same time.
    let since = |kind: &'static str| {
        let db = &db;
        async move { db.condition(kind).await["lastTransitionTime"].clone() }
    };
    let (ready, slots) = (since("Ready").await, since("SlotsAvailable").await);
    db.set_limit(2).await;
    db.has_condition("SlotsAvailable", "True", "SlotsFree")
        .await;
    let limit = db.condition("LimitAgreed").await;
    assert_eq!(limit["observedGeneration"], 2, "{limit}");
    assert!(
        limit["message"]
            .as_str()
            .is_some_and(|text| text.ends_with('2'))
    );
    assert_eq!(since("Ready").await, ready);
    assert!(time(&since("SlotsAvailable").await) >= time(&slots));
    db.pause().await;
    db.has_condition("Ready", "True", "Paused").await;
    // Ready for another reason now, but since the same time.
    assert_eq!(since("Ready").await, ready);
    db.delete().await;
    db.has_condition("Ready", "False", "Terminating").await;
    assert!(time(&since("Ready").await) >= time(&ready));
}

#[tokio::test]
async fn the_status_is_not_written_for_every_change() {
    const JOBS: usize = 60;
    let bed = Bed::shared().await;
    let team = bed.namespace("coalesced").await;
    let db = team.semaphore("db").limit(20).paused(true).create().await;
    db.has_condition("Ready", "True", "Paused").await;
    let mut jobs = Vec::new();
    for number in 0..JOBS {
        let job = team.job(&format!("quick-{number}")).semaphore("db");
        jobs.push(job.runs("100ms").create().await);
    }
    db.shows(json!({ "waiting": JOBS })).await;

    let versions = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = versions.clone();
    let changes = watcher(team.api::<ConsulSemaphore>(), watcher::Config::default());
    let watching = tokio::spawn(async move {
        let mut changes = std::pin::pin!(changes.default_backoff().applied_objects());
        while let Some(change) = changes.next().await {
            // After an error the watch goes on where it was.
            let version = change.ok().map(|semaphore| semaphore.resource_version());
            seen.lock().extend(version);
        }
    });
    let written = || versions.lock().len();
    eventually("the watch has begun", || async { written() > 0 }).await;
    let began = tokio::time::Instant::now();
    db.resume().await;
    for job in &jobs {
        job.is_complete().await;
        job.has_event("SlotReleased").await;
    }
    db.shows(json!({ "held": 0, "heldHere": 0, "waiting": 0, "holders": [], "queue": [] }))
        .await;
    watching.abort();
    let writes = written();
    // About one per second, however long it takes.
    let seconds = usize::try_from(began.elapsed().as_secs()).expect("a short time");
    let most = (JOBS / 2).max(seconds + 10);
    assert!(
        writes < most,
        "{writes} writes for {JOBS} hand-overs in {seconds} s"
    );

    // Nothing is lost at the end, and nothing is written when nothing happens.
    let last = db.get().await.expect("the semaphore")["metadata"]["resourceVersion"].clone();
    let other = team.semaphore("other").create().await;
    team.job("other").semaphore("other").create().await;
    team.job("other").is_complete().await;
    other.shows(json!({ "held": 0, "waiting": 0 })).await;
    let now = || async {
        let db = db.get().await.expect("the semaphore");
        same(db["metadata"]["resourceVersion"].clone(), last.clone())
    };
    now().await.expect("the same version");
}

#[tokio::test]
async fn the_queue_says_when_a_job_is_likely_to_start() {
    let bed = Bed::shared().await;
    let team = bed.namespace("status-expected").await;
    let db = team.semaphore("db").limit(1).create().await;
    for number in 0..16 {
        let job = team.job(&format!("job-{number}")).semaphore("db");
        job.runs("2s").create().await;
    }
    // The last one has many before it, so that it still waits when this is read.
    eventually("the status says when the last Job starts", || async {
        let status = db.status().await;
        let queue = status["queue"].as_array().cloned().unwrap_or_default();
        let expected: Vec<Timestamp> = queue
            .iter()
            .filter(|job| job.get("expected").is_some())
            .map(|job| time(&job["expected"]))
            .collect();
        let in_order = expected.is_sorted();
        if expected.len() > 1 && in_order {
            Ok(())
        } else {
            Err(status.to_string())
        }
    })
    .await;
}
