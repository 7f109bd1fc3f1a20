//! Annotations that nobody reads: the Job is left alone, and told what is wrong.

use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use serde_json::json;
use testbed::{Bed, helpers::warning};

#[tokio::test]
async fn a_job_is_told_of_annotations_that_nobody_reads() {
    let bed = Bed::shared().await;
    let team = bed.namespace("mistaken").await;
    team.semaphore("db").limit(3).create().await;
    let misspelt = team
        .job("misspelt")
        .annotation("consul-semaphore.io/semaphor", "db")
        .create()
        .await;
    let misplaced = team
        .job("misplaced")
        .pod_annotation("consul-semaphore.io/semaphore", "db")
        .unsuspended()
        .runs("1h")
        .create()
        .await;
    let beside = team
        .job("beside")
        .semaphore("db")
        .annotation("consul-semaphore.io/priorty", "7")
        .runs("1h")
        .create()
        .await;

    let note = warning(&misspelt, "Malformed").await;
    assert!(
        note.contains("write consul-semaphore.io/semaphore"),
        "{note}"
    );
    let note = warning(&misplaced, "Malformed").await;
    assert!(note.contains("on the pod template"), "{note}");
    let note = warning(&beside, "Malformed").await;
    assert!(
        note.contains("write consul-semaphore.io/priority"),
        "{note}"
    );

    // They are as they would be without: nobody starts one, stops the other, or keeps the third.
    beside.is_running().await;
    misplaced.is_running().await;
    misspelt.is_waiting().await;

    // Each change of the Jobs is looked at, and nothing is told twice.
    misspelt.annotate("round", Some("2")).await;
    misspelt
        .annotate("consul-semaphore.io/semaphor", None)
        .await;
    misspelt
        .annotate("consul-semaphore.io/semaphore", Some("db"))
        .await;
    misspelt.is_complete().await;
    let events = team.api::<Event>().list(&ListParams::default()).await;
    let malformed = |event: &&Event| event.reason.as_deref() == Some("Malformed");
    let events = events.expect("events").items;
    let told: Vec<_> = events.iter().filter(malformed).collect();
    assert_eq!(told.len(), 3, "{}", json!(told));
    assert!(told.iter().all(|event| event.series.is_none()));
}
