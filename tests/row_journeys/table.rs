//! The kinds of a `ConfigMap`: of a definition that this journey makes, whose controller is played here.

use serde_json::{Value, json};
use testbed::{Bed, Namespace, Object, eventually};

use crate::stage::{ASKS, GRANTED_TO, WAITS};

const API: &str = "example.com/v1";
const HOLD: &str = "consul-semaphore.io/hold";
const FAILED: &str = "consul-semaphore.io/failed";

/// The namespace of the operator.
const OPERATORS: &str = "consul-semaphore-system";

/// The definition of `Run`, which knows all fields.
fn definition() -> Value {
    let mut definition = of_plural("Run", "runs");
    definition["spec"]["versions"][0]["subresources"] = json!({ "status": {} });
    definition
}

/// One without a subresource for its status.
fn of_plural(kind: &str, plural: &str) -> Value {
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.example.com") },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": any, "status": any } } },
            }],
        },
    })
}

/// Its row. `done` is the phase of one that has ended.
fn row(done: &str) -> String {
    json!({
        "apiVersion": API, "kind": "Run", "plural": "runs",
        "life": {
            "hold": { "path": "spec.paused", "held": true, "started": false },
            "suspended": [{ "path": "status.phase", "oneOf": ["Paused"] }],
            "finished": [{ "path": "status.phase", "oneOf": [done, "Failed"] }],
            "failed": { "fields": { "status.phase": "Failed", "status.message": "{message}" } },
        },
        "pods": { "metadata": ["spec.pod.metadata"] },
    })
    .to_string()
}

async fn rows(bed: &Bed, data: Value) {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": { "name": "kinds", "namespace": OPERATORS },
    });
    apply(bed, &map).await;
}

async fn apply(bed: &Bed, object: &Value) {
    let file = bed.folder().path().join("applied.json");
    std::fs::write(&file, object.to_string()).unwrap();
    let file = file.display().to_string();
    bed.kubectl(["apply", "-f", &file]).await;
}

/// Lets the operator read the rows, and write to these runs.
async fn rights(bed: &Bed) {
    let operator = json!([{
        "kind": "ServiceAccount", "name": "consul-semaphore-operator", "namespace": OPERATORS,
    }]);
    let rules = json!([
        { "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["kinds"], "verbs": ["get", "list", "watch"] },
        {
            "apiGroups": ["example.com"], "resources": ["runs", "plainruns"],
            "verbs": ["get", "list", "watch", "patch", "delete"],
        },
        { "apiGroups": ["example.com"], "resources": ["runs/status", "plainruns/status"], "verbs": ["patch"] },
    ]);
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    let name = json!({ "name": "rows" });
    let role =
        json!({ "apiVersion": version, "kind": "ClusterRole", "metadata": name, "rules": rules });
    apply(bed, &role).await;
    apply(
        bed,
        &json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": name, "subjects": operator,
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "rows" },
        }),
    )
    .await;
}

async fn run(team: &Namespace, name: &str) -> Object {
    let run = json!({
        "apiVersion": API, "kind": "Run",
        "metadata": { "name": name, "labels": { WAITS: "true" }, "annotations": { ASKS: "db" } },
        "spec": { "paused": true, "pod": {} },
    });
    let run = team.create(run).await;
    phase(&run, "Paused").await;
    run
}

/// What its controller writes.
async fn phase(run: &Object, phase: &str) {
    let status = json!([{ "op": "add", "path": "/status", "value": { "phase": phase } }]);
    run.change_status(status).await.unwrap();
}

async fn established(bed: &Bed, plural: &str) {
    let definition = format!("crd/{plural}.example.com");
    bed.kubectl(["wait", "--for=condition=Established", &definition])
        .await;
}

async fn is_deleted(run: &Object) {
    run.delete().await;
    run.is_gone().await;
}

async fn is_started(run: &Object) {
    let started = run.is("started", |it| it["spec"]["paused"] == false).await;
    let uid = &started["metadata"]["uid"];
    assert_eq!(started["metadata"]["annotations"][GRANTED_TO], *uid);
    let pod = &started["spec"]["pod"]["metadata"];
    assert_eq!(pod["labels"]["consul-semaphore.io/holder"], *uid);
}

#[tokio::test]
async fn a_row_is_served_while_it_is_there_and_a_wrong_one_is_named() {
    let bed = Bed::builder()
        .operator_args(["--kinds=kinds"])
        .without_operator()
        .start()
        .await;
    apply(&bed, &definition()).await;
    rights(&bed).await;
    bed.operator().start().await;
    let team = bed.namespace("rows").await;
    let db = team.semaphore("db").limit(1).create().await;
    established(&bed, "runs").await;
    let a = run(&team, "a").await;

    // Nothing is known of it, until there is a row.
    rows(&bed, json!({ "bad": "kind: Run", "run": row("Done") })).await;
    is_started(&a).await;
    eventually("the wrong row is named", || async {
        let events = bed
            .kubectl([
                "get",
                "events",
                "-n",
                OPERATORS,
                "-o",
                "jsonpath={.items[*].message}",
            ])
            .await;
        let named = events.contains("the row bad is left out: missing field `apiVersion`");
        if named { Ok(()) } else { Err(events) }
    })
    .await;

    // The next one waits for it.
    let b = run(&team, "b").await;
    b.has_event("SlotWaiting").await;
    phase(&a, "Done").await;
    is_started(&b).await;

    // A changed row is used. By it, the first one would run again.
    is_deleted(&a).await;
    let c = run(&team, "c").await;
    c.has_event("SlotWaiting").await;
    rows(&bed, json!({ "run": row("Over") })).await;
    phase(&b, "Over").await;
    is_started(&c).await;

    // A row that became wrong stays what it was.
    let d = run(&team, "d").await;
    d.has_event("SlotWaiting").await;
    rows(&bed, json!({ "run": "kind: Run" })).await;
    phase(&c, "Over").await;
    is_started(&d).await;

    // Until a right one describes the same kind.
    is_deleted(&b).await;
    is_deleted(&c).await;
    let other = run(&team, "f").await;
    other.has_event("SlotWaiting").await;
    rows(&bed, json!({ "run": "kind: Run", "another": row("Ended") })).await;
    phase(&d, "Ended").await;
    is_started(&other).await;
    is_deleted(&d).await;
    is_deleted(&other).await;
    let d = run(&team, "g").await;
    is_started(&d).await;

    // Without a row nobody waits, and who has a slot keeps it while it is there.
    let last = run(&team, "e").await;
    last.has_event("SlotWaiting").await;
    rows(&bed, json!({})).await;
    db.shows(json!({ "held": 1, "waiting": 0 })).await;
    is_deleted(&d).await;
    db.shows(json!({ "held": 0, "waiting": 0 })).await;
    rows(&bed, json!({ "run": row("Over") })).await;
    is_started(&last).await;
}

