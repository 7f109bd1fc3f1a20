//! What a hand-over costs, beside the least that it could cost, in one run on real servers.
//!
//! `ours`: from a Job's Complete event to the event that shows the next Job of the line started, as
//! a watch of this program's own sees both. `floor`: the same for Jobs that this program hands over
//! itself, with one raw transaction and one raw PATCH of the same payloads on connections that are
//! kept alive, and nothing else. Batches of both take turns.
//!
//! Then the same on one key of a keyed semaphore, alone and beside a thousand that are held, by turns.
//!
//! Then the throughput: many short Jobs through a few slots, with the most holders at once that an
//! observer saw which shares no code with the operator.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a benchmark ends when something fails, takes the time, and prints its table"
)]

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use futures::StreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::watcher::{self, Event, watcher},
};
use serde_json::{Value, json};
use testbed::{Bed, Consul, Namespace, Semaphore};
use tokio::sync::mpsc;

const SLOTS: i64 = 3;
const FIRST: usize = 3;
const BATCHES: usize = 5;
const BATCH: usize = 30;
const THROUGHPUT_JOBS: usize = 300;
/// How many keys are held beside the one that is measured.
const KEYS: usize = 1000;
/// How many of them are taken in one transaction.
const TAKEN: usize = 30;

/// What a Job's events showed, and when they came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Started,
    Complete,
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(bench());
}

async fn bench() {
    let bed = Bed::start().await;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    let mut parts = Parts::default();
    for batch in 0..BATCHES {
        ours.extend(our_batch(&bed, batch).await);
        floor.extend(floor_batch(&bed, batch, &mut parts).await);
    }
    println!(
        "hand-over at limit {SLOTS}, watch to watch, {} of each in {BATCHES} batches by turns",
        ours.len()
    );
    println!("{:<28} {:>9} {:>9}", "", "p50 ms", "p99 ms");
    let (ours, floor) = (Figures::of(ours), Figures::of(floor));
    ours.print("ours");
    floor.print("floor: raw txn + raw PATCH");
    Figures::of(parts.transactions).print("  of it: transaction");
    Figures::of(parts.patches).print("  of it: PATCH");
    println!(
        "{:<28} {:>9.2} {:>9.2}",
        "ours / floor",
        ours.p50 / floor.p50,
        ours.p99 / floor.p99
    );
    keys(&bed).await;
    throughput(&bed).await;
}

/// A hand-over on one key of a keyed semaphore, alone and beside many.
async fn keys(bed: &Bed) {
    let (alone, crowd) = (Stage::new(bed, 0).await, Stage::new(bed, KEYS).await);
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for batch in 0..BATCHES {
        one.extend(alone.batch(batch).await);
        many.extend(crowd.batch(batch).await);
    }
    println!(
        "hand-over on one key at limit {SLOTS}, {} of each",
        one.len()
    );
    let (one, many) = (Figures::of(one), Figures::of(many));
    one.print("that key alone");
    many.print(&format!("beside {KEYS} keys"));
    println!(
        "{:<28} {:>9.2} {:>9.2}",
        "many / alone",
        many.p50 / one.p50,
        many.p99 / one.p99
    );
}

/// A keyed semaphore, of which so many keys are held by another program.
struct Stage {
    consul: Consul,
    team: Namespace,
    db: Semaphore,
}

impl Stage {
    async fn new(bed: &Bed, keys: usize) -> Self {
        let team = bed.namespace("keys").await;
        let db = team.semaphore("db").limit(SLOTS);
        let db = db.spec(json!({ "keyed": true })).create().await;
        db.is_ready().await;
        let session = json!({ "TTL": "24h", "Behavior": "delete" });
        let session = bed.consul().create_session(session).await;
        let prefix = db.lock_prefix();
        let names: Vec<String> = (0..keys).map(|number| format!("key-{number}")).collect();
        for taken in names.chunks(TAKEN) {
            let body = json!({ "Limit": SLOTS, "Holders": { &session: true } }).to_string();
            let body = BASE64.encode(body);
            let operations = taken.iter().flat_map(|key| {
                let key = format!("{prefix}/{key}");
                let flags = testbed::SEMAPHORE_FLAGS;
                [
                    json!({ "KV": { "Verb": "lock", "Key": format!("{key}/{session}"), "Session": session, "Flags": flags, "Value": BASE64.encode("x".repeat(280)) } }),
                    json!({ "KV": { "Verb": "set", "Key": format!("{key}/.lock"), "Flags": flags, "Value": body } }),
                ]
            });
            let operations: Vec<Value> = operations.collect();
            bed.consul().put_json("txn", operations.into()).await;
        }
        db.shows(json!({ "held": keys, "keysInUse": keys })).await;
        let consul = bed.consul().clone();
        Self { consul, team, db }
    }

