//! What a change costs the operator: the CPU time of its process for many changes, minus what it takes in the same
//! time when nothing happens.
//!
//! Measured with few waiting Jobs and with many, on one semaphore, which grows in between.

use std::time::Duration;

use serde_json::json;
use testbed::{Bed, Job};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    figures::{Goal, Row},
    load::{self, scaled},
    process::{Process, all_rests},
};

/// How many Jobs wait.
const FEW: usize = 10;
const MANY: usize = 10_000;

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
    let db = team.semaphore("db").create().await;
    db.is_ready().await;
    bed.consul().take_slot(&db.lock_prefix(), 1).await;
    load::jobs(&team, "few-", FEW, |_, job| job.semaphore("db")).await;
    db.shows(json!({ "waiting": FEW })).await;
    let last = team.job(&format!("few-{:05}", FEW - 1));
    let few = costs(&bed, &last, runs).await;
    let many = scaled(MANY);
    load::jobs(&team, "many-", many - FEW, |_, job| job.semaphore("db")).await;
    db.shows(json!({ "waiting": many })).await;
    let last = team.job(&format!("many-{:05}", many - FEW - 1));
    let costs = costs(&bed, &last, runs).await;
    let sides = CHANGES_OF.iter().zip(costs.into_iter().zip(few));
    sides
        .map(|(change, (many, few))| {
            let what = format!(
                "processor time for a change of one of {many_waiting} waiting Jobs {}",
                change.what,
                many_waiting = scaled(MANY),
            );
            let against = format!("of one of {FEW}");
            Row::of(what, "µs", many, (&against, few), Goal::AtMost(1.5))
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
