//! The naive form, for comparison: the same Jobs, started by the first program one would write after reading Consul's
//! guide to semaphores.
//!
//! Each Job has its own pass, which lists the prefix, checks whether a slot is free, creates a session and a
//! contender, and tries to write itself into `.lock`. If no slot is free, or another one was quicker, it does what
//! the guide says: it waits for a change at the prefix with a blocking query, and tries again. When the Job has
//! ended, its holder, its contender and its session are removed one after another.

use std::{collections::HashMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use k8s_openapi::api::batch::v1::Job;
use kube::Api;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use testbed::{Bed, Namespace};
use tokio::sync::oneshot;

use crate::{
    figures::{Goal, Row, Times, rows_of_times},
    hand_over::{self, RUNS, SLOTS},
    raw,
    timeline::{Seen, Timeline, create, follow},
};

/// How many Jobs wait together.
const BATCH: usize = 30;

pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let (mut ours, mut naive) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        ours.push(hand_over::our_batch(&bed).await);
        naive.push(naive_batch(&bed).await);
    }
    let rows = rows_of_times(
        &format!("hand-over, limit {SLOTS}"),
        &ours,
        ("the naive form", &naive),
        Goal::None,
    );
    rows.into_iter().map(Row::how_many_times_faster).collect()
}

/// Hands over a batch of Jobs in the naive form.
async fn naive_batch(bed: &Bed) -> Times {
    let team = bed.namespace("naive").await;
    let mut events = follow(&team);
    let names = create(&team, "job-", BATCH, |job| job.runs(RUNS)).await;
    let naive = Arc::new(Naive::new(bed, &team));
    let mut ends = HashMap::new();
    let mut passes = Vec::new();
    for name in names {
        let (end, ended) = oneshot::channel();
        ends.insert(name.clone(), end);
        let naive = naive.clone();
        passes.push(tokio::spawn(async move { naive.run(&name, ended).await }));
    }
    let mut timeline = Timeline::default();
    while timeline.completed.len() < BATCH {
        let (name, seen, at) = events.recv().await.expect("an event");
        timeline.note(seen, at);
        if seen == Seen::Complete {
            let end = ends.remove(&name).expect("a Job that ends once");
            end.send(()).expect("a pass that waits for it");
        }
    }
    for pass in passes {
        pass.await.expect("a pass that ends well");
    }
    Times::of(timeline.hand_overs(SLOTS))
}

/// What all passes of a semaphore share.
struct Naive {
    http: reqwest::Client,
    consul: String,
    prefix: String,
    jobs: Api<Job>,
}

/// The content of a list of the prefix.
struct Listing {
    /// The live holders in `.lock`.
    holders: Vec<String>,
    /// The `ModifyIndex` of `.lock`; 0 if there is none.
    lock: u64,
    /// The index of the answer, to wait for later changes.
    index: u64,
}

impl Naive {
    fn new(bed: &Bed, team: &Namespace) -> Self {
        Self {
            http: reqwest::Client::new(),
            consul: bed.consul().address().to_owned(),
            prefix: format!("semaphores/{}/naive", team.name()),
            jobs: team.api(),
        }
    }

    /// The pass of a Job.
    async fn run(&self, job: &str, ended: oneshot::Receiver<()>) {
        let session = self.take_slot().await;
        let key = format!("{}/{session}", self.prefix);
        raw::start(&self.jobs, job, &session, &key).await;
        ended.await.expect("a Job that ends");
        self.give_back(&session).await;
    }

    async fn take_slot(&self) -> String {
        let mut own = None;
        let mut index = 0;
        loop {
            let mut seen = self.list(index).await;
            index = seen.index;
            if seen.holders.len() >= SLOTS {
                continue;
            }
            let session = match own.take() {
                Some(session) => session,
                None => self.contend().await,
            };
            seen.holders.push(session.clone());
            if self.write(&seen).await {
                return session;
            }
            own = Some(session);
        }
    }

    async fn give_back(&self, session: &str) {
        loop {
            let mut seen = self.list(0).await;
            seen.holders.retain(|holder| holder != session);
            if self.write(&seen).await {
                break;
            }
        }
        let contender = format!("kv/{}/{session}", self.prefix);
        answer(self.request(Method::DELETE, &contender)).await;
        let destroyed = format!("session/destroy/{session}");
        answer(self.request(Method::PUT, &destroyed)).await;
    }

    /// Creates a session and its contender.
    async fn contend(&self) -> String {
        let session = json!({ "TTL": "600s", "Behavior": "delete" });
        let created = self.request(Method::PUT, "session/create").json(&session);
        let created = answer(created).await;
        let session = created["ID"].as_str().expect("a session").to_owned();
        let contender = format!("kv/{}/{session}?acquire={session}", self.prefix);
        answer(self.request(Method::PUT, &contender)).await;
        session
    }

    /// Lists the prefix, after a change since `index` if that is not 0.
    async fn list(&self, index: u64) -> Listing {
        let path = format!("kv/{}/?recurse&wait=30s&index={index}", self.prefix);
        let answer = self.request(Method::GET, &path).send().await;
        let answer = answer.expect("an answer");
        let index = answer.headers()["X-Consul-Index"].to_str();
        let index = index.expect("an index").parse().expect("an index");
        // Nothing exists yet: an answer without a body.
        let entries: Vec<Value> = answer.json().await.unwrap_or_default();
        let lock = format!("{}/.lock", self.prefix);
        let lock = entries.iter().find(|entry| entry["Key"] == lock);
        let holders = lock.map(holders_of).unwrap_or_default();
        let is_live = |holder: &String| entries.iter().any(|entry| entry["Session"] == **holder);
        Listing {
            holders: holders.into_iter().filter(is_live).collect(),
            lock: lock
                .and_then(|lock| lock["ModifyIndex"].as_u64())
                .unwrap_or(0),
            index,
        }
    }

    /// Writes `.lock` with these holders if it is unchanged. Returns whether it was.
    async fn write(&self, seen: &Listing) -> bool {
        let path = format!("kv/{}/.lock?cas={}", self.prefix, seen.lock);
        let body = json!({ "Limit": SLOTS, "Holders": seen.holders });
        answer(self.request(Method::PUT, &path).json(&body)).await == true
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http
            .request(method, format!("{}/v1/{path}", self.consul))
    }
}

/// The JSON of the answer.
async fn answer(request: RequestBuilder) -> Value {
    let answer = request.send().await.expect("an answer");
    answer.json().await.expect("JSON")
}

/// The holders in the body of `.lock`, in the guide's format.
fn holders_of(lock: &Value) -> Vec<String> {
    let body = lock["Value"].as_str().unwrap_or_default();
    let body: Value = serde_json::from_slice(&BASE64.decode(body).expect("base64")).expect("JSON");
    serde_json::from_value(body["Holders"].clone()).expect("a list of sessions")
}
