//! Who waits, who starts, and when: also beside Jobs, and with two semaphores.

use serde_json::json;
use testbed::{
    eventually,
    proof::{HOLD, PRIORITY},
    same,
};

use crate::{
    kinds::{Kind, PIPELINE_RUN},
    stage::{Described, Stage},
};

each_kind!(
    one_after_another,
    on_hold_and_by_priority,
    two_semaphores_at_once
);

async fn one_after_another(kind: &'static Kind) {
    let stage = Stage::new("order").await;
    let new = |name| Described::new(kind, &stage.team, name);
    let a = new("a").create().await;
    a.runs(&stage).await;
    a.object.has_event("SlotGranted").await;
    let starts = format!("starts_total{{kind=\"{}\"}}", kind.name);
    testbed::eventually("the start is counted", || async {
        let metrics = stage.bed.operator().get("/metrics").await;
        metrics.contains(&starts).then_some(()).ok_or(metrics)
    })
    .await;
    let b = new("b").waits().await;
    let job = stage.job("job").create().await;
    job.has_event("SlotWaiting").await;
    b.is_held().await;
    let waits =
        json!({ "queue": [{ "kind": kind.name, "name": "b" }, { "kind": "Job", "name": "job" }] });
    stage.db.shows(waits).await;
    assert_eq!(stage.holders().await.len(), 1);

    a.is_ended_by_its_user().await;
    b.runs(&stage).await;
    job.is_waiting().await;
    b.is_ended_by_its_user().await;
    job.is_complete().await;
    stage.is_over(3).await;
}

/// Each of them is deleted when it has run.
async fn on_hold_and_by_priority(kind: &'static Kind) {
    let stage = Stage::new("hold").await;
    let holder = stage.job("holder").runs("1h").create().await;
    holder.is_running().await;
    let new = |name| Described::new(kind, &stage.team, name).terminates_in("0s");
    let plain = new("a").waits().await;
    let held = new("b").annotated(HOLD, "true").create().await;
    held.object.has_event("OnHold").await;
    let urgent = new("c").annotated(PRIORITY, "9").waits().await;
    in_the_queue(&stage, &["c", "a"]).await;

    // While it waits, it is put on hold, and leaves the queue.
    plain.object.annotate(HOLD, Some("true")).await;
    in_the_queue(&stage, &["c"]).await;
    holder.finish().await;
    urgent.runs(&stage).await;
    // Off hold, it is queued again.
    held.object.annotate(HOLD, None).await;
    in_the_queue(&stage, &["b"]).await;
    held.is_held().await;
    urgent.object.delete().await;
    held.runs(&stage).await;
    plain.is_held().await;
    plain.object.annotate(HOLD, Some("false")).await;
    in_the_queue(&stage, &["a"]).await;
    held.object.delete().await;
    plain.runs(&stage).await;
    plain.object.delete().await;
    stage.is_over(4).await;
}

/// As Pipelines-as-Code does with `concurrency_limit`: it creates a run as pending, and ends that when the run may go.
#[tokio::test]
async fn a_run_that_another_controller_lets_go_starts_once_it_has_its_slot() {
    let stage = Stage::new("let-go").await;
    let holder = stage.job("holder").runs("1h").create().await;
    holder.is_running().await;
    let run = Described::new(&PIPELINE_RUN, &stage.team, "run").unlabelled();
    let run = run.terminates_in("0s").create().await;
    run.object.has_event("OnHold").await;
    let waits = stage.job("waits").create().await;
    in_the_queue(&stage, &["waits"]).await;
    waits.delete().await;

    let lets_go = json!([{ "op": "remove", "path": "/spec/status" }]);
    run.object.change(lets_go).await.expect("it is let go");
    in_the_queue(&stage, &["run"]).await;
    run.is_held().await;
    holder.finish().await;
    run.runs(&stage).await;
    run.object.delete().await;
    stage.is_over(2).await;
}

/// Waits until exactly these wait, in this order.
async fn in_the_queue(stage: &Stage, names: &[&str]) {
    eventually("the queue is as it is to be", || async {
        let status = stage.db.status().await;
        let queue = status["queue"].as_array().into_iter().flatten();
        let queue: Vec<String> = queue
            .filter_map(|place| Some(place["name"].as_str()?.to_owned()))
            .collect();
        same(queue, names.iter().map(|name| (*name).to_owned()).collect())
    })
    .await;
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
