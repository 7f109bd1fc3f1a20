//! Two operators of one cluster, each of which manages the semaphores with its label.

use std::collections::BTreeSet;

use kube::ResourceExt;
use serde_json::{Value, json};
use testbed::{
    Bed, Job, Namespace, Operator, Semaphore, eventually,
    helpers::{apply_documented, cluster_id, event_reasons, warning},
    proof::nothing_is_left,
    same,
};

struct Stage {
    bed: Bed,
    a: Operator,
    b: Operator,
}

impl Stage {
    /// One of them is elected by a Lease, the other one in Consul.
    async fn new() -> Self {
        let bed = Bed::builder().without_operator().start().await;
        apply_documented(&bed, "lease.yaml", &[]).await;
        let operator = |shard: &str, election: &str| {
            let args = [
                format!("--semaphore-selector=shard={shard}"),
                format!("--lease-name=shard-{shard}"),
                format!("--leader-election={election}"),
            ];
            bed.another_operator(&format!("shard-{shard}"), args, [])
        };
        let (a, b) = (operator("a", "kubernetes"), operator("b", "consul"));
        tokio::join!(a.start(), b.start());
        Self { bed, a, b }
    }
}

/// A semaphore of this shard, to be configured further.
fn semaphore(team: &Namespace, name: &str, shard: &str) -> Semaphore {
    let labels = json!({ "metadata": { "labels": { "shard": shard } } });
    team.semaphore(name).with(labels)
}

async fn relabel(db: &Semaphore, shard: &str) {
    let labels = json!({ "metadata": { "labels": { "shard": shard } } });
    db.patch(labels).await;
}

/// How many lines of an operator's log contain all these words.
fn lines(operator: &Operator, words: &[&str]) -> usize {
    let logs = operator.logs();
    let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
    logs.lines().filter(has_all).count()
}

async fn pods(job: &Job) -> Vec<String> {
    job.pods().await.iter().map(ResourceExt::name_any).collect()
}

async fn stays(job: &Job, session: Option<&str>, pods_before: &[String]) {
    job.is_running().await;
    assert_eq!(job.session().await.as_deref(), session, "{}", job.name());
    assert_eq!(pods(job).await, pods_before, "{}", job.name());
    let reasons = event_reasons(job).await;
    assert!(!reasons.contains(&"SlotLost".to_owned()), "{reasons:?}");
}

#[tokio::test]
async fn two_operators_share_a_cluster_by_labels() {
    let stage = Stage::new().await;
    elected_apart(&stage).await;
    each_looks_after_its_own(&stage).await;
    a_semaphore_changes_hands(&stage).await;
    sessions_of_nobodys_semaphore_expire(&stage).await;
    the_limit_is_kept_however_often_it_changes_hands(&stage).await;
}

async fn elected_apart(stage: &Stage) {
    let cluster = cluster_id(&stage.bed).await;
    let cluster = cluster.split('-').next().expect("its first part");
    let key = format!("service/consul-semaphore-operator/{cluster}/shard-b");
    let leader = stage.bed.consul().kv(&key).await.expect("the key");
    assert!(leader.session.is_some(), "{leader:?}");
    let lease = ["get", "lease", "shard-a", "-n", "consul-semaphore-system"];
    stage.bed.kubectl(lease).await;
}

