//! The notes after an installation match what was installed.

use crate::chart::{NAMESPACE, RELEASE, notes};

/// The commands that remove a release.
async fn removal(values: &str) -> Vec<String> {
    let notes = notes(values).await;
    let (_, removal) = notes
        .split_once("To remove the operator")
        .expect("how to remove it");
    let commands = removal.lines().filter_map(|line| line.strip_prefix("  "));
    commands.map(str::to_owned).collect()
}

#[tokio::test]
async fn it_removes_no_more_than_its_own() {
    let uninstall = format!("helm uninstall {RELEASE} --namespace {NAMESPACE}");
    let crd = "kubectl delete crd consulsemaphores.consul-semaphore.io";
    let all = "kubectl delete csem --all --all-namespaces";
    for (values, commands) in [
        ("crds.enabled=true", vec![all, &uninstall, crd]),
        ("crds.keep=false", vec![all, &uninstall]),
        ("crds.enabled=false", vec![all, &uninstall]),
        (
            "scope.namespaces={team-a,team-b}",
            vec![
                "kubectl delete csem --all --namespace team-a",
                "kubectl delete csem --all --namespace team-b",
                &uninstall,
            ],
        ),
        (
            "scope.semaphoreSelector=shard=a",
            vec![
                "kubectl delete csem --selector 'shard=a' --all-namespaces",
                &uninstall,
            ],
        ),
        (
            "scope.semaphoreSelector=shard=a,scope.namespaces={team-a}",
            vec![
                "kubectl delete csem --selector 'shard=a' --namespace team-a",
                &uninstall,
            ],
        ),
    ] {
        assert_eq!(removal(values).await, commands, "{values}");
    }
}

#[tokio::test]
async fn it_asks_where_it_works() {
    let notes = notes("scope.namespaces={team-a}").await;
    assert!(notes.contains("csem,jobs --namespace team-a\n"), "{notes}");
    let (_, after) = notes.split_once("List the semaphores").expect("the list");
    assert!(!after.contains("default"), "{after}");
    assert!(!after.contains("csem --all-namespaces"), "{after}");
}

#[tokio::test]
async fn it_asks_over_tls_where_the_endpoints_do() {
    for (values, said) in [
        (
            "service.enabled=true",
            format!("/services/https:{RELEASE}:http/proxy/readyz\n"),
        ),
        (
            "service.enabled=false",
            "curl --insecure https://127.0.0.1:8080/readyz".to_owned(),
        ),
    ] {
        let notes = notes(&format!(
            "{values},metrics.auth=kubernetes,http.tls.secretName=a"
        ))
        .await;
        assert!(notes.contains(&said), "{notes}");
        assert!(!notes.contains("plain text"), "{notes}");
    }
    let notes = notes("metrics.auth=kubernetes").await;
    assert!(notes.contains("in plain text"), "{notes}");
}

#[tokio::test]
async fn it_lists_the_next_steps_in_order() {
    let notes = notes("fairOrder=true").await;
    let mut rest = notes.as_str();
    let get = format!(
        "kubectl get --raw /api/v1/namespaces/{NAMESPACE}/services/{RELEASE}:http/proxy/readyz\n"
    );
    for step in [
        "1. If Consul has ACLs",
        "create secret generic",
        "2. Wait for the rollout",
        "rollout status deployment/consul-semaphore-operator\n",
        "3. List the semaphores",
        "kubectl get csem --all-namespaces\n",
        "kubectl csem list\n",
        "4. See whether Consul answers",
        &get,
        "helm test consul-semaphore-operator",
        "5. Create a semaphore",
        "kind: ConsulSemaphore",
        "kind: Job",
        "/tree/main/config/samples\n",
    ] {
        let (_, after) = rest
            .split_once(step)
            .unwrap_or_else(|| panic!("{step:?} does not come next in: {rest}"));
        rest = after;
    }
    assert!(!notes.contains("helm upgrade"), "{notes}");
    assert!(!notes.contains("helm install"), "{notes}");
}

