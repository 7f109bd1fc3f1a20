//! Parts of Consul that do not exist.

use serde_json::json;
use testbed::Bed;

#[tokio::test]
async fn a_missing_part_of_consul_is_reported() {
    let bed = Bed::shared().await;
    let team = bed.namespace("elsewhere").await;
    let mut all = Vec::new();
    for (name, consul, reason, words) in [
        (
            "namespace",
            json!({ "namespace": "team-a" }),
            "EnterpriseOnly",
            "Enterprise",
        ),
        (
            "partition",
            json!({ "partition": "part-a" }),
            "EnterpriseOnly",
            "Enterprise",
        ),
        (
            "datacenter",
            json!({ "datacenter": "dc9" }),
            "UnknownDatacenter",
            "datacenter",
        ),
    ] {
        let semaphore = team.semaphore(name).spec(json!({ "consul": consul }));
        let semaphore = semaphore.ttl("10s").create().await;
        let job = team.job(name).semaphore(name).create().await;
        all.push((semaphore, job, reason, words));
    }
    for (semaphore, job, reason, words) in &all {
        semaphore
            .has_condition_that_says("Ready", "False", reason, &[*words])
            .await;
        semaphore
            .has_condition("ConsulReachable", "False", reason)
            .await;
        job.has_event("SlotWaiting").await;
        job.is_waiting().await;
    }
    // This one exists, and says so itself.
    let here = team.semaphore("here");
    let here = here.spec(json!({ "consul": { "datacenter": "dc1" } }));
    here.create().await.is_ready().await;
    team.job("here").semaphore("here").create().await;
    team.job("here").is_complete().await;

    // What can't be corrected can be deleted. A datacenter may only be unreachable: that takes a TTL.
    for (semaphore, ..) in &all {
        semaphore.delete().await;
        semaphore.is_gone().await;
    }
}
