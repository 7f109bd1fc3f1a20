//! Kinds are switched off while workloads of them hold slots and wait for them.

use consul_semaphore_workload::Kind as WorkloadKind;
use futures::future::join_all;
use serde_json::json;
use testbed::{Bed, Job};

use crate::{
    kinds::{JOB_SET, Kind, PIPELINE_RUN, POD, TASK_RUN, WORKFLOW},
    stage::{Described, Stage, Workload, own_bed},
};

/// Of a kind: one that holds, and one that waits before a Job.
struct Story {
    stage: Stage,
    session: String,
    holds: Workload,
    waits: Workload,
    next: Job,
}

impl Story {
    async fn begins(bed: Bed, kind: &'static Kind) -> Self {
        let name = format!("off-{}", kind.name.to_lowercase());
        let stage = Stage::with(bed, &name, json!({})).await;
        let holds = Described::new(kind, &stage.team, "holds").create().await;
        let session = holds.runs(&stage).await;
        let waits = Described::new(kind, &stage.team, "waits").waits().await;
        let next = stage.job("next").create().await;
        next.has_event("SlotWaiting").await;
        Self {
            stage,
            session,
            holds,
            waits,
            next,
        }
    }

    /// It keeps its slot while it runs and while its pods end.
    async fn goes_on_with_the_job(&self) {
        self.stage
            .db
            .shows(json!({ "held": 1, "heldHere": 1, "waiting": 1 }))
            .await;
        assert_eq!(self.holds.runs(&self.stage).await, self.session);
        self.holds.is_ended_by_its_user().await;
        self.next.is_complete().await;
        self.stage
            .db
            .shows(json!({ "held": 0, "waiting": 0 }))
            .await;
        self.waits.is_held().await;
        self.stage.ran_one_by_one(2);
    }
}

/// Takes the rights to all kinds but Jobs away, as the chart does with those that are off.
async fn forbid(bed: &Bed) {
    let kinds = WorkloadKind::all();
    let kinds = kinds.iter().filter(|kind| **kind != WorkloadKind::Job);
    let roles = kinds.map(|kind| format!("consul-semaphore-operator-{}", kind.switch()));
    let delete = ["delete", "clusterroles,clusterrolebindings"].map(ToOwned::to_owned);
    let delete: Vec<String> = delete.into_iter().chain(roles).collect();
    bed.kubectl(&delete).await;
}

#[tokio::test]
async fn a_slot_comes_back_when_what_held_it_has_ended_and_what_waits_stays_held() {
    let bed = own_bed().await;
    let kinds = [&JOB_SET, &PIPELINE_RUN, &TASK_RUN, &WORKFLOW, &POD];
    let stories = kinds.map(|kind| Story::begins(bed.clone(), kind));
    let stories = join_all(stories).await;
    bed.operator().stop().await;
    forbid(&bed).await;
    let of_jobs = bed.another_operator("of-jobs", ["--workloads=jobs"], []);
    of_jobs.start().await;
    join_all(stories.iter().map(Story::goes_on_with_the_job)).await;
    of_jobs.stop().await;
}
