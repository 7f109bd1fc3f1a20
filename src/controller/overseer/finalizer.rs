//! The finalizer on a `ConsulSemaphore`: it goes when nothing of it is left in Consul.

use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{Overseer, SOON, branch::Obstacle};
use crate::{
    api::{ConsulSemaphore, annotations::FINALIZER},
    clock::Moment,
    controller::{
        call::{CallError, call},
        events::Reason,
    },
    crash::{self, Point},
    holding::Setback,
    semaphore::{Lock, Reading},
};

impl Overseer {
    /// Puts the finalizer on, before anything is written to Consul, and again if somebody takes it
    /// off. A semaphore that is being deleted without it can't be kept any more.
    pub(super) async fn ensure_finalizer(&mut self) {
        let mut setback: Option<Setback> = None;
        let mut told = false;
        loop {
            let semaphore = self.specs.borrow_and_update().clone();
            let finalizers = semaphore.finalizers().iter().map(String::as_str);
            if finalizers.clone().any(|finalizer| finalizer == FINALIZER) {
                return;
            }
            if semaphore.metadata.deletion_timestamp.is_some() {
                self.finished = true;
                return;
            }
            let finalizers = finalizers.chain([FINALIZER]).collect();
            let Err(error) = self.set_finalizers(&semaphore, finalizers).await else {
                return crash::reach(Point::FinalizerAdded, &self.reference.namespace).await;
            };
            if error.is_refused_for_good() && !std::mem::replace(&mut told, true) {
                tracing::warn!(semaphore = %self.reference, %error, "the finalizer can't be set: nothing is done for it");
            }
            let next = Setback::after(setback.as_ref(), Moment::now());
            setback = Some(next);
            tokio::select! {
                () = next.wait() => {}
                // A conflict means that a newer version is on its way.
                changed = self.specs.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Takes the finalizer off: the end of this overseer. What is left to others in Consul is told.
    pub(super) async fn finish(&mut self) {
        if let Some(note) = self.what_stays() {
            self.tell_left_behind(note);
        }
        if self.remove_finalizer().await {
            tracing::info!(semaphore = %self.reference, "deleted");
        }
    }

    /// Which keys are left to others, and why.
    fn what_stays(&self) -> Option<String> {
        let mut left = self.sums.left();
        let (key, why) = left.next()?;
        let prefix = &self.settings.prefix;
        let lock_key = key
            .as_ref()
            .map_or_else(|| prefix.lock_key(), |key| prefix.of_key(key).lock_key());
        let more = match left.count() {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        Some(format!(
            "deleted; the key {lock_key} stays in Consul: {why}{more}. Delete it there when nobody uses it"
        ))
    }

    /// Whether the semaphore is being deleted, nothing here depends on it any more, and Consul
    /// can't be used to clean up: for a TTL by now, so that every session that it had may have
    /// expired, or ever, because the place in Consul does not exist or is not allowed.
    pub(super) fn is_hopeless(&self) -> bool {
        let span = self.settings.span();
        let hopeless = match (&self.home, self.obstacle()) {
            (None, _) => self.access.hopeless_from(span) <= Moment::now(),
            (Some(_), Some(obstacle)) => obstacle.nowhere || obstacle.since + span <= Moment::now(),
            (Some(_), None) => false,
        };
        let held = self.sums.anything_held() || self.sums.len() < self.branches.len();
        hopeless && self.settings.terminating && !held && !self.finished
    }

    /// What is in the way of using Consul.
    fn obstacle(&self) -> Option<Obstacle> {
        let obstacle = self.sums.obstacle().cloned();
        let obstacle = obstacle.or_else(|| self.common.as_ref()?.obstacle());
        obstacle.or_else(|| self.orphans.obstacle.clone())
    }

    /// Lets the semaphore go without cleaning up, and says what is left.
    pub(super) async fn leave_behind(&mut self) {
        // It is said before: once the finalizer is off, so is this overseer.
        if let Some(why) = self.why_left_behind() {
            let note = format!(
                "deleted without cleaning up in Consul ({why}). What may be left: {} and keys of \
                 expired sessions beside it",
                self.lock_keys()
            );
            self.tell_left_behind(note);
        }
        self.remove_finalizer().await;
    }

    /// Where its slots stand.
    fn lock_keys(&self) -> String {
        let prefix = &self.settings.prefix;
        if self.is_keyed() {
            format!("keys such as {prefix}/<key>/.lock")
        } else {
            format!("the key {}", prefix.lock_key())
        }
    }

    /// Says once what is left in Consul.
    fn tell_left_behind(&mut self, note: String) {
        if !std::mem::replace(&mut self.left_behind, true) {
            tracing::warn!(semaphore = %self.reference, "{note}");
            let about = self.specs.borrow().object_ref(&());
            self.context.events.tell(about, Reason::LeftBehind, note);
        }
    }

    /// Why something may be left in Consul; `None` where nothing of it can be there.
    fn why_left_behind(&self) -> Option<String> {
        if let Some(obstacle) = self.obstacle() {
            return (!obstacle.nowhere).then_some(obstacle.why);
        }
        let (_, why) = self.access.problem()?;
        // It has been there if it ever wrote a limit.
        (!self.applied.is_empty()).then_some(why)
    }

    /// Takes the finalizer off; says whether that is done.
    async fn remove_finalizer(&mut self) -> bool {
        let removed = match call(self.semaphores().get_opt(&self.reference.name)).await {
            // Another one of that name is none of our business.
            Ok(Some(semaphore)) if semaphore.metadata.uid == self.uid => {
                let others = semaphore.finalizers().iter().map(String::as_str);
                let others = others.filter(|finalizer| *finalizer != FINALIZER).collect();
                self.set_finalizers(&semaphore, others).await
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) => self.finished = true,
            Err(error) => {
                tracing::debug!(semaphore = %self.reference, %error, "the finalizer can't be removed yet");
                self.again = Some(Moment::now() + SOON);
            }
        }
        self.finished
    }

    async fn set_finalizers(
        &self,
        semaphore: &ConsulSemaphore,
        finalizers: Vec<&str>,
    ) -> Result<(), CallError> {
        let body = Patch::Merge(json!({ "metadata": {
            "uid": semaphore.metadata.uid,
            "resourceVersion": semaphore.metadata.resource_version,
            "finalizers": finalizers,
        } }));
        let params = PatchParams::default();
        call(
            self.semaphores()
                .patch(&self.reference.name, &params, &body),
        )
        .await?;
        Ok(())
    }

    fn semaphores(&self) -> Api<ConsulSemaphore> {
        Api::namespaced(self.context.client.clone(), &self.reference.namespace)
    }
}

/// Why `.lock` is left where it is by a semaphore that needs it no more; `None` if it is gone.
pub(super) fn why_left_to_others(reading: &Reading) -> Option<String> {
    let contenders = reading.contenders().count();
    match reading.lock() {
        Lock::Absent { .. } | Lock::Mutex { holder: None, .. } => None,
        Lock::Mutex {
            holder: Some(session),
            ..
        } => Some(format!("session {session} holds it")),
        Lock::Unreadable(why) => Some(format!("it is of another use ({why})")),
        Lock::Semaphore { body, .. } => Some(format!(
            "others use it (slots that are held: {}, sessions that hold or wait: {contenders})",
            body.held()
        )),
    }
}
