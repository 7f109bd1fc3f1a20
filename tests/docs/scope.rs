use testbed::Bed;

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn scope() {
    let bed = Bed::shared().await;
    let team = bed.namespace_named("team-a").await;
    let database = team.semaphore("database").create().await;
    let shell = Shell::with(&bed, "default").await;
    let mut page = Page::open("docs/scope.md");
    page.run(&shell, "kubectl label csem database").await;
    let labelled = database.get().await.expect("it is there");
    assert_eq!(labelled["metadata"]["labels"]["shard"], "b");
}
