//! The same `CronJob`s in two clusters: each task is done once, in one of them, even while the other is down. See
//! docs/once.md.

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{batch::v1, core::v1::Event};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use testbed::{Bed, Job, Namespace, Semaphore, eventually, same};

/// The prefix of the Jobs' semaphore in Consul, in both clusters.
const PREFIX: &str = "semaphores/batch/tasks";

/// One of the clusters: its servers, and its part of the tasks.
struct Cluster {
    bed: Bed,
    name: &'static str,
    team: Namespace,
    tasks: Semaphore,
}

impl Cluster {
    async fn new(bed: Bed, name: &'static str) -> Self {
        let team = bed.namespace_named("batch").await;
        let tasks = team.semaphore("tasks").limit(1).ttl("30s").spec(json!({
            "keyed": true, "cooldown": "1h", "session": { "lockDelay": "1s" },
        }));
        let tasks = tasks.create().await;
        assert_eq!(tasks.lock_prefix(), PREFIX);
        tasks.is_ready().await;
        Self {
            bed,
            name,
            team,
            tasks,
        }
    }

    /// Creates a task with this key, in a `CronJob` with its name.
    async fn has(&self, task: &str, runs: &str) {
        let job = self.team.job(task).semaphore("tasks").runs(runs);
        let job = job
            .annotation("consul-semaphore.io/on-contention", "Skip")
            .annotation("consul-semaphore.io/key", task);
        job.create_cron_job(json!({ "schedule": "0 * * * *", "suspend": true }))
            .await;
    }

    /// The Job that a `CronJob` creates at this time, with everything that it would contain.
    async fn at(&self, task: &str, time: Timestamp) -> Job {
        let name = format!("{task}-{}", time.as_second() / 60);
        let from = format!("--from=cronjob/{task}");
        let made = ["create", "job", &name, &from, "--dry-run=client", "-o=json"];
        let mut made: Value = serde_json::from_str(&self.team.kubectl(made).await).expect("JSON");
        made["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"] =
            json!(time.to_string());
        self.team.apply(made).await;
        self.team.job(&name)
    }

    /// Whether the task's Job was done here, once that is decided: else it was deleted, because the other cluster has
    /// the task.
    async fn did(&self, job: &Job, other: &Self) -> bool {
        let done = eventually("the task is done here, or elsewhere", || async {
            match job.get().await {
                None => Some(false),
                Some(found) => is_complete(&found).then_some(true),
            }
        })
        .await;
        if !done {
            let note = self.skipped(job).await;
            let holder = format!("{} batch/{} (session ", other.name, job.name());
            assert!(note.contains(&holder), "{note}");
        }
        done
    }

    /// Waits until a Job is deleted in favour of another. The Job and its `CronJob` have an event with the same
    /// message, which is returned.
    async fn skipped(&self, job: &Job) -> String {
        job.is_gone().await;
        let note = job.has_event("Skipped").await;
        let why = note
            .strip_prefix("deleted, because ")
            .expect(&note)
            .to_owned();
        assert_eq!(job.pods().await.len(), 0);
        let events: Api<Event> = self.team.api();
        let about = "involvedObject.kind=CronJob,reason=Skipped";
        eventually("its CronJob has the event", || async {
            let events = events.list(&ListParams::default().fields(about)).await;
            let events = events.map_err(|error| error.to_string())?.items;
            let notes: Vec<_> = events.into_iter().filter_map(|it| it.message).collect();
            let its = |note: &&String| note.contains(job.name()) && note.contains(" was deleted");
            let found = notes.iter().any(|note| its(&note));
            found.then_some(()).ok_or(format!("{notes:?}"))
        })
        .await;
        why
    }
}

fn is_complete(job: &v1::Job) -> bool {
    let status = job.status.as_ref();
    let mut conditions = status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Complete" && condition.status == "True")
}

