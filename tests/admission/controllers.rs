//! Controllers that create, change and delete Jobs: those of Kubernetes, and a foreign one.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace as KubeNamespace};
use kube::{Api, api::DeleteParams};
use serde_json::json;
use testbed::{
    Job, Namespace, eventually, eventually_within,
    helpers::event_reasons,
    proof::{End, nothing_is_left, pods_end, queue_is, runs_in_a_slot},
};

use crate::stage::{Person, STARTS, annotated, bed, is_refused, job, suspend, unsuspended};

/// Longer than the minute until a schedule is due.
pub(crate) const SCHEDULE: Duration = Duration::from_mins(3);

/// The first Job that a `CronJob` creates.
pub(crate) async fn first_job(team: &Namespace) -> Job {
    let first = eventually_within(SCHEDULE, "the CronJob makes a Job", || async {
        team.jobs().await.into_iter().next()
    });
    team.job(&first.await)
}

/// Nobody wrote `suspend: true`, and still no Job runs without a slot.
#[tokio::test]
async fn the_jobs_of_a_cron_job_wait_for_their_slots() {
    let bed = bed().await;
    let team = bed.namespace("cron").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let by_hand = team.job("by-hand");
    let template = team.job("report").semaphore("db").unsuspended().runs("1h");
    template
        .create_cron_job(json!({ "schedule": "* * * * *", "concurrencyPolicy": "Forbid" }))
        .await;
    let first = first_job(&team).await;
    runs_in_a_slot(&bed, &db, &first).await;
    team.kubectl(["create", "job", "by-hand", "--from=cronjob/report"])
        .await;
    queue_is(&db, [&by_hand]).await;
    let stopped = r#"{"spec":{"suspend":true}}"#;
    team.kubectl(["patch", "cronjob", "report", "--patch", stopped])
        .await;
    pods_end(&team, &first, End::Succeeded).await;
    runs_in_a_slot(&bed, &db, &by_hand).await;
    pods_end(&team, &by_hand, End::Succeeded).await;
    by_hand.is_complete().await;
    for job in [&first, &by_hand] {
        assert!(
            !event_reasons(job)
                .await
                .contains(&"RanWithoutSlot".to_owned())
        );
    }
    nothing_is_left(&bed, &team, &db).await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
}

/// The controller creates a Job for an object of its own, which owns the Job, unsuspends it, and keeps a finalizer on
/// it.
#[tokio::test]
async fn a_controller_of_others_does_all_but_start_it() {
    let bed = bed().await;
    let team = bed.namespace("others").await;
    let db = team.semaphore("db").limit(1).create().await;
    let holder = team.job("holder").semaphore("db").runs("1h").create().await;
    runs_in_a_slot(&bed, &db, &holder).await;
    let controller = Person::user(&bed, &team).await;
    team.kubectl(["create", "configmap", "workflow"]).await;
    let owner = team
        .api::<ConfigMap>()
        .get("workflow")
        .await
        .expect("it is there");
    let mut child = job("child", Some(false));
    child["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "workflow", "uid": owner.metadata.uid,
        "controller": true,
    }]);
    child["metadata"]["finalizers"] = json!(["example.com/workflow"]);
    let made = controller.create(&child).await.expect("a Job");
    assert_eq!(suspend(&made), Some(true));
    let child = team.job("child");
    queue_is(&db, [&child]).await;
    for _ in 0..3 {
        is_refused(controller.change("child", unsuspended()).await, STARTS);
    }
    let progress = |text: &str| annotated("example.com/progress", Some(text));
    controller
        .change("child", progress("waits"))
        .await
        .expect("its own annotation");
    pods_end(&team, &holder, End::Succeeded).await;
    runs_in_a_slot(&bed, &db, &child).await;
    // It runs, as the controller intended.
    controller
        .change("child", unsuspended())
        .await
        .expect("it changes nothing");
    controller
        .change("child", progress("runs"))
        .await
        .expect("its own annotation");
    let mut object = child.get().await.expect("it is there");
    object
        .metadata
        .labels
        .get_or_insert_default()
        .insert("a".to_owned(), "b".to_owned());
    controller.replace(object).await.expect("its own label");

    team.kubectl(["delete", "configmap", "workflow"]).await;
    child
        .is("being deleted", |job| {
            job.metadata.deletion_timestamp.is_some()
        })
        .await;
    let done = json!({ "metadata": { "finalizers": null } });
    controller
        .change("child", done)
        .await
        .expect("its own finalizer");
    child.is_gone().await;
    nothing_is_left(&bed, &team, &db).await;
}

#[tokio::test]
async fn those_of_kubernetes_are_not_hindered() {
    let bed = bed().await;
    let team = bed.namespace("cleaned-up").await;
    let db = team.semaphore("db").limit(1).create().await;
    let job = |name| team.job(name).semaphore("db").unsuspended().runs("1h");
    let short = job("short").runs("1s").ttl_after_finished(0).create().await;
    short.is_gone().await;

    // The garbage collector removes its own finalizers.
    let foreground = job("foreground").create().await;
    runs_in_a_slot(&bed, &db, &foreground).await;
    let waits = job("waits").create().await;
    queue_is(&db, [&waits]).await;
    foreground.delete_in_foreground().await;
    foreground.is_gone().await;
    runs_in_a_slot(&bed, &db, &waits).await;
    let orphaned = job("orphaned").create().await;
    queue_is(&db, [&orphaned]).await;
    orphaned.delete_and_orphan_pods().await;
    orphaned.is_gone().await;
    waits.delete().await;
    waits.is_gone().await;
    nothing_is_left(&bed, &team, &db).await;

    // A Job that fails, is retried, and fails for good.
    let fails = job("fails")
        .runs("1s")
        .fails()
        .backoff_limit(1)
        .create()
        .await;
    fails.is_failed().await;
    nothing_is_left(&bed, &team, &db).await;
}

#[tokio::test]
async fn a_namespace_goes_with_the_jobs_in_it() {
    let bed = bed().await;
    let team = bed.namespace("going").await;
    let db = team.semaphore("db").limit(1).create().await;
    let job = |name| team.job(name).semaphore("db").unsuspended().runs("1h");
    let runs = job("runs").create().await;
    let grant = runs_in_a_slot(&bed, &db, &runs).await;
    let waits = job("waits").create().await;
    queue_is(&db, [&waits]).await;
    let namespaces = Api::<KubeNamespace>::all(bed.client().clone());
    namespaces
        .delete(team.name(), &DeleteParams::default())
        .await
        .expect("it can be deleted");
    eventually("the namespace is gone", || async {
        match namespaces.get_opt(team.name()).await {
            Ok(None) => Ok(()),
            Ok(Some(namespace)) => Err(format!("{:?}", namespace.status)),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
    eventually("its slot is free", || async {
        !bed.consul()
            .holders(&db.lock_prefix())
            .await
            .contains(&grant.session)
    })
    .await;
}
