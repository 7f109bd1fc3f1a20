//! The operator dies while workloads of all kinds hold slots and wait for them.

use futures::future::join_all;

use crate::{
    kinds::{JOB_SET, Kind, PIPELINE_RUN, POD, TASK_RUN, WORKFLOW},
    stage::{Described, Stage, Workload, own_bed},
};

/// Of a kind: one that holds and ends meanwhile, one that holds and goes on, and one that waits.
struct Story {
    kind: &'static Kind,
    stage: Stage,
    session: String,
    holds: Workload,
    waits: Workload,
}

impl Story {
    async fn begins(bed: testbed::Bed, kind: &'static Kind) -> Self {
        let name = format!("restart-{}", kind.name.to_lowercase());
        let stage = Stage::with(bed, &name, serde_json::json!({})).await;
        let holds = Described::new(kind, &stage.team, "holds").create().await;
        let session = holds.runs(&stage).await;
        let waits = Described::new(kind, &stage.team, "waits").waits().await;
        Self {
            kind,
            stage,
            session,
            holds,
            waits,
        }
    }

    /// Nothing happens to what runs, while the operator is away or when it is back.
    async fn goes_on(&self) {
        assert_eq!(self.holds.runs(&self.stage).await, self.session);
        self.waits.is_held().await;
    }

    async fn goes_on_with_the_next(&self) {
        let next = self.waits.runs(&self.stage).await;
        assert_ne!(next, self.session, "{}", self.kind.name);
        self.waits.is_ended_by_its_user().await;
        // Sessions that were made ahead and never used are left to their TTL.
        self.waits.object.has_event("SlotReleased").await;
        self.stage.ran_one_by_one(2);
    }
}

#[tokio::test]
async fn the_operator_is_killed() {
    let bed = own_bed().await;
    let kinds = [&JOB_SET, &PIPELINE_RUN, &TASK_RUN, &WORKFLOW, &POD];
    let stories = kinds.map(|kind| Story::begins(bed.clone(), kind));
    let stories = join_all(stories).await;
    bed.operator().kill().await;
    bed.operator().start().await;
    join_all(stories.iter().map(Story::goes_on)).await;

    bed.operator().kill().await;
    join_all(
        stories
            .iter()
            .map(|story| story.holds.is_ended_by_its_user()),
    )
    .await;
    bed.operator().start().await;
    join_all(stories.iter().map(Story::goes_on_with_the_next)).await;
}
