//! Prefixes and keys of unusual characters, which Consul has its own checks of since 1.22.

use serde_json::json;
use testbed::{Bed, eventually, same};

#[tokio::test]
async fn a_job_gets_a_slot_at_each_prefix_and_key_that_is_allowed() {
    let bed = Bed::shared().await;
    let team = bed.namespace("names").await;
    let mut jobs = Vec::new();
    for (number, c) in [".", "-", "_", "A", "0"].into_iter().enumerate() {
        // In each place of a segment, and where it may be, in one by itself.
        let alone = if c == "." { "b" } else { c };
        let below = format!("{c}{c}b/b{c}{c}b/b{c}{c}/{alone}");
        let prefix = format!("semaphores/{}/{below}", team.name());
        let name = format!("names-{number}");
        let semaphore = team.semaphore(&name).prefix(&prefix);
        let semaphore = semaphore.spec(json!({ "keyed": true })).create().await;
        semaphore.is_ready().await;
        let job = team.job(&name).semaphore(&name).runs("1h");
        let key = format!("{c}{c}k{c}{c}k{c}{c}");
        let job = job.annotation("consul-semaphore.io/key", &key);
        jobs.push((job.create().await, format!("{prefix}/{key}")));
    }
    for (job, prefix) in &jobs {
        job.is_running().await;
        let session = job.session().await.expect("its session");
        assert!(bed.consul().holders(prefix).await.contains(&session));
        job.finish().await;
    }
    for (_, prefix) in &jobs {
        eventually("nothing is left at the prefix", || async {
            same(bed.consul().list(&format!("{prefix}/")).await, Vec::new())
        })
        .await;
    }
}
