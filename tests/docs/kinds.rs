use std::fs;

use testbed::Bed;

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn the_rights_and_policies_of_a_row_are_made_from_it() {
    let bed = Bed::builder().without_operator().start().await;
    let shell = Shell::with(&bed, "default").await;
    let file = Page::file("docs/kinds.md", "kinds.yaml");
    fs::write(shell.path().join("kinds.yaml"), file).expect("a file");
    let mut page = Page::open("docs/kinds.md");

    page.run(&shell, "consul-semaphore-operator kinds").await;
    page.run(&shell, "kubectl create role kinds").await;
    let of_role = "kubectl get clusterrole consul-semaphore-operator-runs -o name";
    shell.run(of_role).await;
    let policies = "kubectl get mutatingadmissionpolicies,validatingadmissionpolicies -o name";
    let policies = shell.run(policies).await;
    for role in ["hold", "guard", "operator"] {
        let name = format!("{role}.runs.consul-semaphore.io");
        assert!(policies.contains(&name), "{policies}");
    }
}
