//! Waits that end without a slot, and running Jobs that newer ones replace.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1 as batch;
use kube::api::ListParams;
use serde_json::json;
use testbed::{Bed, Job, Namespace, eventually, proof::HOLD};

const ON_CONTENTION: &str = "consul-semaphore.io/on-contention";
const WAIT_TIMEOUT: &str = "consul-semaphore.io/wait-timeout";
const WAITS_SINCE: &str = "consul-semaphore.io/waits-since";
const FAILED: &str = "consul-semaphore.io/failed";

/// Waits until a Job has failed without a pod, and returns the message of the event that says why.
pub(crate) async fn fails(job: &Job, why: &str) -> String {
    job.is_failed().await;
    let object = job.get().await.expect("the Job");
    let conditions = object.status.and_then(|status| status.conditions);
    let failed = conditions.into_iter().flatten();
    let reasons: Vec<_> = failed
        .filter(|condition| condition.type_ == "Failed")
        .filter_map(|condition| condition.reason)
        .collect();
    assert_eq!(reasons, ["DeadlineExceeded"], "{}", job.name());
    let annotations = object.metadata.annotations.expect("annotations");
    assert_eq!(annotations[FAILED], why, "{}", job.name());
    job.has_no_pods().await;
    job.has_event(why).await
}

/// When a Job failed.
async fn failed_at(job: &Job) -> Timestamp {
    let object = job.get().await.expect("the Job");
    let conditions = object.status.and_then(|status| status.conditions);
    let mut conditions = conditions.into_iter().flatten();
    let failed = conditions.find(|condition| condition.type_ == "Failed");
    let time = failed.and_then(|failed| failed.last_transition_time);
    time.expect("a time").0
}

#[tokio::test]
async fn a_job_that_must_not_wait_fails_without_a_pod() {
    let bed = Bed::shared().await;
    let team = bed.namespace("fail").await;
    let db = team.semaphore("db").limit(1).create().await;
    let licenses = team.semaphore("licenses").limit(5).create().await;
    licenses.is_ready().await;
    let impatient = |name: &str, asks: &str| {
        let job = team.job(name).semaphore(asks);
        job.annotation(ON_CONTENTION, "Fail")
    };
    let first = impatient("first", "db").runs("1h").create().await;
    first.is_running().await;
    let plain = impatient("plain", "db").create().await;
    let indexed =
        json!({ "spec": { "completionMode": "Indexed", "completions": 3, "parallelism": 3 } });
    let indexed = impatient("indexed", "db").with(indexed).create().await;
    let labels = json!({ "mine": "true" });
    let selected = json!({ "spec": {
        "manualSelector": true,
        "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels } },
    } });
    let selected = impatient("selected", "db").with(selected).create().await;
    let bounded = json!({ "spec": { "activeDeadlineSeconds": 3600, "backoffLimit": 0 } });
    let bounded = impatient("bounded", "db").with(bounded).create().await;
    let several = impatient("several", "licenses:2, db").create().await;
    team.kubectl([
        "wait",
        "--for=condition=Failed",
        "--timeout=120s",
        "job/plain",
    ])
    .await;
    for job in [&plain, &indexed, &selected, &bounded, &several] {
        let note = fails(job, "Contended").await;
        assert!(note.contains("/first (session "), "{note}");
    }
    // A Job that may wait does, and the first continues.
    let waits = team.job("waits").semaphore("db").create().await;
    waits.has_event("SlotWaiting").await;
    first.finish().await;
    waits.is_complete().await;
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
    licenses.shows(json!({ "held": 0, "waiting": 0 })).await;
}

#[tokio::test]
async fn a_wait_that_is_too_long_ends() {
    let bed = Bed::shared().await;
    let team = bed.namespace("wait-timeout").await;
    let db = team.semaphore("db").limit(1).create().await;
    let default = json!({ "waitTimeout": "2s" });
    let hasty = team.semaphore("hasty").limit(1).spec(default);
    let hasty = hasty.create().await;
    for semaphore in ["db", "hasty"] {
        let holder = team.job(&format!("holds-{semaphore}")).semaphore(semaphore);
        holder.runs("1h").create().await.is_running().await;
    }
    let timeout = |name: &str, asks: &str| {
        let job = team.job(name).semaphore(asks);
        job.annotation(WAIT_TIMEOUT, "2s")
    };
    let by_annotation = timeout("by-annotation", "db").create().await;
    let by_default = team.job("by-default").semaphore("hasty").create().await;
    let several = timeout("several", "hasty, db").create().await;
    let patient = team.job("patient").semaphore("hasty");
    let patient = patient.annotation(WAIT_TIMEOUT, "1h").create().await;
    let unknown = timeout("unknown", "nowhere").create().await;
    let too_many = timeout("too-many", "db:2").create().await;
    let runs = team.semaphore("free").limit(1).create().await;
    // It is granted long before.
    let runs_on = team.job("runs-on").semaphore("free").runs("1h");
    let runs_on = runs_on.annotation(WAIT_TIMEOUT, "15s").create().await;
    for (job, held_by) in [
        (&by_annotation, "db is held by"),
        (&by_default, "hasty is held by"),
        (&several, "hasty is held by"),
        (&unknown, "has no ConsulSemaphore nowhere"),
        (&too_many, "2 slots of db, but can have at most 1"),
    ] {
        let note = fails(job, "WaitTimedOut").await;
        assert!(note.contains("has waited for 2s"), "{note}");
        assert!(note.contains(held_by), "{note}");
    }
    patient.is_waiting().await;
    // It ends with the start.
    eventually("it would have waited for too long", || async {
        age(&runs_on).await > SignedDuration::from_secs(17)
    })
    .await;
    runs_on.is_running().await;
    for semaphore in [&db, &runs] {
        semaphore.shows(json!({ "held": 1, "waiting": 0 })).await;
    }
    hasty.shows(json!({ "held": 1, "waiting": 1 })).await;
}

