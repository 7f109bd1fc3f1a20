//! Shows with real commands how five Jobs pass through a semaphore of two slots.
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use testbed::Bed;

/// Far longer than it takes, also where a node pulls the image first: if it has not ended by then, something is wrong.
const PATIENCE: Duration = Duration::from_mins(4);

/// How long the Jobs and the semaphore's status, which is written about once a second, may disagree.
const SETTLING: Duration = Duration::from_secs(3);

pub(crate) const PREFIX: &str = "semaphores/demo/database";
const LOCK: &str = "semaphores/demo/database/.lock";
const TABLE: &str = "get csem,jobs -n demo";
const LIMIT: usize = 2;
const JOBS: usize = 5;

/// Runs the demo on servers of its own.
pub(crate) async fn run() -> Result<()> {
    println!("Starting etcd, Kubernetes, Consul and the operator ...");
    let start = Instant::now();
    let bed = Bed::builder().try_start().await?;
    println!("They are up after {:.0} s.", start.elapsed().as_secs_f32());

    show(&bed).await?;

    bed.end().await?;
    println!(
        "
Everything is stopped. What to do next:
  make dev     leaves such a cluster up, to try things on
  make bare    the same without the operator, to install it with Helm or kustomize
  README.md    how to install it in your own cluster"
    );
    Ok(())
}

/// Shows how the Jobs pass through the semaphore, from an empty bed until all are complete.
pub(crate) async fn show(bed: &Bed) -> Result<()> {
    tell("A semaphore with two slots.");
    kubectl(bed, "apply -f crates/testbed/demo/semaphore.yaml").await?;
    let observer = bed.try_watch_limit(PREFIX).await?;

    tell("Five Jobs that ask for a slot, by an annotation.");
    kubectl(bed, "apply -f crates/testbed/demo/jobs.yaml").await?;

    follow(bed).await?;

    let peak = observer.peak_holders();
    ensure!(
        peak == LIMIT,
        "Consul had {peak} holders at once, not {LIMIT}"
    );
    tell(
        "All five are complete, and there never were more than two holders. The last Job's story:",
    );
    kubectl(bed, "events -n demo --for job/migrate-5").await
}

/// What a Job is doing, in kubectl's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Suspended,
    Running,
    Complete,
    Failed,
}

/// The Jobs by name.
type Jobs = BTreeMap<String, State>;

