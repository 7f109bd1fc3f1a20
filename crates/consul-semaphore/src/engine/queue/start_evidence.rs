//! Decides whether the evidence for slots lasts for long enough to start a workload in them.

use std::time::Duration;

use crate::{SessionState, Settings, Workload, engine::message::Now, evidence::tenure};
use consul_client::clock::Moment;

/// What the evidence for slots must last for when a workload is started in them.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartEvidence {
    now: Moment,
    /// Time that the start may take.
    timeout: Duration,
    /// Time that the pods of the workload have to end.
    grace: Duration,
    /// Part of the TTL for which the workload must be able to run before the next proof is due.
    part: u32,
}

impl StartEvidence {
    /// Returns what the evidence must last for when this workload is started.
    pub(super) fn needed(workload: Option<&Workload>, settings: &Settings, now: Now) -> Self {
        // A workload that was suspended because evidence was missing must not be started only to be suspended again,
        // so the evidence must last until the next proof is due.
        let lost = workload.is_some_and(Workload::lost);
        Self {
            now: now.moment,
            timeout: settings.write_timeout(),
            grace: workload.map_or(Duration::ZERO, |workload| workload.grace),
            part: if lost { 3 } else { 8 },
        }
    }

    /// Returns until when evidence lasts that was requested at `sent`, or `None` if that is not long enough.
    pub(super) fn end(&self, sent: Moment, ttl: Duration) -> Option<Moment> {
        let end = sent + ttl;
        let lasts = sent + tenure(ttl, self.grace) > self.now + ttl / self.part;
        (lasts && self.is_soon_enough(end)).then_some(end)
    }

    /// Returns until when a session lasts by what is known of it, or `None` if that is not long enough.
    pub(super) fn end_of_session(&self, life: Option<SessionState>) -> Option<Moment> {
        match life {
            Some(SessionState::Renewed { sent, ttl }) => self.end(sent, ttl),
            Some(SessionState::Endless) => Some(Moment::END),
            Some(SessionState::Unknown | SessionState::Gone) | None => None,
        }
    }

    /// Returns whether a start that is sent now is answered before this moment.
    pub(super) fn is_soon_enough(&self, end: Moment) -> bool {
        end > self.now + self.timeout
    }
}
