//! Writes the status of one `ConsulSemaphore`, at most about once a second. The last report is never lost. Foreign
//! changes to the status are overwritten, and another operator that writes it is reported.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Resource, ResourceExt, api::Patch};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
    time::sleep,
};

use super::operators::Operators;
use crate::{
    call::{CallError, call, patch_params},
    controller::{
        Context,
        events::{Events, Reason},
    },
    crash::{self, Point},
};
use consul_client::{
    Backoff,
    clock::{self, Moment},
};
use consul_semaphore::holding::Setback;
use consul_semaphore_api::{
    ConsulSemaphore, ConsulSemaphoreStatus,
    conditions::{self, Finding},
};

/// Time for which changes of the status are collected.
const COALESCE: Duration = Duration::from_secs(1);

/// Time without a foreign write after which the next one counts as the first again.
const FORGET_WRITES_AFTER: Duration = Duration::from_mins(1);

/// Number of attempts to write the status before the writer waits, if others write the object at the same time.
const WRITE_ATTEMPTS: usize = 4;

/// Status that is to be written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct StatusReport {
    /// Status without its conditions.
    pub(super) status: ConsulSemaphoreStatus,
    /// Findings that the conditions should say.
    pub(super) findings: Vec<Finding>,
    /// Number of the last [`FoundLimits`] that the limits of the status take into account.
    pub(super) found: u64,
}

/// Limits in a status that another operator wrote.
#[derive(Clone, Debug, Default)]
pub(super) struct FoundLimits {
    /// Number of these limits, which counts up.
    pub(super) number: u64,
    pub(super) limits: Vec<i32>,
    /// Generation of the spec at which that status was found.
    pub(super) generation: Option<i64>,
}

impl FoundLimits {
    /// Returns what `status.appliedLimits` may be according to a report. Another operator may have recorded limits
    /// for this spec or a newer one, and a report that does not know of them must not remove them, because they may
    /// be in Consul.
    fn with(&self, report: &StatusReport, stored: &[i32], generation: Option<i64>) -> Vec<i32> {
        let reported = &report.status.applied_limits;
        if report.found == self.number && report.status.observed_generation == generation {
            return reported.clone();
        }
        let both: BTreeSet<i32> = reported.iter().chain(stored).copied().collect();
        both.into_iter().collect()
    }
}

/// Only writer of one semaphore's status. Dropping it stops the writing.
pub(super) struct Reporter {
    reports: watch::Sender<(u64, StatusReport)>,
    written: watch::Receiver<u64>,
    found: watch::Receiver<FoundLimits>,
    urgent: Arc<Notify>,
    writing: AbortHandle,
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.writing.abort();
    }
}

impl Reporter {
    /// Starts to write the status of the semaphore in `seen`, which follows its versions.
    pub(super) fn start(
        context: &Context,
        mut seen: watch::Receiver<Arc<ConsulSemaphore>>,
    ) -> Self {
        let semaphore = seen.borrow_and_update().clone();
        let (reports, due) = watch::channel((0, StatusReport::default()));
        let (done, written) = watch::channel(0);
        let (finds, found) = watch::channel(FoundLimits::default());
        let urgent = Arc::new(Notify::new());
        let namespace = semaphore.namespace().unwrap_or_default();
        let writer = StatusWriter {
            api: Api::namespaced(context.client.clone(), &namespace),
            namespace,
            name: semaphore.name_any(),
            uid: semaphore.uid(),
            about: semaphore.object_ref(&()),
            events: context.shared.events.clone(),
            operators: Operators::new(context.shared.identity.clone()),
            is_certain: false,
            is_introduced: context.shared.lease.is_some(),
            written: semaphore.status.clone().unwrap_or_default(),
            version: semaphore.resource_version(),
            generation: semaphore.meta().generation,
            due,
            seen,
            mended: None,
            done,
            found: finds,
            urgent: urgent.clone(),
        };
        let writing = tokio::spawn(writer.run()).abort_handle();
        Self {
            reports,
            written,
            found,
            urgent,
            writing,
        }
    }

