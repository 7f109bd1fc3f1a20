//! Describes a Job before it is created.

use std::panic::Location;

use anyhow::Result;
use k8s_openapi::api::batch::v1;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::{Job, SEMAPHORE_LABEL};
use crate::{json, story::story};

impl Job {
    /// Waits for a slot of this `ConsulSemaphore`.
    #[must_use]
    pub fn semaphore(self, name: &str) -> Self {
        // The label is for the bed's own observer, which does not rely on the operator. Not every list is a label.
        let value = name.replace([' ', ',', ':', '/'], "-");
        let label = json!({ "metadata": { "labels": { SEMAPHORE_LABEL: value } } });
        self.annotation("consul-semaphore.io/semaphore", name)
            .with(json!({ "spec": { "template": label } }))
    }

    /// Its priority in the queue.
    #[must_use]
    pub fn priority(self, priority: i64) -> Self {
        self.annotation("consul-semaphore.io/priority", &priority.to_string())
    }

    /// Puts it on hold, outside the queue.
    #[must_use]
    pub fn hold(self) -> Self {
        self.annotation("consul-semaphore.io/hold", "true")
    }

    /// Creates it unsuspended, as in a cluster without the admission policy.
    #[must_use]
    pub fn unsuspended(self) -> Self {
        self.with(json!({ "spec": { "suspend": false } }))
    }

    /// How long its pods run, such as `2s`.
    #[must_use]
    pub fn runs(self, duration: &str) -> Self {
        self.pod_annotation("bed.consul-semaphore.io/runs", duration)
    }

    /// Makes its pods fail at their end.
    #[must_use]
    pub fn fails(self) -> Self {
        self.pod_annotation("bed.consul-semaphore.io/fails", "true")
    }

    /// How long its pods continue to run when they are deleted, such as `2s`.
    #[must_use]
    pub fn terminates_in(self, duration: &str) -> Self {
        self.pod_annotation("bed.consul-semaphore.io/terminates-in", duration)
    }

    /// The grace period of its pods in seconds; Kubernetes defaults to 30. The shorter it is, the longer the operator
    /// waits for news of the slot before it suspends the Job.
    #[must_use]
    pub fn grace(self, seconds: u32) -> Self {
        let pods = json!({ "terminationGracePeriodSeconds": seconds });
        self.with(json!({ "spec": { "template": { "spec": pods } } }))
    }

    /// This many pods, all at once.
    #[must_use]
    pub fn parallelism(self, pods: u32) -> Self {
        self.with(json!({ "spec": { "parallelism": pods, "completions": pods } }))
    }

    /// How often a failed pod is retried.
    #[must_use]
    pub fn backoff_limit(self, limit: u32) -> Self {
        self.with(json!({ "spec": { "backoffLimit": limit } }))
    }

    /// How many seconds after its end it is deleted.
    #[must_use]
    pub fn ttl_after_finished(self, seconds: u32) -> Self {
        self.with(json!({ "spec": { "ttlSecondsAfterFinished": seconds } }))
    }

    /// An annotation of the Job.
    #[must_use]
    pub fn annotation(self, name: &str, value: &str) -> Self {
        self.with(json!({ "metadata": { "annotations": { name: value } } }))
    }

    /// An annotation of its pods.
    #[must_use]
    pub fn pod_annotation(self, name: &str, value: &str) -> Self {
        self.with(
            json!({ "spec": { "template": { "metadata": { "annotations": { name: value } } } } }),
        )
    }

    /// Anything else, merged into the object; null removes.
    #[must_use]
    pub fn with(mut self, more: Value) -> Self {
        json::merge(&mut self.manifest, more);
        self
    }

    /// Creates it.
    #[track_caller]
    pub fn create(self) -> impl Future<Output = Self> {
        story(Location::caller(), self.try_create())
    }

    /// Like [`Self::create`], for a Job that may be refused: the error is the API server's message.
    pub async fn try_create(self) -> Result<Self> {
        let job = serde_json::from_value(self.manifest.clone())?;
        self.api().create(&PostParams::default(), &job).await?;
        Ok(self)
    }

    /// Creates a `CronJob` with its name that makes such Jobs; `cron` is the remainder of its spec, such as
    /// `{ "schedule": "* * * * *", "concurrencyPolicy": "Forbid" }`.
    #[track_caller]
    pub fn create_cron_job(self, mut cron: Value) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            let annotations = &self.manifest["metadata"]["annotations"];
            cron["jobTemplate"] = json!({ "metadata": { "annotations": annotations }, "spec": self.manifest["spec"] });
            let cron_job =
                serde_json::from_value(json!({ "metadata": { "name": self.name }, "spec": cron }))?;
            self.namespace
                .api::<v1::CronJob>()
                .create(&PostParams::default(), &cron_job)
                .await?;
            Ok(())
        })
    }
}
