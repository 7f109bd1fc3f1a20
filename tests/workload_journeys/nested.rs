//! A `PipelineRun` whose tasks are `PipelineRuns`, which Tekton calls an alpha feature. It never ends one of them that is
//! `Cancelled`: that would leave the inner ones running, so it says that it can't cancel it.

use serde_json::json;
use testbed::{Bed, Controller, eventually};

use crate::{
    kinds::PIPELINE_RUN,
    stage::{Described, Stage, operate},
};

async fn bed() -> Bed {
    let bed = Bed::builder()
        .controllers([Controller::Tekton])
        .operator_args(["--workloads=pipelineruns"])
        .without_operator();
    let bed = bed.start().await;
    operate(&bed).await;
    let alpha = r#"{"data":{"enable-api-fields":"alpha"}}"#;
    let flags = ["-n", "tekton-pipelines", "configmap", "feature-flags"];
    let patch = [["patch"].as_slice(), &flags, &["-p", alpha]].concat();
    bed.kubectl(patch).await;
    bed
}

#[tokio::test]
async fn one_that_loses_its_slot_is_ended_with_all_that_it_is_made_of() {
    let spec = json!({ "onSlotLost": "Suspend", "session": { "lockDelay": "0s" } });
    let stage = Stage::with(bed().await, "nested", spec).await;
    let run = || {
        let run = Described::new(&PIPELINE_RUN, &stage.team, "run");
        run.nested_in("outer").nested_in("outermost")
    };
    eventually("nested runs are allowed", || async {
        run().tried(&stage.bed).await
    })
    .await;
    let run = run().create().await;
    let session = run.runs(&stage).await;
    let next = stage.job("next").create().await;
    next.has_event("SlotWaiting").await;
    stage.bed.consul().destroy_session(&session).await;
    run.object.has_event("SlotLost").await;
    run.object.is("over", PIPELINE_RUN.is_over).await;
    next.is_complete().await;
    stage.is_over(2).await;
}
