//! A Job that is annotated when Kueue has admitted it already.

use serde_json::json;

use crate::stage::{ASKS, Stage, is_stopping};

#[tokio::test]
async fn one_that_is_annotated_too_late_is_retried_and_waits() {
    let stage = Stage::new("late").await;
    let holder = stage.is_held().await;
    let none = json!({ "metadata": { "annotations": null } });
    let late = stage.job("late").with(none).create().await;
    late.is_running().await;
    testbed::proof::pods_run(&late, 1).await;
    late.annotate(ASKS, Some("db")).await;
    let message = late.has_event("RanWithoutSlot").await;
    assert!(
        message.contains("before you put it into a queue"),
        "{message}"
    );
    is_stopping(&late).await;
    stage.waits(&late).await;
    holder.finish().await;
    stage.runs(&late).await;
    late.finish().await;
}
