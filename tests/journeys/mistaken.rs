//! Annotations without effect: the Job is left alone, and an event says what is wrong.

use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use serde_json::json;
use testbed::{Bed, helpers::warning};

#[tokio::test]
async fn annotations_that_nobody_reads_are_reported() {
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

    let warnings = warning(&misspelt, "AnnotationIgnored").await;
    assert!(
        warnings.contains("write consul-semaphore.io/semaphore"),
        "{warnings}"
    );
    let warnings = warning(&misplaced, "AnnotationIgnored").await;
    assert!(warnings.contains("on the pod template"), "{warnings}");
    let warnings = warning(&beside, "AnnotationIgnored").await;
    assert!(
        warnings.contains("write consul-semaphore.io/priority"),
        "{warnings}"
    );

    // They behave as without them: nobody starts one, stops the other, or keeps the third.
    beside.is_running().await;
    misplaced.is_running().await;
    misspelt.is_waiting().await;

    // Each change of the Jobs is checked, and no event is repeated.
    misspelt.annotate("round", Some("2")).await;
    misspelt
        .annotate("consul-semaphore.io/semaphor", None)
        .await;
    misspelt
        .annotate("consul-semaphore.io/semaphore", Some("db"))
        .await;
    misspelt.is_complete().await;
    let events = team.api::<Event>().list(&ListParams::default()).await;
    let malformed = |event: &&Event| event.reason.as_deref() == Some("AnnotationIgnored");
    let events = events.expect("events").items;
    let warnings: Vec<_> = events.iter().filter(malformed).collect();
    assert_eq!(warnings.len(), 3, "{}", json!(warnings));
    assert!(warnings.iter().all(|event| event.series.is_none()));
}
