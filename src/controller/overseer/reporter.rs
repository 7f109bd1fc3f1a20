//! Writes the status of one `ConsulSemaphore`: at most about once a second, and never loses the
//! last of it.

use std::{sync::Arc, time::Duration};

use kube::{Api, ResourceExt, api::Patch};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
    time::sleep,
};

use crate::{
    api::{
        ConsulSemaphore, ConsulSemaphoreStatus,
        conditions::{self, Finding},
    },
    clock::{self, Moment},
    controller::{
        Context,
        call::{CallError, call, patch_params},
    },
    crash::{self, Point},
    holding::Setback,
};

/// How long changes of the status are collected.
const COALESCE: Duration = Duration::from_secs(1);

/// What a pass has to report.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Report {
    /// The status, but for its conditions.
    pub(super) status: ConsulSemaphoreStatus,
    /// What the conditions are to say.
    pub(super) findings: Vec<Finding>,
}

/// The only writer of one semaphore's status. Dropping it ends the writing.
pub(super) struct Reporter {
    reports: watch::Sender<(u64, Report)>,
    written: watch::Receiver<u64>,
    urgent: Arc<Notify>,
    writing: AbortHandle,
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.writing.abort();
    }
}

impl Reporter {
    /// Starts to write the status of this semaphore.
    pub(super) fn start(context: &Context, semaphore: &ConsulSemaphore) -> Self {
        let (reports, due) = watch::channel((0, Report::default()));
        let (done, written) = watch::channel(0);
        let urgent = Arc::new(Notify::new());
        let namespace = semaphore.namespace().unwrap_or_default();
        let writer = Writer {
            api: Api::namespaced(context.client.clone(), &namespace),
            namespace,
            name: semaphore.name_any(),
            uid: semaphore.uid(),
            written: semaphore.status.clone().unwrap_or_default(),
            due,
            done,
            urgent: urgent.clone(),
        };
        let writing = tokio::spawn(writer.run()).abort_handle();
        Self {
            reports,
            written,
            urgent,
            writing,
        }
    }

    /// Hands a report in; it replaces one that is not written yet. Returns its number.
    pub(super) fn publish(&self, report: Report) -> u64 {
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

    /// The number of the last report that has been written.
    pub(super) fn written(&self) -> u64 {
        *self.written.borrow()
    }

    /// Waits until another report has been written.
    pub(super) async fn progress(&mut self) {
        if self.written.changed().await.is_err() {
            // The writer lives as long as this.
            std::future::pending::<()>().await;
        }
    }
}

struct Writer {
    api: Api<ConsulSemaphore>,
    namespace: String,
    name: String,
    uid: Option<String>,
    written: ConsulSemaphoreStatus,
    due: watch::Receiver<(u64, Report)>,
    done: watch::Sender<u64>,
    urgent: Arc<Notify>,
}

impl Writer {
    async fn run(mut self) {
        let mut setback: Option<Setback> = None;
        let mut told = false;
        while self.due.changed().await.is_ok() {
            let (number, Report { status, findings }) = self.due.borrow_and_update().clone();
            let status = self.with_conditions(status, &findings);
            if status != self.written {
                if let Err(error) = self.write(&status).await {
                    told = self.complain(&error, told);
                    self.due.mark_changed();
                    let next = Setback::after(setback.as_ref(), Moment::now());
                    setback = Some(next);
                    next.wait().await;
                    continue;
                }
                crash::reach(Point::StatusWritten, &self.namespace).await;
                (setback, told) = (None, false);
                self.written = status;
            }
            self.done.send_replace(number);
            tokio::select! {
                () = sleep(COALESCE) => {}
                () = self.urgent.notified() => {}
            }
        }
    }

    /// Tells of a refusal, once; that the API server is away is told elsewhere. Says whether it has
    /// been told.
    fn complain(&self, error: &CallError, told: bool) -> bool {
        let semaphore = format!("{}/{}", self.namespace, self.name);
        let refused = error.is_refused_for_good();
        if refused && !told {
            tracing::warn!(semaphore, %error, "the status can't be written");
        } else {
            tracing::debug!(semaphore, %error, "the status can't be written yet");
        }
        told || refused
    }

    fn with_conditions(
        &self,
        mut status: ConsulSemaphoreStatus,
        findings: &[Finding],
    ) -> ConsulSemaphoreStatus {
        let generation = status.observed_generation;
        let now = clock::time();
        status.conditions = conditions::merge(&self.written.conditions, findings, generation, now);
        status
    }

    async fn write(&self, status: &ConsulSemaphoreStatus) -> Result<(), CallError> {
        // The uid keeps it away from another semaphore that was made under the same name.
        let body = Patch::Merge(json!({
            "metadata": { "uid": self.uid },
            "status": whole(status),
        }));
        let params = patch_params();
        match call(self.api.patch_status(&self.name, &params, &body)).await {
            // There is nobody left to tell.
            Err(error) if error.refusal().is_some_and(|(code, _)| code == 404) => Ok(()),
            answer => answer.map(drop),
        }
    }
}

/// The status with every field that it can have: in a merge patch, what is left out stays.
fn whole(status: &ConsulSemaphoreStatus) -> Value {
    let mut whole = json!({
        "limit": null,
        "fencingToken": null,
        "appliedLimits": [],
        "keysInUse": null,
        "holders": [],
        "queue": [],
    });
    if let (Value::Object(whole), Ok(Value::Object(set))) =
        (&mut whole, serde_json::to_value(status))
    {
        whole.extend(set);
    }
    whole
}
