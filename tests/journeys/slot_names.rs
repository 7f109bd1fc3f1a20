//! Slots with a number and a name: each Job that runs has one that no other has.

use serde_json::json;
use testbed::{
    Bed, Job, eventually,
    proof::{End, SESSION, nothing_is_left, pods_end, runs_in_a_slot},
};

/// The annotations of a Job's template that say which slot it has.
async fn slot_of(job: &Job) -> [Option<String>; 2] {
    let job = job.get().await.expect("the Job");
    let template = job.spec.expect("its spec").template;
    let annotations = template.metadata.and_then(|metadata| metadata.annotations);
    let annotations = annotations.unwrap_or_default();
    ["slot-index", "slot-name"].map(|name| {
        let name = format!("consul-semaphore.io/{name}");
        annotations.get(&name).cloned()
    })
}

fn slot(index: &str, name: &str) -> [Option<String>; 2] {
    [index, name].map(|text| Some(text.to_owned()))
}

#[tokio::test]
async fn each_job_has_a_slot_of_its_own_and_hands_it_over() {
    let bed = Bed::shared().await;
    let team = bed.namespace("slot-names").await;
    let gpus = team.semaphore("gpus").limit(2);
    let gpus = gpus.spec(json!({ "slotNames": ["gpu-a", "gpu-b"] }));
    let gpus = gpus.create().await;
    let observer = bed.watch_limit(&gpus.lock_prefix()).await;
    let job = |name| team.job(name).semaphore("gpus").runs("1h");
    let first = job("first").create().await;
    runs_in_a_slot(&bed, &gpus, &first).await;
    let second = job("second").create().await;
    runs_in_a_slot(&bed, &gpus, &second).await;
    assert_eq!(slot_of(&first).await, slot("0", "gpu-a"));
    assert_eq!(slot_of(&second).await, slot("1", "gpu-b"));
    gpus.shows(json!({ "holders": [
        { "name": "first", "slotIndex": 0, "slotName": "gpu-a" },
        { "name": "second", "slotIndex": 1, "slotName": "gpu-b" },
    ] }))
    .await;

    // Who comes next has the slot that was given back.
    let third = job("third").create().await;
    third.has_event("SlotWaiting").await;
    pods_end(&team, &first, End::Succeeded).await;
    runs_in_a_slot(&bed, &gpus, &third).await;
    assert_eq!(slot_of(&third).await, slot("0", "gpu-a"));

    // A slot that is lost and granted again is the same one.
    let before = runs_in_a_slot(&bed, &gpus, &second).await;
    bed.consul().destroy_session(&before.session).await;
    eventually("it has another session", || async {
        let mut annotations = second.get().await?.metadata.annotations?;
        let session = annotations.remove(SESSION);
        session.filter(|session| *session != before.session)
    })
    .await;
    gpus.shows(json!({ "holders": [
        { "name": "third", "slotIndex": 0 },
        { "name": "second", "slotIndex": 1, "slotName": "gpu-b" },
    ] }))
    .await;
    for job in [&second, &third] {
        pods_end(&team, job, End::Succeeded).await;
    }
    nothing_is_left(&bed, &team, &gpus).await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (2, 2));
}
