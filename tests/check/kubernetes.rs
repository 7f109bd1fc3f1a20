//! Kubernetes: the definition, rights, policies.

use serde_json::{Value, json};
use testbed::{Bed, eventually};

use crate::stage::Said;

const OPERATOR: &str = "system:serviceaccount:consul-semaphore-system:consul-semaphore-operator";

/// Each with what happens without it.
const POLICIES: [(&str, &str); 4] = [
    ("suspend.consul-semaphore.io", "is suspended when"),
    ("guard.consul-semaphore.io", "is suspended when"),
    ("cronjobs.consul-semaphore.io", "run without a slot"),
    (
        "operator.jobs.consul-semaphore.io",
        "can change what a Job runs",
    ),
];

const CRD: &str = "consulsemaphores.consul-semaphore.io";

async fn as_operator(bed: &Bed) -> Said {
    Said::of_bed(bed, bed.kubeconfig(), &["--as", OPERATOR]).await
}

async fn apply(bed: &Bed, name: &str, object: &Value) {
    let file = bed.folder().path().join(name);
    std::fs::write(&file, object.to_string()).unwrap();
    bed.kubectl(["apply", "-f", &file.display().to_string()])
        .await;
}

/// The report once each of these lines has its outcome and words: a change takes effect a moment later, and not for
/// all questions at once.
async fn says(bed: &Bed, lines: &[(&str, &str, &str)]) -> Said {
    eventually(&format!("{lines:?}"), async || {
        let said = as_operator(bed).await;
        let all = lines.iter().all(|(what, outcome, words)| {
            said.find("kubernetes", what).is_some_and(|line| {
                let message = line["message"].as_str().unwrap_or_default();
                line["outcome"] == *outcome && message.contains(words)
            })
        });
        if all {
            Ok(said)
        } else {
            Err(format!("{said:?}"))
        }
    })
    .await
}

#[tokio::test]
async fn the_shipped_rbac_suffices_and_a_missing_right_is_reported() {
    let bed = Bed::builder().without_operator().start().await;
    what_is_shipped(&bed).await;
    policies(&bed).await;
    a_right_that_is_missing(&bed).await;
    a_part_of_the_cluster(&bed).await;
    the_rows(&bed).await;
    the_lease(&bed).await;
    the_definition(&bed).await;
    bed.end().await.unwrap();
}

/// An admin checks the operator's rights, and the operator checks its own.
async fn what_is_shipped(bed: &Bed) {
    // New role bindings take a moment.
    let said = eventually("what is shipped suffices", async || {
        let said = as_operator(bed).await;
        let policies = POLICIES.map(|(name, _)| name);
        if said.bad("kubernetes") == [&policies[..], &["operator"]].concat() {
            Ok(said)
        } else {
            Err(format!("{said:?}"))
        }
    })
    .await;
    for (policy, without) in POLICIES {
        said.assert("kubernetes", policy, "warning", &["there is no ", without]);
    }
    said.assert("kubernetes", "rights of", "ok", &[OPERATOR]);
    said.assert("kubernetes", "its schema", "ok", &[]);
    let all = "may get, list, watch, patch, delete";
    said.assert("kubernetes", "jobs", "ok", &[all]);
    assert_eq!(said.code, Some(0), "{said:#?}");

    let said = Said::of_bed(bed, bed.operator_kubeconfig(), &[]).await;
    said.assert("kubernetes", "rights of", "ok", &[OPERATOR]);
    said.assert("kubernetes", "jobs", "ok", &[]);
    // It may not read it, and need not.
    said.assert("kubernetes", "its schema", "unknown", &["forbidden"]);
    assert_eq!(said.code, Some(0), "{said:#?}");

    let said = Said::of_bed(bed, bed.kubeconfig(), &[]).await;
    let words = ["admin", "--as system:serviceaccount:"];
    said.assert("kubernetes", "rights of", "warning", &words);

    let said = Said::of_bed(bed, bed.operator_kubeconfig(), &["--as", "jane"]).await;
    said.assert("kubernetes", "rights of", "unknown", &["impersonate"]);
    said.assert("kubernetes", "rights", "unknown", &["impersonate"]);
}

async fn a_right_that_is_missing(bed: &Bed) {
    let get = [
        "get",
        "clusterrole",
        "consul-semaphore-operator",
        "-o",
        "json",
    ];
    let role: Value = serde_json::from_str(&bed.kubectl(get).await).unwrap();
    let with = |rules: &Value| {
        json!({
            "apiVersion": role["apiVersion"], "kind": role["kind"],
            "metadata": { "name": role["metadata"]["name"] }, "rules": rules,
        })
    };
    let mut less = role["rules"].clone();
    for rule in less.as_array_mut().unwrap() {
        if rule["resources"] == json!(["jobs"]) {
            rule["verbs"] = json!(["get", "list", "watch"]);
        }
        if rule["resources"] == json!(["events"]) {
            rule["verbs"] = json!(["create"]);
        }
    }
    apply(bed, "less.json", &with(&less)).await;
    let jobs = ("jobs", "failed", "may not patch, delete");
    let events = ("events", "warning", "may not patch");
    let said = says(bed, &[jobs, events]).await;
    let words = ["may not patch, delete", "kubectl apply -k config/rbac"];
    said.assert("kubernetes", "jobs", "failed", &words);
    let words = ["may not patch", "no events"];
    said.assert("kubernetes", "events", "warning", &words);
    said.assert("kubernetes", "pods", "ok", &[]);
    said.each_failure_says_what_to_do();
    assert_eq!(said.code, Some(1));
}

