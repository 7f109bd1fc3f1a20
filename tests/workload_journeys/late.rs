//! Workloads that are annotated when they run already.

use testbed::proof::all_is_decided;

use crate::{
    kinds::{Kind, WORKFLOW},
    stage::{ASKS, Described, Stage, WAITS},
};

each_kind!(annotated_too_late);

/// What was started by somebody else and can't be held again is never ended. The policies refuse the annotation.
async fn annotated_too_late(kind: &'static Kind) {
    let stage = Stage::without_policies("late").await;
    let holder = stage.job("holder").runs("1h").create().await;
    holder.is_running().await;
    let late = Described::new(kind, &stage.team, "late")
        .plain()
        .create()
        .await;
    let pods = late.all_run().await;
    let object = format!("{}/late", kind.name.to_lowercase());
    let [label, annotation] = [format!("{WAITS}=true"), format!("{ASKS}=db")];
    stage.team.kubectl(["label", &object, &label]).await;
    stage.team.kubectl(["annotate", &object, &annotation]).await;
    late.object.has_event("RanWithoutSlot").await;
    if kind.can_be_suspended {
        late.pods_are_gone().await;
        late.object.has_event("SlotWaiting").await;
        holder.finish().await;
        late.runs(&stage).await;
        late.is_ended_by_its_user().await;
    } else {
        all_is_decided(&stage.team, &stage.db).await;
        let still = late.all_run().await;
        assert_eq!(still[0].metadata.uid, pods[0].metadata.uid);
        late.is_ended_by_its_user().await;
        holder.finish().await;
        let next = stage.job("next").create().await;
        next.is_complete().await;
    }
}

/// As `argo retry` does it: the same object runs again, after its slot was given back.
#[tokio::test]
async fn a_workflow_that_is_retried_runs_without_a_slot_and_is_warned() {
    let stage = Stage::new("retry").await;
    let flow = Described::new(&WORKFLOW, &stage.team, "flow")
        .create()
        .await;
    flow.runs(&stage).await;
    flow.is_ended_by_its_user().await;
    flow.object.has_event("SlotReleased").await;
    let holder = stage.job("holder").runs("1h").create().await;
    holder.is_running().await;
    stage.team.kubectl(["delete", "pod", "flow"]).await;
    flow.object
        .retry_as_argo()
        .await
        .expect("it can be retried");
    flow.object.has_event("RanWithoutSlot").await;
    all_is_decided(&stage.team, &stage.db).await;
    flow.all_run().await;
    flow.is_ended_by_its_user().await;
}
