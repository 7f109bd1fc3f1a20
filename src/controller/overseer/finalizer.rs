//! The finalizer on a `ConsulSemaphore`: it goes when nothing of it is left in Consul.

use kube::{Api, Resource, ResourceExt, api::Patch};
use serde_json::json;
use tokio::{
    task::{JoinError, JoinSet},
    time::sleep,
};

use super::{Overseer, SOON, branch::Obstacle, reporter::Report};
use crate::{
    controller::{
        call::{CallError, call, patch_params},
        events::Reason,
    },
    crash::{self, Point},
};
use consul_client::clock::Moment;
use consul_semaphore::{Lock, Reading, holding::Setback};
use consul_semaphore_api::{
    ConsulSemaphore, ConsulSemaphoreStatus,
    annotations::FINALIZER,
    conditions::{self, ConditionType, Finding},
};

/// What is known of the finalizer.
#[derive(Default)]
pub(super) struct Finalizer {
    /// Whether it is to be put on.
    missing: bool,
    /// Why it could not be set the last time.
    setback: Option<Setback>,
    /// Whether it was told that it can't be set.
    told: bool,
    pub(super) asked: JoinSet<Result<(), CallError>>,
}

impl Finalizer {
    /// The semaphore has it, or has it not.
    fn observe(&mut self, is_there: bool) {
        self.missing = !is_there;
        if is_there {
            (self.setback, self.told) = (None, false);
        }
    }

    /// When it is to be set; `None` while that is under way, and when it is there.
    pub(super) fn due(&self) -> Option<Moment> {
        let due = self.missing && self.asked.is_empty();
        due.then(|| {
            self.setback
                .map_or(Moment::default(), |before| before.until)
        })
    }

    /// It has been set, or could not be; says whether that is to be told.
    fn settle(&mut self, answer: &Result<(), CallError>) -> bool {
        let Err(error) = answer else {
            self.observe(true);
            return false;
        };
        // After a conflict a newer version is on its way.
        self.setback = Some(Setback::after(self.setback.as_ref(), Moment::now()));
        error.is_refused_for_good() && !std::mem::replace(&mut self.told, true)
    }
}

impl Overseer {
    /// Waits until the finalizer is there: nothing is written to Consul before.
    pub(super) async fn await_finalizer(&mut self) {
        self.look_for_finalizer();
        while self.finalizer.missing && !self.finished {
            self.add_finalizer();
            let due = self.next();
            tokio::select! {
                Some(answer) = self.finalizer.asked.join_next() => self.settle_finalizer(answer),
                changed = self.specs.changed() => match changed {
                    Ok(()) => self.respec(),
                    Err(_) => self.finished = true,
                },
                () = sleep(due.since(Moment::now())) => {}
            }
        }
    }

    /// Looks whether the finalizer is on. A semaphore that is being deleted without it can't be kept
    /// any more.
    pub(super) fn look_for_finalizer(&mut self) {
        let semaphore = self.specs.borrow().clone();
        let finalizers = semaphore.finalizers();
        let is_there = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
        if !is_there && semaphore.metadata.deletion_timestamp.is_some() {
            self.finished = true;
        }
        self.finalizer.observe(is_there);
    }

    /// Has the finalizer put on, if it is time: at first, and again if somebody has taken it off. All
    /// else goes on beside it.
    pub(super) fn add_finalizer(&mut self) {
        if self.finalizer.due().is_none_or(|due| due > Moment::now()) {
            return;
        }
        let semaphore = self.specs.borrow().clone();
        let (api, namespace) = (self.semaphores(), self.reference.namespace.clone());
        self.finalizer.asked.spawn(async move {
            let finalizers = semaphore.finalizers().iter().map(String::as_str);
            let finalizers = finalizers.chain([FINALIZER]).collect();
            set_finalizers(&api, &semaphore, finalizers).await?;
            crash::reach(Point::FinalizerAdded, &namespace).await;
            Ok(())
        });
    }

    /// Takes note of what became of that.
    pub(super) fn settle_finalizer(&mut self, answer: Result<Result<(), CallError>, JoinError>) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        if self.finalizer.settle(&answer)
            && let Err(error) = answer
        {
            tracing::warn!(semaphore = %self.reference, %error, "the finalizer can't be set");
            if !self.reported {
                self.report_refused_finalizer(&error);
            }
        }
    }

    /// Says in the status why nothing is begun: what else it says is left as it is, because nothing is
    /// known yet.
    fn report_refused_finalizer(&mut self, error: &CallError) {
        let status = self.specs.borrow().status.clone();
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
        self.tell_readiness(&findings);
        self.reporter.publish(Report {
            status: ConsulSemaphoreStatus {
                observed_generation: self.generation,
                ..status.unwrap_or_default()
            },
            findings,
        });
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
                set_finalizers(&self.semaphores(), &semaphore, others).await
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

    fn semaphores(&self) -> Api<ConsulSemaphore> {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_is_set_when_it_is_missing_and_again_after_a_pause() {
        let mut finalizer = Finalizer::default();
        assert_eq!(finalizer.due(), None);
        finalizer.observe(false);
        assert_eq!(finalizer.due(), Some(Moment::default()), "at once");
        assert!(!finalizer.settle(&Err(CallError::Silent(Duration::ZERO))));
        assert!(finalizer.due() > Some(Moment::default()));
        finalizer.observe(false);
        assert!(finalizer.due() > Some(Moment::default()), "no sooner");
        finalizer.settle(&Ok(()));
        assert_eq!(finalizer.due(), None, "the watch is about to show it");
        finalizer.observe(false);
        assert_eq!(finalizer.due(), Some(Moment::default()), "taken off");
    }

    #[test]
    fn a_refusal_is_told_once() {
        let mut finalizer = Finalizer::default();
        finalizer.observe(false);
        let refused = || {
            let status = kube::core::Status {
                code: 403,
                ..kube::core::Status::default()
            };
            Err(CallError::Failed(Box::new(kube::Error::Api(
                status.boxed(),
            ))))
        };
        assert!(finalizer.settle(&refused()));
        assert!(!finalizer.settle(&refused()));
        finalizer.observe(true);
        finalizer.observe(false);
        assert!(finalizer.settle(&refused()), "since it was there");
    }
}