async fn each_looks_after_its_own(stage: &Stage) {
    let Stage { bed, a, b } = stage;
    let team = bed.namespace("by-label").await;
    let mut semaphores = Vec::new();
    for (shard, operator, other) in [("a", a, b), ("b", b, a)] {
        let db = semaphore(&team, &format!("of-{shard}"), shard);
        let db = db.create().await;
        let job = team.job(&format!("job-{shard}")).semaphore(db.name());
        let job = job.create().await;
        job.is_complete().await;
        job.has_event("SlotReleased").await;
        let of_it = format!("semaphore={}/{}", team.name(), db.name());
        assert_eq!(lines(operator, &[" granted", &of_it]), 1);
        assert_eq!(lines(other, &[&of_it]), 0, "{}", other.logs());
        semaphores.push(db);
    }
    let keyed = semaphore(&team, "keyed", "b").spec(json!({ "keyed": true }));
    keyed.create().await;

    // The semaphores of one do not concern the other, even while the one is away.
    assert!(b.stop().await.success());
    let runs = |name: &str, semaphore: &str| {
        let job = team.job(name).semaphore(semaphore);
        job.unsuspended().runs("1h")
    };
    let theirs = [
        runs("runs", "of-b").create().await,
        runs("keyless", "keyed").create().await,
        runs("malformed", "of-b")
            .annotation("consul-semaphore.io/priority", "high")
            .create()
            .await,
        runs("managed", "of-b")
            .with(json!({ "metadata": { "labels": { "kueue.x-k8s.io/queue-name": "q" } } }))
            .create()
            .await,
    ];
    let ours = runs("ours", "of-a").create().await;
    ours.has_event("RanWithoutSlot").await;
    ours.has_event("SlotGranted").await;
    let nobodys = runs("nobodys", "nowhere").create().await;
    warning(&nobodys, "NoSemaphore").await;
    nobodys.is_waiting().await;
    for job in &theirs {
        job.is_running().await;
        assert_eq!(
            event_reasons(job).await,
            Vec::<String>::new(),
            "{}",
            job.name()
        );
    }
    b.start().await;
    let [running, keyless, malformed, managed] = &theirs;
    running.has_event("SlotGranted").await;
    warning(keyless, "Malformed").await;
    warning(malformed, "Malformed").await;
    warning(managed, "ManagedElsewhere").await;
    for job in [&ours, running] {
        job.is_running().await;
        job.finish().await;
    }
    for db in &semaphores {
        nothing_is_left(bed, &team, db).await;
    }
}

async fn a_semaphore_changes_hands(stage: &Stage) {
    let Stage { bed, a, b } = stage;
    let consul = bed.consul();
    let team = bed.namespace("hands").await;
    let db = semaphore(&team, "db", "a").limit(2).create().await;
    let beside = semaphore(&team, "beside", "b").create().await;
    let prefix = db.lock_prefix();
    let observer = bed.watch_limit(&prefix).await;
    let job = |name: &str| team.job(name).semaphore("db").runs("1h").create();
    let (x, y) = (job("x").await, job("y").await);
    x.is_running().await;
    y.is_running().await;
    let z = job("z").await;
    z.has_event("SlotWaiting").await;
    let holders = consul.holders(&prefix).await;
    let (session, pods_of_x) = (x.session().await, pods(&x).await);

    // A change while they run.
    let of_db = format!("semaphore={}/db", team.name());
    let leaves = async |operator: &Operator| {
        eventually("it is left", || async {
            lines(operator, &["left to another operator", &of_db]) == 1
        })
        .await;
    };
    relabel(&db, "b").await;
    leaves(a).await;
    adopts(b, &holders).await;
    y.finish().await;
    z.is_running().await;
    stays(&x, session.as_deref(), &pods_of_x).await;
    let of_z = format!("workload={}/z", team.name());
    assert_eq!(lines(b, &[" granted", &of_z]), 1, "{}", b.logs());
    assert_eq!(lines(a, &[" granted", &of_z]), 0);

    // To no operator: nothing is touched.
    db.shows(json!({ "held": 2, "waiting": 0 })).await;
    let before = untouched(bed, &db).await;
    relabel(&db, "nobody").await;
    leaves(b).await;
    x.finish().await;
    let late = job("late").await;
    let next = team.job("next").semaphore(beside.name()).create().await;
    next.is_complete().await;
    assert_eq!(untouched(bed, &db).await, before);
    assert_eq!(event_reasons(&late).await, Vec::<String>::new());

    // Back to its operator: what ended meanwhile gives its slot back, and everything continues.
    let (session, pods_of_z) = (z.session().await, pods(&z).await);
    relabel(&db, "a").await;
    adopts(a, &before.holders).await;
    x.has_event("SlotReleased").await;
    late.is_running().await;
    stays(&z, session.as_deref(), &pods_of_z).await;
    z.finish().await;
    late.finish().await;
    is_free(bed, &db).await;
    assert_eq!(observer.peak_holders(), 2);
    assert!(observer.peak_jobs() <= 2, "{:?}", observer.seen());
    assert_eq!(observer.errors(), Vec::<String>::new());
}

