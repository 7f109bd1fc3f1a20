//! The command `why`, which says what a workload waits for.

use consul_client::{clock, text::one_line};
use consul_semaphore_api::{
    ConsulSemaphoreStatus,
    annotations::SEMAPHORE,
    conditions::{self, ConditionType},
    waiting::WaitReason,
};
use consul_semaphore_workload::{Object, TrackedWorkload, advice_on, kueue};
use kube::{ResourceExt as _, api::DynamicObject};

use crate::{
    around::Around,
    cli::OutputFormat,
    cluster::ClusterClient,
    failure::{Failure, FailureKind},
    read::{SHOWN_JOBS_WIDE, document, is_for_programs},
    terminal,
    view::{
        item::{Item, status},
        queue::{Id, QueueView, id, id_of, is_elsewhere},
        why::{self, Named, OfKueue, WhyFacts},
    },
    workload_name::WorkloadName,
};

/// The greatest length of the text about what Kueue does, in characters.
const LONGEST_KUEUE_TEXT: usize = 1000;

pub(crate) async fn why(
    cluster: &ClusterClient,
    asked: &WorkloadName,
    output: Option<OutputFormat>,
) -> Result<(), Failure> {
    cluster.installed().await?;
    let object = cluster.workload(asked).await?;
    let workload = asked.tracked(&object)?;
    let mut found = Vec::new();
    for semaphore in workload.iter().flat_map(TrackedWorkload::semaphores) {
        found.push((semaphore.as_ref(), find(cluster, semaphore).await?));
    }
    // If the workload names several semaphores, the answer is about the one that is most in its way, and about the
    // first of several such ones.
    let first = found
        .into_iter()
        .min_by_key(|(_, object)| Some(rank(object.as_ref(), id(workload.as_ref()?))));
    let (semaphore, of) = first.unzip();
    let mut about = match of {
        Some(of) => About::read(cluster, of, workload.as_ref()).await?,
        None => About::default(),
    };
    let of_kueue = in_kueue(cluster, &object).await.unwrap_or_else(|failure| {
        let gap = format!("can't find out what Kueue does: {}", failure.message);
        about.gaps.push(gap);
        None
    });
    let cron_job = mistaken_cron_job(cluster, &object).await;
    let answer = why::answer(&WhyFacts {
        namespace: &cluster.namespace,
        name: asked,
        workload: workload.as_ref(),
        semaphore,
        phase: asked.phase(&object)?,
        is_seen: asked.kind.is_seen(&object),
        advice: advice_on(&asked.kind, &object),
        cron_job: cron_job.as_deref(),
        of_kueue: of_kueue.as_ref(),
        named: about.named(),
        gaps: &about.gaps,
    });
    if output.is_some_and(is_for_programs) {
        return document(&answer, output);
    }
    terminal::print(&why::text(&answer, clock::time()))
}

/// Returns what Kueue does with the workload, if it is in one of Kueue's queues.
async fn in_kueue(cluster: &ClusterClient, object: &Object) -> Result<Option<OfKueue>, Failure> {
    let uid = object.metadata.uid.as_deref();
    let Some(uid) = uid.filter(|_| kueue::is_in_a_queue(&object.metadata)) else {
        return Ok(None);
    };
    let found = cluster.workload_of_kueue(uid).await?;
    let does = found.as_ref().map(kueue::describe).and_then(Result::ok);
    Ok(found.zip(does).map(|(workload, does)| OfKueue {
        name: workload.name_any(),
        does: one_line(&does, LONGEST_KUEUE_TEXT),
    }))
}

/// The semaphore that the workload names, and the objects around it.
#[derive(Default)]
struct About {
    item: Option<Item>,
    queue: QueueView,
    /// The semaphores that exist, if this one does not.
    others: Option<Vec<String>>,
    gaps: Vec<String>,
}

impl About {
    async fn read(
        cluster: &ClusterClient,
        object: Option<DynamicObject>,
        workload: Option<&TrackedWorkload>,
    ) -> Result<Self, Failure> {
        let Some(object) = object else {
            return Ok(Self {
                others: Some(others(cluster).await),
                ..Self::default()
            });
        };
        let item = Item::read(&object);
        let mut around = Around::read(cluster, &object.metadata).await?;
        // The workload is among the workloads around the semaphore, unless it is not a Job or Jobs can't be listed.
        let known = |one: &TrackedWorkload| workload.is_some_and(|this| id(one) == id(this));
        if !around.workloads.iter().any(known) {
            around.workloads.extend(workload.cloned());
        }
        let queue = match &item {
            Item::Semaphore(semaphore) => around.queue(semaphore, SHOWN_JOBS_WIDE),
            Item::Unreadable { .. } => QueueView::default(),
        };
        Ok(Self {
            item: Some(item),
            queue,
            others: None,
            gaps: around.gaps,
        })
    }