#[tokio::test]
async fn it_asks_a_pod_where_the_service_can_not_answer() {
    let from = "networkPolicy.ingressFrom[0].podSelector.matchLabels.a=b";
    for (values, by_service) in [
        ("service.enabled=true", true),
        ("service.enabled=false", false),
        (from, true),
        (&format!("networkPolicy.enabled=true,{from}"), false),
    ] {
        let notes = notes(values).await;
        assert_eq!(notes.contains("/proxy/readyz"), by_service, "{values}");
        let forward = "port-forward deployment/consul-semaphore-operator 8080:http\n";
        assert_eq!(notes.contains(forward), !by_service, "{values}: {notes}");
    }
}

/// Helm looks for the logs of tests in the release's namespace only.
#[tokio::test]
async fn it_knows_the_namespace() {
    let notes = notes("namespaceOverride=team-a").await;
    for command in [
        "kubectl -n team-a rollout status",
        "kubectl -n team-a logs consul-semaphore-operator-check\n",
        &format!("helm test {RELEASE} -n {NAMESPACE}\n"),
        &format!("helm uninstall {RELEASE} --namespace {NAMESPACE}\n"),
    ] {
        assert!(notes.contains(command), "{command:?} is not in: {notes}");
    }
}

#[tokio::test]
async fn it_says_what_the_network_policy_leaves_open() {
    let consul = "networkPolicy.consulTo[0].podSelector.matchLabels.a=b";
    let api_server = "networkPolicy.apiServerTo[0].ipBlock.cidr=10.0.0.10/32";
    for (values, said) in [
        ("networkPolicy.enabled=false", false),
        ("networkPolicy.enabled=true", true),
        (&format!("networkPolicy.enabled=true,{consul}"), true),
        (
            &format!("networkPolicy.enabled=true,{consul},{api_server}"),
            false,
        ),
    ] {
        let says = notes(values).await.contains("not all of their addresses");
        assert_eq!(says, said, "{values}");
    }
}

/// A dry run does not read from a cluster, so it finds no `MutatingAdmissionPolicies`.
#[tokio::test]
async fn it_says_which_policies_are_not_installed() {
    let by_cluster = "\"suspend\" is not installed, because this API server has no";
    let by_value = "\"suspend\" is not installed (admissionPolicies.suspend.enabled=false)";
    let guard = "\"guard\" is not installed (admissionPolicies.guard.enabled=false)";
    for (values, said) in [
        ("suspend.enabled=auto", [true, false, false]),
        ("suspend.enabled=false", [false, true, false]),
        ("refuse.enabled=true", [false, false, false]),
        ("guard.enabled=false", [true, false, true]),
    ] {
        let notes = notes(&format!("admissionPolicies.{values}")).await;
        let says = [by_cluster, by_value, guard].map(|words| notes.contains(words));
        assert_eq!(says, said, "{values}: {notes}");
    }
}

/// A dry run finds no `MutatingAdmissionPolicies`, as above.
#[tokio::test]
async fn it_says_how_to_turn_on_the_policies_of_other_kinds() {
    let on = "workloads.jobsets.enabled=true,workloads.pods.enabled=true";
    let holds = "that hold jobsets, pods are not installed";
    let guards = "guard jobsets, pods, and limit";
    let rows = "kinds --kinds FILE --manifests NAME --service-account";
    for (values, said) in [
        ("workloads.jobsets.enabled=false", [false, false, false]),
        (on, [true, false, false]),
        (
            &format!("{on},admissionPolicies.guard.enabled=false"),
            [true, true, false],
        ),
        ("kinds.configMap=kinds", [false, false, true]),
    ] {
        let notes = notes(values).await;
        let says = [holds, guards, rows].map(|words| notes.contains(words));
        assert_eq!(says, said, "{values}: {notes}");
    }
}

#[tokio::test]
async fn it_says_that_the_image_names_no_registry() {
    for (repository, said) in [("tools/operator", true), ("localhost:5000/operator", false)] {
        let notes = notes(&format!("image.repository={repository}")).await;
        let says = notes.contains("names no registry");
        assert_eq!(says, said, "{repository}: {notes}");
    }
}
