//! A semaphore with as many holders as a limit allows: its `.lock` has a body of 200 KiB, and its prefix thousands of
//! keys.

use std::{collections::BTreeSet, time::Instant};

use k8s_openapi::api::batch::v1::Job;
use kube::{Api, api::ListParams};
use testbed::{Bed, Namespace, Semaphore};

use crate::{
    figures::{Goal, Row, rows_of_times},
    hand_over::{self, SLOTS},
    load::{self, scaled},
    process::all_rests,
    timeline::follow,
};

const LIMIT: usize = 5000;

pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let team = bed.namespace("many").await;
    let (limit, held) = (scaled(LIMIT), scaled(LIMIT) - SLOTS);
    let db = team
        .semaphore("db")
        .limit(limit.try_into().expect("a limit"));
    let db = db.paused(true).create().await;
    let prefix = db.lock_prefix();
    let rate = fill(&team, &db, held).await;
    all_rests(&bed).await;
    let (held_before, before) = (
        bed.consul().holders(&prefix).await,
        generations(&team).await,
    );
    bed.operator().stop().await;
    bed.operator().start().await;
    all_rests(&bed).await;
    let (held_after, after) = (
        bed.consul().holders(&prefix).await,
        generations(&team).await,
    );
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for run in 0..runs {
        db.pause().await;
        db.has_condition("Ready", "True", "Paused").await;
        ours.push(hand_over::batch(&team, &db, &format!("run-{run}-")).await);
        floor.push(hand_over::floor_batch(&bed, held).await);
    }
    let lost = held_before.difference(&held_after).count() as f64;
    let stopped = before.difference(&after).count() as f64;
    let mut rows = vec![
        Row::alone(
            format!("{held} Jobs granted and started at once"),
            "/s",
            vec![rate],
            Goal::None,
        ),
        Row::alone(
            format!("slots lost by a restart, {held} held"),
            "",
            vec![lost],
            Goal::AtMost(0.0),
        ),
        Row::alone(
            format!("Jobs stopped by a restart, {held} running"),
            "",
            vec![stopped],
            Goal::AtMost(0.0),
        ),
    ];
    rows.extend(rows_of_times(
        &format!("hand-over, limit {limit}, as many holders"),
        &ours,
        ("raw txn + PATCH with such a body", &floor),
        Goal::AtMost(1.3),
    ));
    rows
}

/// Starts this many Jobs at once; returns how many per second that was.
async fn fill(team: &Namespace, db: &Semaphore, jobs: usize) -> f64 {
    let mut events = follow(team);
    load::jobs(team, "holds-", jobs, |_, job| {
        job.runs("24h").semaphore("db")
    })
    .await;
    let resumed = Instant::now();
    db.resume().await;
    let last = load::started(&mut events, jobs).await;
    jobs as f64 / last.saturating_duration_since(resumed).as_secs_f64()
}

/// The Jobs with the generations of their specs: stopping and restarting one changes its generation.
pub(crate) async fn generations(team: &Namespace) -> BTreeSet<(Option<String>, Option<i64>)> {
    let jobs: Api<Job> = team.api();
    let jobs = jobs.list(&ListParams::default()).await.expect("a list");
    let generation = |job: Job| (job.metadata.name, job.metadata.generation);
    jobs.into_iter().map(generation).collect()
}
