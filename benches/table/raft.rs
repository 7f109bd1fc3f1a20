//! What a Job costs Consul: raft entries from the Job's creation to the end of its session, counted by Consul's own
//! index, minus those that an idle Consul writes in the same time.
//!
//! Foreign writes are not included: they reach Consul through a proxy, which counts them.

use std::time::{Duration, Instant};

use serde_json::json;
use testbed::{Bed, Call, Consul, Namespace, Proxy, eventually};
use tokio::{sync::mpsc, time::sleep};

use crate::{
    figures::{Goal, Row},
    process,
    timeline::{Sight, Timeline, create, follow},
};

/// How long an idle Consul is watched.
const IDLE: Duration = Duration::from_secs(30);
/// How many grants the peer makes.
const GRANTS: u32 = 50;

pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let [mut go, mut one_by_one, mut at_once] = [const { Vec::new() }; 3];
    let (mut beside_another, mut other) = (Vec::new(), Vec::new());
    for run in 0..runs {
        let idle = idle(&bed).await;
        go.push(go_semaphore(&bed, idle, &format!("go/{run}")).await);
        one_by_one.push(ours(&bed, idle, 50).await);
        at_once.push(ours_at_once(&bed, idle, 10, 5).await);
        let (ours, theirs) = ours_beside_another(&bed, idle, 50).await;
        beside_another.push(ours);
        other.push(theirs);
    }
    let row = |what: &str, ours, theirs: &[f64], most| {
        let what = format!("raft entries for a Job, {what}");
        let theirs = ("Go's `api.Semaphore`", theirs.to_vec());
        Row::of(what, "", ours, theirs, Goal::AtMost(most)).goal_for_itself()
    };
    vec![
        row("one hand-over at a time", one_by_one, &go, 4.0),
        row("10 hand-overs at a time", at_once, &go, 3.0),
        row("another client waits too", beside_another, &other, 5.0),
    ]
}

/// Entries for each of our Jobs, one after another.
async fn ours(bed: &Bed, idle: f64, jobs: usize) -> f64 {
    let team = bed.namespace("raft").await;
    let entries = Entries::start(bed.consul(), idle).await;
    hand_over(bed, &team, jobs).await;
    entries.so_far().await / jobs as f64
}

/// Entries for each of our Jobs, this many of them at once: the operator is paused while they end, because ends
/// accumulate while Consul is slow to answer.
async fn ours_at_once(bed: &Bed, idle: f64, slots: usize, rounds: usize) -> f64 {
    let team = bed.namespace("raft").await;
    let entries = Entries::start(bed.consul(), idle).await;
    let mut events = queue_jobs(&team, slots, slots * rounds, "1s").await;
    let mut timeline = Timeline::default();
    for round in 1..=rounds {
        while timeline.started.len() < slots * round {
            note(&mut timeline, &mut events).await;
        }
        bed.operator().pause().await;
        while timeline.completed.len() < slots * round {
            note(&mut timeline, &mut events).await;
        }
        bed.operator().resume().await;
    }
    ours_are_gone(bed.consul()).await;
    entries.so_far().await / (slots * rounds) as f64
}

/// Entries for each of our Jobs while Consul's Go client competes for the slot: it waits whenever a Job ends. Also
/// entries for each of its grants.
async fn ours_beside_another(bed: &Bed, idle: f64, jobs: usize) -> (f64, f64) {
    let team = bed.namespace("raft").await;
    let prefix = team.semaphore("db").lock_prefix();
    let proxy = Proxy::start(bed.consul().address()).await;
    let entries = Entries::start(bed.consul(), idle).await;
    let other = bed.go_semaphore("other", &prefix, 1).times(0);
    let other = other.hold(Duration::from_millis(100));
    let other = other.through(&proxy.address()).start().await;
    hand_over(bed, &team, jobs).await;
    let theirs = proxy.calls().iter().filter(|call| is_entry(call)).count() as f64;
    let ours = entries.so_far().await - theirs;
    let grants = other.waits().len() as f64;
    other.stop().await;
    (ours / jobs as f64, theirs / grants)
}

