//! Writes events on workloads and semaphores in the background: the events of one namespace one after another, and
//! those of several namespaces at once. A flood of events in a namespace delays and drops only events of that
//! namespace.

mod fair_queue;

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher as _},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client,
    api::{Patch, PostParams},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet, time::sleep};

use self::fair_queue::{Enqueued, FairQueue};
use super::LOW_PRIORITY;
use crate::{
    call::{CallError, call, patch_params},
    crash::{self, Point},
    telemetry::Metrics,
    workload::{KnownKinds, Owners, Subject, reference},
};
use consul_client::{Backoff, clock, text::one_line, turns::FairTurns};
use consul_semaphore::CronJob;

/// Maximum number of pending events, of which each namespace has a share. Further events are dropped, and counted.
const MOST_PENDING: usize = 4096;

/// Number of namespaces in which events are written at once.
const NAMESPACES_AT_ONCE: usize = 8;

/// Number of events that are written in a namespace before it is the turn of another namespace.
const EVENTS_PER_TURN: usize = 16;

/// Wait between tries to write an event.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));

/// Number of retries of a failed event. All other events of its namespace wait behind it.
const RETRIES: u32 = 3;

/// Number of events that are remembered, so that repetitions can be counted.
const MOST_REMEMBERED: usize = 1024;

/// The types of events, as Kubernetes names them.
const NORMAL: &str = "Normal";
const WARNING: &str = "Warning";

/// The reason of an event, as `kubectl describe` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The Job waits for a slot. The message says why it has none yet. It is a Warning if nothing is granted until
    /// somebody repairs what the message names.
    SlotWaiting,
    /// The annotation `hold` keeps the Job out of the queue. Remove it to queue the Job. It is a Warning if a
    /// workload of another kind was created on hold: the admission policy does that if the workload is created held and
    /// without the label `consul-semaphore.io/waits: "true"`.
    OnHold,
    /// The Job got a slot and was started.
    SlotGranted,
    /// The Job is done. Its slot stays held until the time in the message, because of `spec.cooldown`.
    SlotCooling,
    /// The Job's slot is free again.
    SlotReleased,
    /// The running Job lost its slot, or the operator could not confirm for too long that the Job held its slot. The
    /// message says what happens to the Job. Find out why: was Consul unreachable, did somebody destroy the session, is
    /// `spec.session.ttl` too short?
    SlotLost,
    /// The Job was deleted because `on-contention` is `Skip`. The message names the holders, or says how late
    /// the Job was. If Jobs are often late, compare the clocks of the clusters or raise `spec.cooldown`.
    Skipped,
    /// The Job failed because `on-contention` is `Fail`. The message names the holders, or says how late the Job was.
    Contended,
    /// The Job failed because it had waited for as long as `wait-timeout` or `spec.waitTimeout` allows. The message
    /// says which slots the Job waited for, and who held them.
    WaitTimedOut,
    /// The Job failed because it came while as many Jobs waited as `spec.maxWaiting` allows. The message says how many
    /// waited, and for which semaphore. Create the Job again when fewer wait, or raise `spec.maxWaiting`.
    QueueFull,
    /// The Job failed because a newer Job, which the message names, waits for the same slots: `on-contention` is
    /// `ReplaceWaiting` or `ReplaceRunning` in both.
    Superseded,
    /// The running Job was ended because a newer Job, which the message names, replaces it: `on-contention` is
    /// `ReplaceRunning` in the newer Job.
    Replaced,
    /// A user shut the Workflow down while it waited for a slot, so it ends without one.
    ShutDown,
    /// A user suspended the Job while it held a slot. The slot is released and the Job is on hold. To queue it
    /// again, remove the annotation `hold`.
    PutOnHold,
    /// The Job ran without a slot, so it was suspended and queued. Create Jobs with `suspend: true`, or install
    /// the admission policies. A workload of a kind that can't be suspended any more continues.
    RanWithoutSlot,
    /// The API server refuses to change the Job; the message says why, such as a quota, a policy, a webhook or
    /// the operator's RBAC. Its slot goes to the next Job, and the operator tries again later.
    StartRefused,
    /// The Job keeps its slot because its pods have not ended for 90 seconds. The message names pods and nodes. If a
    /// node is lost, switch it off, because the pod may still run there, and then delete its Node object or force-delete
    /// the pod. If the message says that the kind is switched off, the workload keeps its slot until it has ended.
    PodsRemain,
    /// The Job keeps its slot because the operator could not find out for 90 seconds whether its pods are gone. The
    /// message says why. If you have removed the row of its kind or switched Kueue off, undo this until the slots are
    /// released.
    PodsUnknown,
    /// No `ConsulSemaphore` of that name exists in the Job's namespace, or it is being deleted. The Job stays
    /// suspended. Create the `ConsulSemaphore`, or correct the annotation.
    NoSemaphore,
    /// An annotation is invalid; the message says what is allowed. The Job stays suspended until you correct it.
    Malformed,
    /// The Job asks for more slots than a semaphore has, or for slots of semaphores that can't be granted in one
    /// transaction; the message says which. The Job stays suspended until the Job or the semaphores change.
    Unsatisfiable,
    /// An annotation has no effect: it is misspelt, in the wrong place, or needs another annotation that is missing.
    AnnotationIgnored,
    /// To Argo, a Workflow that waits for its slot is running: it holds its locks, or its deadline runs. The message
    /// says which, and what to change.
    CountsAsRunning,
    /// Another controller, such as Kueue, manages the Job, so the operator leaves it alone. Remove the label or field
    /// of that controller, or the annotation `semaphore`.
    ManagedElsewhere,
    /// A row in the `ConfigMap` of `--kinds` is wrong; the message names it, and says what is allowed. Correct it.
    InvalidKind,
    /// The `ConsulSemaphore` was stored before its schema existed and can't be read. Correct it.
    InvalidSemaphore,
    /// Slots of the `ConsulSemaphore` can't be granted or released. The message has the reason of the condition Ready
    /// and says what to do. Each reason has one event until it is ready again.
    NotReady,
    /// Slots of the `ConsulSemaphore` are granted and released again.
    ReadyAgain,
    /// The `ConsulSemaphore` was deleted, but its keys or sessions are left in Consul: Consul was unreachable, or other
    /// clients use the lock key. Delete the key in the message when nobody holds a slot there.
    LeftBehind,
    /// `spec.session.ttl` is less than twice the `--lease-duration`: if the leader dies, running Jobs may lose
    /// their slots before another replica leads. Raise the TTL or lower the lease duration.
    ShortTtl,
    /// The limit in Consul was changed while other programs or clusters, which may use the former limit, had
    /// contenders. Give them the new limit.
    OthersRefused,
    /// Another API server uses this cluster's identity in Consul, so the operator grants, releases, suspends and ends
    /// nothing. One of the two clusters is a copy: give its operator an identity of its own with `--cluster-id`.
    IdentityConflict,
    /// More than one operator manages the `ConsulSemaphore`; the message names their replicas. They keep the limit
    /// and start no Job twice, but each emits all events and writes the status. Stop all but one, or give each a
    /// part of the cluster with `--semaphore-selector` or `--namespaces`.
    AnotherOperator,
}