    fn named(&self) -> Named<'_> {
        match (&self.item, &self.others) {
            (Some(Item::Semaphore(semaphore)), _) => Named::Semaphore(semaphore, &self.queue),
            (Some(Item::Unreadable { why, .. }), _) => Named::Unreadable(why),
            (None, Some(others)) => Named::Missing(others),
            (None, None) => Named::Nothing,
        }
    }
}

/// Reads a semaphore; `None` if it does not exist.
async fn find(cluster: &ClusterClient, semaphore: &str) -> Result<Option<DynamicObject>, Failure> {
    match cluster.semaphore(semaphore).await {
        Ok(object) => Ok(Some(object)),
        Err(failure) if failure.kind == FailureKind::NotThere => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Returns the rank of a semaphore for the workload of this kind and name. The lower the rank, the more the semaphore is
/// in the workload's way.
fn rank(object: Option<&DynamicObject>, workload: Id<'_>) -> u8 {
    match object.map(Item::read) {
        None => 0,
        Some(Item::Unreadable { .. }) => 1,
        Some(Item::Semaphore(semaphore)) => {
            let status = status(&semaphore);
            let is_known = conditions::find(&status.conditions, ConditionType::Ready).is_some();
            if !is_known || conditions::stop(&status.conditions).is_some() {
                2
            } else if is_in_the_way(&status, workload) {
                3
            } else {
                4
            }
        }
    }
}

/// Whether the workload lacks slots of the semaphore with this status.
fn is_in_the_way(status: &ConsulSemaphoreStatus, workload: Id<'_>) -> bool {
    let mut queue = status.queue.iter();
    let queued = queue.find(|queued| id_of(queued) == workload);
    let not_here = |reason: &str| reason == WaitReason::Next.as_str() || is_elsewhere(reason);
    queued.is_none_or(|queued| !queued.reason.as_deref().is_some_and(not_here))
}

/// Returns the names of the semaphores of the namespace; none if the user may not list them.
async fn others(cluster: &ClusterClient) -> Vec<String> {
    let listed = cluster
        .list_semaphores(Some(&cluster.namespace), None)
        .await;
    let items = listed.map(|listed| listed.items).unwrap_or_default();
    items.iter().map(DynamicObject::name_any).collect()
}

/// Returns the `CronJob` that made a workload, if the annotation is on the `CronJob`'s own metadata and the workload
/// therefore does not ask for a slot.
async fn mistaken_cron_job(cluster: &ClusterClient, object: &Object) -> Option<String> {
    if object.annotations().contains_key(SEMAPHORE) {
        return None;
    }
    let mut owners = object.owner_references().iter();
    let owner = owners.find(|owner| owner.kind == "CronJob" && owner.controller == Some(true))?;
    let cron_job = cluster.cron_job(&owner.name).await.ok()?;
    is_mistaken(&cron_job).then(|| owner.name.clone())
}

/// Whether a `CronJob` has the annotation on its own metadata, and its Jobs do not have it.
fn is_mistaken(cron_job: &DynamicObject) -> bool {
    let of_jobs = &cron_job.data["spec"]["jobTemplate"]["metadata"]["annotations"][SEMAPHORE];
    cron_job.annotations().contains_key(SEMAPHORE) && !of_jobs.is_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn a_semaphore_that_is_missing_is_more_in_the_way_than_one_that_is_full() {
        let semaphore = |ready: &str, reason: &str| -> DynamicObject {
            from_value(json!({
                "apiVersion": "consul-semaphore.io/v1alpha1", "kind": "ConsulSemaphore",
                "metadata": { "name": "db" }, "spec": { "limit": 3 },
                "status": {
                    "queue": [{ "kind": "Job", "name": "a", "reason": reason }],
                    "conditions": [{
                        "type": "Ready", "status": ready, "reason": "x", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }],
                },
            }))
            .unwrap()
        };
        let ranked = |ready, reason| rank(Some(&semaphore(ready, reason)), ("Job", "a"));
        let ranks = [
            rank(None, ("Job", "a")),
            ranked("False", "LimitConflict"),
            ranked("True", "AllSlotsHeld"),
            ranked("True", "Next"),
        ];
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        assert_eq!(ranked("True", "PassedOver"), ranked("True", "Next"));
        let unlisted = rank(Some(&semaphore("True", "Next")), ("Job", "b"));
        assert_eq!(unlisted, ranked("True", "Behind"));
    }

    #[test]
    fn the_annotation_of_a_cron_job_is_in_one_of_two_places() {
        let cron_job = |own: Value, of_jobs: Value| -> DynamicObject {
            from_value(json!({
                "apiVersion": "batch/v1", "kind": "CronJob",
                "metadata": { "name": "nightly", "annotations": own },
                "spec": { "jobTemplate": { "metadata": { "annotations": of_jobs } } },
            }))
            .unwrap()
        };
        let (with, without) = (json!({ SEMAPHORE: "db" }), json!({}));
        assert!(is_mistaken(&cron_job(with.clone(), without.clone())));
        assert!(!is_mistaken(&cron_job(with.clone(), with.clone())));
        assert!(!is_mistaken(&cron_job(without, with)));
    }
}
