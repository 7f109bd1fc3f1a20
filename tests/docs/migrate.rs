use testbed::Bed;

use crate::{page::Page, shell::Shell};

const PAGE: &str = "docs/migrate.md";

#[tokio::test]
async fn migrate() {
    let bed = Bed::shared().await;
    let team = bed.namespace("migrate").await;
    let shell = Shell::with(&bed, team.name()).await;
    let mut page = Page::open("docs/migrate.md");
    shell.write("locks-db.yaml", &Page::file(PAGE, "locks-db.yaml"));
    shell.program("./migrate", "exit 0");

    // Another program holds a slot already.
    let session = bed.consul().take_slot("locks/db", 2).await;
    let seen = page.run(&shell, "consul kv get locks/db/.lock").await;
    assert!(seen.contains(&session), "{seen}");
    page.run(&shell, "kubectl apply -f locks-db.yaml").await;
    let db = team.semaphore("db");
    db.shows(serde_json::json!({ "held": 1, "limit": 2 })).await;

    let moved = team.job("moved").semaphore("db").create().await;
    page.run(&shell, "consul lock -n 2 locks/db").await;
    page.run(&shell, "consul-semaphore exec --prefix locks/db")
        .await;
    moved.is_complete().await;
}
