//! Adds and removes the finalizer on a `ConsulSemaphore` in the API server. The engine decides when.

use kube::{Api, Resource, ResourceExt, api::Patch};
use serde_json::json;

use super::{SemaphoreController, reporter::StatusReport};
use crate::{
    call::{CallError, call, patch_params},
    controller::events::Reason,
    crash::{self, Point},
};
use consul_semaphore::{Key, Lock, Reading, engine::SemaphoreState};
use consul_semaphore_api::{
    ConsulSemaphore, ConsulSemaphoreStatus,
    annotations::FINALIZER,
    conditions::{self, ConditionType, Finding},
};

impl SemaphoreController {
    /// Whether the object has the finalizer.
    pub(in crate::controller) fn has_finalizer(&self) -> bool {
        let object = self.object.borrow();
        let mut finalizers = object.finalizers().iter();
        finalizers.any(|finalizer| finalizer == FINALIZER)
    }

    /// Adds the finalizer.
    pub(in crate::controller) fn add_finalizer(
        &self,
    ) -> impl Future<Output = Result<(), CallError>> + Send + use<> {
        let semaphore = self.object.borrow().clone();
        let (api, namespace) = (self.api(), self.reference.namespace.clone());
        async move {
            let present = semaphore.finalizers().iter().map(String::as_str);
            let finalizers = present.chain([FINALIZER]).collect();
            set_finalizers(&api, &semaphore, finalizers).await?;
            crash::reach(Point::FinalizerAdded, &namespace).await;
            Ok(())
        }
    }

    /// Reports that work can't begin because the finalizer can't be added. Unless work has `begun`, the rest of the
    /// status stays as it is, because nothing is known yet.
    pub(in crate::controller) fn report_finalizer(
        &mut self,
        answer: &Result<(), CallError>,
        begun: bool,
    ) {
        let Err(error) = answer else {
            self.announced.finalizer = false;
            return;
        };
        if !error.is_refused_for_good() || std::mem::replace(&mut self.announced.finalizer, true) {
            return;
        }
        tracing::warn!(semaphore = %self.reference, %error, "can't set the finalizer");
        if begun {
            return;
        }
        let status = self.object.borrow().status.clone();
        let message = format!(
            "the API server refuses the finalizer {FINALIZER}, and without it nothing is granted, because \
             a deletion would leave slots behind: {error}. The operator needs to patch ConsulSemaphores; \
             look for a policy or webhook that refuses it"
        );
        let ready = Finding::new(
            ConditionType::Ready,
            false,
            conditions::Reason::FinalizerRefused,
            message,
        );
        let findings = vec![ready];
        self.report_readiness(&findings);
        let generation = self.object.borrow().metadata.generation;
        self.reporter.publish(StatusReport {
            status: ConsulSemaphoreStatus {
                observed_generation: generation,
                ..status.unwrap_or_default()
            },
            findings,
            found: 0,
        });
    }

    /// Reports what a semaphore leaves in Consul for others when it is otherwise cleaned up.
    pub(in crate::controller) fn report_leftovers(&mut self, semaphore: &SemaphoreState) {
        let queues = semaphore.queues().iter();
        let mut left = queues.filter_map(|(key, state)| {
            let why = state.queue.reading().and_then(why_left_to_others)?;
            Some((key, why))
        });
        let Some((key, why)) = left.next() else {
            return;
        };
        let lock_key = lock_key(semaphore, key.as_ref());
        let more = match left.count() {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        self.report_left_behind(format!(
            "deleted; the key {lock_key} stays in Consul: {why}{more}. Delete it there when nobody uses it"
        ));
    }

    /// Reports what may remain in Consul of a semaphore that can't clean up there, before the finalizer is removed.
    pub(in crate::controller) fn report_possible_leftovers(&mut self, semaphore: &SemaphoreState) {
        let problem = self.access.problem().map(|(_, why)| why);
        let Some(why) = semaphore.why_left_behind(problem) else {
            return;
        };
        let prefix = &semaphore.spec().settings.prefix;
        let keys = if semaphore.spec().keyed {
            format!("keys such as {prefix}/<key>/.lock")
        } else {
            format!("the key {}", prefix.lock_key())
        };
        self.report_left_behind(format!(
            "deleted without cleaning up in Consul ({why}). The following may be left in Consul: {keys}, and keys of \
             expired sessions beside it"
        ));
    }

    /// Reports once what is left in Consul.
    fn report_left_behind(&mut self, note: String) {
        if !std::mem::replace(&mut self.announced.left_behind, true) {
            tracing::warn!(semaphore = %self.reference, "{note}");
            let about = self.object.borrow().object_ref(&());
            self.context
                .shared
                .events
                .emit(about, Reason::LeftBehind, note);
        }
    }

    /// Removes the finalizer; `clean` says that nothing of the semaphore is left in Consul.
    pub(in crate::controller) fn remove_finalizer(
        &self,
        clean: bool,
    ) -> impl Future<Output = Result<(), CallError>> + Send + use<> {
        let uid = self.object.borrow().metadata.uid.clone();
        let (api, reference) = (self.api(), self.reference.clone());
        async move {
            if clean {
                crash::reach(Point::LockRemoved, &reference.namespace).await;
            }
            let semaphore = call(api.get_opt(&reference.name)).await?;
            // Another semaphore of the same name keeps its finalizer.
            if let Some(semaphore) = semaphore.filter(|found| found.metadata.uid == uid) {
                let all = semaphore.finalizers().iter().map(String::as_str);
                let others = all.filter(|finalizer| *finalizer != FINALIZER).collect();
                set_finalizers(&api, &semaphore, others).await?;
            }
            if clean {
                tracing::info!(semaphore = %reference, "deleted");
            }
            Ok(())
        }
    }

    fn api(&self) -> Api<ConsulSemaphore> {
        Api::namespaced(self.context.client.clone(), &self.reference.namespace)
    }
}

async fn set_finalizers(
    api: &Api<ConsulSemaphore>,
    semaphore: &ConsulSemaphore,
    finalizers: Vec<&str>,
) -> Result<(), CallError> {
    let body = Patch::Merge(json!({ "metadata": {
        "uid": semaphore.metadata.uid,
        "resourceVersion": semaphore.metadata.resource_version,
        "finalizers": finalizers,
    } }));
    let params = patch_params();
    call(api.patch(&semaphore.name_any(), &params, &body)).await?;
    Ok(())
}

fn lock_key(semaphore: &SemaphoreState, key: Option<&Key>) -> String {
    let prefix = &semaphore.spec().settings.prefix;
    key.map_or_else(|| prefix.lock_key(), |key| prefix.of_key(key).lock_key())
}

/// Returns why a deleted semaphore leaves `.lock` in Consul; `None` if it was removed.
fn why_left_to_others(reading: &Reading) -> Option<String> {
    let contenders = reading.contenders().count();
    match reading.lock() {
        Lock::Absent { .. } | Lock::Mutex { holder: None, .. } => None,
        Lock::Mutex {
            holder: Some(session),
            ..
        } => Some(format!("session {session} holds it")),
        Lock::Unreadable(why) => Some(format!("it has another use ({why})")),
        Lock::Semaphore { body, .. } => Some(format!(
            "other clients use it (slots that are held: {}, sessions that hold or wait: {contenders})",
            body.held()
        )),
    }
}
