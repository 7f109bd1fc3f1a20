//! Writes the status of a `ConsulSemaphore` that this operator does not manage, because another API server uses its
//! identity.

use std::sync::Arc;

use kube::Resource as _;
use tokio::sync::watch;

use super::reporter::{Reporter, StatusReport};
use crate::controller::{Context, events};
use consul_semaphore_api::{
    ConsulSemaphore, ConsulSemaphoreStatus,
    conditions::{ConditionType, Finding, Reason},
};

/// Writer of the condition. It leaves the rest of the status as it was.
pub(in crate::controller) struct ConflictReport {
    object: watch::Sender<Arc<ConsulSemaphore>>,
    reporter: Reporter,
    /// Text of the last event.
    message: Option<String>,
}

impl ConflictReport {
    /// Starts to write the status of this semaphore.
    pub(in crate::controller) fn start(context: &Context, semaphore: Arc<ConsulSemaphore>) -> Self {
        let (object, seen) = watch::channel(semaphore);
        Self {
            object,
            reporter: Reporter::start(context, seen),
            message: None,
        }
    }

    /// Whether this report is about the object of this semaphore.
    pub(in crate::controller) fn is_of(&self, semaphore: &ConsulSemaphore) -> bool {
        self.object.borrow().metadata.uid == semaphore.metadata.uid
    }

    /// Reports the conflict, for the current state of the semaphore.
    pub(in crate::controller) fn say(
        &mut self,
        context: &Context,
        semaphore: Arc<ConsulSemaphore>,
        message: String,
    ) {
        if self.message.as_ref() != Some(&message) {
            let events = &context.shared.events;
            let reason = events::Reason::IdentityConflict;
            events.emit_once(semaphore.object_ref(&()), reason, message.clone());
            self.message = Some(message.clone());
        }
        let status = ConsulSemaphoreStatus {
            observed_generation: semaphore.metadata.generation,
            ..semaphore.status.clone().unwrap_or_default()
        };
        self.object.send_replace(semaphore);
        let not_ready = Finding::new(
            ConditionType::Ready,
            false,
            Reason::IdentityConflict,
            message,
        );
        self.reporter.publish(StatusReport {
            status,
            findings: vec![not_ready],
            found: 0,
        });
    }
}
