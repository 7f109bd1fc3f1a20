use testbed::Bed;

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn upgrade() {
    let bed = Bed::shared().await;
    let team = bed.namespace("upgrade").await;
    team.semaphore("db").create().await;
    let mut shell = Shell::with(&bed, team.name()).await;
    shell.instead_of("-n demo", &format!("-n {}", team.name()));
    let mut page = Page::open("docs/upgrade.md");

    page.run(&shell, "kubectl get csem -A").await;
    let version = page.run(&shell, "consul-semaphore-operator version").await;
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    // The schema that is installed is this program's.
    assert!(!version.contains("diff"), "{version}");
    assert_eq!(
        page.run(&shell, "kubectl get crd").await,
        "v1alpha1 stored: v1alpha1\n"
    );
}
