//! How much memory the operator uses, as the system reports it.
//!
//! Each load is measured after it was built up, and after a restart: then everything arrives at once. A run is such a
//! restart.

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde_json::json;
use testbed::{Bed, Namespace};

use crate::{
    figures::{Goal, Row},
    load::{self, scaled},
    process::{Process, all_rests},
};

const UNIT: &str = "MiB";

/// How many Jobs wait at most.
const WAITING: usize = 10_000;

/// How many MiB may be resident then.
const MOST: f64 = 30.0;

/// How many Jobs are not ours.
const OTHERS: usize = 100_000;

/// How many more MiB may be resident with them.
const MORE: f64 = 5.0;

pub(crate) async fn rows(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let team = bed.namespace("memory").await;
    let db = team.semaphore("db").create().await;
    db.is_ready().await;
    bed.consul().take_slot(&db.lock_prefix(), 1).await;
    let mut rows = Vec::new();
    let mut there = 0;
    for (waiting, goal) in [
        (0, Goal::None),
        (scaled(WAITING / 10), Goal::None),
        (scaled(WAITING), Goal::AtMost(MOST)),
    ] {
        let prefix = format!("to-{waiting}-");
        let more = waiting - there;
        load::jobs(&team, &prefix, more, |_, job| job.semaphore("db")).await;
        db.shows(json!({ "waiting": waiting })).await;
        there = waiting;
        let sizes = Sizes::measure(&bed, runs).await;
        rows.extend(sizes.rows(&format!("resident memory, {waiting} Jobs waiting"), goal));
    }
    rows
}

/// The same with many Jobs that ask for no slot, each with a pod.
pub(crate) async fn rows_beside_others(runs: usize) -> Vec<Row> {
    let bed = Bed::start().await;
    let without = Sizes::measure(&bed, runs).await;
    let others = scaled(OTHERS);
    let team = bed.namespace("others").await;
    load::each(others, |number| create_with_a_pod(&team, number)).await;
    let with = Sizes::measure(&bed, runs).await;
    let what =
        format!("resident memory beside {others} Jobs of others with pods, more than without");
    with.less(&without).rows(&what, Goal::AtMost(MORE))
}

/// A Job that no controller touches, with a pod that does not run.
async fn create_with_a_pod(team: &Namespace, number: usize) {
    let name = format!("other-{number:06}");
    let containers = json!([{ "name": "work", "image": "none" }]);
    let job = json!({
        "metadata": { "name": name },
        "spec": {
            "suspend": true,
            "managedBy": "example.com/nobody",
            "template": { "spec": { "restartPolicy": "Never", "containers": containers } },
        },
    });
    let job: Job = serde_json::from_value(job).expect("a Job");
    let jobs: Api<Job> = team.api();
    let job = jobs.create(&PostParams::default(), &job).await;
    let job = job.expect("a Job is created");
    let uid = job.uid().expect("a Job's uid");
    let pod = json!({
        "metadata": {
            "name": format!("{name}-pod"),
            "labels": {
                "batch.kubernetes.io/controller-uid": uid,
                "batch.kubernetes.io/job-name": name,
                "controller-uid": uid,
                "job-name": name,
            },
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": { "restartPolicy": "Never", "schedulerName": "nobody", "containers": containers },
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let pods: Api<Pod> = team.api();
    let pod = pods.create(&PostParams::default(), &pod).await;
    pod.expect("a pod is created");
}

/// The resident memory, in MiB.
struct Sizes {
    /// After everything had arrived.
    grown: f64,
    /// After each restart, at rest.
    restarted: Vec<f64>,
    /// The peak since each restart.
    peaks: Vec<f64>,
}

impl Sizes {
    async fn measure(bed: &Bed, restarts: usize) -> Self {
        all_rests(bed).await;
        let mut sizes = Self {
            grown: Process::of(bed.operator()).await.resident(),
            restarted: Vec::new(),
            peaks: Vec::new(),
        };
        for _ in 0..restarts {
            bed.operator().stop().await;
            bed.operator().start().await;
            let process = Process::of(bed.operator()).await;
            process.rests().await;
            sizes.restarted.push(process.resident());
            sizes.peaks.push(process.peak());
        }
        sizes
    }

    /// How much larger these are.
    fn less(&self, others: &Self) -> Self {
        let less = |ours: &[f64], others: &[f64]| {
            let pairs = ours.iter().zip(others);
            pairs.map(|(ours, other)| ours - other).collect()
        };
        Self {
            grown: self.grown - others.grown,
            restarted: less(&self.restarted, &others.restarted),
            peaks: less(&self.peaks, &others.peaks),
        }
    }

    fn rows(self, what: &str, goal: Goal) -> Vec<Row> {
        let row =
            |when: &str, sizes, goal| Row::alone(format!("{what}, {when}"), UNIT, sizes, goal);
        vec![
            row("as they came", vec![self.grown], goal),
            row("after a restart", self.restarted, goal),
            row("most since a restart", self.peaks, Goal::None),
        ]
    }
}
