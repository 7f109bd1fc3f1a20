//! What the policies let the operator do. All rights are its own here, so that nothing but they refuse.

use serde_json::{Value, json};
use testbed::Object;

use crate::stage::{API, Stage};

const OPERATOR: &str = "system:serviceaccount:consul-semaphore-system:consul-semaphore-operator";

/// Tries a JSON Patch as the operator.
pub(crate) async fn tries(
    stage: &Stage,
    what: &str,
    part: &[&str],
    change: &Value,
) -> Result<(), String> {
    let (user, patch) = (format!("--as={OPERATOR}"), change.to_string());
    let team = stage.team.name();
    let mut args = vec!["patch", "-n", team, what, "--dry-run=server", "--type=json"];
    args.extend(["-p", &patch, &user, "--as-group=system:masters"]);
    args.extend(part);
    let answer = stage.bed.try_kubectl(args).await;
    answer.map(drop).map_err(|error| format!("{error:#}"))
}

fn set(path: &str, value: impl Into<Value>) -> Value {
    json!([{ "op": "add", "path": path, "value": value.into() }])
}

pub(crate) const STATUS: &[&str] = &["--subresource=status"];
/// A Workload that is asked about by our check and by another controller's, and the places of their entries.
async fn workload(stage: &Stage) -> (Object, usize, usize) {
    let others = format!("{}-others", stage.team.name());
    let check = json!({
        "apiVersion": API, "kind": "AdmissionCheck", "metadata": { "name": others },
        "spec": { "controllerName": "example.com/others" },
    });
    let check = stage.team.create(check).await;
    let active = json!({
        "type": "Active", "status": "True", "reason": "a", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let active = set("/status", json!({ "conditions": [active] }));
    check
        .change_status(active)
        .await
        .expect("it can be changed");
    let also = set(
        "/spec/admissionChecksStrategy/admissionChecks/-",
        json!({ "name": others }),
    );
    stage.queue.change(also).await.expect("it can be changed");
    let job = stage.job("job").hold().create().await;
    let workload = stage.workload_of(&job).await;
    let place = |it: &Value, name: &str| {
        let entries = it["status"]["admissionChecks"].as_array()?;
        entries.iter().position(|entry| entry["name"] == name)
    };
    let asked = |it: &Value| place(it, stage.team.name()).is_some() && place(it, &others).is_some();
    let it = workload.is("asked about by both", asked).await;
    let (ours, theirs) = (place(&it, stage.team.name()), place(&it, &others));
    (
        workload,
        ours.expect("it is there"),
        theirs.expect("it is there"),
    )
}

#[tokio::test]
async fn it_answers_its_own_check_and_changes_nothing_else() {
    let stage = Stage::new("policy").await;
    let (workload, ours, theirs) = workload(&stage).await;
    let [entry, others] = [ours, theirs].map(|place| format!("/status/admissionChecks/{place}"));
    let name = format!("workloads.kueue.x-k8s.io/{}", workload.name());
    let update = |more: Value| {
        let mut update = more;
        update["name"] = "main".into();
        json!([
            { "op": "add", "path": format!("{entry}/state"), "value": "Ready" },
            { "op": "add", "path": format!("{entry}/podSetUpdates"), "value": [update] },
        ])
    };
    let session = json!({ "consul-semaphore.io/session": "s" });
    let may = update(json!({ "annotations": session }));
    tries(&stage, &name, STATUS, &may)
        .await
        .expect("it may answer");
    let condition = json!({
        "type": "Finished", "status": "True", "reason": "a", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    for (part, change) in [
        (STATUS, set(&format!("{others}/state"), "Ready")),
        (STATUS, json!([{ "op": "remove", "path": others }])),
        (STATUS, set("/status/conditions/-", condition)),
        (STATUS, update(json!({ "annotations": { "a": "b" } }))),
        (STATUS, update(json!({ "labels": { "a": "b" } }))),
        (STATUS, update(json!({ "nodeSelector": { "a": "b" } }))),
        (&[], set("/spec/active", false)),
    ] {
        let refusal = tries(&stage, &name, part, &change).await;
        let refusal = refusal.expect_err(&change.to_string());
        assert!(refusal.contains("the operator"), "{change}: {refusal}");
    }
    let (team, user) = (stage.team.name(), format!("--as={OPERATOR}"));
    let delete = ["delete", "-n", team, &name, "--dry-run=server", &user];
    let all_rights = ["--as-group=system:masters"];
    let refusal = stage
        .bed
        .try_kubectl(delete.into_iter().chain(all_rights))
        .await;
    let refusal = format!("{:#}", refusal.expect_err("it may not be deleted"));
    assert!(refusal.contains("deletes no Workload"), "{refusal}");
}

#[tokio::test]
async fn of_an_admission_check_it_writes_only_that_its_own_is_active() {
    let stage = Stage::new("active").await;
    workload(&stage).await;
    let check = format!("admissionchecks.kueue.x-k8s.io/{}", stage.team.name());
    let others = format!("{check}-others");
    let condition = |of: &str| {
        json!({
            "type": of, "status": "False", "reason": "a", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let says = |of: &str| set("/status", json!({ "conditions": [condition(of)] }));
    tries(&stage, &check, STATUS, &says("Active"))
        .await
        .expect("it may say so");
    let parameters = json!({ "apiGroup": "example.com", "kind": "Config", "name": "a" });
    for (what, part, change) in [
        (&others, STATUS, says("Active")),
        (&check, STATUS, says("Other")),
        (&check, &[], set("/spec/parameters", parameters)),
    ] {
        let refusal = tries(&stage, what, part, &change).await;
        let refusal = refusal.expect_err(&change.to_string());
        assert!(
            refusal.contains("the operator writes only"),
            "{change}: {refusal}"
        );
    }
}