impl Reason {
    /// Returns the type of the event, unless the event is emitted as a warning.
    fn kind(self) -> &'static str {
        if self.is_warning() { WARNING } else { NORMAL }
    }

    fn is_warning(self) -> bool {
        match self {
            Self::SlotWaiting
            | Self::OnHold
            | Self::SlotGranted
            | Self::SlotCooling
            | Self::SlotReleased
            | Self::Skipped
            | Self::ShutDown
            | Self::PutOnHold
            | Self::ReadyAgain => false,
            Self::SlotLost
            | Self::Contended
            | Self::WaitTimedOut
            | Self::QueueFull
            | Self::Superseded
            | Self::Replaced
            | Self::RanWithoutSlot
            | Self::StartRefused
            | Self::PodsRemain
            | Self::PodsUnknown
            | Self::NoSemaphore
            | Self::Malformed
            | Self::Unsatisfiable
            | Self::AnnotationIgnored
            | Self::CountsAsRunning
            | Self::ManagedElsewhere
            | Self::InvalidKind
            | Self::InvalidSemaphore
            | Self::NotReady
            | Self::LeftBehind
            | Self::ShortTtl
            | Self::OthersRefused
            | Self::IdentityConflict
            | Self::AnotherOperator => true,
        }
    }
}

impl Reason {
    /// Returns what the operator did, or wanted to do, as a verb.
    fn action(self) -> &'static str {
        match self {
            Self::SlotWaiting | Self::CountsAsRunning => "Queue",
            Self::SlotGranted => "Grant",
            Self::StartRefused => "Start",
            Self::SlotCooling
            | Self::SlotReleased
            | Self::PodsRemain
            | Self::PodsUnknown
            | Self::LeftBehind => "Release",
            Self::SlotLost => "Renew",
            Self::RanWithoutSlot => "Suspend",
            Self::OnHold | Self::PutOnHold => "Hold",
            Self::Skipped => "Delete",
            Self::Contended | Self::WaitTimedOut | Self::QueueFull | Self::Superseded => "Fail",
            Self::Replaced | Self::ShutDown => "End",
            Self::NoSemaphore
            | Self::Malformed
            | Self::Unsatisfiable
            | Self::AnnotationIgnored
            | Self::ManagedElsewhere
            | Self::InvalidKind
            | Self::InvalidSemaphore => "Read",
            Self::NotReady
            | Self::ReadyAgain
            | Self::ShortTtl
            | Self::OthersRefused
            | Self::IdentityConflict
            | Self::AnotherOperator => "Reconcile",
        }
    }
}