/// Whether a call writes an entry to the raft log. A renewal does not: only the leader records it.
fn is_entry(call: &Call) -> bool {
    call.method != "GET" && !call.is_renewal()
}

/// Hands over this many Jobs one by one, and waits until nothing of them is left in Consul.
async fn hand_over(bed: &Bed, team: &Namespace, jobs: usize) {
    let mut events = queue_jobs(team, 1, jobs, "200ms").await;
    Timeline::until_complete(&mut events, "job-", jobs).await;
    ours_are_gone(bed.consul()).await;
}

/// Queues this many Jobs, and then releases them.
async fn queue_jobs(
    team: &Namespace,
    slots: usize,
    jobs: usize,
    runs: &str,
) -> mpsc::Receiver<Sight> {
    let slots = i64::try_from(slots).expect("a limit");
    let db = team.semaphore("db").limit(slots).paused(true);
    let db = db.create().await;
    let events = follow(team);
    create(team, "job-", jobs, |job| job.runs(runs).semaphore("db")).await;
    db.shows(json!({ "waiting": jobs })).await;
    db.resume().await;
    events
}

/// Entries for each grant of Consul's Go client.
async fn go_semaphore(bed: &Bed, idle: f64, prefix: &str) -> f64 {
    let entries = Entries::start(bed.consul(), idle).await;
    let go = bed.go_semaphore("go", prefix, 1).times(GRANTS);
    let go = go.hold(Duration::ZERO).start().await;
    go.is_done().await;
    sessions_are_gone(bed.consul(), |_| true).await;
    entries.so_far().await / f64::from(GRANTS)
}

async fn note(timeline: &mut Timeline, events: &mut mpsc::Receiver<Sight>) {
    let (_, seen, at) = events.recv().await.expect("an event");
    timeline.note(seen, at);
}

/// Waits until the operator has no sessions left.
async fn ours_are_gone(consul: &Consul) {
    sessions_are_gone(consul, |session| session["Node"] != "bed").await;
}

/// Waits until no such session is left, but for the one that keeps the operator's identity as long as it runs.
async fn sessions_are_gone(consul: &Consul, such: impl Fn(&serde_json::Value) -> bool) {
    let is_identity = |session: &serde_json::Value| {
        let name = session["Name"].as_str();
        name.is_some_and(|name| name.starts_with("consul-semaphore-operator identity "))
    };
    eventually("the sessions are gone", || async {
        let sessions = consul.sessions().await;
        let left = sessions
            .iter()
            .filter(|session| such(session) && !is_identity(session));
        testbed::same(left.count(), 0)
    })
    .await;
}

/// How many entries per second there are while nobody uses Consul.
async fn idle(bed: &Bed) -> f64 {
    process::all_rests(bed).await;
    let entries = Entries::start(bed.consul(), 0.0).await;
    sleep(IDLE).await;
    entries.so_far().await / IDLE.as_secs_f64()
}

/// The entries of Consul's raft log from now on.
struct Entries<'a> {
    consul: &'a Consul,
    first: u64,
    since: Instant,
    /// How many per second come from an idle Consul.
    idle: f64,
}

impl<'a> Entries<'a> {
    async fn start(consul: &'a Consul, idle: f64) -> Self {
        Self {
            consul,
            first: last_index(consul).await,
            since: Instant::now(),
            idle,
        }
    }

    async fn so_far(&self) -> f64 {
        let entries = last_index(self.consul).await - self.first;
        entries as f64 - self.idle * self.since.elapsed().as_secs_f64()
    }
}

async fn last_index(consul: &Consul) -> u64 {
    let agent = consul.get("agent/self").await;
    let index = agent["Stats"]["raft"]["last_log_index"].as_str();
    let index = index.and_then(|index| index.parse().ok());
    index.expect("the last index of the raft log")
}
