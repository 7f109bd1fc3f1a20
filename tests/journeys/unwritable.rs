//! The API server lets the operator write nothing to a Job, as while a webhook is away: it keeps nobody from a slot.

use std::time::Duration;

use serde_json::json;
use testbed::{Bed, Namespace, eventually, eventually_within, proof::nothing_is_left};

/// Longer than a minute, for which a start that was sent before may still be under way, and the tries before that.
const LONG: Duration = Duration::from_mins(5);

#[tokio::test]
async fn a_job_that_can_not_be_written_to_keeps_no_slot() {
    let bed = Bed::shared().await;
    let team = bed.namespace("unwritable").await;
    let [db, licence] = ["db", "licence"].map(|name| team.semaphore(name).limit(1));
    let [db, licence] = [db.create().await, licence.create().await];
    let job = |name, semaphore| team.job(name).semaphore(semaphore);
    let holder = job("holder", "db").runs("1h").create().await;
    let suspended = job("suspended", "licence").runs("1h").create().await;
    holder.is_running().await;
    suspended.is_running().await;
    // Who comes in the same second waits in the order of the names.
    let stuck = job("a-stuck", "db").create().await;
    stuck.has_event("SlotWaiting").await;
    let next = [
        job("b", "db").create().await,
        job("c", "licence").create().await,
    ];
    for job in &next {
        job.has_event("SlotWaiting").await;
    }
    let webhook = webhook_away(&bed, &team, "['a-stuck', 'suspended']").await;

    // One can't be started. The other can't be put on hold, which its user has suspended.
    holder.finish().await;
    suspended.suspend().await;
    for job in &next {
        eventually_within(LONG, "it has run", || async {
            let status = job.get().await?.status?;
            (status.succeeded == Some(1)).then_some(())
        })
        .await;
    }
    stuck.is_waiting().await;
    suspended.is_suspended().await;
    bed.kubectl(["delete", "validatingwebhookconfiguration", &webhook])
        .await;
    stuck.delete().await;
    suspended.delete().await;
    for semaphore in [db, licence] {
        nothing_is_left(&bed, &team, &semaphore).await;
    }
}

/// A webhook that does not answer when the operator writes to Jobs with one of these names, a list in CEL.
async fn webhook_away(bed: &Bed, team: &Namespace, names: &str) -> String {
    let name = format!("away-{}", team.name());
    let user = "system:serviceaccount:consul-semaphore-system:consul-semaphore-operator";
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": name },
        "webhooks": [{
            "name": "away.example.com",
            "rules": [{
                "apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["UPDATE"],
                "resources": ["jobs"],
            }],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": team.name() } },
            "matchConditions": [
                { "name": "user", "expression": format!("request.userInfo.username == '{user}'") },
                { "name": "name", "expression": format!("request.name in {names}") },
            ],
            "clientConfig": { "url": "https://127.0.0.1:1/away" },
            "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 1,
            "admissionReviewVersions": ["v1"],
        }],
    });
    let file = bed.folder().path().join(format!("{name}.json"));
    std::fs::write(&file, configuration.to_string()).expect("a file");
    bed.kubectl(["create", "-f", &file.display().to_string()])
        .await;
    eventually("it is asked", || async {
        let namespace = ["-n", team.name()];
        let write = [
            "annotate",
            "job",
            "a-stuck",
            "asked=yes",
            "--dry-run=server",
        ];
        let as_user = [format!("--as={user}")];
        let written = [&namespace[..], &write[..], &[as_user[0].as_str()]].concat();
        match bed.try_kubectl(written).await {
            Err(error) if format!("{error:#}").contains("away.example.com") => Ok(()),
            written => Err(format!("{written:?}")),
        }
    })
    .await;
    name
}