/// An operator for some namespaces needs its rights there, and its own Lease.
async fn a_part_of_the_cluster(bed: &Bed) {
    let arguments = [
        "--as",
        "system:serviceaccount:ops:nobody",
        "--namespaces=team-a,team-b",
        "--lease-name=shard-a",
    ];
    let said = Said::of_bed(bed, bed.kubeconfig(), &arguments).await;
    for what in [
        "jobs in team-a",
        "jobs in team-b",
        "namespaces kube-system",
        "leases in ops",
        "leases shard-a in ops",
    ] {
        said.assert("kubernetes", what, "failed", &["may not", "docs/scope.md"]);
    }
}

/// Each row of the `ConfigMap` is read, and needs rights and policies of its own.
async fn the_rows(bed: &Bed) {
    let row = json!({
        "apiVersion": "example.com/v1", "kind": "Run", "plural": "runs",
        "life": {
            "hold": { "path": "spec.suspend", "held": true },
            "suspended": [{ "condition": "Suspended" }],
            "finished": [{ "condition": "Done" }],
        },
        "pods": { "labels": ["run={name}"] },
    });
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "kinds", "namespace": "consul-semaphore-system" },
        "data": { "bad": "kind: Run", "runs": row.to_string() },
    });
    let arguments = ["--as", OPERATOR, "--kinds=kinds"];
    let said = Said::of_bed(bed, bed.kubeconfig(), &arguments).await;
    let words = ["there is no ConfigMap consul-semaphore-system/kinds"];
    said.assert("kubernetes", "kinds", "warning", &words);
    apply(bed, "kinds.json", &map).await;
    let said = Said::of_bed(bed, bed.kubeconfig(), &arguments).await;
    let map = "configmaps kinds in consul-semaphore-system";
    let words = ["may not get, list, watch", "docs/kinds.md"];
    said.assert("kubernetes", map, "failed", &words);
    let make = "kinds --kinds FILE --manifests runs | kubectl apply -f -";
    said.assert("kubernetes", "runs", "failed", &["may not get", make]);
    for role in ["hold", "guard", "operator"] {
        let policy = format!("{role}.runs.consul-semaphore.io");
        said.assert("kubernetes", &policy, "warning", &["there is no", make]);
    }
    said.assert("kubernetes", "kinds", "ok", &["has 1 row"]);
    assert!(
        said.bad("kubernetes").contains(&"kinds".to_owned()),
        "{said:?}"
    );
}

/// It is found wherever the operator runs, if the user may look there.
async fn the_lease(bed: &Bed) {
    let said = Said::of_bed(bed, bed.kubeconfig(), &[]).await;
    let words = ["no replica leads", "in any namespace"];
    said.assert("kubernetes", "operator", "warning", &words);

    bed.kubectl(["create", "namespace", "elsewhere"]).await;
    let now = consul_client::clock::time();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "consul-semaphore-operator", "namespace": "elsewhere" },
        "spec": {
            "holderIdentity": "replica-1", "leaseDurationSeconds": 3600, "renewTime": format!("{now:.6}"),
        },
    });
    apply(bed, "lease.json", &lease).await;
    let found = ["replica-1 leads, by the Lease elsewhere/consul-semaphore-operator"];
    let said = Said::of_bed(bed, bed.kubeconfig(), &[]).await;
    said.assert("kubernetes", "operator", "ok", &found);

    // The operator's own account may look in one namespace only.
    let said = Said::of_bed(bed, bed.operator_kubeconfig(), &[]).await;
    let words = [
        "may not list the Leases of all namespaces",
        "consul-semaphore-system",
    ];
    said.assert("kubernetes", "operator", "unknown", &words);
    let named = ["--leader-election-namespace", "elsewhere"];
    let said = Said::of_bed(bed, bed.kubeconfig(), &named).await;
    said.assert("kubernetes", "operator", "ok", &found);
}

async fn the_definition(bed: &Bed) {
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/appliedLimits";
    let change = json!([{ "op": "remove", "path": path }]).to_string();
    bed.kubectl(["patch", "crd", CRD, "--type=json", "-p", &change])
        .await;
    let said = as_operator(bed).await;
    let words = [".status.appliedLimits", "kubectl apply -k crds"];
    said.assert("kubernetes", "its schema", "failed", &words);

    bed.kubectl(["delete", "crd", CRD]).await;
    let definition = ("ConsulSemaphore", "failed", "is not installed");
    let said = says(bed, &[definition]).await;
    let words = ["is not installed", "kubectl apply -k crds"];
    said.assert("kubernetes", "ConsulSemaphore", "failed", &words);
    assert_eq!(said.code, Some(1));
}

fn policy(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": { "name": name }, "spec": spec,
    })
}

/// A check does not read the content of the policies: only whether they exist and are bound.
async fn policies(bed: &Bed) {
    let (name, _) = POLICIES[1];
    let rules = json!([{
        "apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["UPDATE"],
    }]);
    let spec = json!({
        "matchConstraints": { "resourceRules": rules }, "validations": [{ "expression": "true" }],
    });
    let guard = policy("ValidatingAdmissionPolicy", name, &spec);
    apply(bed, "guard.json", &guard).await;
    let said = as_operator(bed).await;
    let words = ["has no binding", "kubectl apply -k config/policies"];
    said.assert("kubernetes", name, "warning", &words);

    let spec = json!({ "policyName": name, "validationActions": ["Deny"] });
    let binding = policy("ValidatingAdmissionPolicyBinding", name, &spec);
    apply(bed, "binding.json", &binding).await;
    let said = as_operator(bed).await;
    said.assert("kubernetes", name, "ok", &["is in force"]);
}