/// How long ago a Job was created.
async fn age(job: &Job) -> SignedDuration {
    let job = job.get().await;
    let created = job.and_then(|job| job.metadata.creation_timestamp);
    let created = created.expect("it is there").0;
    Timestamp::now().duration_since(created)
}

#[tokio::test]
async fn a_pause_and_a_time_without_an_operator_do_not_count() {
    let bed = Bed::start().await;
    let team = bed.namespace("wait-blocked").await;
    let db = team.semaphore("db").limit(1).create().await;
    team.semaphore("other").limit(1).create().await;
    for semaphore in ["db", "other"] {
        let holder = team.job(&format!("holds-{semaphore}")).semaphore(semaphore);
        holder.runs("1h").create().await.is_running().await;
    }
    db.pause().await;
    db.has_condition("Ready", "True", "Paused").await;
    let waits = |name: &str, semaphore: &str| {
        let job = team.job(name).semaphore(semaphore);
        job.annotation(WAIT_TIMEOUT, "3s")
    };
    let paused = waits("paused", "db").create().await;
    // It came later, and its time is over.
    let counted = waits("counted", "other").create().await;
    fails(&counted, "WaitTimedOut").await;
    paused.is_waiting().await;
    let blocked = || async {
        let status = db.status().await;
        let blocked = status["blocked"].as_array().cloned().unwrap_or_default();
        let lasts = blocked.last().is_some_and(|last| last.get("to").is_none());
        lasts.then_some(()).ok_or_else(|| status.to_string())
    };
    eventually("the status says that nothing is granted", blocked).await;

    bed.operator().kill().await;
    let away = waits("away", "other").create().await;
    eventually("its time without an operator is longer", || async {
        age(&away).await > SignedDuration::from_secs(4)
    })
    .await;
    let started = Timestamp::now();
    bed.operator().start().await;
    fails(&away, "WaitTimedOut").await;
    let waited = failed_at(&away).await.duration_since(started);
    assert!(waited >= SignedDuration::from_secs(2), "{waited}");
    paused.is_waiting().await;

    let resumed = Timestamp::now();
    db.resume().await;
    let note = fails(&paused, "WaitTimedOut").await;
    assert!(note.contains("/holds-db (session "), "{note}");
    let waited = failed_at(&paused).await.duration_since(resumed);
    assert!(waited >= SignedDuration::from_secs(1), "{waited}");
}

#[tokio::test]
async fn a_time_on_hold_does_not_count_whoever_was_there_to_see_its_end() {
    let bed = Bed::start().await;
    let team = bed.namespace("wait-held").await;
    team.semaphore("db").limit(1).create().await;
    let holder = team.job("holds-db").semaphore("db").runs("1h");
    holder.create().await.is_running().await;
    let held = async |name: &str| {
        let job = team.job(name).semaphore("db").hold();
        job.annotation(WAIT_TIMEOUT, "5s").create().await
    };
    let (seen, unseen) = (held("seen").await, held("unseen").await);
    for job in [&seen, &unseen] {
        let is_held = |since: &str| since == "OnHold";
        waits_since(job, is_held).await;
    }
    let freed = Timestamp::now();
    seen.annotate(HOLD, None).await;
    let is_later = |since: &str| {
        let since: Option<Timestamp> = since.parse().ok();
        since.is_some_and(|since| since.as_second() >= freed.as_second())
    };
    let before = waits_since(&seen, is_later).await;
    bed.operator().kill().await;
    unseen.annotate(HOLD, None).await;
    bed.operator().start().await;
    waits_since(&unseen, is_later).await;
    for job in [&seen, &unseen] {
        fails(job, "WaitTimedOut").await;
    }
    let after = waits_since(&seen, is_later).await;
    assert_eq!(after, before, "a restart changes nothing");
}

/// Waits until what a Job says of when its wait began is as expected, and returns it.
async fn waits_since(job: &Job, expected: impl Fn(&str) -> bool) -> String {
    eventually("since when a Job waits is recorded", || async {
        let object = job.get().await;
        let annotations = object.and_then(|object| object.metadata.annotations);
        let since = annotations.and_then(|all| all.get(WAITS_SINCE).cloned());
        let found = since.clone().filter(|since| expected(since));
        found.ok_or_else(|| format!("{}: {since:?}", job.name()))
    })
    .await
}

