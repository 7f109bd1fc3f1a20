use testbed::Bed;

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn guarantees() {
    let bed = Bed::shared().await;
    let team = bed.namespace("guarantees").await;
    team.semaphore("db").limit(1).paused(true).create().await;
    let migrate = team.job("migrate").semaphore("db").create().await;
    let shell = Shell::with(&bed, team.name()).await;
    let mut page = Page::open("docs/guarantees.md");
    page.run(&shell, "kubectl wait").await;
    migrate.is_gone().await;
}