/// Handle for submitting events. Clones share the pending events.
#[derive(Clone)]
pub(super) struct Events {
    pending: Arc<FairQueue<PendingEvent>>,
    /// Sender of the namespaces for which nobody writes yet. There are never more of them than pending events.
    begun: mpsc::Sender<Arc<str>>,
    metrics: Metrics,
    kinds: KnownKinds,
    owners: Owners,
}

/// An event to be written.
struct PendingEvent {
    about: ObjectReference,
    type_: &'static str,
    reason: String,
    action: &'static str,
    note: String,
    /// Whether the event is written only once, and its repetitions are not counted.
    once: bool,
}

impl PendingEvent {
    /// Returns a hash of what the event says.
    fn says(&self) -> u64 {
        hash((&self.about.uid, &self.reason, &self.note))
    }

    /// Returns the namespace that the event belongs to: the namespace of its object, or `default` if the object has
    /// none.
    fn namespace(&self) -> &str {
        self.about.namespace.as_deref().unwrap_or("default")
    }

    /// Returns the API for events in the namespace that the event belongs to.
    fn api(&self, client: &Client) -> Api<Event> {
        Api::namespaced(client.clone(), self.namespace())
    }

    /// Returns the event under this name, as this instance reports it.
    fn event(&self, name: String, instance: &str) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                ..ObjectMeta::default()
            },
            action: Some(self.action.into()),
            reason: Some(self.reason.clone()),
            note: Some(self.note.clone()),
            type_: Some(self.type_.into()),
            event_time: Some(MicroTime(clock::time())),
            regarding: Some(self.about.clone()),
            reporting_controller: Some(consul_semaphore_api::GROUP.into()),
            reporting_instance: Some(instance.into()),
            ..Event::default()
        }
    }
}

impl Events {
    /// Returns a handle for submitting events, and the task that writes them. The task ends when every handle is
    /// dropped and no event is pending.
    pub(super) fn new(
        client: Client,
        metrics: Metrics,
        kinds: KnownKinds,
        owners: Owners,
    ) -> (Self, impl Future<Output = ()>) {
        let pending = Arc::new(FairQueue::new(MOST_PENDING));
        let (begun, to_begin) = mpsc::channel(MOST_PENDING);
        let pod = std::env::var("HOSTNAME").ok();
        let writers = Writers {
            client,
            instance: pod.unwrap_or_else(|| consul_semaphore_api::GROUP.into()),
            pending: pending.clone(),
            turns: FairTurns::new(NAMESPACES_AT_ONCE),
            written: Mutex::default(),
        };
        let events = Self {
            pending,
            begun,
            metrics,
            kinds,
            owners,
        };
        (events, Arc::new(writers).run(to_begin))
    }

