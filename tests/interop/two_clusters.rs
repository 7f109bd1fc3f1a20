//! Two clusters with one Consul, and one operator each.

use futures::future::join_all;
use serde_json::{Value, json};
use testbed::{Bed, Job, LimitWatch, Namespace, Semaphore, eventually, same};

/// One of them: its servers, and its part of the semaphore.
struct Cluster {
    bed: Bed,
    team: Namespace,
    db: Semaphore,
    observer: LimitWatch,
}

impl Cluster {
    async fn new(bed: Bed, ttl: &str) -> Self {
        let team = bed.namespace_named("batch").await;
        let db = team.semaphore("db").limit(3).ttl(ttl);
        let db = db.spec(json!({ "session": { "lockDelay": "1s" } }));
        let db = db.create().await;
        db.is_ready().await;
        let observer = bed.watch_limit(&db.lock_prefix()).await;
        Self {
            bed,
            team,
            db,
            observer,
        }
    }

    /// A Job that runs until it is told to end, or waits for its slot.
    async fn long(&self, name: &str) -> Job {
        self.team
            .job(name)
            .semaphore("db")
            .runs("1h")
            .create()
            .await
    }
}

async fn start(ttl: &str) -> [Cluster; 2] {
    let named = |name: &str| Bed::builder().operator_args(["--cluster-name", name]);
    let west = named("west").start().await;
    let east = named("east").with_consul_of(&west).start().await;
    [Cluster::new(west, ttl).await, Cluster::new(east, ttl).await]
}

/// A Job that was granted a slot: its cluster, its place in the queue of both, and its token.
type Granted<Place> = (usize, Place, u64);

/// A Job that was started, with its place in the queue as docs/protocol.md defines it for one priority: by the whole
/// second of its creation, then by name, then by uid.
async fn granted(cluster: usize, job: &Job) -> Granted<[String; 3]> {
    let job = job.get().await.expect("the Job");
    let job = serde_json::to_value(job).unwrap_or_default();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let annotations = &job["spec"]["template"]["metadata"]["annotations"];
    let token = text(&annotations["consul-semaphore.io/fencing-token"]);
    let place = ["creationTimestamp", "name", "uid"].map(|field| text(&job["metadata"][field]));
    (cluster, place, token.parse().expect("a token"))
}

/// How many were granted a slot after one of the other cluster that was behind them.
fn overtaken<Place: Ord>(granted: &[Granted<Place>]) -> usize {
    let is_overtaken = |(cluster, place, token): &&Granted<Place>| {
        let mut others = granted.iter().filter(|(other, ..)| other != cluster);
        others.any(|(_, behind, earlier)| behind > place && earlier < token)
    };
    granted.iter().filter(is_overtaken).count()
}

#[test]
fn who_is_overtaken_is_counted() {
    assert_eq!(overtaken(&[(0, 'a', 1), (1, 'b', 2), (0, 'c', 3)]), 0);
    assert_eq!(overtaken(&[(0, 'a', 3), (1, 'b', 2), (1, 'c', 4)]), 1);
    assert_eq!(
        overtaken(&[(0, 'a', 3), (0, 'b', 2), (1, 'c', 4)]),
        0,
        "of its own cluster"
    );
}

#[tokio::test]
async fn two_hundred_jobs_of_two_clusters_pass_through_three_slots() {
    let clusters = start("120s").await;
    let mut jobs = Vec::new();
    for number in 0..100 {
        for (cluster, Cluster { team, .. }) in clusters.iter().enumerate() {
            let job = team.job(&format!("job-{number:02}")).semaphore("db");
            jobs.push((cluster, job.runs("100ms").create().await));
        }
    }
    for (_, job) in &jobs {
        job.is_complete().await;
    }
    let sessions = Job::sessions(jobs.iter().map(|(_, job)| job)).await;
    assert_eq!(sessions.len(), 200, "one session a Job");
    for Cluster { db, observer, .. } in &clusters {
        db.shows(json!({ "held": 0, "heldHere": 0, "waiting": 0 }))
            .await;
        let seen = observer.seen();
        assert!(seen.all_holders.is_subset(&sessions), "{seen:?}");
        assert_eq!((seen.peak_holders, seen.all_jobs.len()), (3, 100));
        assert!(seen.peak_jobs <= 3, "{seen:?}");
        assert_eq!(observer.errors(), Vec::<String>::new());
    }
    let granted = jobs.iter().map(|(cluster, job)| granted(*cluster, job));
    let by_rule = join_all(granted).await;
    let as_made = by_rule.iter().enumerate();
    let as_made: Vec<_> = as_made
        .map(|(position, (cluster, _, token))| (*cluster, position, *token))
        .collect();
    eprintln!(
        "of 200 Jobs {} were overtaken by one of the other cluster that stood behind them by the \
         rule (the whole second, then the name), {} by one that was made later at all",
        overtaken(&by_rule),
        overtaken(&as_made)
    );
}

#[tokio::test]
async fn the_slots_of_an_operator_that_is_killed_come_to_the_other_cluster() {
    let [west, east] = start("30s").await;
    let of_west = [west.long("a").await, west.long("b").await];
    for job in &of_west {
        job.is_running().await;
    }
    let first = east.long("c").await;
    first.is_running().await;
    let waiting = [east.long("d").await, east.long("e").await];
    for job in &waiting {
        job.has_event("SlotWaiting").await;
    }
    east.db
        .shows(json!({ "held": 3, "heldHere": 1, "waiting": 2 }))
        .await;
    let holders = east.db.status().await["holders"].clone();
    let named = |cluster: &str, name: &str| {
        let holders = holders.as_array().expect("a list");
        holders.iter().any(|it| {
            let says = [&it["kind"], &it["cluster"], &it["namespace"], &it["name"]];
            says == ["Job", cluster, "batch", name] && it["since"] != Value::Null
        })
    };
    assert!(named("west", "a") && named("east", "c"), "{holders}");

    west.bed.operator().kill().await;
    for job in &waiting {
        job.is_running().await;
    }
    first.is_running().await;
    east.db.shows(json!({ "held": 3, "heldHere": 3 })).await;
    assert_eq!(east.observer.peak_holders(), 3);

    // When it is back, it finds that its Jobs have lost their slots: they wait for others.
    west.bed.operator().start().await;
    for job in &of_west {
        job.is_suspended().await;
    }
    west.db.shows(json!({ "heldHere": 0, "waiting": 2 })).await;
    first.delete().await;
    eventually("one of them has the slot", || async {
        let status = west.db.status().await;
        same(status["heldHere"].clone(), json!(1))
    })
    .await;
    assert_eq!(west.observer.peak_holders(), 3);
}
