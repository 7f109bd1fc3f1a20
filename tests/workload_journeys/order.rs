//! Who waits, who starts, and when: also beside Jobs, and with two semaphores.

use serde_json::json;
use testbed::{eventually, same};

use crate::{
    kinds::Kind,
    stage::{Described, Stage},
};

each_kind!(one_after_another, two_semaphores_at_once);

async fn one_after_another(kind: &'static Kind) {
    let stage = Stage::new("order").await;
    let new = |name| Described::new(kind, &stage.team, name);
    let a = new("a").create().await;
    a.runs(&stage).await;
    a.object.has_event("SlotGranted").await;
    let b = new("b").waits().await;
    let job = stage.job("job").create().await;
    job.has_event("SlotWaiting").await;
    b.is_held().await;
    assert_eq!(stage.holders().await.len(), 1);

    a.is_ended_by_its_user().await;
    b.runs(&stage).await;
    job.is_waiting().await;
    b.is_ended_by_its_user().await;
    job.is_complete().await;
    stage.is_over(3).await;
}

async fn two_semaphores_at_once(kind: &'static Kind) {
    let stage = Stage::new("several").await;
    let licenses = stage.team.semaphore("licenses").limit(2).create().await;
    let holder = stage.team.job("holder").semaphore("licenses").runs("1h");
    let holder = holder.create().await;
    holder.is_running().await;
    let both = Described::new(kind, &stage.team, "both");
    let both = both.annotated(crate::stage::ASKS, "db, licenses:2");
    let both = both.waits().await;
    both.is_held().await;
    assert_eq!(stage.holders().await.len(), 0);

    holder.finish().await;
    eventually("it has all three slots", || async {
        let taken = stage.bed.consul().holders(&licenses.lock_prefix()).await;
        same((stage.holders().await.len(), taken.len()), (1, 2))
    })
    .await;
    let is_told = both.is_told();
    for pod in both.all_run().await.into_iter().filter(|_| is_told) {
        let annotations = pod.metadata.annotations.expect("a grant");
        let slots = &annotations["consul-semaphore.io/slots"];
        assert_eq!(slots.matches("licenses").count(), 2, "{slots}");
    }
    both.is_ended_by_its_user().await;
    both.object.has_event("SlotReleased").await;
    licenses.shows(json!({ "held": 0, "waiting": 0 })).await;
    stage.is_over(1).await;
}
