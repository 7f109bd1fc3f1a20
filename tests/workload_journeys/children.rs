//! What a workload makes, and what is annotated there.

use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use serde_json::json;

use crate::{
    kinds::{JOB_SET, PIPELINE_RUN, TASK_RUN, WORKFLOW},
    stage::{ASKS, Described, Stage, WAITS},
};

const OPERATOR: &str = "consul-semaphore.io";

/// The metadata of a child that asks for a slot.
fn asks() -> serde_json::Value {
    json!({ "labels": { WAITS: "true" }, "annotations": { ASKS: "db" } })
}

/// Tekton copies what is written to a run onto all that it makes.
#[tokio::test]
async fn a_copy_of_its_annotations_asks_for_nothing() {
    let stage = Stage::new("copies").await;
    for kind in [&PIPELINE_RUN, &TASK_RUN] {
        let run = Described::new(kind, &stage.team, "run")
            .runs("2s")
            .create()
            .await;
        run.object.has_event("SlotReleased").await;
    }
    let next = stage.job("next").create().await;
    next.is_complete().await;
    stage.is_over(3).await;
    let events = stage.team.api::<Event>().list(&ListParams::default()).await;
    let events = events.expect("a list").items.into_iter();
    let ours = events.filter(|event| event.reporting_component.as_deref() == Some(OPERATOR));
    let about = ours.filter_map(|event| event.involved_object.name);
    let mut about: Vec<_> = about.collect();
    about.sort();
    about.dedup();
    assert_eq!(about, ["next", "run"]);
}

/// It is warned of, and runs as its owner wants.
#[tokio::test]
async fn a_child_with_an_annotation_of_its_own_is_its_owners() {
    let stage = Stage::new("children").await;
    let holder = stage.job("holder").runs("1h").create().await;
    holder.is_running().await;

    let run = Described::new(&PIPELINE_RUN, &stage.team, "run").plain();
    let run = run.with_metadata("/spec/pipelineSpec/tasks/0/taskSpec", &asks());
    let run = run.create().await;
    run.all_run().await;
    let child = stage
        .team
        .object("tekton.dev/v1", "TaskRun", "run-first")
        .await;
    let note = child.has_event("ManagedElsewhere").await;
    assert!(note.contains("PipelineRun run created it"), "{note}");

    let flow = Described::new(&WORKFLOW, &stage.team, "flow").plain();
    let flow = flow.with_metadata("/spec/templates/0", &asks());
    let flow = flow.create().await;
    flow.all_run().await;
    let child = stage.team.object("v1", "Pod", "flow").await;
    let note = child.has_event("ManagedElsewhere").await;
    assert!(note.contains("Workflow flow created it"), "{note}");

    let set = Described::new(&JOB_SET, &stage.team, "set").plain();
    let set = set.with_metadata("/spec/replicatedJobs/0/template", &asks());
    let set = set.create().await;
    set.all_run().await;
    let child = stage.team.job("set-driver-0");
    let note = child.has_event("ManagedElsewhere").await;
    assert!(note.contains("JobSet set created it"), "{note}");
    for workload in [run, flow, set] {
        workload.is_ended_by_its_user().await;
    }

    let template = json!({ "spec": { "template": { "metadata": asks() } } });
    let job = stage.team.job("job").runs("1h").with(template);
    let job = job.unsuspended().create().await;
    job.is_running().await;
    let pod = testbed::proof::running_pods(&job).await.remove(0);
    let child = stage.team.object("v1", "Pod", &pod).await;
    let note = child.has_event("ManagedElsewhere").await;
    assert!(note.contains("Job job created it"), "{note}");
    job.finish().await;
}
