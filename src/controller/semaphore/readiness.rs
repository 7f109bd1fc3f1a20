//! Reports a semaphore that can't be used: to the log once for each reason, and to the metric.

use std::collections::BTreeSet;

use super::SemaphoreController;
use crate::controller::events;
use consul_semaphore_api::conditions::{ConditionStatus, ConditionType, Finding, Reason};

/// Reasons that were logged since the semaphore was last ready.
#[derive(Debug, Default)]
pub(super) struct ReadinessLog {
    logged: BTreeSet<Reason>,
}

/// Log entry about a change of readiness.
#[derive(Debug, PartialEq, Eq)]
enum LogEntry {
    Ready,
    /// Something is wrong with the semaphore.
    NotReady,
    /// The semaphore is being deleted, as requested.
    AtRest,
}

impl ReadinessLog {
    /// Returns what to log for the condition Ready; `None` if it was logged before.
    fn note(&mut self, ready: &Finding) -> Option<LogEntry> {
        if ready.status == ConditionStatus::True {
            if ready.reason.is_intended() {
                return None;
            }
            let was_not = !std::mem::take(&mut self.logged).is_empty();
            return was_not.then_some(LogEntry::Ready);
        }
        if ready.reason == Reason::Starting || !self.logged.insert(ready.reason) {
            return None;
        }
        Some(match ready.reason {
            Reason::Terminating => LogEntry::AtRest,
            _ => LogEntry::NotReady,
        })
    }
}

impl SemaphoreController {
    /// Reports whether slots can be granted and released.
    pub(super) fn report_readiness(&mut self, findings: &[Finding]) {
        let Some(ready) = findings
            .iter()
            .find(|finding| finding.type_ == ConditionType::Ready)
        else {
            return;
        };
        let (status, reason) = (ready.status, ready.reason);
        self.context.shared.metrics.semaphores().set_ready(
            &self.labels,
            status == ConditionStatus::True,
            reason.as_str(),
        );
        let (semaphore, why) = (&self.reference, &ready.message);
        match self.announced.readiness.note(ready) {
            Some(LogEntry::NotReady) => {
                tracing::warn!(%semaphore, %reason, why, "not ready");
                self.emit(events::Reason::NotReady, format!("{reason}: {why}"));
            }
            Some(LogEntry::AtRest) => tracing::info!(%semaphore, %reason, why, "not ready"),
            Some(LogEntry::Ready) => {
                tracing::info!(%semaphore, "ready again");
                let note = "slots are granted and released again".to_owned();
                self.emit(events::Reason::ReadyAgain, note);
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConditionStatus::{False, True, Unknown};

    #[test]
    fn each_reason_is_logged_once_until_it_is_ready_again() {
        let mut readiness = ReadinessLog::default();
        let mut note = |status: ConditionStatus, reason| {
            readiness.note(&Finding::new(ConditionType::Ready, status, reason, ""))
        };
        assert_eq!(note(Unknown, Reason::Starting), None);
        assert_eq!(note(True, Reason::Reconciled), None, "as it should be");
        let lost = Some(LogEntry::NotReady);
        assert_eq!(note(False, Reason::ConsulUnreachable), lost);
        assert_eq!(note(False, Reason::NoLeader), lost);
        assert_eq!(note(False, Reason::ConsulUnreachable), None);
        assert_eq!(note(Unknown, Reason::Starting), None);
        assert_eq!(note(True, Reason::Reconciled), Some(LogEntry::Ready));
        assert_eq!(note(False, Reason::ConsulUnreachable), lost);
        assert_eq!(note(True, Reason::Paused), None, "nothing is granted yet");
        assert_eq!(note(True, Reason::OutsideWindow), None);
        assert_eq!(note(True, Reason::Reconciled), Some(LogEntry::Ready));
        assert_eq!(note(False, Reason::Terminating), Some(LogEntry::AtRest));
    }
}
