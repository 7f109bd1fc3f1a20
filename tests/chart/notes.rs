//! The notes after an installation match what was installed.

use crate::chart::{NAMESPACE, RELEASE, notes};

/// The commands that remove a release.
async fn removal(values: &str) -> Vec<String> {
    let notes = notes(values).await;
    let (_, removal) = notes.split_once("To remove it").expect("how to remove it");
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
    let (_, example) = notes.split_once("Then make").expect("the example");
    assert!(!example.contains("default"), "{example}");
}

/// A dry run does not read from a cluster.
#[tokio::test]
async fn it_says_that_a_policy_was_left_out() {
    for (values, said) in [
        ("suspend.enabled=auto", true),
        ("suspend.enabled=false", false),
        ("refuse.enabled=true", false),
    ] {
        let notes = notes(&format!("admissionPolicies.{values}")).await;
        let says = notes.contains("has no MutatingAdmissionPolicies");
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
