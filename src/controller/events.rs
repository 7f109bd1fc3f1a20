//! Events on Jobs and semaphores, written one after another beside everything else.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::sync::mpsc;

use super::call::call;
use crate::{
    crash::{self, Point},
    semaphore::Uid,
    telemetry::Metrics,
    text::one_line,
};

/// How many events may be due at once; more are dropped, and counted.
const QUEUE: usize = 4096;

/// How many events are remembered, to be counted when they are told again.
const COUNTED: usize = 1024;

/// Why an event is told; the word that `kubectl describe` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    SlotWaiting,
    SlotGranted,
    SlotReleased,
    SlotLost,
    /// A user suspended a Job that ran.
    PutOnHold,
    /// A Job ran without a slot.
    RanWithoutSlot,
    /// The API server will not have a Job started.
    StartRefused,
    /// A pod of a Job that is gone does not end.
    PodsRemain,
    /// The semaphore is being deleted, or does not exist.
    NoSemaphore,
    /// The annotations can't be read.
    Malformed,
    /// Something else manages the Job.
    ManagedElsewhere,
    /// The semaphore can't be read.
    InvalidSemaphore,
    /// The semaphore was deleted while Consul could not be used.
    LeftBehind,
}

impl Reason {
    fn is_warning(self) -> bool {
        match self {
            Self::SlotWaiting | Self::SlotGranted | Self::SlotReleased | Self::PutOnHold => false,
            Self::SlotLost
            | Self::RanWithoutSlot
            | Self::StartRefused
            | Self::PodsRemain
            | Self::NoSemaphore
            | Self::Malformed
            | Self::ManagedElsewhere
            | Self::InvalidSemaphore
            | Self::LeftBehind => true,
        }
    }
}

/// Where events are handed in; clones share one queue.
#[derive(Clone)]
pub(super) struct Events {
    queue: mpsc::Sender<(ObjectReference, Event)>,
    metrics: Metrics,
}

impl Events {
    /// The queue, and the task that writes its events until every handle to it is gone.
    pub(super) fn new(client: Client, metrics: Metrics) -> (Self, impl Future<Output = ()>) {
        let (queue, mut due) = mpsc::channel::<(ObjectReference, Event)>(QUEUE);
        let reporter = Reporter {
            controller: crate::api::GROUP.into(),
            instance: std::env::var("HOSTNAME").ok(),
        };
        let mut told = Told {
            client,
            reporter,
            last: HashMap::new(),
        };
        let write = async move {
            while let Some((about, event)) = due.recv().await {
                let recorder = told.recorder(&about, &event);
                match call(recorder.publish(&event, &about)).await {
                    Ok(()) => {
                        let namespace = about.namespace.as_deref().unwrap_or_default();
                        crash::reach(Point::EventWritten, namespace).await;
                    }
                    Err(error) => tracing::debug!(%error, "an event can't be written"),
                }
            }
        };
        (Self { queue, metrics }, write)
    }

    /// Tells something about a Job, which may be gone by now.
    pub(super) fn job(&self, namespace: &str, name: &str, uid: &Uid, reason: Reason, note: String) {
        let about = ObjectReference {
            api_version: Some("batch/v1".into()),
            kind: Some("Job".into()),
            namespace: Some(namespace.into()),
            name: Some(name.into()),
            uid: Some(uid.to_string()),
            ..ObjectReference::default()
        };
        self.tell(about, reason, note);
    }

    /// Tells something about an object.
    pub(super) fn tell(&self, about: ObjectReference, reason: Reason, note: String) {
        let event = Event {
            type_: if reason.is_warning() {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: format!("{reason:?}"),
            note: Some(shorten(note)),
            action: "Reconcile".into(),
            secondary: None,
        };
        if self.queue.try_send((about, event)).is_err() {
            self.metrics.events_dropped();
        }
    }
}

/// What was told last for each reason about each object.
///
/// A recorder counts what it is told again as one event, and takes no notice of the note: the
/// session of a second grant would never be read. So another note has another recorder.
struct Told {
    client: Client,
    reporter: Reporter,
    last: HashMap<(Option<String>, String), (Option<String>, Recorder)>,
}

impl Told {
    fn recorder(&mut self, about: &ObjectReference, event: &Event) -> &Recorder {
        if self.last.len() >= COUNTED {
            self.last.clear();
        }
        let fresh = || {
            let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
            (event.note.clone(), recorder)
        };
        let key = (about.uid.clone(), event.reason.clone());
        let last = self.last.entry(key).or_insert_with(fresh);
        if last.0 != event.note {
            *last = fresh();
        }
        &last.1
    }
}

/// One line, and not more than the 1024 bytes that the API server takes.
fn shorten(mut note: String) -> String {
    const LONGEST: usize = 1000;
    note = one_line(&note, LONGEST);
    if note.len() > LONGEST {
        let end = (0..=LONGEST)
            .rev()
            .find(|end| note.is_char_boundary(*end))
            .unwrap_or(0);
        note.truncate(end);
        note.push('…');
    }
    note
}
