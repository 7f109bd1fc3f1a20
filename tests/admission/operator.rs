//! What the operator may do with Jobs, whatever its rights say.

use serde_json::json;

use crate::stage::{FAILED, Person, REPORTS, annotated, bed, job, stranger, unsuspended};

const REFUSED: &str = "ValidatingAdmissionPolicy 'operator.jobs.consul-semaphore.io'";

#[tokio::test]
async fn it_holds_starts_and_ends_jobs_and_does_nothing_else() {
    let bed = bed().await;
    let team = bed.namespace("bounds").await;
    let admin = Person::admin(&bed, &team);
    let operator = Person::operator(&bed, &team).await;
    let mut waits = job("waits", None);
    waits["metadata"]["annotations"]["consul-semaphore.io/hold"] = "true".into();
    admin.create(&waits).await.expect("a Job");
    admin
        .create(&stranger("stranger", Some(true)))
        .await
        .expect("a Job");
    for name in ["waits", "stranger"] {
        team.job(name).is_at_rest().await;
    }
    let granted = json!({ "annotations": { REPORTS[0]: "s" }, "labels": { REPORTS[5]: "u" } });
    let allowed = [
        unsuspended(),
        annotated(FAILED, Some("WaitTimedOut")),
        json!({ "spec": { "suspend": false, "template": { "metadata": granted } } }),
        json!({ "spec": { "suspend": false, "parallelism": 0, "activeDeadlineSeconds": 1 } }),
    ];
    for change in &allowed {
        let changed = operator.would_change("waits", change.clone()).await;
        changed.unwrap_or_else(|refusal| panic!("{change}: {refusal}"));
        let refusal = operator.would_change("stranger", change.clone()).await;
        let refusal = refusal.expect_err("it is nobody's business");
        assert!(refusal.contains(REFUSED), "{change}: {refusal}");
    }
    for (change, is_allowed) in [
        (json!({ "startTime": null }), true),
        (json!({ "startTime": "2026-02-02T00:00:00Z" }), false),
        (json!({ "succeeded": 1 }), false),
        (json!({ "failed": 1 }), false),
    ] {
        team.job("waits").set_start_time().await;
        let change = json!({ "status": change });
        let changed = operator.would_change_status("waits", &change).await;
        match changed {
            Ok(_) => assert!(is_allowed, "{change}"),
            Err(refusal) => assert!(
                !is_allowed && refusal.contains(REFUSED),
                "{change}: {refusal}"
            ),
        }
    }
    // Its user may have removed all but what is in its template.
    let mut bare = stranger("bare", Some(true));
    bare["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "example.com/v1", "kind": "Whole", "name": "owner", "uid": "u",
        "controller": true,
    }]);
    bare["spec"]["template"]["metadata"]["annotations"][REPORTS[4]] = "u".into();
    admin.create(&bare).await.expect("a Job");
    operator
        .would_change("bare", json!({ "spec": { "suspend": false } }))
        .await
        .expect("it runs in a slot");
    let labels = json!({ "labels": { "a": "b" } });
    for change in [
        json!({ "metadata": { "finalizers": ["example.com/a"] } }),
        json!({ "spec": { "parallelism": 2 } }),
        json!({ "spec": { "activeDeadlineSeconds": 2 } }),
        json!({ "spec": { "backoffLimit": 1 } }),
        json!({ "spec": { "template": { "metadata": labels } } }),
        json!({ "spec": { "template": { "spec": { "nodeSelector": { "a": "b" } } } } }),
    ] {
        let refusal = operator.would_change("waits", change.clone()).await;
        let refusal = refusal.expect_err(&change.to_string());
        assert!(refusal.contains(REFUSED), "{change}: {refusal}");
    }
    for name in ["waits", "stranger"] {
        let refusal = operator.delete(name).await.expect_err("it is its user's");
        assert!(refusal.contains(REFUSED), "{refusal}");
    }
    let mut skips = job("skips", None);
    skips["metadata"]["annotations"]["consul-semaphore.io/on-contention"] = "Skip".into();
    admin.create(&skips).await.expect("a Job");
    operator.delete("skips").await.expect("it is not to wait");
}
