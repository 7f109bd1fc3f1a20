//! A Job of a test.

mod builder;

use std::{collections::BTreeSet, panic::Location, time::Duration};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::{batch::v1, core::v1 as core};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy},
};
use serde_json::{Value, json};

use crate::{
    namespace::Namespace,
    story::{reads, story},
    wait,
};

/// The label on a pod that names its Job's semaphore.
pub const SEMAPHORE_LABEL: &str = "bed.consul-semaphore.io/semaphore";

/// The label on a pod of a workload that is no Job: which one it is of, in a word that no other one has.
pub const WORKLOAD_LABEL: &str = "bed.consul-semaphore.io/workload";

const SESSION: &str = "consul-semaphore.io/session";

/// A Job, to be described and created, or to be read.
///
/// By default it is suspended (as an admission policy would leave it) and waits for no semaphore. Its one pod runs
/// for a second, succeeds, and ends at once when it is deleted.
#[derive(Clone, Debug)]
pub struct Job {
    namespace: Namespace,
    name: String,
    manifest: Value,
}

impl Job {
    pub(crate) fn new(namespace: Namespace, name: &str) -> Self {
        let manifest = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": { "name": name, "namespace": namespace.name() },
            "spec": {
                "suspend": true,
                "template": { "spec": {
                    "restartPolicy": "Never",
                    "containers": [{ "name": "work", "image": "none" }],
                } },
            },
        });
        Self {
            namespace,
            name: name.to_owned(),
            manifest,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until it is unsuspended and one of its pods runs or is about to.
    #[track_caller]
    pub fn is_running(&self) -> impl Future<Output = ()> {
        self.is("running", |job| {
            !suspended(job) && count(job, |status| status.active) > 0
        })
    }

    /// Waits until it is suspended and none of its pods is left, not even one that has ended.
    #[track_caller]
    pub fn is_waiting(&self) -> impl Future<Output = ()> {
        self.is("waiting", |job| {
            let pods = count(job, |status| status.active) + count(job, |status| status.terminating);
            suspended(job) && pods == 0 && !finished(job)
        })
    }

    /// Waits until it is suspended.
    #[track_caller]
    pub fn is_suspended(&self) -> impl Future<Output = ()> {
        self.is("suspended", suspended)
    }

    /// Waits until the Job controller has seen that it is suspended. From then on its pod template can be changed,
    /// and kubectl shows it as Suspended.
    #[track_caller]
    pub fn is_at_rest(&self) -> impl Future<Output = ()> {
        self.is("at rest", |job| condition(job, "Suspended"))
    }

    /// Waits until it is Complete.
    #[track_caller]
    pub fn is_complete(&self) -> impl Future<Output = ()> {
        self.is("complete", |job| condition(job, "Complete"))
    }

    /// Like [`Self::is_complete`], with another deadline.
    #[track_caller]
    pub fn is_complete_within(&self, patience: Duration) -> impl Future<Output = ()> {
        self.is_within(patience, "complete", |job| condition(job, "Complete"))
    }

    /// Waits until it is Failed.
    #[track_caller]
    pub fn is_failed(&self) -> impl Future<Output = ()> {
        self.is("failed", |job| condition(job, "Failed"))
    }

    /// Waits until it is on hold.
    #[track_caller]
    pub fn is_on_hold(&self) -> impl Future<Output = ()> {
        self.is("on hold", |job| {
            annotation(job, "consul-semaphore.io/hold") == Some("true")
        })
    }

    /// Waits until `met` is true of the Job; `state` describes that.
    #[track_caller]
    pub fn is(&self, state: &str, met: impl Fn(&v1::Job) -> bool) -> impl Future<Output = ()> {
        self.is_within(wait::PATIENCE, state, met)
    }

    #[track_caller]
    fn is_within(
        &self,
        patience: Duration,
        state: &str,
        met: impl Fn(&v1::Job) -> bool,
    ) -> impl Future<Output = ()> {
        let what = format!("the Job {} is {state}", self.name);
        story(Location::caller(), async move {
            wait::until(&what, patience, || async {
                match self.try_get().await {
                    Ok(Some(job)) if met(&job) => Ok(()),
                    Ok(Some(job)) => Err(describe(&job)),
                    Ok(None) => Err("it is not there".to_owned()),
                    Err(error) => Err(format!("{error:#}")),
                }
            })
            .await
        })
    }

    /// Waits until it is deleted. Its pods may still exist.
    #[track_caller]
    pub fn is_gone(&self) -> impl Future<Output = ()> {
        let what = format!("the Job {} is gone", self.name);
        story(Location::caller(), async move {
            wait::until(&what, wait::PATIENCE, || async {
                match self.try_get().await {
                    Ok(None) => Ok(()),
                    Ok(Some(job)) => Err(describe(&job)),
                    Err(error) => Err(format!("{error:#}")),
                }
            })
            .await
        })
    }

    /// Waits until none of its pods exists.
    #[track_caller]
    pub fn has_no_pods(&self) -> impl Future<Output = ()> {
        let what = format!("the Job {} has no pods", self.name);
        story(Location::caller(), async move {
            wait::until(&what, wait::PATIENCE, || async {
                let pods = self
                    .try_pods()
                    .await
                    .map_err(|error| format!("{error:#}"))?;
                wait::same(
                    pods.iter()
                        .map(kube::ResourceExt::name_any)
                        .collect::<Vec<_>>(),
                    Vec::<String>::new(),
                )
            })
            .await
            .map(drop)
        })
    }

    /// Waits until it has an event with this reason, and returns its message.
    #[track_caller]
    pub fn has_event(&self, reason: &str) -> impl Future<Output = String> {
        let what = format!("the Job {} has an event {reason}", self.name);
        story(Location::caller(), async move {
            wait::until(&what, wait::PATIENCE, || async {
                let events = self
                    .try_events()
                    .await
                    .map_err(|error| format!("{error:#}"))?;
                let reasons: Vec<_> = events
                    .iter()
                    .filter_map(|event| event.reason.as_deref())
                    .collect();
                let event = events
                    .iter()
                    .find(|event| event.reason.as_deref() == Some(reason));
                event
                    .map(|event| event.message.clone().unwrap_or_default())
                    .ok_or_else(|| format!("{reasons:?}"))
            })
            .await
        })
    }

    /// The events about it, and about earlier Jobs with the same name.
    #[track_caller]
    pub fn events(&self) -> impl Future<Output = Vec<core::Event>> {
        reads(Location::caller(), &self.name, || self.try_events())
    }

    /// Its pods, by the Job's name: also those that an earlier Job left behind.
    #[track_caller]
    pub fn pods(&self) -> impl Future<Output = Vec<core::Pod>> {
        reads(Location::caller(), &self.name, || self.try_pods())
    }

    /// The Job, if it exists.
    #[track_caller]
    pub fn get(&self) -> impl Future<Output = Option<v1::Job>> {
        reads(Location::caller(), &self.name, || self.try_get())
    }

    /// The session that holds its slot, as the operator reports it.
    #[track_caller]
    pub fn session(&self) -> impl Future<Output = Option<String>> {
        reads(Location::caller(), &self.name, move || async move {
            let job = self.try_get().await?;
            Ok(job.and_then(|job| annotation(&job, SESSION).map(str::to_owned)))
        })
    }

    /// The sessions that held the slots of these Jobs, as the operator reports them. An observer of Consul may have
    /// missed some: it sees the latest state of a key, not each one.
    #[track_caller]
    pub fn sessions<'a>(
        jobs: impl IntoIterator<Item = &'a Self>,
    ) -> impl Future<Output = BTreeSet<String>> {
        story(Location::caller(), async move {
            let mut sessions = BTreeSet::new();
            for job in jobs {
                let job = job.try_get().await?.context("a Job is not there")?;
                sessions.extend(annotation(&job, SESSION).map(str::to_owned));
            }
            Ok(sessions)
        })
    }

    /// Suspends it, as its user can at any time.
    #[track_caller]
    pub fn suspend(&self) -> impl Future<Output = ()> {
        self.patch(json!({ "spec": { "suspend": true } }))
    }

    /// Unsuspends it, as its user can.
    #[track_caller]
    pub fn unsuspend(&self) -> impl Future<Output = ()> {
        self.patch(json!({ "spec": { "suspend": false } }))
    }

    /// Sets or removes an annotation.
    #[track_caller]
    pub fn annotate(&self, name: &str, value: Option<&str>) -> impl Future<Output = ()> {
        self.patch(json!({ "metadata": { "annotations": { name: value } } }))
    }

    /// Changes it by a merge patch.
    #[track_caller]
    pub fn patch(&self, patch: Value) -> impl Future<Output = ()> {
        story(Location::caller(), self.try_patch(patch))
    }

    /// Like [`Self::patch`], for a change that may be refused: the error is the API server's message.
    pub async fn try_patch(&self, patch: Value) -> Result<()> {
        self.api()
            .patch(&self.name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Has its status say that it was started, as that of a suspended Job does before Kubernetes 1.36.
    #[track_caller]
    pub fn set_start_time(&self) -> impl Future<Output = ()> {
        let status = json!({ "status": { "startTime": "2026-01-01T00:00:00Z" } });
        story(Location::caller(), async move {
            let params = PatchParams::default();
            let patch = Patch::Merge(status);
            self.api().patch_status(&self.name, &params, &patch).await?;
            Ok(())
        })
    }

    /// Deletes it, and then its pods (the default of kubectl).
    #[track_caller]
    pub fn delete(&self) -> impl Future<Output = ()> {
        story(
            Location::caller(),
            self.try_delete(PropagationPolicy::Background),
        )
    }

    /// Deletes its pods, and then the Job itself.
    #[track_caller]
    pub fn delete_in_foreground(&self) -> impl Future<Output = ()> {
        story(
            Location::caller(),
            self.try_delete(PropagationPolicy::Foreground),
        )
    }

    /// Deletes it, and leaves its pods running.
    #[track_caller]
    pub fn delete_and_orphan_pods(&self) -> impl Future<Output = ()> {
        story(
            Location::caller(),
            self.try_delete(PropagationPolicy::Orphan),
        )
    }

    /// Removes its pods at once, as an admin does with those of a dead node. Pods that went by themselves meanwhile
    /// are no error: of a deleted Job, Kubernetes deletes them too.
    #[track_caller]
    pub fn force_delete_pods(&self) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            for pod in self.try_pods().await? {
                let pods = self.namespace.api::<core::Pod>();
                let at_once = DeleteParams::default().grace_period(0);
                match pods.delete(&pod.name_any(), &at_once).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => {}
                    deleted => drop(deleted?),
                }
            }
            Ok(())
        })
    }

    /// Ends its pods successfully, however long they would run, until one has been counted. Then waits until it is
    /// Complete.
    #[track_caller]
    pub fn finish(&self) -> impl Future<Output = ()> {
        let what = format!("the pods of the Job {} have ended", self.name);
        story(Location::caller(), async move {
            // After an outage, the Job controller and kwok may take their time to come back.
            wait::until(&what, 2 * wait::PATIENCE, || async {
                self.try_end_pods()
                    .await
                    .map_err(|error| format!("{error:#}"))
            })
            .await?;
            self.is_complete().await;
            Ok(())
        })
    }

    async fn try_end_pods(&self) -> Result<()> {
        for pod in self.try_pods().await? {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            // A pending pod would come back to life: kwok may be about to report that it runs.
            if phase == Some("Running") {
                let ended = json!({
                    "metadata": { "resourceVersion": pod.resource_version() },
                    "status": { "phase": "Succeeded" },
                });
                let pods = self.namespace.api::<core::Pod>();
                let params = PatchParams::default();
                pods.patch_status(&pod.name_any(), &params, &Patch::Merge(ended))
                    .await?;
            }
        }
        let job = self.try_get().await?.context("it is not there")?;
        if count(&job, |status| status.succeeded) == 0 {
            bail!("{}", describe(&job));
        }
        Ok(())
    }

    async fn try_delete(&self, policy: PropagationPolicy) -> Result<()> {
        let params = DeleteParams {
            propagation_policy: Some(policy),
            ..DeleteParams::default()
        };
        self.api()
            .delete(&self.name, &params)
            .await
            .with_context(|| format!("deleting {}", self.name))?;
        Ok(())
    }

    async fn try_get(&self) -> Result<Option<v1::Job>> {
        Ok(self.api().get_opt(&self.name).await?)
    }

    async fn try_pods(&self) -> Result<Vec<core::Pod>> {
        let ours =
            ListParams::default().labels(&format!("batch.kubernetes.io/job-name={}", self.name));
        Ok(self.namespace.api::<core::Pod>().list(&ours).await?.items)
    }

    async fn try_events(&self) -> Result<Vec<core::Event>> {
        let ours = format!("involvedObject.kind=Job,involvedObject.name={}", self.name);
        let mut events = self
            .namespace
            .api::<core::Event>()
            .list(&ListParams::default().fields(&ours))
            .await?
            .items;
        events.sort_by_key(|event| event.metadata.creation_timestamp.clone());
        Ok(events)
    }

    fn api(&self) -> Api<v1::Job> {
        self.namespace.api()
    }
}

fn suspended(job: &v1::Job) -> bool {
    job.spec
        .as_ref()
        .and_then(|spec| spec.suspend)
        .unwrap_or_default()
}

fn count(job: &v1::Job, of: impl Fn(&v1::JobStatus) -> Option<i32>) -> i32 {
    job.status.as_ref().and_then(of).unwrap_or_default()
}

fn condition(job: &v1::Job, kind: &str) -> bool {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    conditions
        .iter()
        .any(|condition| condition.type_ == kind && condition.status == "True")
}

fn finished(job: &v1::Job) -> bool {
    condition(job, "Complete") || condition(job, "Failed")
}

fn annotation<'a>(job: &'a v1::Job, name: &str) -> Option<&'a str> {
    job.annotations().get(name).map(String::as_str)
}

/// The state of a Job, for the message of a failed test.
fn describe(job: &v1::Job) -> String {
    let status = serde_json::to_string(&job.status).unwrap_or_default();
    format!(
        "suspend: {}, annotations: {:?}, status: {status}",
        suspended(job),
        job.annotations()
    )
}
