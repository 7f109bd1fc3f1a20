//! Slots that are kept, across operators, for a Job that asks for several: `docs/protocol.md` has the rule.

use serde_json::json;
use testbed::{Bed, Entry, eventually, proof::grant_of};

/// Two semaphores on one prefix behave like two clusters: each sees of the other only what is in Consul. A slot comes
/// free long before the other one, and would go to the next Job after a turn of two seconds.
#[tokio::test]
async fn slots_are_kept_for_a_job_of_another_cluster_that_asks_for_all_of_them() {
    let builder = Bed::builder().operator_args(["--pass-over", "1s"]);
    let bed = builder.start().await;
    let team = bed.namespace("kept").await;
    let prefix = format!("shared/{}", team.name());
    for name in ["x", "y"] {
        let semaphore = team.semaphore(name).prefix(&prefix).limit(2);
        semaphore.create().await.is_ready().await;
    }
    let single = |name: &str| team.job(name).semaphore("y").runs("1h").create();
    let (one, two) = (single("one").await, single("two").await);
    one.is_running().await;
    two.is_running().await;
    let both = team.job("both").semaphore("x:2").runs("1h").create().await;
    let told = async |but: Option<u64>| {
        let what = format!("others are told to keep slots, not at {but:?}");
        eventually(&what, || async {
            let contenders = bed.consul().contenders(&prefix).await;
            let keeps = |entry: &&Entry| entry.json()["waiting"]["keeps"] == json!(2);
            let contender = contenders.iter().find(keeps);
            let written = contender.map(|entry| entry.modify_index);
            written
                .filter(|written| Some(*written) != but)
                .ok_or(format!("{contenders:?}"))
        })
        .await
    };
    let first = told(None).await;
    let three = single("three").await;
    three.has_event("SlotWaiting").await;
    one.finish().await;
    // It is written anew, long after a turn would be over.
    told(Some(first)).await;
    three.is_waiting().await;
    two.finish().await;
    both.is_running().await;
    both.finish().await;
    three.is_running().await;
    let token = async |job| grant_of(job).await.expect("it has a slot").fencing_token;
    assert!(token(&both).await < token(&three).await);
}
