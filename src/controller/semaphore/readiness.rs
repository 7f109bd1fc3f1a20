//! What is told of a semaphore that can't be used: once to the log for each reason, and to the metric.

use std::collections::BTreeSet;

use super::SemaphoreController;
use consul_semaphore_api::conditions::{ConditionStatus, ConditionType, Finding, Reason};

/// What the log was told since the semaphore was last ready.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    told: BTreeSet<Reason>,
}

/// What the log is to be told.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Ready,
    /// Something is wrong.
    NotReady,
    /// It is as somebody wants it.
    AtRest,
}

impl Readiness {
    /// What is new in what the condition Ready is to say.
    fn note(&mut self, ready: &Finding) -> Option<Line> {
        if ready.status == ConditionStatus::True {
            let was_not = !std::mem::take(&mut self.told).is_empty();
            return was_not.then_some(Line::Ready);
        }
        if ready.reason == Reason::Starting || !self.told.insert(ready.reason) {
            return None;
        }
        Some(match ready.reason {
            Reason::Paused | Reason::Terminating => Line::AtRest,
            _ => Line::NotReady,
        })
    }
}

impl SemaphoreController {
    /// Tells whether slots can be granted and released.
    pub(super) fn tell_readiness(&mut self, findings: &[Finding]) {
        let Some(ready) = findings
            .iter()
            .find(|finding| finding.type_ == ConditionType::Ready)
        else {
            return;
        };
        let (status, reason) = (ready.status, ready.reason);
        self.context.shared.metrics.ready(
            &self.labels,
            status == ConditionStatus::True,
            reason.as_str(),
        );
        let (semaphore, why) = (&self.reference, &ready.message);
        match self.told.readiness.note(ready) {
            Some(Line::NotReady) => tracing::warn!(%semaphore, %reason, why, "not ready"),
            Some(Line::AtRest) => tracing::info!(%semaphore, %reason, why, "not ready"),
            Some(Line::Ready) => tracing::info!(%semaphore, "ready again"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConditionStatus::{False, True, Unknown};

    #[test]
    fn each_reason_is_told_once_until_it_is_ready_again() {
        let mut readiness = Readiness::default();
        let mut note = |status: ConditionStatus, reason| {
            readiness.note(&Finding::new(ConditionType::Ready, status, reason, ""))
        };
        assert_eq!(note(Unknown, Reason::Starting), None);
        assert_eq!(note(True, Reason::Reconciled), None, "as it should be");
        let lost = Some(Line::NotReady);
        assert_eq!(note(False, Reason::ConsulUnreachable), lost);
        assert_eq!(note(False, Reason::NoLeader), lost);
        assert_eq!(note(False, Reason::ConsulUnreachable), None);
        assert_eq!(note(Unknown, Reason::Starting), None);
        assert_eq!(note(True, Reason::Reconciled), Some(Line::Ready));
        assert_eq!(note(False, Reason::ConsulUnreachable), lost);
        assert_eq!(note(False, Reason::Paused), Some(Line::AtRest));
    }
}
