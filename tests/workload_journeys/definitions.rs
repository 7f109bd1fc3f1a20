//! A kind of which the cluster learns only later, and which it forgets.

use serde_json::json;
use testbed::{Bed, Controller};

use crate::{
    kinds::PIPELINE_RUN,
    stage::{Described, Stage, operate},
};

#[tokio::test]
async fn a_kind_is_picked_up_when_it_is_defined_and_let_go_when_it_is_not_any_more() {
    let bed = Bed::builder().operator_args(["--workloads=pipelineruns"]);
    let bed = bed.without_operator().start().await;
    operate(&bed).await;
    let stage = Stage::with(bed.clone(), "defined", json!({})).await;
    // What is missing keeps no Job waiting.
    stage.job("before").create().await.is_complete().await;

    let _tekton = Controller::Tekton.start(&bed).await;
    let run = |name| Described::new(&PIPELINE_RUN, &stage.team, name).terminates_in("3s");
    let holds = run("a").create().await;
    holds.runs(&stage).await;
    run("b").waits().await;
    let next = stage.job("next").create().await;
    next.has_event("SlotWaiting").await;
    stage.db.shows(json!({ "held": 1, "waiting": 2 })).await;

    // All objects of it are deleted with it. What they made may go on, and keeps the slot until then.
    let definition = ["delete", "crd", "pipelineruns.tekton.dev"];
    bed.kubectl(definition).await;
    stage.db.shows(json!({ "held": 1, "waiting": 1 })).await;
    let made = ["delete", "taskrun", "a-first", "--ignore-not-found"];
    stage.team.kubectl(made).await;
    next.is_complete().await;
    stage.is_over(3).await;
}
