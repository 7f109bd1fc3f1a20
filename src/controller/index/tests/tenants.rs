//! Namespaces with one lock key: whose workloads replace each other's.

use consul_semaphore_api::{
    ConsulSemaphore,
    tenancy::{TenantPrefix, TrustedNamespaces},
};
use serde_json::{Value, json};

use super::*;

/// A semaphore `db` of a namespace at the prefix `shared/db`.
fn db(namespace: &str) -> SemaphoreRef {
    SemaphoreRef {
        namespace: namespace.into(),
        name: "db".into(),
    }
}

/// Adds such a semaphore with this access to Consul.
fn add_with(index: &Index, namespace: &str, credential: Option<Credential>) {
    let offer = Offer {
        credential,
        ..offer("shared/db", false)
    };
    block_on(index.add_semaphore(&db(namespace), offer, Manager::ThisOperator));
}

fn secret(namespace: &str, secret: &str) -> Credential {
    Credential::Secret {
        namespace: namespace.into(),
        secret: secret.into(),
        key: "token".into(),
    }
}

/// A workload of a namespace that replaces others, made then.
fn replaces(namespace: &str, name: &str, made: i64) -> TrackedWorkload {
    let mut tracked = tracked(name, |tracked| {
        let workload = workload(tracked);
        workload.wait.created = made;
        workload.on_contention = OnContention::ReplaceRunning;
    });
    tracked.namespace = namespace.into();
    tracked
}

/// A workload that runs in a slot at the lock key.
fn runs(namespace: &str, name: &str) -> TrackedWorkload {
    let mut tracked = replaces(namespace, name, 0);
    let running = workload(&mut tracked);
    running.phase = Phase::Running;
    running.granted = Some(Granted::by("shared/db", "s"));
    tracked
}

/// The waiting workloads of `team` that others supersede, each with the namespaces of the newer ones.
fn superseded(index: &Index) -> Vec<(String, Vec<String>)> {
    let superseded = index.superseded(&QueueRef::new(&db("team"), None), 9);
    let named = superseded.into_iter().map(|one| {
        let newer = one.newer.into_iter();
        let namespaces = newer.map(|newer| newer.namespace.to_string());
        (one.workload.name.to_string(), namespaces.collect())
    });
    named.collect()
}

/// Numbers of workloads in `team` that a newer workload of `other` replaces: of those that wait, and of those that run.
fn replaced(team: Option<Credential>, other: Option<Credential>) -> (usize, usize) {
    let index = empty();
    add_with(&index, "team", team);
    add_with(&index, "other", other);
    put(&index, replaces("team", "waits", 10));
    put(&index, runs("team", "runs"));
    put(&index, replaces("other", "newer", 90));
    (
        superseded(&index).len(),
        index.replaceable(&"newer".into()).len(),
    )
}

#[test]
fn a_workload_replaces_one_of_another_namespace_only_with_the_same_credential() {
    let operator = || Some(Credential::Operator);
    let secret = |namespace| Some(secret(namespace, "consul-token"));
    assert_eq!(replaced(operator(), operator()), (1, 1));
    for (team, other) in [
        (operator(), secret("other")),
        (secret("team"), operator()),
        (secret("team"), secret("other")),
        // A prefix that the operator refuses.
        (operator(), None),
        (secret("team"), None),
        (None, operator()),
        (None, None),
    ] {
        let what = format!("{team:?} {other:?}");
        assert_eq!(replaced(team, other), (0, 0), "{what}");
    }
}

#[test]
fn a_newest_one_of_another_credential_hides_no_newer_one_of_the_same() {
    let index = empty();
    add_with(&index, "team", Some(Credential::Operator));
    add_with(&index, "trusted", Some(Credential::Operator));
    add_with(&index, "refused", None);
    add_with(&index, "tenant", Some(secret("tenant", "consul-token")));
    put(&index, replaces("team", "a", 10));
    put(&index, replaces("refused", "r", 98));
    put(&index, replaces("tenant", "t", 99));
    assert_eq!(superseded(&index), []);
    put(&index, replaces("team", "b", 20));
    put(&index, replaces("trusted", "c", 30));
    let newer = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let expected = [
        ("a".to_owned(), newer(&["trusted", "team"])),
        ("b".to_owned(), newer(&["trusted"])),
    ];
    assert_eq!(superseded(&index), expected);
}

#[test]
fn another_credential_is_another_group() {
    let index = empty();
    add_with(&index, "team", Some(Credential::Operator));
    add_with(&index, "other", None);
    put(&index, replaces("team", "a", 10));
    put(&index, replaces("other", "b", 20));
    assert_eq!(superseded(&index), []);
    // It is trusted now.
    let trusted = Offer {
        credential: Some(Credential::Operator),
        ..offer("shared/db", false)
    };
    block_on(index.update_semaphore(&db("other"), trusted));
    assert_eq!(superseded(&index).len(), 1);
    let own = Offer {
        credential: Some(secret("other", "consul-token")),
        ..offer("shared/db", false)
    };
    block_on(index.update_semaphore(&db("other"), own));
    assert_eq!(superseded(&index), []);
}

#[test]
fn a_credential_is_a_secret_or_an_allowed_use_of_the_operators_token() {
    let semaphore = |spec: Value| -> ConsulSemaphore {
        let metadata = json!({ "name": "db", "namespace": "team" });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    };
    let tenancy = Tenancy {
        prefix: TenantPrefix::DEFAULT.parse().unwrap(),
        trusted: TrustedNamespaces::default(),
    };
    let credential = |spec| Credential::of(&semaphore(spec), &tenancy);
    assert_eq!(
        credential(json!({ "limit": 1 })),
        Some(Credential::Operator)
    );
    let shared = json!({ "limit": 1, "prefix": "shared/db" });
    assert_eq!(credential(shared.clone()), None);
    let mut with_token = shared;
    with_token["consul"] = json!({ "tokenSecretRef": { "name": "mine", "key": "token" } });
    assert_eq!(credential(with_token), Some(secret("team", "mine")));
}
