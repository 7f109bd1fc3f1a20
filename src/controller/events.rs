//! Events on workloads and semaphores, written one after another in the background.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher as _},
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
use serde_json::json;
use tokio::{sync::mpsc, time::sleep};

use super::LOW_PRIORITY;
use crate::{
    call::{CallError, call, patch_params},
    crash::{self, Point},
    telemetry::Metrics,
    workload::{KnownKinds, Owners, Subject, reference},
};
use consul_client::{Backoff, clock, text::one_line};
use consul_semaphore::CronJob;

/// How many events may be pending; more are dropped, and counted.
const QUEUE: usize = 4096;

/// How many events are taken from the queue at once.
const BATCH: usize = 256;

/// Between tries to write an event.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));

/// How often a failed event is retried. All others wait behind it.
const RETRIES: u32 = 3;

/// How many events are remembered, so that repetitions can be counted.
const COUNTED: usize = 1024;

/// The types of events, as Kubernetes names them.
const NORMAL: &str = "Normal";
const WARNING: &str = "Warning";

/// The reason of an event, as `kubectl describe` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The Job waits for a slot. The message says why it has none yet. It is a Warning if nothing is granted until
    /// somebody repairs what the message names.
    SlotWaiting,
    /// The annotation `hold` keeps the Job out of the queue. Remove it to queue the Job. It is a Warning if a workload of
    /// another kind was created on hold: the admission policy does that to one that is created held and without the
    /// label `consul-semaphore.io/waits: "true"`.
    OnHold,
    /// The Job got a slot and was started.
    SlotGranted,
    /// The Job is done. Its slot stays held until the time in the message, because of `spec.cooldown`.
    SlotCooling,
    /// The Job's slot is free again.
    SlotReleased,
    /// The running Job lost its slot, or nothing showed for too long that it held one. The message says what
    /// happens to it. Find out why: was Consul unreachable, did somebody destroy the session, is `spec.session.ttl`
    /// too short?
    SlotLost,
    /// The Job was deleted because `on-contention` is `Skip`. The message names the holders, or says how late
    /// the Job was. If Jobs are often late, compare the clocks of the clusters or raise `spec.cooldown`.
    Skipped,
    /// The Job failed because `on-contention` is `Fail`. The message names the holders, or says how late the Job was.
    Contended,
    /// The Job failed because it had waited for as long as `wait-timeout` or `spec.waitTimeout` allows. The message
    /// says what it waited for and who held it.
    WaitTimedOut,
    /// The Job failed because a newer one, which the message names, waits for the same slots: `on-contention` is
    /// `ReplaceWaiting` or `ReplaceRunning` in both.
    Superseded,
    /// The running Job was ended because a newer one, which the message names, replaces it: `on-contention` is
    /// `ReplaceRunning` in that one.
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
    /// node is lost, delete its Node object or force-delete the pod. If it says that the kind is off, the workload keeps
    /// its slot until it has ended.
    PodsRemain,
    /// The Job keeps its slot because the operator could not find out for 90 seconds whether its pods are gone. The message
    /// says why. If you have removed its row or switched Kueue off, switch it on again until its slots are released.
    PodsUnknown,
    /// No `ConsulSemaphore` of that name exists in the Job's namespace, or it is being deleted. The Job stays
    /// suspended. Create it, or correct the annotation.
    NoSemaphore,
    /// An annotation is invalid; the message says what is allowed. The Job stays suspended until you correct it.
    Malformed,
    /// The Job asks for more slots than a semaphore has, or for slots of semaphores that can't be granted in one
    /// transaction; the message says which. The Job stays suspended until the Job or the semaphores change.
    Unsatisfiable,
    /// An annotation has no effect: it is misspelt, in the wrong place, or lacks another one that it needs.
    AnnotationIgnored,
    /// To Argo, a Workflow that waits for its slot is running: it holds its locks, or its deadline runs. The message says
    /// which, and what to change.
    CountsAsRunning,
    /// Another controller, such as Kueue, manages the Job, so the operator leaves it alone. Remove its label or
    /// field, or the annotation.
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
    /// The `ConsulSemaphore` was deleted, but its keys or sessions are left in Consul: Consul was unreachable,
    /// or others use the lock key. Delete the key in the message when nobody holds a slot there.
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
    /// Its type, unless the event is emitted as a warning.
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
    /// What the operator did, or wanted to do, as a verb.
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
            Self::Contended | Self::WaitTimedOut | Self::Superseded => "Fail",
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

/// Where events are submitted; clones share one queue.
#[derive(Clone)]
pub(super) struct Events {
    queue: mpsc::Sender<Due>,
    metrics: Metrics,
    kinds: KnownKinds,
    owners: Owners,
}

/// An event to be written.
struct Due {
    about: ObjectReference,
    type_: &'static str,
    reason: String,
    action: &'static str,
    note: String,
    /// Whether it is written only once, and repetitions are not counted.
    once: bool,
}

impl Due {
    /// A hash of what it says.
    fn says(&self) -> u64 {
        hash((&self.about.uid, &self.reason, &self.note))
    }

    /// The events of the namespace that it belongs to: that of its object, if that is in one.
    fn api(&self, client: &Client) -> Api<Event> {
        let namespace = self.about.namespace.as_deref().unwrap_or("default");
        Api::namespaced(client.clone(), namespace)
    }