    /// Submits a report, which replaces a report that is not written yet. Returns its number.
    pub(super) fn publish(&self, report: StatusReport) -> u64 {
        self.reports.send_if_modified(|(number, current)| {
            let news = *current != report;
            if news {
                *number += 1;
                *current = report;
            }
            news
        });
        self.reports.borrow().0
    }

    /// Has the last report written without delay.
    pub(super) fn hurry(&self) {
        self.urgent.notify_one();
    }

    /// Returns the number of the last report that was written.
    pub(super) fn written(&self) -> u64 {
        *self.written.borrow()
    }

    /// Returns a receiver that changes when another report was written.
    pub(super) fn progress(&self) -> watch::Receiver<u64> {
        self.written.clone()
    }

    /// Returns a receiver of the last limits that another operator wrote.
    pub(super) fn found(&self) -> watch::Receiver<FoundLimits> {
        self.found.clone()
    }
}

struct StatusWriter {
    api: Api<ConsulSemaphore>,
    namespace: String,
    name: String,
    uid: Option<String>,
    about: ObjectReference,
    events: Events,
    operators: Operators,
    /// Status in the API server.
    written: ConsulSemaphoreStatus,
    /// Version of the object with that status. Only this version is written to, because otherwise a condition or a
    /// limit that somebody else wrote since would be lost.
    version: Option<String>,
    /// Generation of the spec in that version.
    generation: Option<i64>,
    /// Whether the API server has answered with that status. A watch may show an older status, from before this
    /// process worked.
    is_certain: bool,
    /// Whether a Lease or the name in the status shows that this replica works.
    is_introduced: bool,
    due: watch::Receiver<(u64, StatusReport)>,
    seen: watch::Receiver<Arc<ConsulSemaphore>>,
    /// Pause until a foreign write may be overwritten again.
    mended: Option<Setback>,
    done: watch::Sender<u64>,
    found: watch::Sender<FoundLimits>,
    urgent: Arc<Notify>,
}