    /// Returns the reference to a workload for its events. Events about a Workload of Kueue refer to its owner, which
    /// its user has made.
    pub(super) fn about<'a>(
        &self,
        namespace: &str,
        workload: impl Into<Subject<'a>>,
    ) -> ObjectReference {
        let subject = workload.into();
        let owner = self.owners.reference(namespace, subject.uid);
        owner.unwrap_or_else(|| reference(&self.kinds, namespace, subject))
    }

    /// Emits an event on a workload, which may have been deleted by now.
    pub(super) fn workload<'a>(
        &self,
        namespace: &str,
        workload: impl Into<Subject<'a>>,
        reason: Reason,
        note: String,
    ) {
        self.emit(self.about(namespace, workload), reason, note);
    }

    /// Emits an event on a workload, unless that event exists already: another replica may have written it, or this
    /// one before a restart.
    pub(super) fn workload_once<'a>(
        &self,
        namespace: &str,
        workload: impl Into<Subject<'a>>,
        reason: Reason,
        note: String,
    ) {
        let kind = reason.kind();
        let about = self.about(namespace, workload);
        self.put(about, (kind, reason), note, true);
    }

    /// Emits an event on a `CronJob`, or on an object of another kind that creates workloads like a `CronJob`.
    pub(super) fn cron_job(
        &self,
        namespace: &str,
        cron_job: &CronJob,
        reason: Reason,
        note: String,
    ) {
        let about = ObjectReference {
            api_version: Some(cron_job.api_version.clone()),
            kind: Some(cron_job.kind.clone()),
            namespace: Some(namespace.into()),
            name: Some(cron_job.name.clone()),
            uid: Some(cron_job.uid.clone()),
            ..ObjectReference::default()
        };
        self.emit(about, reason, note);
    }

    /// Emits an event on an object.
    pub(super) fn emit(&self, about: ObjectReference, reason: Reason, note: String) {
        self.put(about, (reason.kind(), reason), note, false);
    }

    /// Emits an event as a Warning, even if its reason is usually Normal.
    pub(super) fn warn(&self, about: ObjectReference, reason: Reason, note: String) {
        self.put(about, (WARNING, reason), note, false);
    }

    /// Emits an event on an object, unless that event exists already.
    pub(super) fn emit_once(&self, about: ObjectReference, reason: Reason, note: String) {
        self.put(about, (reason.kind(), reason), note, true);
    }

    fn put(
        &self,
        about: ObjectReference,
        (type_, reason): (&'static str, Reason),
        note: String,
        once: bool,
    ) {
        let due = PendingEvent {
            about,
            type_,
            reason: format!("{reason:?}"),
            action: reason.action(),
            note: shorten(note),
            once,
        };
        let namespace = due.namespace().into();
        match self.pending.put(&namespace, due) {
            // The channel can't be full, so this fails only if the task that writes events has ended.
            Enqueued::First => drop(self.begun.try_send(namespace)),
            Enqueued::Behind => {}
            Enqueued::Dropped => self.metrics.events_dropped(),
        }
    }

    /// Returns a handle whose events are not written, and the events that are submitted with it.
    #[cfg(test)]
    pub(super) fn captured() -> (Self, Captured) {
        let pending = Arc::new(FairQueue::new(MOST_PENDING));
        let events = Self {
            pending: pending.clone(),
            begun: mpsc::channel(1).0,
            metrics: Metrics::default(),
            kinds: KnownKinds::new(),
            owners: Owners::default(),
        };
        (events, Captured(pending))
    }
}

/// Submitted events, for tests.
#[cfg(test)]
pub(super) struct Captured(Arc<FairQueue<PendingEvent>>);

#[cfg(test)]
impl Captured {
    /// Returns the note of the next event, if there is one.
    pub(super) fn next(&mut self) -> Option<String> {
        Some(self.0.take_any()?.note)
    }
}

/// Writes the events of all namespaces.
struct Writers {
    client: Client,
    /// Name of the pod that reports the events, or of this API group if the pod is unknown.
    instance: String,
    pending: Arc<FairQueue<PendingEvent>>,
    turns: FairTurns,
    written: Mutex<WrittenEvents>,
}

impl Writers {
    /// Starts a writer for each namespace that has events to write, until every handle is dropped.
    async fn run(self: Arc<Self>, mut to_begin: mpsc::Receiver<Arc<str>>) {
        let mut writing = JoinSet::new();
        loop {
            let ended = tokio::select! {
                namespace = to_begin.recv() => match namespace {
                    Some(namespace) => {
                        writing.spawn(self.clone().write_all(namespace));
                        continue;
                    }
                    None => break,
                },
                Some(ended) = writing.join_next() => ended,
            };
            // A task that panics is a bug, and ends the operator. No task is aborted.
            ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        }
        writing.join_all().await;
    }

    /// Writes the events of a namespace until none is pending, in turns with other namespaces.
    async fn write_all(self: Arc<Self>, namespace: Arc<str>) {
        loop {
            sleep(LOW_PRIORITY).await;
            let _turn = self.turns.take(&namespace).await;
            let batch = self.pending.take(&namespace, EVENTS_PER_TURN);
            if batch.is_empty() {
                return;
            }
            let written = self.written.lock().take(&namespace);
            let mut writer = EventWriter {
                client: &self.client,
                instance: &self.instance,
                written,
            };
            for due in batch {
                writer.write_or_log(&due).await;
            }
            let written = writer.written;
            self.written.lock().put_back(&namespace, written);
        }
    }
}

