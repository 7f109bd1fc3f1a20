//! The finalizer on a `ConsulSemaphore`: it goes when nothing of it is left in Consul.

use std::sync::Arc;

use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    CALL_TIMEOUT,
    grantor::{Grantor, Setback},
};
use crate::{
    api::{ConsulSemaphore, annotations::FINALIZER},
    clock::Moment,
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
        let semaphores = self.semaphores();
        let removed = match timeout(CALL_TIMEOUT, semaphores.get_opt(&self.reference.name)).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(semaphore))) => {
                let others = semaphore.finalizers().iter().map(String::as_str);
                let others = others.filter(|finalizer| *finalizer != FINALIZER).collect();
                self.set_finalizers(&semaphore, others).await
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".into()),
        };
        match removed {
            Ok(()) => {
                tracing::info!(semaphore = %self.reference, "deleted");
                self.finished = true;
            }
            Err(error) => {
                tracing::warn!(semaphore = %self.reference, error, "the finalizer can't be removed yet");
                self.retry_soon();
            }
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
