//! The largest values that tenants can write: they neither crash the operator nor disturb the semaphores of others.

use procfs::process::Process;
use serde_json::json;
use testbed::{Bed, Namespace, Operator, PATIENCE, eventually_within, same};

/// How much the operator may have resident at any time: half of the chart's limit.
const MOST: u64 = 128 << 10;

/// Jobs that ask for no slot. Each `<` takes six bytes in the API server's lists.
const JOBS: usize = 30;
const ARGUMENT: usize = 1_200_000;

/// Values below a prefix that belong to no semaphore.
const VALUES: usize = 90;
const VALUE: usize = 500_000;

/// The peak of the operator's resident memory since it was last started, in KiB.
async fn peak(operator: &Operator) -> u64 {
    let [id, _guard] = operator.ids().await.expect("it runs");
    let process = Process::new(id.try_into().expect("an id")).expect("a process");
    process
        .status()
        .expect("its status")
        .vmhwm
        .expect("a process of a user")
}

async fn makes_large_jobs(team: &Namespace) {
    let args = ["<".repeat(ARGUMENT)];
    let container = json!({ "name": "work", "image": "none", "args": args });
    let large = json!({ "spec": { "template": { "spec": { "containers": [container] } } } });
    for number in 0..JOBS {
        let job = team.job(&format!("large-{number}")).with(large.clone());
        job.create().await;
    }
}

#[tokio::test]
async fn large_jobs_and_values_of_others_take_no_memory() {
    let bed = Bed::start().await;
    let (team, hostile) = (bed.namespace("team").await, bed.namespace("hostile").await);
    let ok = team.semaphore("ok").limit(1).create().await;
    ok.is_ready().await;
    let before = peak(bed.operator()).await;
    bed.operator().stop().await;

    makes_large_jobs(&hostile).await;
    let semaphores = ["a", "b"].map(|name| hostile.semaphore(name).limit(1));
    for semaphore in &semaphores {
        for number in 0..VALUES {
            let key = format!("{}/junk-{number}", semaphore.lock_prefix());
            bed.consul().put(&key, 0, vec![b'x'; VALUE]).await;
        }
    }
    let [a, b] = semaphores;
    let flooded = [a.create().await, b.create().await];
    let job = team.job("job").semaphore("ok").create().await;
    bed.operator().start().await;
    for semaphore in &flooded {
        // On a busy machine a listing that is cut off may take longer than a call, and the pause before the next one
        // grows each time.
        let what = "the prefix is known to be too large";
        eventually_within(4 * PATIENCE, what, || async {
            let ready = semaphore.condition("Ready").await;
            same(ready["reason"].as_str(), Some("LockTooLarge")).map(drop)
        })
        .await;
    }
    job.is_complete().await;
    ok.is_ready().await;
    let peak = peak(bed.operator()).await;
    println!("resident at the most: {before} KiB with nothing to do, {peak} KiB with all of it");
    assert!(peak <= MOST, "{peak} KiB");
}