impl StatusWriter {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut logged = false;
        while self.is_to_write().await {
            let number = self.due.borrow_and_update().0;
            if self.is_due(&self.status()) {
                match self.write().await {
                    Ok(()) => (self.is_certain, self.is_introduced) = (true, true),
                    Err(error) => {
                        logged = self.log_failure(&error, logged);
                        self.due.mark_changed();
                        backoff.wait().await;
                        continue;
                    }
                }
                crash::reach(Point::StatusWritten, &self.namespace).await;
                backoff.reset();
                logged = false;
            }
            self.done.send_replace(number);
            tokio::select! {
                () = sleep(COALESCE) => {}
                () = self.urgent.notified() => {}
            }
        }
    }

    /// Waits until there is something to write: a new report, or the last one again. Returns `false` when the
    /// reporter was dropped.
    async fn is_to_write(&mut self) -> bool {
        loop {
            let (seen, mended) = (&mut self.seen, self.mended);
            let until = self.operators.until();
            let news = async move {
                if let Some(mended) = mended {
                    mended.wait().await;
                }
                seen.changed().await
            };
            tokio::select! {
                report = self.due.changed() => return report.is_ok(),
                () = sleep(until.since(Moment::now())) => {
                    self.operators.expire(Moment::now());
                    return true;
                }
                seen = news => match seen {
                    Ok(()) if self.is_overwritten().await => return true,
                    Ok(()) => {}
                    Err(_) => return false,
                },
            }
        }
    }

    /// Whether somebody else has overwritten the status. Reads the object to find out, because the watch may show an
    /// older version than the one that was written here.
    async fn is_overwritten(&mut self) -> bool {
        let seen = self.seen.borrow_and_update().clone();
        if self.due.borrow().0 == 0 {
            self.take(&seen, None);
            return false;
        }
        if seen.status.clone().unwrap_or_default() == self.written {
            self.take(&seen, None);
            return false;
        }
        let now = match self.read().await {
            Ok(Some(now)) => now,
            Ok(None) => return false,
            Err(_) => {
                self.seen.mark_changed();
                self.put_off();
                return false;
            }
        };
        let Some(by_operator) = self.take_news(&now) else {
            return false;
        };
        let overwritten = self.is_due(&self.status());
        if overwritten && !by_operator {
            tracing::warn!(
                semaphore = self.title(),
                "another client changed the status, so the operator writes it again. If that client is another \
                 operator, make sure that the scopes of the two operators don't overlap"
            );
        }
        if overwritten || by_operator {
            self.put_off();
        }
        overwritten
    }

    /// Takes over the object that was read. Returns whether another operator wrote its status; `None` if nobody else
    /// wrote it.
    fn take_news(&mut self, now: &ConsulSemaphore) -> Option<bool> {
        let others_wrote = now.status.clone().unwrap_or_default() != self.written;
        self.take(now, None);
        let was_certain = std::mem::replace(&mut self.is_certain, true);
        others_wrote.then(|| was_certain && self.note_operator())
    }

    /// Reports another operator that wrote the status. Returns whether there was one.
    fn note_operator(&mut self) -> bool {
        let Some(writer) = self.operators.writer(&self.written.operators) else {
            return false;
        };
        let noted = self.operators.note(writer, Moment::now());
        let warning = self.operators.warning();
        if noted.is_to_be_logged {
            tracing::warn!(semaphore = self.title(), "{warning}");
        }
        if noted.is_news {
            let about = self.about.clone();
            self.events
                .emit_once(about, Reason::AnotherOperator, warning);
        }
        true
    }

    /// Whether a status differs from the stored one in more than the name of its writer.
    fn is_due(&self, status: &ConsulSemaphoreStatus) -> bool {
        let Self {
            operators, written, ..
        } = self;
        let alike = ConsulSemaphoreStatus {
            operators: written.operators.clone(),
            ..status.clone()
        };
        let is_unknown =
            !self.is_introduced && status.operators.first() != written.operators.first();
        is_unknown || !operators.are_said(&written.operators) || alike != *written
    }

    fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Delays the next check for foreign writes. The delay grows if they repeat.
    fn put_off(&mut self) {
        let now = Moment::now();
        let before = self
            .mended
            .filter(|before| now < before.until + FORGET_WRITES_AFTER);
        self.mended = Some(Setback::after(before.as_ref(), now));
    }

    /// Logs a refusal, once; an outage of the API server is reported elsewhere. Returns whether it was logged.
    fn log_failure(&self, error: &CallError, logged: bool) -> bool {
        let semaphore = self.title();
        let refused = error.is_refused_for_good();
        if refused && !logged {
            tracing::warn!(semaphore, %error, "can't write the status");
        } else {
            tracing::debug!(semaphore, %error, "can't write the status yet");
        }
        logged || refused
    }

    /// Returns the status from the last report. Conditions that are not in the report stay as they are.
    fn status(&self) -> ConsulSemaphoreStatus {
        let (_, report) = self.due.borrow().clone();
        let found = self.found.borrow();
        let seen = self.seen.borrow().meta().generation;
        let generation = self.generation.max(seen);
        let limits = found.with(&report, &self.written.applied_limits, generation);
        let StatusReport {
            status, findings, ..
        } = report;
        let generation = status.observed_generation;
        let now = clock::time();
        let conditions = conditions::merge(&self.written.conditions, &findings, generation, now);
        ConsulSemaphoreStatus {
            operators: self.operators.names(),
            applied_limits: limits,
            conditions,
            ..status
        }
    }

    /// Reads the object; returns `None` if the semaphore was deleted.
    async fn read(&self) -> Result<Option<ConsulSemaphore>, CallError> {
        let now = call(self.api.get_opt(&self.name)).await?;
        Ok(now.filter(|now| now.uid() == self.uid))
    }

    /// Takes over the stored status. `wrote` has the limits that were just written, if any. Other limits in the
    /// stored status come from another operator.
    fn take(&mut self, object: &ConsulSemaphore, wrote: Option<&[i32]>) {
        let stored = object.status.clone().unwrap_or_default();
        self.version = object.resource_version();
        self.generation = object.meta().generation;
        if stored.applied_limits != wrote.unwrap_or(&self.written.applied_limits) {
            self.found.send_modify(|found| {
                found.number += 1;
                found.limits.clone_from(&stored.applied_limits);
                found.generation = self.generation;
            });
        }
        self.written = stored;
    }

    /// Writes the status, unless the semaphore was deleted. If somebody else has written the object since it was
    /// read, the object is read again and the status is written at once, because the next foreign write may come
    /// soon.
    async fn write(&mut self) -> Result<(), CallError> {
        for _ in 1..WRITE_ATTEMPTS {
            let answer = self.try_to_write().await;
            let refusal = answer.as_ref().err().and_then(CallError::refusal);
            if refusal.is_none_or(|(code, _)| code != 409) {
                return answer;
            }
        }
        self.try_to_write().await
    }

    /// Writes the status to the known version of the object. After a conflict, the object is read again.
    async fn try_to_write(&mut self) -> Result<(), CallError> {
        let status = self.status();
        // The uid keeps the status from being written to another semaphore of the same name.
        let metadata = json!({ "uid": self.uid, "resourceVersion": self.version });
        let body = Patch::Merge(json!({ "metadata": metadata, "status": whole(&status) }));
        let params = patch_params();
        let answer = call(self.api.patch_status(&self.name, &params, &body)).await;
        let refused = answer.as_ref().err().and_then(CallError::refusal);
        match refused.map(|(code, _)| code) {
            Some(404) => Ok(()),
            Some(409) => match self.read().await? {
                Some(now) => {
                    self.take_news(&now);
                    answer.map(|_| ())
                }
                None => Ok(()),
            },
            _ => answer.map(|semaphore| self.take(&semaphore, Some(&status.applied_limits))),
        }
    }
}

