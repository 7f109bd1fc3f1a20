//! Workloads that are annotated when they run already.

use testbed::proof::all_is_decided;

use crate::{
    kinds::Kind,
    stage::{ASKS, Described, Stage, WAITS},
};

each_kind!(annotated_too_late);

/// What was started by somebody else and can't be held again is never ended.
async fn annotated_too_late(kind: &'static Kind) {
    let stage = Stage::new("late").await;
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
