//! What a change costs the operator: the CPU time of its process for many changes, minus what it takes in the same
//! time when nothing happens.
//!
//! Measured with few waiting Jobs and with many, on one semaphore, which grows in between; and once more after some of
//! them ask for more slots than one.

use std::time::Duration;

use serde_json::json;
use testbed::{Bed, Job, proof::SEMAPHORE};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    figures::{Goal, Row},
    load::{self, scaled},
    process::{Process, all_rests},
};

/// How many Jobs wait.
const FEW: usize = 10;
const MANY: usize = 10_000;

/// How many of them ask for more than one slot in the end, and for how many.
const LARGE: usize = 100;
const ASKED: &str = "db:2";

/// All slots are held by another program.
const LIMIT: u8 = 3;

/// How many changes a run has.
const CHANGES: u32 = 500;

/// Between two changes: far more than a pass takes, so that one pass never handles two.
const PACE: Duration = Duration::from_millis(20);

/// What is changed on a waiting Job.
struct Change {
    what: &'static str,
    /// An annotation, and its value after the change with this number.
    annotation: &'static str,
    value: fn(u32) -> String,
}

const CHANGES_OF: [Change; 2] = [
    Change {
        what: "that means nothing",
        annotation: "example.com/touch",
        value: |number| number.to_string(),
    },
    Change {
        what: "of its priority: from the end of the line to its head, and back",
        annotation: "consul-semaphore.io/priority",
        value: |number| (number % 2).to_string(),
    },
];

pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let team = bed.namespace("pass").await;
    let db = team.semaphore("db").limit(LIMIT.into()).create().await;
    db.is_ready().await;
    for _ in 0..LIMIT {
        bed.consul()
            .take_slot(&db.lock_prefix(), LIMIT.into())
            .await;
    }
    load::jobs(&team, "few-", FEW, |_, job| job.semaphore("db")).await;
    db.shows(json!({ "waiting": FEW })).await;
    let last = team.job(&format!("few-{:05}", FEW - 1));
    let few = costs(&bed, &last, runs).await;
    let many = scaled(MANY);
    load::jobs(&team, "many-", many - FEW, |_, job| job.semaphore("db")).await;
    db.shows(json!({ "waiting": many })).await;
    let last = team.job(&format!("many-{:05}", many - FEW - 1));
    let alike = costs(&bed, &last, runs).await;
    let large = scaled(LARGE);
    // Spread over the whole queue.
    let every = (many - FEW) / large;
    load::each(large, |number| {
        let job = team.job(&format!("many-{:05}", number * every));
        async move { job.annotate(SEMAPHORE, Some(ASKED)).await }
    })
    .await;
    let mixed = costs(&bed, &last, runs).await;
    let beside = format!("with {large} among them that ask for {ASKED}");
    let mut rows = compared(few, alike.clone(), ("", &format!("of one of {FEW}")), 1.5);
    rows.extend(compared(alike, mixed, (&beside, "without those"), 1.2));
    rows
}

/// A row for each kind of change: what it costs among many, against another such cost.
fn compared(
    floor: Vec<Vec<f64>>,
    costs: Vec<Vec<f64>>,
    (more, against): (&str, &str),
    most: f64,
) -> Vec<Row> {
    let sides = CHANGES_OF.iter().zip(costs.into_iter().zip(floor));
    sides
        .map(|(change, (cost, floor))| {
            let what = format!(
                "processor time for a change of one of {} waiting Jobs {} {more}",
                scaled(MANY),
                change.what,
            );
            let what = what.trim_end().to_owned();
            Row::of(what, "µs", cost, (against, floor), Goal::AtMost(most))
        })
        .collect()
}

/// The costs of each kind of change, in each run.
async fn costs(bed: &Bed, job: &Job, runs: usize) -> Vec<Vec<f64>> {
    all_rests(bed).await;
    let process = Process::of(bed.operator()).await;
    let mut costs = vec![Vec::new(); CHANGES_OF.len()];
    for _ in 0..runs {
        for (change, costs) in CHANGES_OF.iter().zip(&mut costs) {
            costs.push(cost(&process, job, change).await);
        }
    }
    costs
}

/// The CPU time of one change, in microseconds.
async fn cost(process: &Process, job: &Job, change: &Change) -> f64 {
    let idle = took(process, sleep(PACE * CHANGES)).await;
    let busy = took(process, async {
        let started = Instant::now();
        for number in 1..=CHANGES {
            let value = (change.value)(number);
            job.annotate(change.annotation, Some(&value)).await;
            sleep_until(started + PACE * number).await;
        }
    })
    .await;
    (busy.as_secs_f64() - idle.as_secs_f64()) * 1e6 / f64::from(CHANGES)
}

/// The CPU time that the process takes meanwhile.
async fn took(process: &Process, meanwhile: impl Future<Output = ()>) -> Duration {
    let before = process.processor_time();
    meanwhile.await;
    process.processor_time().saturating_sub(before)
}