/// Returns the status with every possible field, because a merge patch leaves missing fields unchanged.
fn whole(status: &ConsulSemaphoreStatus) -> Value {
    let mut whole = json!({
        "limit": null,
        "windowLimit": null,
        "windowOpens": null,
        "fencingToken": null,
        "appliedLimits": [],
        "keysInUse": null,
        "holders": [],
        "queue": [],
        "waitingElsewhere": [],
        "operators": [],
        "blocked": [],
        "countedTo": null,
    });
    if let (Value::Object(whole), Ok(Value::Object(set))) =
        (&mut whole, serde_json::to_value(status))
    {
        whole.extend(set);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_another_operator_recorded_is_removed_only_by_who_knows_of_it() {
        let report = |limits: &[i32], found, generation| StatusReport {
            status: ConsulSemaphoreStatus {
                applied_limits: limits.to_vec(),
                observed_generation: Some(generation),
                ..ConsulSemaphoreStatus::default()
            },
            found,
            ..StatusReport::default()
        };
        let found = FoundLimits {
            number: 1,
            ..FoundLimits::default()
        };
        for (why, report, expected) in [
            ("it is known", report(&[2], 1, 7), &[2][..]),
            ("not yet", report(&[2], 0, 7), &[2, 3]),
            ("the spec is newer", report(&[2], 1, 6), &[2, 3]),
            ("one more", report(&[4], 0, 6), &[2, 3, 4]),
        ] {
            assert_eq!(found.with(&report, &[3, 2], Some(7)), expected, "{why}");
        }
    }
}
