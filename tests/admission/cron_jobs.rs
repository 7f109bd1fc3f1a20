//! A `CronJob` whose own metadata has the annotation is refused, because its Jobs would run without a slot. One that was
//! there before the policy can be changed and deleted all the same.

use serde_json::json;
use testbed::{Bed, eventually};

#[tokio::test]
async fn the_annotation_on_a_cron_job_itself_is_refused() {
    let bed = Bed::builder().without_operator().start().await;
    let team = bed.namespace("cron").await;
    let semaphore = json!({ "consul-semaphore.io/semaphore": "db" });
    let cron_job = |name: &str, own: bool, template: bool| {
        let annotations = |has: bool| if has { semaphore.clone() } else { json!({}) };
        json!({
            "apiVersion": "batch/v1", "kind": "CronJob",
            "metadata": { "name": name, "namespace": team.name(), "annotations": annotations(own) },
            "spec": { "schedule": "0 0 1 1 *", "jobTemplate": {
                "metadata": { "annotations": annotations(template) },
                "spec": { "suspend": true, "template": { "spec": {
                    "restartPolicy": "Never",
                    "containers": [{ "name": "a", "image": "busybox" }],
                } } },
            } },
        })
    };
    let apply = async |object: serde_json::Value, dry_run: bool| {
        let folder = testbed::Folder::new().expect("a folder");
        let file = folder.path().join("cronjob.json");
        std::fs::write(&file, object.to_string()).expect("a file");
        let mut words = vec!["apply", "-f", file.to_str().expect("UTF-8")];
        if dry_run {
            words.push("--dry-run=server");
        }
        bed.try_kubectl(words).await
    };
    let made = apply(cron_job("older", true, false), false).await;
    assert!(made.is_ok(), "{made:?}");
    bed.kubectl(["apply", "-f", "config/policies/cronjobs.yaml"])
        .await;
    eventually("the policy is in force", async || {
        match apply(cron_job("mistaken", true, false), true).await {
            Ok(made) => Err(made),
            Err(refusal) => {
                let refusal = refusal.to_string();
                if refusal.contains("spec.jobTemplate.metadata.annotations") {
                    Ok(())
                } else {
                    Err(refusal)
                }
            }
        }
    })
    .await;
    for (name, own, template) in [
        ("right", false, true),
        ("both", true, true),
        ("none", false, false),
    ] {
        let made = apply(cron_job(name, own, template), false).await;
        assert!(made.is_ok(), "{name}: {made:?}");
    }
    let changed = apply(cron_job("none", true, false), false).await;
    assert!(changed.is_err(), "{changed:?}");
    let changed = apply(cron_job("both", true, false), false).await;
    assert!(changed.is_err(), "{changed:?}");

    // One that is older than the policy can be changed, and deleted: the garbage collector changes it for that.
    team.kubectl(["label", "cronjob", "older", "changed=true"])
        .await;
    team.kubectl(["delete", "cronjob", "older", "--cascade=foreground"])
        .await;
    let left = team.kubectl(["get", "cronjobs", "-o", "name"]).await;
    let expected = "cronjob.batch/both\ncronjob.batch/none\ncronjob.batch/right\n";
    assert_eq!(left, expected);
}