    async fn batch(&self, batch: usize) -> Vec<Duration> {
        let Self { consul, team, db } = self;
        // A pause would be news to all keys.
        let prefix = format!("{}/measured", db.lock_prefix());
        let limit = SLOTS.unsigned_abs();
        let mut others = Vec::new();
        for _ in 0..SLOTS {
            others.push(consul.take_slot(&prefix, limit).await);
        }
        let mut events = follow(team);
        create(team, batch, Some("db"), Some("measured")).await;
        db.shows(json!({ "waiting": BATCH })).await;
        for other in others {
            consul.give_back(&prefix, &other).await;
        }
        let mut line = Line::default();
        let own = format!("b{batch}-");
        while line.completed.len() < BATCH {
            let (name, seen, at) = events.recv().await.expect("an event");
            if name.starts_with(&own) {
                line.note(seen, at);
            }
        }
        line.hand_overs()
    }
}

/// Hands over a batch of Jobs by the operator.
async fn our_batch(bed: &Bed, batch: usize) -> Vec<Duration> {
    let team = bed.namespace("ours").await;
    let db = team.semaphore("db").limit(SLOTS).create().await;
    db.is_ready().await;
    db.pause().await;
    db.has_condition("Ready", "False", "Paused").await;
    let mut events = follow(&team);
    create(&team, batch, Some("db"), None).await;
    db.shows(json!({ "waiting": BATCH })).await;
    db.resume().await;
    let mut line = Line::default();
    while line.completed.len() < BATCH {
        let (_, seen, at) = events.recv().await.expect("an event");
        line.note(seen, at);
    }
    line.hand_overs()
}

/// The times at which Jobs were seen to start and to complete.
#[derive(Default)]
struct Line {
    started: Vec<Instant>,
    completed: Vec<Instant>,
}

impl Line {
    fn note(&mut self, seen: Seen, at: Instant) {
        match seen {
            Seen::Started => self.started.push(at),
            Seen::Complete => self.completed.push(at),
        }
    }

    /// Every end makes room for one start, beyond the first ones.
    fn hand_overs(&self) -> Vec<Duration> {
        let starts = self.started.iter().skip(FIRST);
        starts
            .zip(&self.completed)
            .map(|(start, end)| start.saturating_duration_since(*end))
            .collect()
    }
}

#[derive(Default)]
struct Parts {
    transactions: Vec<Duration>,
    patches: Vec<Duration>,
}

/// Hands over a batch of Jobs by the least that it takes.
async fn floor_batch(bed: &Bed, batch: usize, parts: &mut Parts) -> Vec<Duration> {
    let team = bed.namespace("floor").await;
    let mut events = follow(&team);
    let names = create(&team, batch, None, None).await;
    let raw = Raw::new(bed, &team, names.len()).await;
    let jobs: Api<Job> = team.api();
    let mut waiting = names.iter().enumerate();
    let mut slots: Vec<usize> = Vec::new();
    for (number, name) in waiting.by_ref().take(FIRST) {
        slots.push(number);
        raw.hand_over(&slots, None, number, parts).await;
        raw.start(&jobs, name, number, parts).await;
    }
    let mut line = Line::default();
    let numbers: HashMap<&str, usize> = names
        .iter()
        .enumerate()
        .map(|(number, name)| (name.as_str(), number))
        .collect();
    while line.completed.len() < BATCH {
        let (name, seen, at) = events.recv().await.expect("an event");
        line.note(seen, at);
        if seen == Seen::Complete
            && let Some((number, next)) = waiting.next()
        {
            let ended = numbers[name.as_str()];
            slots.retain(|held| *held != ended);
            slots.push(number);
            raw.hand_over(&slots, Some(ended), number, parts).await;
            raw.start(&jobs, next, number, parts).await;
        }
    }
    line.hand_overs()
}

/// The floor's own semaphore, as raw requests.
struct Raw {
    http: reqwest::Client,
    url: String,
    prefix: String,
    sessions: Vec<String>,
    index: std::sync::Mutex<u64>,
}

impl Raw {
    async fn new(bed: &Bed, team: &Namespace, sessions: usize) -> Self {
        let mut made = Vec::new();
        for _ in 0..sessions {
            let session = json!({ "TTL": "600s", "Behavior": "delete" });
            made.push(bed.consul().create_session(session).await);
        }
        Self {
            http: reqwest::Client::new(),
            url: format!("{}/v1/txn", bed.consul().address()),
            prefix: format!("semaphores/{}/floor", team.name()),
            sessions: made,
            index: std::sync::Mutex::new(0),
        }
    }

    /// One transaction: out with the one, in with the other.
    async fn hand_over(
        &self,
        slots: &[usize],
        ended: Option<usize>,
        next: usize,
        parts: &mut Parts,
    ) {
        let key = |number: usize| format!("{}/{}", self.prefix, self.sessions[number]);
        let holders: serde_json::Map<String, Value> = slots
            .iter()
            .map(|slot| (self.sessions[*slot].clone(), true.into()))
            .collect();
        let body = json!({ "Limit": SLOTS, "Holders": holders }).to_string();
        let index = *self.index.lock().expect("a lock");
        let mut operations = vec![
            json!({ "KV": { "Verb": "lock", "Key": key(next), "Session": self.sessions[next], "Value": BASE64.encode("x".repeat(280)) } }),
            json!({ "KV": { "Verb": "cas", "Key": format!("{}/.lock", self.prefix), "Index": index, "Value": BASE64.encode(body) } }),
        ];
        if let Some(ended) = ended {
            operations.push(json!({ "KV": { "Verb": "delete", "Key": key(ended) } }));
        }
        let sent = Instant::now();
        let answer = self
            .http
            .put(&self.url)
            .json(&operations)
            .send()
            .await
            .expect("an answer");
        let answer: Value = answer.json().await.expect("JSON");
        parts.transactions.push(sent.elapsed());
        let written = answer["Results"][1]["KV"]["ModifyIndex"].as_u64();
        *self.index.lock().expect("a lock") = written.expect("the transaction went through");
    }

