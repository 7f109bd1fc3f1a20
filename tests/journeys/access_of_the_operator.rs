//! What the operator's `ServiceAccount` may do in Kubernetes, and what not.

use std::collections::BTreeSet;

use testbed::Bed;

#[tokio::test]
async fn the_operator_may_do_no_more_than_it_needs() {
    let bed = Bed::shared().await;
    let team = bed.namespace("access").await;
    team.job("a").create().await;
    let kubeconfig = bed.operator_kubeconfig().display().to_string();
    let as_operator = |args: &[&str]| {
        let own = ["--kubeconfig", kubeconfig.as_str(), "-n", team.name()];
        let args: Vec<_> = own.iter().chain(args).map(ToString::to_string).collect();
        let bed = &bed;
        async move { bed.try_kubectl(args).await }
    };

    let merge = [
        "--type=merge",
        "--patch",
        "{\"metadata\":{\"labels\":{\"a\":\"b\"}}}",
    ];
    let patch = |what: &[&'static str]| [&["patch"], what, &merge].concat();
    let patches = [
        patch(&["job", "a", "--subresource=status"]),
        patch(&["cronjob", "a"]),
        patch(&["namespace", "default"]),
        patch(&["serviceaccount", "default"]),
        patch(&["role", "a"]),
        patch(&["clusterrole", "consul-semaphore-operator"]),
    ];
    let forbidden: [&[&str]; 13] = [
        &["get", "secrets"],
        &["get", "secrets", "--all-namespaces"],
        &["get", "secret", "a"],
        &["get", "secret", "consul-token"],
        &["create", "secret", "generic", "a"],
        &["create", "token", "default"],
        &["get", "jobs", "--as=system:admin"],
        &["get", "configmaps"],
        &["get", "nodes"],
        &["get", "namespace", "default"],
        &["create", "job", "b", "--image=none"],
        &["delete", "pod", "a"],
        &["delete", "consulsemaphore", "db"],
    ];
    let forbidden = forbidden
        .into_iter()
        .chain(patches.iter().map(Vec::as_slice));
    for args in forbidden {
        let refusal = as_operator(args).await.expect_err("it is forbidden");
        assert!(format!("{refusal:#}").contains("forbidden"), "{refusal:#}");
    }
    for args in [
        ["get", "jobs"],
        ["get", "pods"],
        ["get", "consulsemaphores"],
    ] {
        as_operator(&args).await.expect("it is allowed");
    }

    // Nothing beside: whoever is logged in may ask what he may do, and see what the server offers.
    let rules = as_operator(&["auth", "can-i", "--list", "--no-headers"])
        .await
        .expect("its rules");
    let rules: BTreeSet<_> = rules
        .lines()
        .filter(|rule| !rule.starts_with(char::is_whitespace) && !rule.starts_with("selfsubject"))
        .map(|rule| rule.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = [
        "consulsemaphores.consul-semaphore.io [] [] [get list watch patch]",
        "consulsemaphores.consul-semaphore.io/finalizers [] [] [update]",
        "consulsemaphores.consul-semaphore.io/status [] [] [get patch]",
        "events [] [] [create patch]",
        "events.events.k8s.io [] [] [create patch]",
        "jobs.batch [] [] [get list watch patch delete]",
        "namespaces [] [kube-system] [get]",
        "pods [] [] [get list watch]",
    ];
    // Its own admission policies alone, by name.
    let policies = [
        ("mutating", "suspend"),
        ("validating", "guard"),
        ("validating", "refuse"),
    ]
    .into_iter()
    .flat_map(|(kind, name)| {
        ["policies", "policybindings"].map(|what| {
            format!("{kind}admission{what}.admissionregistration.k8s.io [] [{name}.consul-semaphore.io] [get]")
        })
    });
    let expected: BTreeSet<_> = expected
        .map(str::to_owned)
        .into_iter()
        .chain(policies)
        .collect();
    assert_eq!(rules, expected);
}
