//! A Job that is a copy of one with a slot, including everything that the operator wrote into it.
use serde_json::json;
use testbed::{
    Bed, Job, Namespace,
    proof::{
        End, grant_of, holders_are, is_given_back, is_warned, nothing_is_left, pods_end, queue_is,
        runs_in_a_slot,
    },
};

#[tokio::test]
async fn a_copy_starts_in_line_like_any_other() {
    let bed = Bed::shared().await;
    let team = bed.namespace("copied").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let original = team.job("o").semaphore("db").runs("1h").create().await;
    let of_original = runs_in_a_slot(&bed, &db, &original).await;

    let suspended = copy(&team, &original, "p", true).await.create().await;
    assert_eq!(
        suspended.session().await.as_ref(),
        Some(&of_original.session)
    );
    assert_eq!(grant_of(&suspended).await.as_ref(), Some(&of_original));
    suspended.has_event("SlotWaiting").await;
    queue_is(&db, [&suspended]).await;
    // A running copy has no slot, whatever it says.
    let running = copy(&team, &original, "q", false).await.create().await;
    is_warned(&running, "RanWithoutSlot", "it ran without a slot of db").await;
    running.is_waiting().await;
    queue_is(&db, [&suspended, &running]).await;
    holders_are(&bed, &db, [&of_original]).await;
    original.is_running().await;

    let mut last = of_original;
    for [job, next] in [[&original, &suspended], [&suspended, &running]] {
        pods_end(&team, job, End::Succeeded).await;
        let grant = runs_in_a_slot(&bed, &db, next).await;
        assert_ne!(grant.session, last.session);
        assert!(last.fencing_token < grant.fencing_token);
        is_given_back(&bed, &db, &last).await;
        last = grant;
    }
    pods_end(&team, &running, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
    assert_eq!(observer.peak_holders(), 1);

    // Its original gave the slot back long ago.
    let late = copy(&team, &original, "r", true).await.create().await;
    let of_late = runs_in_a_slot(&bed, &db, &late).await;
    assert_ne!(of_late.session, last.session);
    pods_end(&team, &late, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
}

/// The result of `kubectl get -o yaml`, a new name and `kubectl create`.
async fn copy(team: &Namespace, original: &Job, name: &str, suspended: bool) -> Job {
    let original = original.get().await.expect("the original is there");
    let mut template = original.spec.unwrap_or_default().template;
    let metadata = template.metadata.get_or_insert_default();
    // These belong to the original Job, and the API server refuses them on another.
    let labels = metadata.labels.get_or_insert_default();
    labels.retain(|label, _| !label.contains("controller-uid") && !label.contains("job-name"));
    team.job(name).with(json!({
        "metadata": { "annotations": original.metadata.annotations },
        "spec": { "suspend": suspended, "template": template },
    }))
}
