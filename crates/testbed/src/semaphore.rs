//! A `ConsulSemaphore` of a test.
use std::panic::Location;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

use crate::{
    json,
    namespace::Namespace,
    story::{reads, story},
    wait,
};

/// A `ConsulSemaphore`, to be described and created, or to be read.
///
/// It is plain JSON: the bed knows the kind from its manifest only, as a user does.
#[derive(Clone, Debug)]
pub struct Semaphore {
    namespace: Namespace,
    name: String,
    manifest: Value,
}

/// The kind, as in its CRD.
pub(crate) fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("consul-semaphore.io", "v1alpha1", "ConsulSemaphore");
    ApiResource::from_gvk_with_plural(&kind, "consulsemaphores")
}

impl Semaphore {
    pub(crate) fn new(namespace: Namespace, name: &str) -> Self {
        let manifest = json!({
            "apiVersion": "consul-semaphore.io/v1alpha1",
            "kind": "ConsulSemaphore",
            "metadata": { "name": name, "namespace": namespace.name() },
            "spec": { "limit": 1 },
        });
        Self {
            namespace,
            name: name.to_owned(),
            manifest,
        }
    }

    /// How many may hold a slot (default 1).
    #[must_use]
    pub fn limit(self, limit: i64) -> Self {
        self.spec(json!({ "limit": limit }))
    }

