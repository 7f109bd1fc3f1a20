//! A burst: many Jobs wait, and then slots become free for all of them at once.
//!
//! A rate is the number of Jobs divided by the time from the change that frees the slots until this program's own
//! watch has shown the last Job started. Ours: from the answer to the PATCH that raises the limit, while another Job
//! holds the only slot. The floor: the PATCH that starts each Job and nothing else, over as many connections as the
//! goal has; each is a separate client, which sends one request after another. Batches of both take turns, each after
//! the pods of the last one are gone.

use std::time::Instant;

use futures::future::join_all;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{Api, api::ListParams};
use serde_json::json;
use testbed::{Bed, Namespace};
use tokio::sync::mpsc;

use crate::{
    figures::{Goal, Row},
    load::each,
    process, raw,
    timeline::{Seen, Sight, create, follow},
};

/// How many Jobs wait.
pub(crate) const JOBS: usize = 500;
/// How long each of them runs: none ends before the last has started.
pub(crate) const RUNS: &str = "600s";
const CONNECTIONS: usize = 8;
/// Of the usual length, like the key.
const SESSION: &str = "8a4ff4d6-3d0c-6b0c-8e3f-5a7d3c1f9b20";
const KEY: &str = "semaphores/floor-7xk2p/db/8a4ff4d6-3d0c-6b0c-8e3f-5a7d3c1f9b20";

pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        ours.push(our_batch(&bed).await);
        floor.push(floor_batch(&bed).await);
    }
    vec![Row::of(
        format!("burst: {JOBS} waiting Jobs, limit raised from no room to {JOBS}"),
        "Jobs/s",
        ours,
        ("raw PATCHes over 8 connections", floor),
        Goal::AtLeast(1.2),
    )]
}

/// Starts a batch of Jobs with the operator.
pub(crate) async fn our_batch(bed: &Bed) -> f64 {
    let team = bed.namespace("ours").await;
    let db = team.semaphore("db").limit(1).create().await;
    let first = team.job("first").semaphore("db").runs(RUNS).create().await;
    first.is_running().await;
    let mut events = follow(&team);
    create(&team, "job-", JOBS, |job| job.runs(RUNS).semaphore("db")).await;
    db.shows(json!({ "held": 1, "waiting": JOBS })).await;
    process::all_rests(bed).await;
    let limit = i64::try_from(JOBS).expect("a limit") + 1;
    db.set_limit(limit).await;
    let rate = rate(&mut events, Instant::now()).await;
    clear(bed, &team).await;
    rate
}

/// Starts a batch of Jobs with the fewest possible requests.
async fn floor_batch(bed: &Bed) -> f64 {
    let team = bed.namespace("floor").await;
    let mut events = follow(&team);
    let names = create(&team, "job-", JOBS, |job| job.runs(RUNS)).await;
    let mut connections = Vec::new();
    for names in names.chunks(JOBS.div_ceil(CONNECTIONS)) {
        connections.push((connection(bed, &team).await, names));
    }
    process::all_rests(bed).await;
    let opened = Instant::now();
    let starting = connections.iter().map(|(jobs, names)| async move {
        for name in *names {
            raw::start(jobs, name, SESSION, KEY).await;
        }
    });
    join_all(starting).await;
    let rate = rate(&mut events, opened).await;
    clear(bed, &team).await;
    rate
}

/// A separate, open connection to Kubernetes.
async fn connection(bed: &Bed, team: &Namespace) -> Api<Job> {
    let kubernetes = bed.kubernetes().expect("a Kubernetes of the bed's own");
    let jobs: Api<Job> = Api::namespaced(kubernetes.client().await, team.name());
    let one = ListParams::default().limit(1);
    jobs.list(&one).await.expect("a list");
    jobs
}

/// Jobs per second, once all have started.
pub(crate) async fn rate(events: &mut mpsc::Receiver<Sight>, opened: Instant) -> f64 {
    let mut started = 0;
    loop {
        let (name, seen, at) = events.recv().await.expect("an event");
        if seen == Seen::Started && name.starts_with("job-") {
            started += 1;
        }
        if started == JOBS {
            let took = at.saturating_duration_since(opened);
            return JOBS as f64 / took.as_secs_f64();
        }
    }
}

/// Deletes the Jobs of a batch, and waits until nothing is left to do for them.
pub(crate) async fn clear(bed: &Bed, team: &Namespace) {
    let names = team.jobs().await;
    each(names.len(), async |number| {
        team.job(&names[number]).delete().await;
    })
    .await;
    let pods = team.api::<Pod>();
    testbed::eventually("the pods are gone", || async {
        let left = pods.list_metadata(&ListParams::default()).await;
        let left = left.map_err(|error| error.to_string())?;
        testbed::same(left.items.len(), 0)
    })
    .await;
    process::all_rests(bed).await;
}
