//! Writes the status of one `ConsulSemaphore`: at most about once a second, and never loses the
//! last of it.

use std::{sync::Arc, time::Duration};

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::{Context, index::SemaphoreRef};
use crate::api::{
    ConsulSemaphore, ConsulSemaphoreStatus,
    conditions::{self, Finding},
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
    /// Starts to write; `before` is the status that is there.
    pub(super) fn start(
        context: &Context,
        reference: &SemaphoreRef,
        before: ConsulSemaphoreStatus,
    ) -> Self {
        let (reports, due) = watch::channel((0, Report::default()));
        let (done, written) = watch::channel(0);
        let urgent = Arc::new(Notify::new());
        let writer = Writer {
            api: Api::namespaced(context.client.clone(), &reference.namespace),
            name: reference.name.clone(),
            written: before,
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

    /// Hands a report in; it replaces one that is not written yet.
    pub(super) fn publish(&self, report: Report) {
        self.reports.send_if_modified(|(number, current)| {
            let news = *current != report;
            if news {
                *number += 1;
                *current = report;
            }
            news
        });
    }

    /// Hands a report in and waits until it is written.
    ///
    /// # Errors
    /// It was not written within the time that a call may take.
    pub(super) async fn persist(&self, report: Report) -> Result<(), &'static str> {
        self.publish(report);
        self.urgent.notify_one();
        let number = self.reports.borrow().0;
        let mut written = self.written.clone();
        let reached = written.wait_for(|written| *written >= number);
        match timeout(super::CALL_TIMEOUT, reached).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err("the status can't be written"),
        }
    }
}

struct Writer {
    api: Api<ConsulSemaphore>,
    name: Arc<str>,
    written: ConsulSemaphoreStatus,
    due: watch::Receiver<(u64, Report)>,
    done: watch::Sender<u64>,
    urgent: Arc<Notify>,
}

impl Writer {
    async fn run(mut self) {
        let mut pause = COALESCE;
        while self.due.changed().await.is_ok() {
            let (number, Report { status, findings }) = self.due.borrow_and_update().clone();
            let status = self.with_conditions(status, &findings);
            if status != self.written {
                match self.write(&status).await {
                    Ok(()) => {
                        self.written = status;
                        pause = COALESCE;
                    }
                    Err(error) => {
                        tracing::debug!(semaphore = %self.name, error, "the status can't be written yet");
                        self.due.mark_changed();
                        pause = (pause * 2).min(Duration::from_secs(30));
                        sleep(pause.mul_f64(fastrand::f64().mul_add(0.5, 0.5))).await;
                        continue;
                    }
                }
            }
            self.done.send_replace(number);
            tokio::select! {
                () = sleep(COALESCE) => {}
                () = self.urgent.notified() => {}
            }
        }
    }

    fn with_conditions(
        &self,
        mut status: ConsulSemaphoreStatus,
        findings: &[Finding],
    ) -> ConsulSemaphoreStatus {
        let generation = status.observed_generation;
        let now = jiff::Timestamp::now();
        status.conditions = conditions::merge(&self.written.conditions, findings, generation, now);
        status
    }

    async fn write(&self, status: &ConsulSemaphoreStatus) -> Result<(), String> {
        let body = Patch::Merge(json!({ "status": whole(status) }));
        let params = PatchParams::default();
        let patch = self.api.patch_status(&self.name, &params, &body);
        match timeout(super::CALL_TIMEOUT, patch).await {
            Ok(Ok(_)) => Ok(()),
            // There is nobody left to tell.
            Ok(Err(kube::Error::Api(answer))) if answer.code == 404 => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".into()),
        }
    }
}

/// The status with every field that it can have: in a merge patch, what is left out stays.
fn whole(status: &ConsulSemaphoreStatus) -> Value {
    let mut whole = json!({
        "limit": null,
        "fencingToken": null,
        "appliedLimits": [],
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
