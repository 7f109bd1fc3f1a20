//! Annotations that are invalid.

use testbed::{Bed, helpers::warning};

const SEMAPHORE: &str = "consul-semaphore.io/semaphore";
const PRIORITY: &str = "consul-semaphore.io/priority";
const HOLD: &str = "consul-semaphore.io/hold";

#[tokio::test]
async fn a_job_with_bad_annotations_stays_suspended_until_they_are_corrected() {
    let bed = Bed::shared().await;
    let team = bed.namespace("bad-annotations").await;
    let db = team.semaphore("db").limit(10).create().await;
    let cases = [
        (
            "name",
            SEMAPHORE,
            "No_Such_Name!",
            Some("db"),
            "ConsulSemaphore",
        ),
        ("empty", SEMAPHORE, "", Some("db"), "is empty"),
        (
            "list",
            SEMAPHORE,
            "db,",
            Some("db"),
            "commas between several",
        ),
        ("sign", SEMAPHORE, "db=2", Some("db"), "name[/key][:slots]"),
        ("priority", PRIORITY, "high", Some("7"), "whole number"),
        ("too-high", PRIORITY, "3000000000", None, "whole number"),
        ("hold", HOLD, "yes", Some("false"), "\"true\" or \"false\""),
    ];
    let mut jobs = Vec::new();
    for (name, annotation, value, correct, words) in cases {
        let job = team.job(name).semaphore("db").annotation(annotation, value);
        // Half of them are created unsuspended, as in a cluster without the admission policy.
        let job = if jobs.len() % 2 == 0 {
            job
        } else {
            job.unsuspended().runs("1h")
        };
        jobs.push((job.create().await, annotation, correct, words));
    }
    for (job, annotation, _, words) in &jobs {
        let note = warning(job, "Malformed").await;
        assert!(note.contains(annotation), "{note}");
        assert!(note.contains(words), "{note}");
        job.is_waiting().await;
    }
    // Other Jobs are not affected.
    team.job("good").semaphore("db").create().await;
    team.job("good").is_complete().await;
    for (job, ..) in &jobs {
        job.is_waiting().await;
    }
    db.is_ready().await;

    for (job, annotation, correct, _) in &jobs {
        job.annotate(annotation, *correct).await;
        job.has_event("SlotGranted").await;
    }
}