/// Sessions made ahead expire like those that hold slots. An operator that takes over after that gives running Jobs
/// their slots again.
async fn sessions_of_nobodys_semaphore_expire(stage: &Stage) {
    let team = stage.bed.namespace("expire").await;
    let db = semaphore(&team, "db", "a").limit(1).ttl("10s");
    let db = db.create().await;
    let holds = team.job("holds").semaphore("db").runs("1h").grace(1);
    let holds = holds.create().await;
    holds.is_running().await;
    let next = team.job("next").semaphore("db").create().await;
    let own = format!("/{}/db/", team.name());
    let sessions = async |count: usize| {
        eventually(&format!("there are {count} sessions"), || async {
            let all = stage.bed.consul().sessions().await;
            let name =
                |session: &&Value| session["Name"].as_str().is_some_and(|n| n.contains(&own));
            same(all.iter().filter(name).count(), count)
        })
        .await;
    };
    sessions(2).await;
    relabel(&db, "nobody").await;
    sessions(0).await;
    holds.is_running().await;

    relabel(&db, "b").await;
    holds.has_event("SlotLost").await;
    holds.is_running().await;
    holds.finish().await;
    next.is_complete().await;
}

/// Waits until an operator has taken these sessions over.
async fn adopts(operator: &Operator, sessions: &BTreeSet<String>) {
    eventually("the sessions are adopted", || async {
        let mut sessions = sessions.iter();
        sessions.all(|session| lines(operator, &[" adopted", session]) > 0)
    })
    .await;
}

/// Waits until nobody holds a slot or contends for one. Sessions that were made ahead when a semaphore changed hands
/// exist until they expire.
async fn is_free(bed: &Bed, db: &Semaphore) {
    let (consul, prefix) = (bed.consul(), db.lock_prefix());
    eventually("nobody holds a slot", || async {
        let contenders = consul.contenders(&prefix).await;
        let keys: Vec<_> = contenders.into_iter().map(|entry| entry.key).collect();
        same(
            (consul.holders(&prefix).await, keys),
            (BTreeSet::new(), vec![]),
        )
    })
    .await;
}

/// What must stay unchanged while nobody manages a semaphore.
#[derive(Debug, PartialEq)]
struct Untouched {
    holders: BTreeSet<String>,
    contenders: Vec<String>,
    alive: BTreeSet<String>,
    status: Value,
    finalizers: Value,
}

async fn untouched(bed: &Bed, db: &Semaphore) -> Untouched {
    let (consul, prefix) = (bed.consul(), db.lock_prefix());
    let holders = consul.holders(&prefix).await;
    let contenders = consul.contenders(&prefix).await;
    let sessions = consul.sessions().await;
    let ids = sessions
        .iter()
        .filter_map(|session| session["ID"].as_str().map(str::to_owned));
    let object = db.get().await.expect("the semaphore");
    Untouched {
        alive: ids.filter(|id| holders.contains(id)).collect(),
        holders,
        contenders: contenders.into_iter().map(|entry| entry.key).collect(),
        status: object["status"].clone(),
        finalizers: object["metadata"]["finalizers"].clone(),
    }
}

async fn the_limit_is_kept_however_often_it_changes_hands(stage: &Stage) {
    const JOBS: usize = 40;
    let Stage { bed, a, b } = stage;
    let team = bed.namespace("back-and-forth").await;
    let db = semaphore(&team, "db", "a").limit(3).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let mut jobs = Vec::new();
    for number in 0..JOBS {
        let job = team.job(&format!("job-{number:02}")).semaphore("db");
        jobs.push(job.runs("200ms").create().await);
    }
    let mut shards = ["b", "a"].into_iter().cycle();
    for jobs in jobs.chunks(4) {
        for job in jobs {
            job.is_complete().await;
        }
        relabel(&db, shards.next().expect("it goes round")).await;
    }
    is_free(bed, &db).await;
    for job in &jobs {
        assert_eq!(pods(job).await.len(), 1, "{} was started once", job.name());
        let reasons = event_reasons(job).await;
        assert!(!reasons.contains(&"SlotLost".to_owned()), "{reasons:?}");
    }
    let of_db = format!("semaphore={}/db", team.name());
    for operator in [a, b] {
        assert!(lines(operator, &[" granted", &of_db]) > 0);
    }
    let seen = observer.seen();
    assert!(
        seen.peak_holders <= 3 && seen.peak_jobs <= 3,
        "{:?}",
        (seen.peak_holders, seen.peak_jobs)
    );
    assert_eq!(observer.errors(), Vec::<String>::new());
    db.delete().await;
    db.is_gone().await;
    let left = bed.consul().list(&format!("{}/", db.lock_prefix())).await;
    assert_eq!(left, []);
}