/// Events of a namespace that were written last, by their types and hashes of what they say.
type WrittenNotes = HashMap<(&'static str, u64), WrittenEvent>;

/// Events that were written last in each namespace.
#[derive(Default)]
struct WrittenEvents(HashMap<Arc<str>, WrittenNotes>);

impl WrittenEvents {
    /// Takes the events that were written last in a namespace, for the task that writes there.
    fn take(&mut self, namespace: &Arc<str>) -> WrittenNotes {
        self.0.remove(namespace).unwrap_or_default()
    }

    /// Stores the events that were written last in a namespace. If too many are stored, the namespace with the most
    /// of them is forgotten.
    fn put_back(&mut self, namespace: &Arc<str>, written: WrittenNotes) {
        if !written.is_empty() {
            self.0.insert(namespace.clone(), written);
        }
        while self.0.values().map(HashMap::len).sum::<usize>() > MOST_REMEMBERED {
            let most = self.0.iter().max_by_key(|(_, written)| written.len());
            let with_most = most.map(|(namespace, _)| namespace.clone());
            with_most.and_then(|namespace| self.0.remove(&namespace));
        }
    }
}

/// Writes events of one namespace and remembers them, so that an event that says the same again is counted in the
/// series of the first. For each event only its name and its count are kept, because there may be one event for each
/// of many workloads.
struct EventWriter<'a> {
    client: &'a Client,
    instance: &'a str,
    written: WrittenNotes,
}

/// Event that is in the API server.
struct WrittenEvent {
    name: String,
    /// Number of times that the event was emitted.
    count: i32,
}

impl EventWriter<'_> {
    /// Writes an event, or logs why it can't be written.
    async fn write_or_log(&mut self, due: &PendingEvent) {
        match self.write(due).await {
            Ok(()) => {
                let namespace = due.about.namespace.as_deref().unwrap_or_default();
                crash::reach(Point::EventWritten, namespace).await;
            }
            Err(error) => tracing::debug!(%error, "can't write an event"),
        }
    }

    /// Writes an event, and tries again while the API server is overloaded. All tries use the same name, because the
    /// API server may have written the event without answering.
    async fn write(&mut self, due: &PendingEvent) -> Result<(), CallError> {
        let event = due.event(name(due), self.instance);
        let mut backoff = BACKOFF;
        loop {
            let written = self.try_write(due, &event).await;
            match &written {
                Err(error) if !error.is_refused_for_good() && backoff.tries() < RETRIES => {
                    backoff.wait().await;
                }
                _ => return written,
            }
        }
    }

    async fn try_write(&mut self, due: &PendingEvent, event: &Event) -> Result<(), CallError> {
        let events = due.api(self.client);
        let what = (due.type_, due.says());
        if !due.once && self.count(what, &events).await? {
            return Ok(());
        }
        match call(events.create(&PostParams::default(), event)).await {
            // The event exists already.
            Err(error) if error.refusal().is_some_and(|(code, _)| code == 409) => {}
            created => drop(created?),
        }
        if !due.once {
            let name = event.metadata.name.clone().unwrap_or_default();
            self.written.insert(what, WrittenEvent { name, count: 1 });
        }
        Ok(())
    }

    /// Counts an event in the series of the earlier event that says the same; returns `false` if there is no such
    /// event that can be changed.
    async fn count(
        &mut self,
        what: (&'static str, u64),
        events: &Api<Event>,
    ) -> Result<bool, CallError> {
        let Some(written) = self.written.get_mut(&what) else {
            return Ok(false);
        };
        let count = written.count.saturating_add(1);
        let series = EventSeries {
            count,
            last_observed_time: MicroTime(clock::time()),
        };
        let patch = Patch::Merge(json!({ "series": series }));
        match call(events.patch(&written.name, &patch_params(), &patch)).await {
            Err(error) if error.is_refused_for_good() => {
                self.written.remove(&what);
                Ok(false)
            }
            counted => {
                counted?;
                written.count = count;
                Ok(true)
            }
        }
    }
}

/// Returns the name of an event. Names of events of one object sort by time, as those of Kubernetes' own events do,
/// because they end with the time. The name of an event that is written only once ends with a hash of what the event
/// says.
fn name(due: &PendingEvent) -> String {
    let end = if due.once {
        due.says()
    } else {
        u64::try_from(clock::time().as_nanosecond()).unwrap_or_default()
    };
    named(&due.about, end)
}