    /// Its prefix in Consul (default `semaphores/<namespace>/<name>`).
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        self.spec(json!({ "prefix": prefix }))
    }

    /// Whether it is paused, so that it grants nothing.
    #[must_use]
    pub fn paused(self, paused: bool) -> Self {
        self.spec(json!({ "paused": paused }))
    }

    /// The TTL of its sessions, such as `10s`.
    #[must_use]
    pub fn ttl(self, ttl: &str) -> Self {
        self.spec(json!({ "session": { "ttl": ttl } }))
    }

    /// Adds to its spec: merged into the existing one; null removes.
    #[must_use]
    pub fn spec(mut self, spec: Value) -> Self {
        json::merge(&mut self.manifest["spec"], spec);
        self
    }

    /// Adds to the whole object: merged into the existing one; null removes.
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

    /// Like [`Self::create`], for one that may be refused: the error is the API server's message.
    pub async fn try_create(self) -> Result<Self> {
        let object = serde_json::from_value(self.manifest.clone())?;
        self.api().create(&PostParams::default(), &object).await?;
        Ok(self)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its prefix in Consul, as described here.
    pub fn lock_prefix(&self) -> String {
        prefix_of(&self.manifest, self.namespace.name(), &self.name)
    }

    /// The object, if it exists.
    #[track_caller]
    pub fn get(&self) -> impl Future<Output = Option<Value>> {
        reads(Location::caller(), &self.name, || self.try_get())
    }

    /// Its status; null if there is none.
    #[track_caller]
    pub fn status(&self) -> impl Future<Output = Value> {
        reads(Location::caller(), &self.name, move || async move {
            Ok(self
                .try_get()
                .await?
                .map(|object| object["status"].clone())
                .unwrap_or_default())
        })
    }

    /// Waits until its status, for its newest generation, contains all of this:
    /// `db.shows(json!({ "held": 2, "waiting": 3 }))`.
    #[track_caller]
    pub fn shows(&self, status: Value) -> impl Future<Output = ()> {
        let what = format!("the semaphore {} shows {status}", self.name);
        story(Location::caller(), async move {
            self.until(&what, |object| json::contains(&object["status"], &status))
                .await
        })
    }

    /// Waits until it is Ready.
    #[track_caller]
    pub fn is_ready(&self) -> impl Future<Output = ()> {
        let what = format!("the semaphore {} is ready", self.name);
        story(Location::caller(), async move {
            self.until(&what, |object| {
                let ready = condition(object, "Ready");
                ready["status"] == "True" && ready["reason"] != "Paused"
            })
            .await
        })
    }

    /// Waits until a condition has this status and reason: `db.has_condition("Ready", "False", "LimitConflict")`.
    #[track_caller]
    pub fn has_condition(
        &self,
        kind: &str,
        status: &str,
        reason: &str,
    ) -> impl Future<Output = ()> {
        let what = format!("the semaphore {} has {kind}={status} ({reason})", self.name);
        story(Location::caller(), async move {
            self.until(&what, |object| {
                let condition = condition(object, kind);
                condition["status"] == status && condition["reason"] == reason
            })
            .await
        })
    }

    /// Like [`Self::has_condition`], with a message that contains all of these words: the message of a condition may
    /// change while its status and reason stay the same.
    #[track_caller]
    pub fn has_condition_that_says(
        &self,
        kind: &str,
        status: &str,
        reason: &str,
        words: &[&str],
    ) -> impl Future<Output = ()> {
        let what = format!(
            "the semaphore {} has {kind}={status} ({reason}) that says {words:?}",
            self.name
        );
        story(Location::caller(), async move {
            self.until(&what, |object| {
                let condition = condition(object, kind);
                let message = condition["message"].as_str().unwrap_or_default();
                condition["status"] == status
                    && condition["reason"] == reason
                    && words.iter().all(|word| message.contains(word))
            })
            .await
        })
    }

    /// The current state of a condition; null if there is none.
    #[track_caller]
    pub fn condition(&self, kind: &str) -> impl Future<Output = Value> {
        reads(Location::caller(), &self.name, move || async move {
            Ok(self
                .try_get()
                .await?
                .map(|object| condition(&object, kind).clone())
                .unwrap_or_default())
        })
    }

    /// Waits until it has an event with this reason, and returns its message.
    #[track_caller]
    pub fn has_event(&self, reason: &str) -> impl Future<Output = String> {
        let what = format!("the semaphore {} has an event {reason}", self.name);
        let ours = format!(
            "involvedObject.kind=ConsulSemaphore,involvedObject.name={},reason={reason}",
            self.name
        );
        let events = self.namespace.api::<Event>();
        story(Location::caller(), async move {
            let ours = ListParams::default().fields(&ours);
            wait::until(&what, wait::PATIENCE, || async {
                let found = events.list(&ours).await;
                let found = found.map_err(|error| error.to_string())?.items;
                let event = found.into_iter().next_back().ok_or("there is none")?;
                Ok::<_, String>(event.message.unwrap_or_default())
            })
            .await
        })
    }

    /// Changes its limit.
    #[track_caller]
    pub fn set_limit(&self, limit: i64) -> impl Future<Output = ()> {
        self.patch(json!({ "spec": { "limit": limit } }))
    }

    /// Pauses it, so that it grants nothing.
    #[track_caller]
    pub fn pause(&self) -> impl Future<Output = ()> {
        self.patch(json!({ "spec": { "paused": true } }))
    }

    /// Resumes it, so that it grants again.
    #[track_caller]
    pub fn resume(&self) -> impl Future<Output = ()> {
        self.patch(json!({ "spec": { "paused": false } }))
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

    /// Changes its status as a person would, with kubectl.
    #[track_caller]
    pub fn patch_status(&self, status: &Value) -> impl Future<Output = ()> {
        let patch = json!({ "status": status }).to_string();
        let change = ["--subresource=status", "--type=merge", "-p"];
        let args = ["patch", "csem", self.name.as_str()].into_iter();
        let args: Vec<_> = args.chain(change).map(str::to_owned).collect();
        let patched = self.namespace.kubectl([args, vec![patch]].concat());
        async move {
            patched.await;
        }
    }

    /// Requests its deletion.
    #[track_caller]
    pub fn delete(&self) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            self.api()
                .delete(&self.name, &DeleteParams::default())
                .await
                .map(drop)
                .context("deleting a semaphore")
        })
    }

    /// Waits until it is deleted.
    #[track_caller]
    pub fn is_gone(&self) -> impl Future<Output = ()> {
        let what = format!("the semaphore {} is gone", self.name);
        story(Location::caller(), async move {
            wait::until(&what, wait::PATIENCE, || async {
                match self.try_get().await {
                    Ok(None) => Ok(()),
                    Ok(Some(object)) => Err(object.to_string()),
                    Err(error) => Err(format!("{error:#}")),
                }
            })
            .await
        })
    }

    async fn until(&self, what: &str, met: impl Fn(&Value) -> bool) -> Result<()> {
        wait::until(what, wait::PATIENCE, || async {
            let object = self
                .try_get()
                .await
                .map_err(|error| format!("{error:#}"))?
                .ok_or("it is not there")?;
            let current =
                object["status"]["observedGeneration"] == object["metadata"]["generation"];
            if current && met(&object) {
                Ok(())
            } else {
                Err(format!("{}", object["status"]))
            }
        })
        .await
    }

    async fn try_get(&self) -> Result<Option<Value>> {
        let object = self.api().get_opt(&self.name).await?;
        Ok(object.map(serde_json::to_value).transpose()?)
    }

    fn api(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.namespace.client(), self.namespace.name(), &resource())
    }
}

/// The prefix of a `ConsulSemaphore`.
pub(crate) fn prefix_of(object: &Value, namespace: &str, name: &str) -> String {
    object["spec"]["prefix"]
        .as_str()
        .map_or_else(|| format!("semaphores/{namespace}/{name}"), str::to_owned)
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .and_then(|all| all.iter().find(|condition| condition["type"] == kind))
        .unwrap_or(&Value::Null)
}