#[tokio::test]
async fn one_task_one_worker() {
    let named = |name: &str| Bed::builder().operator_args(["--cluster-name", name]);
    let west = named("west").start().await;
    let east = named("east").with_consul_of(&west).start().await;
    let west = Cluster::new(west, "west").await;
    let east = Cluster::new(east, "east").await;
    at_the_same_hour(&west, &east).await;
    one_is_slower(&west, &east).await;
    one_was_down_over_the_hour(&west, &east).await;
    a_worker_dies(&west, &east).await;
}

/// The first one does it.
async fn at_the_same_hour(west: &Cluster, east: &Cluster) {
    let hour = Timestamp::now();
    let tasks = ["reports", "backups", "invoices", "mails", "cleaning"];
    let done = join_all(tasks.map(async |task| {
        let observer = west.bed.watch_limit(&format!("{PREFIX}/{task}")).await;
        tokio::join!(west.has(task, "500ms"), east.has(task, "500ms"));
        let (a, b) = tokio::join!(west.at(task, hour), east.at(task, hour));
        let done = tokio::join!(west.did(&a, east), east.did(&b, west));
        let seen = observer.seen();
        assert_eq!(seen.all_holders.len(), 1, "{task} was worked at once");
        done
    }))
    .await;
    for (task, (in_west, in_east)) in tasks.iter().zip(done) {
        assert!(in_west != in_east, "{task}: {in_west} {in_east}");
    }
}

/// It takes half a second here, and the other cluster starts when it is done.
async fn one_is_slower(west: &Cluster, east: &Cluster) {
    tokio::join!(west.has("short", "500ms"), east.has("short", "500ms"));
    let hour = Timestamp::now();
    let fast = west.at("short", hour).await;
    fast.is_complete().await;
    fast.has_event("SlotCooling").await;
    let slow = east.at("short", hour).await;
    let note = east.skipped(&slow).await;
    let holder = format!("by west batch/{} (session ", fast.name());
    assert!(note.contains(&holder), "{note}");
    assert!(
        note.contains("is done and whose slot is in its cooldown until"),
        "{note}"
    );
    assert!(west.did(&fast, east).await);
}

/// When its operator is back, the other cluster's slot is cooling, or has cooled long ago.
async fn one_was_down_over_the_hour(west: &Cluster, east: &Cluster) {
    tokio::join!(west.has("cooling", "500ms"), east.has("cooling", "500ms"));
    tokio::join!(west.has("cooled", "500ms"), east.has("cooled", "500ms"));
    east.bed.operator().kill().await;
    let now = Timestamp::now();
    let long_ago = now - SignedDuration::from_mins(90);
    let done = west.at("cooling", now).await;
    let still = east.at("cooling", now).await;
    let late = east.at("cooled", long_ago).await;
    done.is_complete().await;
    done.has_event("SlotCooling").await;
    still.is_waiting().await;
    late.is_waiting().await;

    east.bed.operator().start().await;
    let note = east.skipped(&still).await;
    assert!(
        note.contains(done.name()) && note.contains("in its cooldown until"),
        "{note}"
    );
    let note = east.skipped(&late).await;
    assert!(note.contains("after its scheduled time"), "{note}");
    // What came in time is done.
    let hour = Timestamp::now();
    let next = east.at("cooled", hour).await;
    next.is_complete().await;
}

/// When a worker's cluster is lost, another one does its task in the next hour.
async fn a_worker_dies(west: &Cluster, east: &Cluster) {
    tokio::join!(west.has("long", "1h"), east.has("long", "1h"));
    let lost = west.at("long", Timestamp::now()).await;
    lost.is_running().await;
    let session = lost.session().await.expect("its session");
    let in_vain = east.at("long", Timestamp::now()).await;
    let note = east.skipped(&in_vain).await;
    let holder = format!("by west batch/{} (session {session})", lost.name());
    assert!(note.contains(&holder), "{note}");

    west.bed.operator().kill().await;
    eventually("its slot is free, and nothing is left of it", || async {
        let left = east.bed.consul().list(&format!("{PREFIX}/long/")).await;
        same(left, Vec::new())
    })
    .await;
    let next_hour = Timestamp::now() + SignedDuration::from_hours(1);
    let next = east.at("long", next_hour).await;
    next.is_running().await;
    east.tasks.is_ready().await;
    next.finish().await;
}