/// Returns the name of an event about an object. The object's own name may have any length.
fn named(about: &ObjectReference, end: u64) -> String {
    let characters = about.name.iter().flat_map(|name| name.chars());
    let start: String = characters.take(200).collect();
    let name = start.trim_end_matches(['.', '-']);
    format!("{name}.{end:016x}")
}

fn hash(content: impl Hash) -> u64 {
    let mut of = DefaultHasher::new();
    content.hash(&mut of);
    of.finish()
}

/// Shortens a note to one line of at most the 1024 bytes that the API server accepts.
fn shorten(mut note: String) -> String {
    const LONGEST_NOTE: usize = 1000;
    note = one_line(&note, LONGEST_NOTE);
    if note.len() > LONGEST_NOTE {
        let end = (0..=LONGEST_NOTE)
            .rev()
            .find(|end| note.is_char_boundary(*end))
            .unwrap_or(0);
        note.truncate(end);
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    use std::future;

    use http::{Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use tower::{BoxError, service_fn};

    use super::*;

    /// Returns an API server that never answers in the namespace `flood`, and the notes of events that are written in
    /// other namespaces.
    fn api_server() -> (Client, mpsc::UnboundedReceiver<String>) {
        let (sender, written) = mpsc::unbounded_channel();
        let service = service_fn(move |request: Request<Body>| {
            let sender = sender.clone();
            async move {
                if request.uri().path().contains("/namespaces/flood/") {
                    return future::pending().await;
                }
                let body = request.into_body().collect().await?.to_bytes();
                let event: Event = serde_json::from_slice(&body)?;
                sender.send(event.note.unwrap_or_default())?;
                Ok::<_, BoxError>(Response::new(Body::from(body.to_vec())))
            }
        });
        (Client::new(service, "default"), written)
    }

    #[tokio::test]
    async fn a_namespace_that_floods_delays_and_drops_no_event_of_another() {
        let (client, mut written) = api_server();
        let metrics = Metrics::new();
        let (kinds, owners) = (KnownKinds::new(), Owners::default());
        let (events, write) = Events::new(client, metrics.clone(), kinds, owners);
        let emit = |namespace: &str, note: usize| {
            let about = ObjectReference {
                namespace: Some(namespace.to_owned()),
                name: Some("a".to_owned()),
                ..ObjectReference::default()
            };
            events.emit(about, Reason::SlotLost, note.to_string());
        };
        (0..2 * MOST_PENDING).for_each(|note| emit("flood", note));
        let notes = 0..3 * EVENTS_PER_TURN;
        notes.clone().for_each(|note| emit("other", note));
        let mut writing = JoinSet::new();
        writing.spawn(write);
        for note in notes {
            let next = tokio::time::timeout(Duration::from_mins(2), written.recv()).await;
            assert_eq!(next, Ok(Some(note.to_string())), "in order");
        }
        let dropped = format!(
            "events_dropped_total {}\n",
            2 * MOST_PENDING - MOST_PENDING / 2
        );
        assert!(metrics.encode().contains(&dropped));
    }

    #[test]
    fn the_namespace_of_which_most_is_remembered_is_forgotten_first() {
        let mut all = WrittenEvents::default();
        let events = |count: usize| -> WrittenNotes {
            let events = (0..count).map(|number| {
                let name = String::new();
                ((NORMAL, number as u64), WrittenEvent { name, count: 1 })
            });
            events.collect()
        };
        all.put_back(&"other".into(), events(3));
        all.put_back(&"flood".into(), events(MOST_REMEMBERED - 3));
        assert_eq!(all.0.len(), 2);
        let mut flood = all.take(&"flood".into());
        flood.extend(events(MOST_REMEMBERED - 2));
        all.put_back(&"flood".into(), flood);
        assert_eq!(all.take(&"flood".into()).len(), 0);
        assert_eq!(all.take(&"other".into()).len(), 3);
    }

    #[test]
    fn the_names_of_events_are_valid_and_in_order() {
        let name = |name: &str, end| {
            let about = ObjectReference {
                name: Some(name.into()),
                ..ObjectReference::default()
            };
            named(&about, end)
        };
        assert!(name("a", 0x9_ffff) < name("a", 0x10_0000));
        assert!(name(&"a".repeat(253), 1).len() < 253);
        let cut = format!("{}.-a", "a".repeat(198));
        let expected = format!("{}.{:016x}", "a".repeat(198), 1);
        assert_eq!(name(&cut, 1), expected);
    }
}
