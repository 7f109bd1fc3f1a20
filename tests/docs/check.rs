use testbed::Bed;

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn check() {
    let bed = Bed::shared().await;
    let team = bed.namespace_named("batch").await;
    let db = team.semaphore("db-migrations").limit(1).create().await;
    db.is_ready().await;
    let mut shell = Shell::with(&bed, team.name()).await;
    shell.instead_of("https://consul.example.com:8501", bed.consul().address());
    shell.instead_of(" CONSUL_HTTP_TOKEN=...", "");
    let mut page = Page::open("docs/check.md");

    let said = page.run(&shell, "export CONSUL_HTTP_ADDR").await;
    assert!(
        said.contains("\n0 failed") || said.contains(" 0 failed"),
        "{said}"
    );
    let failed = page
        .run(&shell, "consul-semaphore-operator check -o json")
        .await;
    assert_eq!(failed, "");
    let said = page
        .run(&shell, "consul-semaphore-operator check --semaphore")
        .await;
    assert!(said.contains("semaphore"), "{said}");
}
