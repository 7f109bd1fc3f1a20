//! Shows with real commands how three `PipelineRuns` of Tekton and a Job pass through a semaphore of two slots.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;
use testbed::{Bed, Controller};

use crate::demo::{kubectl, tell};

/// Far longer than it takes: if it has not ended by then, something is wrong.
const PATIENCE: Duration = Duration::from_mins(3);

const PREFIX: &str = "semaphores/demo/database";
const TABLE: &str = "get csem,pipelineruns,jobs -n demo";
const LIMIT: usize = 2;

/// How many want a slot.
const ALL: usize = 4;

/// Runs the demo, from an empty bed until all are complete.
pub(crate) async fn run() -> Result<()> {
    println!("Starting etcd, Kubernetes, Consul and Tekton ...");
    let bed = Bed::builder().controllers([Controller::Tekton]);
    let bed = bed.without_operator().try_start().await?;

    tell(
        "The operator, for PipelineRuns, too, with the policies that hold them when they are created.",
    );
    kubectl(&bed, "apply -k config/policies").await?;
    kubectl(&bed, "apply -k config/workloads").await?;
    let operator = bed.another_operator("operator", ["--workloads=pipelineruns"], []);
    operator.try_start().await?;

    tell("A semaphore with two slots.");
    kubectl(&bed, "apply -f crates/testbed/demo/semaphore.yaml").await?;
    let observer = bed.watch_limit(PREFIX).await;
    are_held(&bed).await?;

    tell("Three PipelineRuns and a Job that ask for a slot, by an annotation.");
    kubectl(&bed, &format!("apply -f {MANIFEST}")).await?;
    follow(&bed).await?;

    let peak = observer.peak_holders();
    ensure!(
        peak == LIMIT,
        "Consul had {peak} holders at once, not {LIMIT}"
    );
    tell("All are complete, and there never were more than two holders. The last one's story:");
    kubectl(&bed, "events -n demo --for pipelinerun/build-3").await?;

    drop(observer);
    operator.stop().await;
    drop(operator);
    bed.end().await
}

const MANIFEST: &str = "crates/testbed/demo/pipelines.yaml";

/// Waits until the policies are in force.
async fn are_held(bed: &Bed) -> Result<()> {
    let start = Instant::now();
    let args = ["create", "--dry-run=server", "-o", "json", "-f", MANIFEST];
    loop {
        let made = bed.try_kubectl(args).await;
        if made.is_ok_and(|made| made.matches("PipelineRunPending").count() == 3) {
            return Ok(());
        }
        ensure!(
            start.elapsed() < PATIENCE,
            "the policies do not hold PipelineRuns"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Shows each change until all are complete.
async fn follow(bed: &Bed) -> Result<()> {
    let start = Instant::now();
    let mut before = String::new();
    loop {
        let json = bed
            .try_kubectl("get pipelineruns,jobs -n demo -o json".split(' '))
            .await?;
        let objects: Value = serde_json::from_str(&json)?;
        let objects = objects["items"].as_array().map_or(&[][..], Vec::as_slice);
        ensure!(
            !objects.iter().any(|object| is(object, FAILED)),
            "one has failed: {json}"
        );
        let table = bed.try_kubectl(TABLE.split(' ')).await?;
        let states: Vec<&str> = table
            .split_whitespace()
            .filter(|word| !is_age(word))
            .collect();
        let now = states.join(" ");
        if now != before {
            println!("\n$ kubectl {TABLE}\n{}", table.trim_end());
            before = now;
        }
        if objects.iter().filter(|object| is(object, COMPLETE)).count() == ALL {
            return Ok(());
        }
        ensure!(
            start.elapsed() < PATIENCE,
            "not complete after {} s",
            PATIENCE.as_secs()
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The conditions of a Job and of a `PipelineRun`, with their status.
const COMPLETE: [(&str, &str); 2] = [("Complete", "True"), ("Succeeded", "True")];
const FAILED: [(&str, &str); 2] = [("Failed", "True"), ("Succeeded", "False")];

fn is(object: &Value, any: [(&str, &str); 2]) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| {
        any.iter()
            .any(|(of, status)| condition["type"] == *of && condition["status"] == *status)
    })
}

/// Whether this is how kubectl writes how long ago something was.
fn is_age(word: &str) -> bool {
    let numbers = word.trim_end_matches(|last: char| "smh".contains(last));
    word.ends_with(['s', 'm', 'h']) && numbers.starts_with(|first: char| first.is_ascii_digit())
}
