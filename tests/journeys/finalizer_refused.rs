//! A foreign policy refuses the operator's finalizer: the status reports that, and its end.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};
use testbed::{Bed, Namespace, eventually};

const FINALIZER: &str = "consul-semaphore.io/finalizer";

/// A policy that refuses the finalizer in this namespace, and its binding.
fn policy(team: &Namespace) -> [Value; 2] {
    let name = team.name();
    [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": name },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": ["consul-semaphore.io"], "apiVersions": ["*"],
                    "resources": ["consulsemaphores"], "operations": ["CREATE", "UPDATE"],
                }] },
                "validations": [{
                    "expression": format!("!('{FINALIZER}' in object.metadata.?finalizers.orValue([]))"),
                    "message": "no finalizers here",
                }],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": name },
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": { "namespaceSelector": { "matchLabels": {
                    "kubernetes.io/metadata.name": name,
                } } },
            },
        }),
    ]
}

#[tokio::test]
async fn a_finalizer_that_is_refused_shows_in_the_status() {
    let bed = Bed::shared().await;
    let team = bed.namespace("finalizer-refused").await;
    for object in policy(&team) {
        team.apply(object).await;
    }
    // The API server takes a moment to apply it.
    let probe = |number: usize| {
        let probe = team.semaphore(&format!("probe-{number}"));
        probe.with(json!({ "metadata": { "finalizers": [FINALIZER] } }))
    };
    let number = std::cell::Cell::new(0);
    eventually("the policy is in force", || async {
        number.set(number.get() + 1);
        probe(number.get()).try_create().await.is_err()
    })
    .await;

    let db = team.semaphore("db").limit(1).create().await;
    let a = team.job("a").semaphore("db").create().await;
    let words = ["no finalizers here"];
    db.has_condition_that_says("Ready", "False", "FinalizerRefused", &words)
        .await;
    a.is_waiting().await;

    // The status of a semaphore that starts does not take its place.
    for _ in 0..3 {
        db.patch_status(&Value::Null).await;
        db.has_condition("Ready", "False", "FinalizerRefused").await;
    }

    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(bed.client().clone());
    let params = DeleteParams::default();
    bindings
        .delete(team.name(), &params)
        .await
        .expect("it is there");
    db.is_ready().await;
    a.is_complete().await;
}
