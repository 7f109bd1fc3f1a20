use serde_json::json;
use testbed::Bed;

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn why_waiting() {
    let bed = Bed::shared().await;
    let team = bed.namespace("why-waiting").await;
    let shell = Shell::with(&bed, team.name()).await;
    let mut page = Page::open("docs/why-waiting.md");

    // A Job waits for the slot of another Job.
    let db = team.semaphore("db-migrations").limit(1).create().await;
    let holder = team.job("holder").semaphore("db-migrations").runs("1h");
    holder.create().await.is_running().await;
    let migrate = team.job("migrate").semaphore("db-migrations");
    let migrate = migrate.create().await;
    migrate.has_event("SlotWaiting").await;
    migrate.is_at_rest().await;
    db.shows(json!({ "held": 1, "queue": [{ "kind": "Job", "name": "migrate" }] }))
        .await;

    let job = page.run(&shell, "kubectl get job migrate").await;
    for word in ["Suspended", "SlotWaiting"] {
        assert!(job.contains(word), "no {word} in {job}");
    }
    let queue = page.run(&shell, "kubectl get csem db-migrations").await;
    let reason = "\nmigrate\tAllSlotsHeld\t1 of 1 slots are held\t";
    assert!(queue.contains(reason), "{queue}");
    let conditions = page
        .run(&shell, "kubectl describe csem db-migrations")
        .await;
    for word in ["Ready", "SlotsAvailable", "AllSlotsHeld"] {
        assert!(conditions.contains(word), "no {word} in {conditions}");
    }
}
