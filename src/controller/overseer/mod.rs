//! The overseer of one `ConsulSemaphore`: its spec comes in, its grantor works, its status goes out.
//!
//! It looks after all that belongs to the Kubernetes object: the finalizer, the status with the
//! limits that are ours, and the watch of the prefix, whose readings it hands to the grantor.

mod access;
mod finalizer;
mod report;
mod reporter;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use self::{access::Access, report::Shown, reporter::Reporter};
use super::{
    Context,
    grantor::{Conclusion, Grantor},
    index::SemaphoreRef,
};
use crate::{
    api::{
        ConsulSemaphore,
        conditions::{ConditionType, Reason},
    },
    clock::Moment,
    crash::{self, Point},
    semaphore::{Defence, Settings},
};

/// When to try again to end what can't be ended yet.
const SOON: Duration = Duration::from_secs(1);

/// What is known of a `ConsulSemaphore`.
pub(super) struct Overseer {
    context: Arc<Context>,
    reference: SemaphoreRef,
    uid: Option<String>,
    generation: Option<i64>,
    specs: watch::Receiver<Arc<ConsulSemaphore>>,
    wake: Arc<Notify>,
    access: Access,
    grantor: Grantor,
    /// `status.appliedLimits`, as it is known to be in the status.
    applied: Vec<u32>,
    /// What it is to be, and which report says so.
    recording: Option<(u64, Vec<u32>)>,
    reporter: Reporter,
    shown: Shown,
    /// Whether it was said what is left in Consul.
    left_behind: bool,
    /// Whether the way to Consul is another one since the prefix began to be watched.
    moved: bool,
    finished: bool,
}

impl Overseer {
    /// Takes up the semaphore as it is. `wake` is notified when something about its Jobs changes.
    pub(super) fn new(
        context: Arc<Context>,
        specs: watch::Receiver<Arc<ConsulSemaphore>>,
        wake: Arc<Notify>,
    ) -> Self {
        let semaphore = specs.borrow().clone();
        let reference = SemaphoreRef::of(semaphore.as_ref());
        let access = Access::new(&context, &semaphore);
        let status = semaphore.status.clone().unwrap_or_default();
        let applied = status
            .applied_limits
            .iter()
            .filter_map(|limit| u32::try_from(*limit).ok());
        let grantor = Grantor::new(
            context.clone(),
            reference.clone(),
            settings(&context, &semaphore),
            access.home(&context, &semaphore),
            status.fencing_token.and_then(|token| token.try_into().ok()),
            defence(&semaphore),
            wake.clone(),
        );
        Self {
            uid: semaphore.metadata.uid.clone(),
            generation: semaphore.metadata.generation,
            applied: applied.collect(),
            reporter: Reporter::start(&context, &semaphore),
            context,
            reference,
            specs,
            wake,
            access,
            grantor,
            recording: None,
            shown: Shown::default(),
            left_behind: false,
            moved: false,
            finished: false,
        }
    }

