use serde_json::json;
use testbed::Bed;

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn troubleshooting() {
    let bed = Bed::shared().await;
    let team = bed.namespace("troubleshooting").await;
    let mut shell = Shell::with(&bed, team.name()).await;
    shell.instead_of("demo", team.name());
    let mut page = Page::open("docs/troubleshooting.md");

    // A Job waits for the slot of another Job.
    let db = team.semaphore("db-migrations").limit(1).create().await;
    let holder = team.job("holder").semaphore("db-migrations").runs("1h");
    holder.create().await.is_running().await;
    let migrate = team.job("migrate").semaphore("db-migrations");
    let migrate = migrate.create().await;
    migrate.has_event("SlotWaiting").await;
    migrate.is_at_rest().await;
    db.shows(json!({ "held": 1, "waiting": 1 })).await;

    let seen = page.run(&shell, "kubectl get csem,jobs").await;
    for word in ["Suspended", "SlotWaiting", "AllSlotsHeld", "/.lock"] {
        assert!(seen.contains(word), "no {word} in {seen}");
    }
    let conditions = page
        .run(&shell, "kubectl get csem db-migrations -n demo -o jsonpath")
        .await;
    assert_eq!(conditions.lines().count(), 4, "{conditions}");
    let holders = page
        .run(&shell, "kubectl get csem db-migrations -n demo -o json |")
        .await;
    assert!(holders.contains("\tholder\t"), "{holders}");
}
