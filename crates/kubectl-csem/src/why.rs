//! The command `why`, which says what a workload waits for.

use consul_client::{clock, text::one_line};
use consul_semaphore::SlotRequest;
use consul_semaphore_api::{
    annotations::SEMAPHORE,
    waiting::{Asking, Why, lack},
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
        item::Item,
        queue::{QueueView, id},
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
    let first = found.into_iter().min_by_key(|(semaphore, object)| {
        let request = workload.as_ref()?.workload.asks_for(semaphore, None)?;
        Some(rank(object.as_ref(), request))
    });
    let (semaphore, of) = first.unzip();
    let mut about = match of {
        Some(of) => About::read(cluster, of, workload.as_ref()).await?,
        None => About::default(),
    };
    let of_kueue = in_kueue(cluster, &object).await.unwrap_or_else(|failure| {
        let gap = format!("what Kueue does is not known: {}", failure.message);
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

/// Returns the rank of a semaphore for a workload that asks for these slots of it. The lower the rank, the more the
/// semaphore is in the workload's way.
fn rank(object: Option<&DynamicObject>, request: &SlotRequest) -> u8 {
    match object.map(Item::read) {
        None => 0,
        Some(Item::Unreadable { .. }) => 1,
        Some(Item::Semaphore(semaphore)) => {
            let key = request.key.as_ref().map(AsRef::as_ref);
            let asking = Asking::new("", key, request.slots.get());
            match lack(&semaphore, asking) {
                Some(Why::Unseen | Why::Stopped(_)) => 2,
                Some(_) => 3,
                None => 4,
            }
        }
    }
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
        let semaphore = |ready: &str, held: u32| -> DynamicObject {
            let available = if held < 3 {
                "SlotsFree"
            } else {
                "AllSlotsHeld"
            };
            let condition = |type_: &str, status: &str, reason: &str| {
                json!({
                    "type": type_, "status": status, "reason": reason, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            };
            from_value(json!({
                "apiVersion": "consul-semaphore.io/v1alpha1", "kind": "ConsulSemaphore",
                "metadata": { "name": "db" }, "spec": { "limit": 3 },
                "status": { "held": held, "conditions": [
                    condition("Ready", ready, "x"), condition("SlotsAvailable", "True", available),
                ] },
            }))
            .unwrap()
        };
        let asks = |slots: u32| SlotRequest {
            slots: slots.try_into().unwrap(),
            ..SlotRequest::one("db", None)
        };
        let ranked = |ready, held, slots| rank(Some(&semaphore(ready, held)), &asks(slots));
        let ranks = [
            rank(None, &asks(1)),
            ranked("False", 0, 1),
            ranked("True", 3, 1),
            ranked("True", 2, 1),
        ];
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        assert_eq!(ranked("True", 2, 2), ranked("True", 3, 1));
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
