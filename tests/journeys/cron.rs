//! `CronJob`s whose Jobs wait for slots.
use std::time::Duration;

use k8s_openapi::api::{batch::v1::CronJob, core::v1::Event};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use testbed::{
    Bed, Job, Namespace, eventually_within,
    proof::{
        End, SEMAPHORE, all_is_decided, holders_are, is_given_back, is_warned, nothing_is_left,
        pods_end, pods_run, queue_is, runs_in_a_slot, uid_of,
    },
};

/// Longer than the two minutes until a schedule was due twice.
const SCHEDULE: Duration = Duration::from_mins(4);

#[tokio::test]
async fn jobs_made_from_a_cron_job_by_hand() {
    let bed = Bed::shared().await;
    let team = bed.namespace("cron-by-hand").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    team.apply(cron_job("waits", "db", "Allow", true)).await;
    team.apply(cron_job("runs", "db", "Allow", false)).await;
    let [a, b, c] = ["a", "b", "c"].map(|name| team.job(name));
    let create = async |job: &Job, from: &str| {
        let from = format!("--from=cronjob/{from}");
        team.kubectl(["create", "job", job.name(), &from]).await;
    };
    create(&a, "waits").await;
    let mut last = runs_in_a_slot(&bed, &db, &a).await;
    create(&b, "runs").await;
    is_warned(&b, "RanWithoutSlot", "it ran without a slot of db").await;
    create(&c, "waits").await;
    queue_is(&db, [&b, &c]).await;
    for [job, next] in [[&a, &b], [&b, &c]] {
        pods_end(&team, job, End::Succeeded).await;
        job.is_complete().await;
        let grant = runs_in_a_slot(&bed, &db, next).await;
        is_given_back(&bed, &db, &last).await;
        last = grant;
    }
    pods_end(&team, &c, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
    assert_eq!(observer.peak_holders(), 1);
}

/// All on one schedule, so that they share its minutes.
#[tokio::test]
async fn each_concurrency_policy_on_a_real_schedule() {
    let bed = Bed::shared().await;
    let team = bed.namespace("cron").await;
    // Leave some time before the next minute for what is created in this one.
    eventually_within(SCHEDULE, "the minute is young", || async {
        jiff::Timestamp::now().as_second() % 60 < 15
    })
    .await;
    tokio::join!(
        allow(&bed, &team),
        forbid(&bed, &team),
        replace(&bed, &team)
    );
}

/// Jobs accumulate, and still wait for each other.
async fn allow(bed: &Bed, team: &Namespace) {
    let db = team.semaphore("allow").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    team.apply(cron_job("allow", "allow", "Allow", true)).await;
    schedule(team, "allow").await;
    let first = job_of(team, "allow", []).await;
    let of_first = runs_in_a_slot(bed, &db, &first).await;
    let second = job_of(team, "allow", [&first]).await;
    stop(team, "allow").await;
    queue_is(&db, [&second]).await;
    holders_are(bed, &db, [&of_first]).await;
    pods_end(team, &first, End::Succeeded).await;
    runs_in_a_slot(bed, &db, &second).await;
    is_given_back(bed, &db, &of_first).await;
    pods_end(team, &second, End::Succeeded).await;
    nothing_is_left(bed, team, &db).await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
}

/// A Job that waits counts as active: no other is created beside it.
async fn forbid(bed: &Bed, team: &Namespace) {
    let db = team.semaphore("forbid").limit(1).create().await;
    let other = team
        .job("other")
        .semaphore("forbid")
        .runs("1h")
        .create()
        .await;
    let of_other = runs_in_a_slot(bed, &db, &other).await;
    team.apply(cron_job("forbid", "forbid", "Forbid", false))
        .await;
    schedule(team, "forbid").await;
    let waits = job_of(team, "forbid", []).await;
    queue_is(&db, [&waits]).await;
    eventually_within(SCHEDULE, "the next one is forbidden", || async {
        let about = "involvedObject.kind=CronJob,involvedObject.name=forbid";
        let events = team
            .api::<Event>()
            .list(&ListParams::default().fields(about))
            .await;
        events.is_ok_and(|events| {
            let mut reasons = events.iter().map(|event| event.reason.as_deref());
            reasons.any(|reason| reason == Some("JobAlreadyActive"))
        })
    })
    .await;
    stop(team, "forbid").await;
    queue_is(&db, [&waits]).await;
    holders_are(bed, &db, [&of_other]).await;
    pods_end(team, &other, End::Succeeded).await;
    runs_in_a_slot(bed, &db, &waits).await;
    pods_end(team, &waits, End::Succeeded).await;
    nothing_is_left(bed, team, &db).await;
}

/// The running Job is deleted for the next one, which waits until its pods are gone.
async fn replace(bed: &Bed, team: &Namespace) {
    let db = team.semaphore("replace").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    team.apply(cron_job("replace", "replace", "Replace", true))
        .await;
    schedule(team, "replace").await;
    let first = job_of(team, "replace", []).await;
    let of_first = runs_in_a_slot(bed, &db, &first).await;
    pods_run(&first, 1).await;
    let second = job_of(team, "replace", [&first]).await;
    stop(team, "replace").await;
    first.is_gone().await;
    all_is_decided(team, &db).await;
    queue_is(&db, [&second]).await;
    holders_are(bed, &db, [&of_first]).await;
    pods_end(team, &first, End::Failed).await;
    let of_second = runs_in_a_slot(bed, &db, &second).await;
    is_given_back(bed, &db, &of_first).await;
    assert_eq!(of_second.granted_to, uid_of(&second).await);
    pods_end(team, &second, End::Succeeded).await;
    nothing_is_left(bed, team, &db).await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
}

/// A `CronJob` with a Job every minute that waits for a slot, if it is created suspended, and takes `terminates_in`
/// to end when it is deleted. It creates nothing until [`schedule`].
fn cron_job(name: &str, semaphore: &str, policy: &str, suspended: bool) -> Value {
    // Only a Job that is never suspended while it runs may take long to end.
    let terminates_in = if policy == "Replace" { "1h" } else { "0s" };
    json!({
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": { "name": name },
        "spec": {
            "schedule": "* * * * *",
            "suspend": true,
            "concurrencyPolicy": policy,
            "jobTemplate": {
                "metadata": { "annotations": { SEMAPHORE: semaphore } },
                "spec": { "suspend": suspended, "template": {
                    "metadata": {
                        "labels": { "bed.consul-semaphore.io/semaphore": semaphore },
                        "annotations": {
                            "bed.consul-semaphore.io/runs": "1h",
                            "bed.consul-semaphore.io/terminates-in": terminates_in,
                        },
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

/// Starts a `CronJob`, which creates its first Job at once, as after a while without a controller, and its second one
/// when the next minute begins.
pub(crate) async fn schedule(team: &Namespace, cron_job: &str) {
    let cron_jobs = team.api::<CronJob>();
    let change = async |subresource: bool, body: Value| {
        let (params, body) = (PatchParams::default(), Patch::Merge(body));
        let changed = if subresource {
            cron_jobs.patch_status(cron_job, &params, &body).await
        } else {
            cron_jobs.patch(cron_job, &params, &body).await
        };
        changed.expect("an admin may change a CronJob");
    };
    let before = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(2);
    let before = jiff::Timestamp::from_second(before.as_second()).expect("a time of today");
    change(true, json!({ "status": { "lastScheduleTime": before } })).await;
    change(false, json!({ "spec": { "suspend": false } })).await;
}

/// Stops a `CronJob`.
pub(crate) async fn stop(team: &Namespace, cron_job: &str) {
    let stop = Patch::Merge(json!({ "spec": { "suspend": true } }));
    let cron_jobs = team.api::<CronJob>();
    let stopped = cron_jobs
        .patch(cron_job, &PatchParams::default(), &stop)
        .await;
    stopped.expect("an admin may change a CronJob");
}

/// Waits for a Job of a `CronJob` that is not one of these.
pub(crate) async fn job_of<const N: usize>(
    team: &Namespace,
    cron_job: &str,
    but: [&Job; N],
) -> Job {
    let what = format!("{cron_job} makes a Job");
    let name = eventually_within(SCHEDULE, &what, || async {
        let jobs = team.jobs().await;
        jobs.into_iter().find(|name| {
            let of_it = name
                .strip_prefix(cron_job)
                .is_some_and(|rest| rest.starts_with('-'));
            of_it && but.iter().all(|job| job.name() != name)
        })
    })
    .await;
    team.job(&name)
}
