//! The webhook of a controller is away: the API server writes to none of its workloads.

use std::time::Duration;

use serde_json::json;
use testbed::{Bed, Controller, eventually_within};

use crate::{
    kinds::TASK_RUN,
    stage::{Described, Stage, operate},
};

#[tokio::test]
async fn what_can_not_be_started_keeps_nobody_waiting() {
    let bed = Bed::builder().operator_args(["--workloads=taskruns"]);
    let bed = bed.without_operator().start().await;
    let tekton = Controller::Tekton.start(&bed).await;
    operate(&bed).await;
    let stage = Stage::with(bed, "webhook", json!({})).await;
    let holder = stage.job("holder").runs("1h").create().await;
    holder.is_running().await;
    // Who comes in the same second waits in the order of the names.
    let run = Described::new(&TASK_RUN, &stage.team, "a").waits().await;
    run.is_held().await;
    let next = stage.job("b").create().await;
    next.has_event("SlotWaiting").await;
    let mut webhooks = tekton.processes().iter();
    let webhook = webhooks.find(|process| process.name().ends_with("webhook"));
    let webhook = webhook.expect("a program of its own");
    webhook.end("KILL").await.expect("it runs");
    holder.finish().await;
    // The write by which it gives its slot back is refused, too. Only when no start can be under way any more, its slot
    // is free.
    eventually_within(Duration::from_mins(5), "it is refused", || async {
        let events = run.object.events().await;
        let mut events = events.into_iter();
        let refused = events.find(|event| event.reason.as_deref() == Some("StartRefused"));
        refused
            .and_then(|event| event.message)
            .is_some_and(|note| note.contains("webhook"))
    })
    .await;
    next.is_complete().await;
    run.is_held().await;
    run.object.delete().await;
    stage.is_over(2).await;
}
