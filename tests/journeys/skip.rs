//! Jobs that must not wait: they are deleted instead.

use k8s_openapi::api::{batch::v1::CronJob, core::v1::Event};
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};
use testbed::{Bed, Consul, Job, Namespace, eventually};

use crate::cron::{job_of, schedule, stop};

const ON_CONTENTION: &str = "consul-semaphore.io/on-contention";

/// A Job that must not wait.
fn impatient(team: &Namespace, name: &str, semaphore: &str) -> Job {
    let job = team.job(name).semaphore(semaphore);
    job.annotation(ON_CONTENTION, "Skip")
}

/// Waits until a Job is deleted because it must not wait, and returns the event's message.
async fn is_skipped(job: &Job) -> String {
    job.is_gone().await;
    let note = job.has_event("Skipped").await;
    assert!(note.starts_with("deleted, because "), "{note}");
    job.has_no_pods().await;
    note
}

#[tokio::test]
async fn a_skip_job_is_deleted_when_all_slots_are_held() {
    let bed = Bed::shared().await;
    let team = bed.namespace("skip").await;
    let db = team.semaphore("db").limit(1).create().await;
    let first = impatient(&team, "first", "db").runs("1h").create().await;
    first.is_running().await;
    let session = first.session().await.expect("its session");
    let second = impatient(&team, "second", "db").create().await;
    let note = is_skipped(&second).await;
    assert!(
        note.contains(&format!("{}/first (session {session})", team.name())),
        "{note}"
    );
    // A Job that may wait does, and the first continues.
    let waits = team.job("waits").semaphore("db").create().await;
    waits.has_event("SlotWaiting").await;
    let third = impatient(&team, "third", "db").create().await;
    is_skipped(&third).await;
    first.finish().await;
    waits.is_complete().await;
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
}

#[tokio::test]
async fn of_two_for_one_slot_one_runs() {
    let bed = Bed::shared().await;
    let team = bed.namespace("skip-two").await;
    let db = team.semaphore("db").limit(1).paused(true).create().await;
    let a = impatient(&team, "a", "db").runs("1h").create().await;
    let b = impatient(&team, "b", "db").create().await;
    for job in [&a, &b] {
        job.has_event("SlotWaiting").await;
    }
    db.shows(json!({ "waiting": 2 })).await;
    db.resume().await;
    // They may be created in the same second, or not: the first one is the older one.
    let note = is_skipped(&b).await;
    assert!(note.contains("/a (session "), "{note}");
    a.is_running().await;
}

#[tokio::test]
async fn another_programs_session_is_named() {
    let bed = Bed::shared().await;
    let team = bed.namespace("skip-foreign").await;
    let db = team.semaphore("db").limit(1).create().await;
    db.is_ready().await;
    let session = bed.consul().take_slot(&db.lock_prefix(), 1).await;
    let job = impatient(&team, "a", "db").create().await;
    let note = is_skipped(&job).await;
    assert!(note.contains(&session), "{note}");
}

/// All slots are taken, and it still waits.
#[tokio::test]
async fn a_skip_job_waits_while_anything_else_blocks_grants() {
    let bed = Bed::shared().await;
    let team = bed.namespace("skip-obstacles").await;
    let paused = team.semaphore("paused").limit(1).create().await;
    let conflict = team.semaphore("conflict").limit(1).create().await;
    for semaphore in [&paused, &conflict] {
        // A limit that somebody else wrote first would not be ours, and could not be changed.
        semaphore
            .shows(json!({ "limit": 1, "appliedLimits": [1] }))
            .await;
        bed.consul().take_slot(&semaphore.lock_prefix(), 1).await;
    }
    paused.pause().await;
    paused.has_condition("Ready", "True", "Paused").await;
    conflict.set_limit(2).await;
    conflict.shows(json!({ "limit": 2 })).await;
    let other = bed.consul().take_slot(&conflict.lock_prefix(), 2).await;
    // A foreign limit, and as many holders.
    let key = format!("{}/.lock", conflict.lock_prefix());
    let lock = bed.consul().kv(&key).await.expect("a lock");
    let mut body = lock.json();
    body["Limit"] = json!(1);
    bed.consul().put(&key, lock.flags, body.to_string()).await;
    conflict
        .has_condition("Ready", "False", "LimitConflict")
        .await;

    let of_paused = impatient(&team, "of-paused", "paused").create().await;
    let of_conflict = impatient(&team, "of-conflict", "conflict").create().await;
    for job in [&of_paused, &of_conflict] {
        job.has_event("SlotWaiting").await;
    }
    // A later Job of another semaphore has had its turn.
    let free = team.semaphore("free").limit(1).create().await;
    let later = impatient(&team, "later", "free").create().await;
    later.is_complete().await;
    free.is_ready().await;
    of_paused.is_waiting().await;
    of_conflict.is_waiting().await;

    paused.resume().await;
    is_skipped(&of_paused).await;
    conflict.set_limit(1).await;
    let note = is_skipped(&of_conflict).await;
    assert!(note.contains(&other), "{note}");
}