    /// The event under this name, as this instance reports it.
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
    /// The queue, and the task that writes its events until every handle to the queue is dropped.
    pub(super) fn new(
        client: Client,
        metrics: Metrics,
        kinds: KnownKinds,
        owners: Owners,
    ) -> (Self, impl Future<Output = ()>) {
        let (queue, mut due) = mpsc::channel::<Due>(QUEUE);
        let pod = std::env::var("HOSTNAME").ok();
        let mut writer = Writer {
            client,
            instance: pod.unwrap_or_else(|| consul_semaphore_api::GROUP.into()),
            written: HashMap::new(),
        };
        let write = async move {
            let mut batch = Vec::new();
            while due.recv_many(&mut batch, BATCH).await > 0 {
                sleep(LOW_PRIORITY).await;
                for due in batch.drain(..) {
                    writer.write_or_log(&due).await;
                }
            }
        };
        let events = Self {
            queue,
            metrics,
            kinds,
            owners,
        };
        (events, write)
    }

    /// A workload as events refer to it: a Workload of Kueue by its owner, which its user has made.
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

    /// Emits an event on a workload, unless that event exists already, also from another replica or from before a
    /// restart.
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

    /// Emits an event on a `CronJob`, or on another kind's like it.
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

    /// Emits an event as a Warning, whatever the reason is mostly.
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
        let due = Due {
            about,
            type_,
            reason: format!("{reason:?}"),
            action: reason.action(),
            note: shorten(note),
            once,
        };
        if self.queue.try_send(due).is_err() {
            self.metrics.events_dropped();
        }
    }

    /// A queue whose events are not written, and what is put into it.
    #[cfg(test)]
    pub(super) fn captured() -> (Self, Captured) {
        let (queue, due) = mpsc::channel(QUEUE);
        let events = Self {
            queue,
            metrics: Metrics::default(),
            kinds: KnownKinds::new(),
            owners: Owners::default(),
        };
        (events, Captured(due))
    }
}

/// What is put into a queue, for tests.
#[cfg(test)]
pub(super) struct Captured(mpsc::Receiver<Due>);

#[cfg(test)]
impl Captured {
    /// The note of the next event, if there is one.
    pub(super) fn next(&mut self) -> Option<String> {
        Some(self.0.try_recv().ok()?.note)
    }
}

/// Writes events, and remembers them, so that one that says the same again is counted in its series. Only as much of
/// them is kept as that takes: there may be one for each of many workloads.
struct Writer {
    client: Client,
    /// Who reports: the pod, if it is known.
    instance: String,
    /// By their types, and hashes of what they say.
    written: HashMap<(&'static str, u64), Written>,
}

/// An event in the API server.
struct Written {
    name: String,
    /// How often it was seen.
    count: i32,
}

impl Writer {
    /// Writes an event, or logs why it can't be written.
    async fn write_or_log(&mut self, due: &Due) {
        match self.write(due).await {
            Ok(()) => {
                let namespace = due.about.namespace.as_deref().unwrap_or_default();
                crash::reach(Point::EventWritten, namespace).await;
            }
            Err(error) => tracing::debug!(%error, "can't write an event"),
        }
    }

    /// Writes an event, and tries again while the API server is overloaded: under the same name, because it may have
    /// been written although nothing was answered.
    async fn write(&mut self, due: &Due) -> Result<(), CallError> {
        let event = due.event(name(due), &self.instance);
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

    async fn try_write(&mut self, due: &Due, event: &Event) -> Result<(), CallError> {
        let events = due.api(&self.client);
        let what = (due.type_, due.says());
        if !due.once && self.count(what, &events).await? {
            return Ok(());
        }
        match call(events.create(&PostParams::default(), event)).await {
            // It exists.
            Err(error) if error.refusal().is_some_and(|(code, _)| code == 409) => {}
            created => drop(created?),
        }
        if !due.once {
            if self.written.len() >= COUNTED {
                self.written.clear();
            }
            let name = event.metadata.name.clone().unwrap_or_default();
            self.written.insert(what, Written { name, count: 1 });
        }
        Ok(())
    }

    /// Counts an event in the series of the one that says the same; `false` if there is none that can be changed.
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

/// The name of an event. By its end, the events of an object are in the order of time, as Kubernetes' own are; of one
/// that is written only once it is made from what that says.
fn name(due: &Due) -> String {
    let end = if due.once {
        due.says()
    } else {
        u64::try_from(clock::time().as_nanosecond()).unwrap_or_default()
    };
    named(&due.about, end)
}

/// The name of an event about an object, whose own name may be as long as any.
fn named(about: &ObjectReference, end: u64) -> String {
    let name = about.name.iter().flat_map(|name| name.chars());
    let name: String = name.take(200).collect();
    let name = name.trim_end_matches(['.', '-']);
    format!("{name}.{end:016x}")
}

fn hash(content: impl Hash) -> u64 {
    let mut of = DefaultHasher::new();
    content.hash(&mut of);
    of.finish()
}

/// Shortens a note to one line of at most the 1024 bytes that the API server accepts.
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

#[cfg(test)]
mod tests {
    use super::*;

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
