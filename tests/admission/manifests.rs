//! Manifests that a tool applies repeatedly.

use std::fs;

use serde_json::{Value, json};
use testbed::{
    Bed, Namespace,
    proof::{End, gets_event, grant_of, nothing_is_left, pods_end, queue_is, runs_in_a_slot},
};

use crate::stage::{GUARD, STARTS, bed, job};

/// Applies a manifest with the real kubectl; the error is kubectl's message.
async fn apply(bed: &Bed, team: &Namespace, how: &[&str], job: &Value) -> Result<String, String> {
    let file = format!(
        "{}-{}.json",
        team.name(),
        job["metadata"]["name"].as_str().expect("a name")
    );
    let file = bed.folder().path().join(file);
    fs::write(&file, job.to_string()).expect("the manifest's file");
    let file = file.display().to_string();
    let args = [&["-n", team.name(), "apply", "-f", &file][..], how].concat();
    let applied = bed.try_kubectl(args).await;
    applied.map_err(|error| format!("{error:#}"))
}

#[tokio::test]
async fn a_manifest_without_suspend_can_be_applied_at_any_time() {
    let bed = bed().await;
    for (name, how) in [
        ("applied", &[][..]),
        ("on-the-server", &["--server-side"][..]),
    ] {
        let team = bed.namespace(name).await;
        let db = team.semaphore("db").limit(1).create().await;
        let first = team.job("first").semaphore("db").runs("1h").create().await;
        runs_in_a_slot(&bed, &db, &first).await;
        let mut manifest = job("job", None);
        let mut version = 0;
        let mut again = async || {
            version += 1;
            manifest["metadata"]["labels"] = json!({ "version": version.to_string() });
            apply(&bed, &team, how, &manifest).await.expect(name);
        };
        let job = team.job("job");
        again().await;
        queue_is(&db, [&job]).await;
        again().await;
        pods_end(&team, &first, End::Succeeded).await;
        let grant = runs_in_a_slot(&bed, &db, &job).await;
        again().await;
        job.is_running().await;
        assert_eq!(grant_of(&job).await.as_ref(), Some(&grant));
        pods_end(&team, &job, End::Succeeded).await;
        job.is_complete().await;
        again().await;
        nothing_is_left(&bed, &team, &db).await;
    }
}

#[tokio::test]
async fn a_manifest_with_suspend_stops_a_running_job() {
    let bed = bed().await;
    let team = bed.namespace("given").await;
    let db = team.semaphore("db").limit(1).create().await;
    let first = team.job("first").semaphore("db").runs("1h").create().await;
    runs_in_a_slot(&bed, &db, &first).await;
    for how in [&[][..], &["--server-side", "--force-conflicts"][..]] {
        let name = format!("running-{}", how.len());
        let running = job(&name, Some(false));
        apply(&bed, &team, how, &running).await.expect("it is made");
        let refusal = apply(&bed, &team, how, &running)
            .await
            .expect_err("it waits");
        assert!(
            refusal.contains(GUARD) && refusal.contains(STARTS),
            "{refusal}"
        );
        team.job(&name).delete().await;
    }
    let suspended = job("suspended", Some(true));
    apply(&bed, &team, &[], &suspended)
        .await
        .expect("it is made");
    pods_end(&team, &first, End::Succeeded).await;
    let job = team.job("suspended");
    runs_in_a_slot(&bed, &db, &job).await;
    apply(&bed, &team, &[], &suspended)
        .await
        .expect("its user may suspend it");
    gets_event(&job, "Normal", "PutOnHold", "").await;
    nothing_is_left(&bed, &team, &db).await;
}