/// Shows each change until all Jobs are complete.
async fn follow(bed: &Bed) -> Result<()> {
    let start = Instant::now();
    let mut before = Jobs::new();
    loop {
        let now = settled(bed).await?;
        if now != before {
            let table = bed.try_kubectl(TABLE.split(' ')).await?;
            let (still, _) = look(bed).await?;
            if still != now {
                // The table may be newer than the sentence above it.
                continue;
            }
            tell(&what_happened(&before, &now));
            println!("$ kubectl {TABLE}\n{}", table.trim_end());
            if names(&before, State::Running).is_empty() && !names(&now, State::Running).is_empty()
            {
                show_lock(bed).await?;
            }
        }
        ensure!(
            names(&now, State::Failed).is_empty(),
            "a Job has failed: {now:?}"
        );
        ensure!(in_order(&now), "a Job went past an older one: {now:?}");
        if names(&now, State::Complete).len() == JOBS {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            bail!("the Jobs are not complete after {} s", PATIENCE.as_secs());
        }
        before = now;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The Jobs, once the semaphore's status agrees.
async fn settled(bed: &Bed) -> Result<Jobs> {
    let start = Instant::now();
    loop {
        let (jobs, agrees) = look(bed).await?;
        if agrees || start.elapsed() > SETTLING {
            return Ok(jobs);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The Jobs, and whether the semaphore's status agrees.
async fn look(bed: &Bed) -> Result<(Jobs, bool)> {
    let json = bed
        .try_kubectl("get csem,jobs -n demo -o json".split(' '))
        .await?;
    let objects: Value = serde_json::from_str(&json)?;
    let objects = objects["items"]
        .as_array()
        .context("kubectl shows no list")?;
    let jobs: Jobs = objects
        .iter()
        .filter(|object| object["kind"] == "Job")
        .map(state)
        .collect();
    let semaphore = objects
        .iter()
        .find(|object| object["kind"] == "ConsulSemaphore");
    let says = |field: &str, state: State| {
        semaphore.is_some_and(|object| object["status"][field] == names(&jobs, state).len())
    };
    let agrees = says("held", State::Running) && says("waiting", State::Suspended);
    Ok((jobs, agrees))
}

fn state(job: &Value) -> (String, State) {
    let has = |kind: &str| {
        let conditions = job["status"]["conditions"].as_array();
        conditions.is_some_and(|all| {
            all.iter()
                .any(|c| c["type"] == kind && c["status"] == "True")
        })
    };
    let state = match () {
        () if has("Complete") => State::Complete,
        () if has("Failed") => State::Failed,
        () if job["spec"]["suspend"] == true => State::Suspended,
        () => State::Running,
    };
    (
        job["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        state,
    )
}

fn names(jobs: &Jobs, state: State) -> Vec<&str> {
    jobs.iter()
        .filter(|(_, is)| **is == state)
        .map(|(name, _)| name.as_str())
        .collect()
}

/// Whether no Job has started before an older one: their names are in order of creation.
fn in_order(jobs: &Jobs) -> bool {
    let waits = |state: &State| *state == State::Suspended;
    jobs.values().skip_while(|state| !waits(state)).all(waits)
}

/// A sentence about the changes.
fn what_happened(before: &Jobs, now: &Jobs) -> String {
    let new = |state| -> Vec<&str> {
        names(now, state)
            .into_iter()
            .filter(|name| before.get(*name) != Some(&state))
            .collect()
    };
    let (done, started) = (new(State::Complete), new(State::Running));
    let waiting = names(now, State::Suspended);
    match (done.as_slice(), started.as_slice()) {
        ([], []) => format!("{} wait.", list(&waiting)),
        ([], started) => format!("{} start. {} wait.", list(started), list(&waiting)),
        (done, []) => format!("{} done.", are(done)),
        (done, started) => format!("{} done, and {} next.", are(done), are(started)),
    }
}

fn are(names: &[&str]) -> String {
    format!(
        "{} {}",
        list(names),
        if names.len() == 1 { "is" } else { "are" }
    )
}

fn list(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// Shows that the slots are in Consul: the sessions of the running Jobs are those in the lock.
async fn show_lock(bed: &Bed) -> Result<()> {
    tell(
        "Each of the two holds its slot by a session in Consul, where it is a semaphore like any other.",
    );
    kubectl(
        bed,
        r"get jobs -n demo -o 'custom-columns=NAME:.metadata.name,SESSION:.metadata.annotations.consul-semaphore\.io/session'",
    )
    .await?;
    if bed.consul_server().is_some() {
        println!("\n$ consul kv get {LOCK}");
        println!("{}", bed.consul_tool(["kv", "get", LOCK]).await.trim_end());
    } else {
        // Its user may have no program `consul`.
        let entries = bed.consul().try_list(LOCK).await?;
        let lock = entries.first().context("Consul has no lock")?;
        println!("\n{LOCK} in Consul:\n{}", lock.json());
    }
    Ok(())
}

pub(crate) fn tell(what: &str) {
    println!("\n# {what}");
}

/// Prints a kubectl command and its output.
pub(crate) async fn kubectl(bed: &Bed, command: &str) -> Result<()> {
    println!("$ kubectl {command}");
    let args = command.split(' ').map(|arg| arg.trim_matches('\''));
    let output = bed.try_kubectl(args).await?;
    println!("{}", output.trim_end());
    Ok(())
}