/// A definition without that subresource has no place for it either.
#[tokio::test]
async fn what_may_not_say_in_its_status_that_it_failed_is_put_on_hold() {
    let bed = Bed::builder()
        .operator_args(["--kinds=kinds"])
        .without_operator()
        .start()
        .await;
    apply(&bed, &of_plural("PlainRun", "plainruns")).await;
    established(&bed, "plainruns").await;
    rights(&bed).await;
    let row = row("Done").replace("\"Run\"", "\"PlainRun\"");
    let row = row.replace("\"runs\"", "\"plainruns\"");
    rows(&bed, json!({ "run": row })).await;
    bed.operator().start().await;
    let team = bed.namespace("plain").await;
    let db = team.semaphore("db").limit(1).create().await;
    let holder = team.job("holder").semaphore("db").runs("1h").create().await;
    holder.is_running().await;
    let late = team
        .create(json!({
            "apiVersion": API, "kind": "PlainRun",
            "metadata": {
                "name": "late", "labels": { WAITS: "true" },
                "annotations": { ASKS: "db", "consul-semaphore.io/wait-timeout": "1s" },
            },
            "spec": { "paused": true, "pod": {} },
            "status": { "phase": "Paused" },
        }))
        .await;
    let held = late
        .is("on hold", |it| {
            let annotations = &it["metadata"]["annotations"];
            annotations[HOLD] == "true" && annotations[FAILED].is_null()
        })
        .await;
    assert_eq!(held["status"]["phase"], "Paused");
    eventually("an event says so", || async {
        let events = team
            .kubectl([
                "get",
                "events",
                "--field-selector=reason=WaitTimedOut",
                "-o",
                "jsonpath={.items[*].message}",
            ])
            .await;
        let said =
            events.contains("put on hold, because the API server refuses to mark it as failed");
        if said { Ok(()) } else { Err(events) }
    })
    .await;
    // It leaves nothing behind, and can be queued again.
    let again = json!([
        { "op": "remove", "path": "/metadata/annotations/consul-semaphore.io~1hold" },
        { "op": "remove", "path": "/metadata/annotations/consul-semaphore.io~1wait-timeout" },
    ]);
    late.change(again).await.expect("its user may");
    db.shows(json!({ "held": 1, "waiting": 1 })).await;
    holder.finish().await;
    is_started(&late).await;
}

/// As of an older version of a kind, or with a misspelt path: the API server drops the field, and says nothing.
#[tokio::test]
async fn a_hold_that_the_schema_does_not_have_is_reported_and_is_not_repeated_at_once() {
    let bed = Bed::builder()
        .operator_args(["--kinds=kinds"])
        .without_operator()
        .start()
        .await;
    let mut definition = definition();
    let spec = json!({ "type": "object", "properties": { "pod": { "type": "object" } } });
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec;
    apply(&bed, &definition).await;
    established(&bed, "runs").await;
    rights(&bed).await;
    rows(&bed, json!({ "run": row("Done") })).await;
    let (proxy, kubeconfig) = bed.proxy_to_kubernetes().await;
    let kubeconfig = kubeconfig.display().to_string();
    let operator = bed.another_operator("one", ["--kinds=kinds"], [("KUBECONFIG", kubeconfig)]);
    operator.start().await;
    let team = bed.namespace("unheld").await;
    team.semaphore("db").limit(1).create().await;
    let run = team
        .create(json!({
            "apiVersion": API, "kind": "Run",
            "metadata": { "name": "a", "labels": { WAITS: "true" }, "annotations": { ASKS: "db" } },
            "spec": { "pod": {} },
        }))
        .await;
    let note = run.has_event("StartRefused").await;
    assert!(
        note.contains(
            "the write has no effect on spec.paused: either the schema of runs.example.com"
        ),
        "{note}"
    );
    // What it does meanwhile is done in time.
    let job = team.job("b").semaphore("db").create().await;
    job.has_event("SlotReleased").await;
    let patches = proxy.calls().into_iter();
    let patches = patches.filter(|call| call.method == "PATCH" && call.path.ends_with("/runs/a"));
    let patches = patches.count();
    assert!((1..=20).contains(&patches), "{patches}");
    let reasons = run
        .events()
        .await
        .into_iter()
        .filter_map(|event| event.reason);
    let reasons: std::collections::BTreeSet<String> = reasons.collect();
    assert!(!reasons.contains("RanWithoutSlot"), "{reasons:?}");
    operator.stop().await;
}