    /// One PATCH: the Job is started, with the sequencer on its template.
    async fn start(&self, jobs: &Api<Job>, name: &str, number: usize, parts: &mut Parts) {
        let session = &self.sessions[number];
        let patch = Patch::Merge(json!({
            "metadata": { "annotations": { "example.com/session": session } },
            "spec": { "suspend": false, "template": { "metadata": {
                "labels": { "example.com/holder": "true" },
                "annotations": {
                    "example.com/lock-key": format!("{}/{session}", self.prefix),
                    "example.com/session": session,
                    "example.com/lock-index": "1",
                    "example.com/fencing-token": "123456",
                    "example.com/granted-to": session,
                },
            } } },
        }));
        let sent = Instant::now();
        jobs.patch(name, &PatchParams::default(), &patch)
            .await
            .expect("a PATCH");
        parts.patches.push(sent.elapsed());
    }
}

async fn create(
    team: &Namespace,
    batch: usize,
    semaphore: Option<&str>,
    key: Option<&str>,
) -> Vec<String> {
    let mut names = Vec::new();
    for number in 0..BATCH {
        let job = team.job(&format!("b{batch}-{number:02}")).runs("200ms");
        let job = match semaphore {
            Some(semaphore) => job.semaphore(semaphore),
            None => job,
        };
        let job = match key {
            Some(key) => job.annotation("consul-semaphore.io/key", key),
            None => job,
        };
        let job = job.create().await;
        job.is_suspended().await;
        names.push(job.name().to_owned());
    }
    names
}

/// The starts and ends of a namespace's Jobs, as they are seen.
fn follow(team: &Namespace) -> mpsc::Receiver<(String, Seen, Instant)> {
    let (sender, receiver) = mpsc::channel(1024);
    let jobs: Api<Job> = team.api();
    tokio::spawn(async move {
        let mut known: HashMap<String, Seen> = HashMap::new();
        let mut events = std::pin::pin!(watcher(jobs, watcher::Config::default()));
        while let Some(event) = events.next().await {
            let at = Instant::now();
            let Ok(Event::Apply(job) | Event::InitApply(job)) = event else {
                continue;
            };
            let name = job.metadata.name.clone().unwrap_or_default();
            let complete = job
                .status
                .iter()
                .flat_map(|status| &status.conditions)
                .flatten();
            let complete = complete.filter(|condition| condition.status == "True");
            let seen = if complete
                .into_iter()
                .any(|condition| condition.type_ == "Complete")
            {
                Seen::Complete
            } else if job.spec.is_some_and(|spec| spec.suspend == Some(false)) {
                Seen::Started
            } else {
                continue;
            };
            if known.insert(name.clone(), seen) != Some(seen)
                && sender.send((name, seen, at)).await.is_err()
            {
                return;
            }
        }
    });
    receiver
}

struct Figures {
    p50: f64,
    p99: f64,
}

impl Figures {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |share: usize| {
            let index = (times.len() * share / 100).min(times.len().saturating_sub(1));
            times
                .get(index)
                .map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
        };
        Self {
            p50: at(50),
            p99: at(99),
        }
    }

    fn print(&self, what: &str) {
        println!("{what:<28} {:>9.2} {:>9.2}", self.p50, self.p99);
    }
}

/// Many short Jobs through a few slots.
async fn throughput(bed: &Bed) {
    let team = bed.namespace("throughput").await;
    let db = team.semaphore("db").limit(SLOTS).create().await;
    db.is_ready().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let mut events = follow(&team);
    let started = Instant::now();
    let creating = tokio::spawn({
        let team = team.clone();
        async move {
            for number in 0..THROUGHPUT_JOBS {
                team.job(&format!("job-{number:03}"))
                    .semaphore("db")
                    .runs("200ms")
                    .create()
                    .await;
            }
        }
    });
    let mut line = Line::default();
    while line.completed.len() < THROUGHPUT_JOBS {
        let (_, seen, at) = events.recv().await.expect("an event");
        line.note(seen, at);
    }
    creating.await.expect("all Jobs were created");
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    let jobs = THROUGHPUT_JOBS as f64;
    println!(
        "{THROUGHPUT_JOBS} Jobs of 200 ms through {SLOTS} slots: {:.0} Jobs a minute, peak holders {}, peak Jobs with pods {}",
        jobs / minutes,
        observer.peak_holders(),
        observer.peak_jobs(),
    );
}