#[tokio::test]
async fn a_skip_job_waits_while_consul_is_unreachable() {
    let bed = Bed::builder().without_operator().start().await;
    let server = Consul::cluster(1).await;
    let address = server.servers()[0].address().to_owned();
    let address = [("CONSUL_HTTP_ADDR", address)];
    let operator = bed.another_operator("far", [""; 0], address);
    operator.start().await;
    let team = bed.namespace("skip-away").await;
    let db = team.semaphore("db").limit(1).create().await;
    let holder = team.job("holder").semaphore("db").runs("1h").create().await;
    holder.is_running().await;
    server.kill(0).await;
    db.has_condition("Ready", "False", "ConsulUnreachable")
        .await;
    let job = impatient(&team, "a", "db").create().await;
    job.has_event("SlotWaiting").await;
    job.is_waiting().await;
    server.start_again(&[0]).await;
    let note = is_skipped(&job).await;
    assert!(note.contains("/holder (session "), "{note}");
    holder.is_running().await;
}

/// The same `CronJob` in two clusters, simulated in one: two `ConsulSemaphore`s of two namespaces on one prefix,
/// which know nothing of each other.
#[tokio::test]
async fn one_task_one_worker() {
    let bed = Bed::shared().await;
    let [east, west] = [bed.namespace("east").await, bed.namespace("west").await];
    let prefix = format!("shared/{}", east.name());
    let mut semaphores = Vec::new();
    for team in [&east, &west] {
        let hourly = team.semaphore("hourly").prefix(&prefix);
        let hourly = hourly.spec(json!({ "cooldown": "1h" })).create().await;
        hourly.is_ready().await;
        team.apply(cron_job("report")).await;
        semaphores.push(hourly);
    }
    let observer = bed.watch_limit(&prefix).await;

    // It takes half a second in one, and is not done again in the slower one.
    schedule(&east, "report").await;
    let report = job_of(&east, "report", []).await;
    stop(&east, "report").await;
    report.is_complete().await;
    report.has_event("SlotCooling").await;
    schedule(&west, "report").await;
    let note = cron_job_event(&west, "report").await;
    stop(&west, "report").await;
    assert!(note.contains("its Job report-"), "{note}");
    let holder = format!("{}/{}", east.name(), report.name());
    assert!(note.contains(&holder), "{note}");
    assert!(note.contains("in its cooldown until"), "{note}");
    assert_eq!(observer.seen().all_holders.len(), 1, "it ran once");
    semaphores[1]
        .shows(json!({ "held": 1, "heldHere": 1 }))
        .await;
}

/// A cluster was down at the time of the schedule, and during the cooldown.
#[tokio::test]
async fn a_skip_job_that_is_too_late_is_deleted() {
    let bed = Bed::shared().await;
    let team = bed.namespace("skip-late").await;
    let hourly = team.semaphore("hourly").spec(json!({ "cooldown": "1h" }));
    let hourly = hourly.create().await;
    team.apply(cron_job("report")).await;
    let made = |name: &str, minutes: i64| {
        let scheduled = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(minutes);
        let job = impatient(&team, name, "hourly");
        let scheduled = scheduled.to_string();
        job.annotation(
            "batch.kubernetes.io/cronjob-scheduled-timestamp",
            &scheduled,
        )
    };
    let cron_jobs: Api<CronJob> = team.api();
    let uid = cron_jobs.get("report").await.expect("it is there").uid();
    let owned = json!({ "metadata": { "ownerReferences": [{
        "apiVersion": "batch/v1", "kind": "CronJob", "name": "report", "uid": uid,
        "controller": true,
    }] } });
    let late = made("late", 90).with(owned.clone()).create().await;
    let note = is_skipped(&late).await;
    assert!(note.contains("after its scheduled time"), "{note}");
    let note = cron_job_event(&team, "report").await;
    assert!(note.contains("its Job late was deleted"), "{note}");
    let timely = made("timely", 30).with(owned).create().await;
    timely.is_complete().await;
    hourly.shows(json!({ "held": 1 })).await;
}

/// Waits until a `CronJob` has the event that one of its Jobs was deleted, and returns the message.
async fn cron_job_event(team: &Namespace, name: &str) -> String {
    let about = format!("involvedObject.kind=CronJob,involvedObject.name={name},reason=Skipped");
    eventually("the CronJob has the event", || async {
        let params = ListParams::default().fields(&about);
        let events = team.api::<Event>().list(&params).await;
        let events = events.map_err(|error| error.to_string())?;
        let note = events.items.into_iter().find_map(|event| event.message);
        note.ok_or_else(|| "nothing".to_owned())
    })
    .await
}

/// A `CronJob` whose Jobs must not wait, and take half a second. It creates nothing until it is scheduled.
fn cron_job(name: &str) -> Value {
    json!({
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": { "name": name },
        "spec": {
            "schedule": "* * * * *",
            "suspend": true,
            "jobTemplate": {
                "metadata": { "annotations": {
                    "consul-semaphore.io/semaphore": "hourly",
                    ON_CONTENTION: "Skip",
                } },
                "spec": { "suspend": true, "template": {
                    "metadata": {
                        "labels": { "bed.consul-semaphore.io/semaphore": "hourly" },
                        "annotations": { "bed.consul-semaphore.io/runs": "500ms" },
                    },
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [{ "name": "work", "image": "none" }],
                    },
                } },
            },
        },
    })
}
