//! What has failed and runs again: the Spark operator runs a `SparkApplication` whose spec is changed once more.

use serde_json::json;

use crate::{
    rows::SPARK_APPLICATION,
    stage::{Described, Stage},
};

const FAILED: &str = "consul-semaphore.io/failed";

#[tokio::test]
async fn one_that_timed_out_and_is_changed_waits_again() {
    let stage = Stage::new("again").await;
    let holder = stage.job("holder").runs("1h").create().await;
    holder.is_running().await;
    let late = Described::new(&SPARK_APPLICATION, &stage.team, "late");
    let late = late
        .annotated("consul-semaphore.io/wait-timeout", "2s")
        .create()
        .await;
    late.fails("WaitTimedOut").await;
    late.object
        .is("no longer to fail", |it| {
            it["metadata"]["annotations"][FAILED].is_null()
        })
        .await;
    let change = json!([
        { "op": "remove", "path": "/metadata/annotations/consul-semaphore.io~1wait-timeout" },
        { "op": "add", "path": "/spec/arguments", "value": ["again"] },
    ]);
    late.object.change(change).await.expect("its user may");
    late.is_held().await;
    stage.db.shows(json!({ "held": 1, "waiting": 1 })).await;
    holder.finish().await;
    late.runs(&stage).await;
    late.is_ended_by_its_user().await;
    stage.is_over(2).await;
}