/// The Jobs of a `CronJob` that have failed.
async fn failed_jobs(team: &Namespace) -> usize {
    let jobs = team.api::<batch::Job>().list(&ListParams::default()).await;
    let jobs = jobs.expect("a list").items.into_iter();
    let failed = jobs.filter(|job| {
        let conditions = job
            .status
            .iter()
            .filter_map(|status| status.conditions.as_ref());
        let mut conditions = conditions.flatten();
        conditions.any(|condition| condition.type_ == "Failed" && condition.status == "True")
    });
    failed.count()
}

#[tokio::test]
async fn of_the_jobs_of_a_cron_job_the_newest_waits_and_its_history_shows_the_others() {
    let bed = Bed::shared().await;
    let team = bed.namespace("supersede").await;
    let db = team.semaphore("db").limit(1).create().await;
    let holder = team.job("holder").semaphore("db").runs("1h").create().await;
    holder.is_running().await;
    // Nothing replaces these.
    let plain = team.job("plain").semaphore("db").create().await;
    let held = team.job("held").semaphore("db").hold();
    let held = held
        .annotation(ON_CONTENTION, "ReplaceWaiting")
        .create()
        .await;
    team.apply(json!({
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": { "name": "report" },
        "spec": {
            "schedule": "* * * * *",
            "suspend": true,
            "failedJobsHistoryLimit": 2,
            "jobTemplate": {
                "metadata": { "annotations": {
                    "consul-semaphore.io/semaphore": "db",
                    ON_CONTENTION: "ReplaceWaiting",
                } },
                "spec": { "suspend": true, "template": { "spec": {
                    "restartPolicy": "Never",
                    "containers": [{ "name": "work", "image": "none" }],
                } } },
            },
        },
    }))
    .await;
    let jobs = ["a", "b", "c", "d"].map(|name| team.job(name));
    let [a, b, c, d] = &jobs;
    for job in &jobs {
        team.kubectl(["create", "job", job.name(), "--from=cronjob/report"])
            .await;
        job.has_event("SlotWaiting").await;
    }
    for (job, newer) in [(b, "/c"), (c, "/d")] {
        let note = fails(job, "Superseded").await;
        assert!(note.contains("the newer Job"), "{note}");
        assert!(note.contains(newer) || note.contains("/d"), "{note}");
    }
    a.is_gone().await;
    eventually("the history has two", || async {
        failed_jobs(&team).await == 2
    })
    .await;
    d.is_waiting().await;
    plain.is_waiting().await;
    held.is_suspended().await;
    assert!(
        held.events()
            .await
            .iter()
            .all(|event| event.reason.as_deref() != Some("Superseded"))
    );
    db.shows(json!({ "held": 1, "waiting": 2 })).await;
}

#[tokio::test]
async fn a_running_job_is_replaced_and_its_slot_passes_on_when_its_pods_are_gone() {
    let bed = Bed::shared().await;
    let team = bed.namespace("replace").await;
    let db = team.semaphore("db").limit(1).create().await;
    let slow = team.semaphore("slow").limit(1);
    let slow = slow.spec(json!({ "replaceAfter": "1h" })).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let replaces = |name: &str, semaphore: &str| {
        let job = team.job(name).semaphore(semaphore).runs("1h");
        job.annotation(ON_CONTENTION, "ReplaceRunning")
    };
    let young = replaces("young", "slow").create().await;
    young.is_running().await;
    let later = replaces("later", "slow").create().await;
    later.has_event("SlotWaiting").await;

    let first = replaces("first", "db").terminates_in("3s").create().await;
    first.is_running().await;
    let session = first.session().await.expect("its session");
    let second = replaces("second", "db").create().await;
    let note = first.has_event("Replaced").await;
    assert!(note.contains("/second"), "{note}");
    // Its pods hold the slot until they are gone.
    eventually("the second one runs", || async {
        // In this order: the first one has none left by the time that the second one has some.
        let second_pods = second.pods().await;
        let first_pods = first.pods().await;
        let running = |pods: &[k8s_openapi::api::core::v1::Pod]| {
            pods.iter().any(|pod| {
                let phase = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref());
                !matches!(phase, Some("Succeeded" | "Failed"))
            })
        };
        assert!(
            !running(&first_pods) || second_pods.is_empty(),
            "both have pods"
        );
        !second_pods.is_empty()
    })
    .await;
    second.is_running().await;
    first.is_failed().await;
    assert_ne!(second.session().await, Some(session));
    assert_eq!(observer.peak_holders(), 1);

    // What has no such policy is not touched, and neither is one that is too young.
    second.finish().await;
    second.is_complete().await;
    let plain = team.job("plain").semaphore("db").runs("1h").create().await;
    plain.is_running().await;
    let third = replaces("third", "db").create().await;
    third.has_event("SlotWaiting").await;
    plain.finish().await;
    third.is_running().await;
    plain.is_complete().await;
    young.is_running().await;
    later.is_waiting().await;
    slow.shows(json!({ "held": 1, "waiting": 1 })).await;
}
