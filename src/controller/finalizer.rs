//! The finalizer on a `ConsulSemaphore`: it goes when nothing of it is left in Consul.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    CALL_TIMEOUT,
    events::Reason,
    grantor::{Grantor, Setback},
    keeper::Life,
    observe::Facts,
};
use crate::{
    api::{ConsulSemaphore, annotations::FINALIZER},
    clock::Moment,
    consul,
    semaphore::Standing,
};

impl Grantor {
    /// Puts the finalizer on, before anything is written to Consul. A semaphore that is being
    /// deleted without it has nothing there, and is done with.
    pub(super) async fn ensure_finalizer(
        &mut self,
        specs: &mut watch::Receiver<Arc<ConsulSemaphore>>,
    ) {
        let mut setback: Option<Setback> = None;
        loop {
            let semaphore = specs.borrow_and_update().clone();
            let has = semaphore
                .finalizers()
                .iter()
                .any(|finalizer| finalizer == FINALIZER);
            if has {
                return;
            }
            if semaphore.metadata.deletion_timestamp.is_some() {
                self.finished = true;
                return;
            }
            let finalizers = semaphore
                .finalizers()
                .iter()
                .map(String::as_str)
                .chain([FINALIZER]);
            match self.set_finalizers(&semaphore, finalizers.collect()).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(semaphore = %self.reference, error, "no finalizer yet");
                    let next = Setback::after(setback.as_ref(), Moment::now());
                    let pause = next.until.since(Moment::now());
                    setback = Some(next);
                    // A conflict means that a newer version is on its way.
                    tokio::select! {
                        () = sleep(pause) => {}
                        changed = specs.changed() => if changed.is_err() { return },
                    }
                }
            }
        }
    }

    /// Takes the finalizer off: the end of this grantor.
    pub(super) async fn finish(&mut self) {
        match self.remove_finalizer().await {
            Ok(_) => {
                tracing::info!(semaphore = %self.reference, "deleted");
                self.finished = true;
            }
            Err(error) => {
                tracing::warn!(semaphore = %self.reference, error, "the finalizer can't be removed yet");
                self.retry_soon();
            }
        }
    }

    /// Whether the semaphore is being deleted, nothing here depends on it any more, and Consul
    /// can't be used to clean up: for a TTL by now, so that every session that it had may have
    /// expired, or ever, because the place in Consul does not exist.
    pub(super) fn is_hopeless(&self, facts: &Facts) -> bool {
        let Some(trouble) = self.trouble.as_ref().filter(|_| self.settings.terminating) else {
            return false;
        };
        let now = Moment::now();
        let nowhere = matches!(trouble.error, consul::Error::Unsupported(_));
        let runs = facts.bound.iter().any(|job| {
            matches!(job.standing, Standing::Running | Standing::Stopping) && job.granted.is_some()
        });
        let holds = self.sessions.iter().any(|(id, session)| {
            let ahead = self.ahead.values().any(|ahead| ahead == id);
            !ahead && matches!(session.life(), Life::Until(end) if end > now)
        });
        (nowhere || trouble.since + self.ttl <= now) && !runs && !holds && !self.finished
    }

    /// Lets the semaphore go without cleaning up, and says what is left.
    pub(super) async fn leave_behind(&mut self) {
        let about = match self.remove_finalizer().await {
            Ok(about) => about,
            Err(error) => {
                tracing::warn!(semaphore = %self.reference, error, "the finalizer can't be removed yet");
                return;
            }
        };
        self.finished = true;
        let problem = self.trouble.as_ref().map(|trouble| &trouble.error);
        if let Some(error) = problem.filter(|error| !matches!(error, consul::Error::Unsupported(_)))
        {
            let note = format!(
                "deleted without cleaning up in Consul ({error}). What may be left: the key {} and \
                 keys of expired sessions beside it",
                self.settings.prefix.lock_key()
            );
            tracing::warn!(semaphore = %self.reference, "{note}");
            if let Some(about) = about {
                self.context.events.tell(about, Reason::LeftBehind, note);
            }
        }
    }

    /// Takes the finalizer off, and returns a reference to what it was on, if that was still there.
    async fn remove_finalizer(&self) -> Result<Option<ObjectReference>, String> {
        let semaphores = self.semaphores();
        match timeout(CALL_TIMEOUT, semaphores.get_opt(&self.reference.name)).await {
            Ok(Ok(None)) => Ok(None),
            Ok(Ok(Some(semaphore))) => {
                let others = semaphore.finalizers().iter().map(String::as_str);
                let others = others.filter(|finalizer| *finalizer != FINALIZER).collect();
                self.set_finalizers(&semaphore, others).await?;
                Ok(Some(semaphore.object_ref(&())))
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".into()),
        }
    }

    async fn set_finalizers(
        &self,
        semaphore: &ConsulSemaphore,
        finalizers: Vec<&str>,
    ) -> Result<(), String> {
        let body = Patch::Merge(json!({ "metadata": {
            "uid": semaphore.metadata.uid,
            "resourceVersion": semaphore.metadata.resource_version,
            "finalizers": finalizers,
        } }));
        let semaphores = self.semaphores();
        let params = PatchParams::default();
        let patch = semaphores.patch(&self.reference.name, &params, &body);
        match timeout(CALL_TIMEOUT, patch).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".into()),
        }
    }

    fn semaphores(&self) -> Api<ConsulSemaphore> {
        Api::namespaced(self.context.client.clone(), &self.reference.namespace)
    }
}