    /// Works until the semaphore is gone.
    pub(super) async fn run(mut self) {
        self.ensure_finalizer().await;
        let mut wait = self.grantor.watch_wait();
        let mut readings = self.grantor.watch(wait);
        while !self.finished {
            let due = self.grantor.watch_wait();
            if std::mem::take(&mut self.moved) || due != wait {
                wait = due;
                readings = self.grantor.watch(wait);
            }
            let next = self.grantor.next;
            tokio::select! {
                () = self.wake.notified() => {}
                changed = self.specs.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.respec().await;
                }
                () = self.access.changed() => self.regain_access(),
                Some(listing) = readings.recv() => self.grantor.view.note(listing),
                () = self.grantor.progress() => {}
                () = self.reporter.progress(), if self.recording.is_some() => self.confirm().await,
                () = sleep(next.since(Moment::now())) => {}
            }
            let conclusion = self.grantor.pass(&self.applied).await;
            self.conclude(conclusion).await;
        }
    }

    /// The spec has changed, or the semaphore is being deleted, or its finalizer was removed.
    async fn respec(&mut self) {
        let semaphore = self.specs.borrow_and_update().clone();
        if self.generation != semaphore.metadata.generation {
            self.grantor.defence = Defence::default();
        }
        self.generation = semaphore.metadata.generation;
        self.grantor.settings = settings(&self.context, &semaphore);
        if !self.access.suits(&semaphore) {
            self.access = Access::new(&self.context, &semaphore);
            self.regain_access();
        }
        self.ensure_finalizer().await;
    }

    /// There is another way to Consul, or none any more; what went wrong before may not do so again.
    fn regain_access(&mut self) {
        if self.access.is_pending() {
            return;
        }
        if self.access.is_barred() {
            self.grantor.abandon_sessions();
        }
        let home = self.access.home(&self.context, &self.specs.borrow());
        self.grantor.move_to(home);
        self.moved = true;
    }

    /// The status has been written: a limit that it had to have may be in it now.
    async fn confirm(&mut self) {
        if let Some((_, applied)) = self
            .recording
            .take_if(|(number, _)| *number <= self.reporter.written())
        {
            self.applied = applied;
            crash::reach(Point::LimitRecorded, &self.reference.namespace).await;
        }
    }

    /// Does for the object what a pass came to.
    async fn conclude(&mut self, conclusion: Conclusion) {
        if conclusion.record.is_none() {
            self.applied.clone_from(&conclusion.applied);
            self.recording = None;
        }
        let report = self.compose_report(&conclusion);
        let number = self.reporter.publish(report);
        if let Some(record) = &conclusion.record
            && self
                .recording
                .as_ref()
                .is_none_or(|(_, recording)| recording != record)
        {
            self.recording = Some((number, record.clone()));
            self.reporter.hurry();
        }
        let grantor = &mut self.grantor;
        if grantor.settings.terminating && grantor.view.home.is_none() {
            let hopeless = self.access.hopeless_from(grantor.settings.span());
            grantor.next = grantor.next.min(hopeless.max(Moment::now() + SOON));
        }
        if conclusion.finished {
            crash::reach(Point::LockRemoved, &self.reference.namespace).await;
            self.finish().await;
        } else if self.is_hopeless(&conclusion) {
            self.leave_behind().await;
        }
    }
}

/// What the status says of the limit.
fn defence(semaphore: &ConsulSemaphore) -> Defence {
    let status = semaphore.status.as_ref();
    let recorded = status.is_some_and(|s| s.applied_limits.contains(&semaphore.spec.limit));
    let mut conditions = status.iter().flat_map(|status| &status.conditions);
    let given_up = conditions.any(|condition| {
        condition.type_ == ConditionType::LimitAgreed.as_str()
            && condition.reason == Reason::LimitConflict.as_str()
            && condition.observed_generation == semaphore.metadata.generation
    });
    Defence::resumed(recorded, given_up)
}

fn settings(context: &Context, semaphore: &ConsulSemaphore) -> Settings {
    Settings {
        cluster: context.cluster.clone(),
        namespace: semaphore.metadata.namespace.clone().unwrap_or_default(),
        name: semaphore.metadata.name.clone().unwrap_or_default(),
        prefix: semaphore.prefix(),
        limit: u32::try_from(semaphore.spec.limit).unwrap_or(1),
        policy: semaphore.spec.limit_policy,
        paused: semaphore.spec.paused,
        terminating: semaphore.metadata.deletion_timestamp.is_some(),
        on_slot_lost: semaphore.spec.on_slot_lost,
        ttl: semaphore.spec.session.ttl.get(),
        lock_delay: semaphore.spec.session.lock_delay.get(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_operator_that_starts_goes_by_what_the_status_says_of_the_limit() {
        let read = |applied: &[u32], reason: &str, generation: i64| {
            let semaphore = serde_json::from_value(json!({
                "apiVersion": "consul-semaphore.io/v1alpha1",
                "kind": "ConsulSemaphore",
                "metadata": { "name": "db", "generation": 7 },
                "spec": { "limit": 3, "limitPolicy": "Enforce" },
                "status": {
                    "appliedLimits": applied,
                    "held": 0, "heldHere": 0, "waiting": 0,
                    "conditions": [{
                        "type": "LimitAgreed", "status": "False", "reason": reason, "message": "",
                        "observedGeneration": generation,
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }],
                },
            }));
            defence(&semaphore.unwrap())
        };
        assert_eq!(read(&[5], "Starting", 7), Defence::default());
        assert_eq!(read(&[3], "LimitsMatch", 7), Defence::resumed(true, false));
        assert_eq!(read(&[3], "LimitConflict", 7), Defence::resumed(true, true));
        let before = read(&[3], "LimitConflict", 6);
        assert_eq!(before, Defence::resumed(true, false), "of an older spec");
    }
}
