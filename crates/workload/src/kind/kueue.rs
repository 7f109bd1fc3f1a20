//! `Workload` of `kueue.x-k8s.io/v1beta2`, as of Kueue v0.19. Kueue makes a Workload for a Job or a `JobSet` in one of
//! its queues, and that object owns the Workload. The operator takes the uid of the owner for the workload's uid,
//! because Kueue may make another Workload for the same owner. The owner also says which slots it waits for.
//!
//! | question | answer |
//! |---|---|
//! | hold | our entries in `status.admissionChecks` are Pending |
//! | finished | condition `Finished`; or it has no quota, or is evicted; pods may be left, and it may have its quota again |
//! | metadata that reaches pods | `podSetUpdates` of our entry |
//! | pods | the holder label, and those of its owner's kind |
//! | stopped while it runs | our entry is Retry: Kueue evicts it, and resets the entry to Pending |
//! | failed | our entry is Rejected: Kueue makes it inactive |
//!
//! Kueue resets our entries when it evicts a Workload, while pods still terminate. An entry that was reset no longer
//! says which slots the Workload had, so the caller remembers them or finds them on the pods ([`Beside`]). The Workload
//! counts as stopping until no pod is left and the operator has written that.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use consul_client::SessionId;
use consul_semaphore::{
    Granted, Phase, Traits, Uid,
    engine::Write,
    plan::{Start, Target},
};
use consul_semaphore_api::annotations as a;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube_core::ApiResource;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Kind;
use crate::{
    Object,
    object::{Conditions, Fields, PodSpec},
    pods::{self, OwnQuery},
    read::{self, Read},
    request::{JsonPatch, Request, holder_label, listed, sequencers},
    shape::Shape,
};

/// The operator's name as a controller of admission checks: `spec.controllerName` of an `AdmissionCheck`.
pub const CONTROLLER: &str = "consul-semaphore.io/slots";

/// The label with the name of the Kueue queue that an object is in.
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// The label of a Workload with the uid of its owner.
pub const OWNER_UID: &str = "kueue.x-k8s.io/job-uid";

/// The time for which other Workloads may have the quota of one that has lost its slot, in seconds.
const RETRY_AFTER: i32 = 10;

/// The text before the sessions in the message of our entry.
const SESSIONS: &str = "sessions ";

/// The text for the sessions of slots that a Workload is known to have had, if the sessions themselves are not known.
const UNKNOWN: &str = "unknown";

/// The text that Kueue writes into an entry when it evicts a Workload, before the state that the entry had:
/// `resetChecksOnEviction` of Kueue's `pkg/workload/evict`. Kueue does not change an entry that is Pending.
const RESET: &str = "Reset to Pending after eviction. Previously: ";

/// The annotation of a Workload that is a slice of an elastic Job.
const ELASTIC: &str = "kueue.x-k8s.io/elastic-job";

/// Returns the API resource of Workloads.
pub(super) fn resource() -> ApiResource {
    super::resource("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
}

/// Returns the API resource of Kueue's admission checks.
pub fn admission_checks() -> ApiResource {
    super::resource(
        "kueue.x-k8s.io",
        "v1beta2",
        "AdmissionCheck",
        "admissionchecks",
    )
}

/// The kinds whose objects may own such a Workload.
pub const OWNERS: [Kind; 2] = [Kind::Job, Kind::JobSet];

/// Returns the queries for the pods of a Workload's owner, whatever its kind is.
pub(super) fn pods(uid: &Uid) -> Vec<OwnQuery> {
    vec![pods::of(uid).into(), super::job_set::selector(uid).into()]
}

/// Returns the queries for the workloads that the owner is made of, whatever its kind is.
pub(super) fn parts(uid: &Uid) -> Vec<(Kind, OwnQuery)> {
    vec![(Kind::Job, super::job_set::selector(uid).into())]
}

/// The owner of a Workload, which the user made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Kind of the owner.
    pub kind: Kind,
    /// Name of the owner.
    pub name: Arc<str>,
    /// Uid of the owner.
    pub uid: Uid,
}

/// The facts from outside a Workload that decide what the Workload means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The names of the `AdmissionChecks` that this operator answers.
    pub checks: Arc<BTreeSet<String>>,
    /// The annotations of the owner that users of this operator write.
    pub annotations: BTreeMap<String, String>,
    /// The slots of the Workload's last run.
    pub earlier: Earlier,
}

/// The slots of a Workload before Kueue evicted it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Earlier {
    /// Nobody has looked for the slots yet.
    #[default]
    Unknown,
    /// No pod of the Workload is left that could name slots.
    Nothing,
    /// The Workload had these slots.
    Slots {
        /// The slots as they were granted.
        granted: Granted,
        /// The sessions that held the slots last.
        sessions: Vec<SessionId>,
    },
}

impl Earlier {
    /// Returns the slots of a grant, with the sessions that are reported beside the grant, if any.
    pub fn of(granted: Granted, reported: &[SessionId]) -> Self {
        let sessions = granted.latest(reported);
        Self::Slots { granted, sessions }
    }

    /// Returns the sessions as an entry names them.
    fn sessions(&self) -> String {
        match self {
            Self::Slots { sessions, .. } => listed(sessions),
            Self::Unknown | Self::Nothing => UNKNOWN.to_owned(),
        }
    }
}

/// The greatest length that is kept of the annotation that names the semaphores, in bytes. No valid annotation is as
/// long.
const LONGEST_SEMAPHORES: usize = 4096;

/// The greatest length that is kept of any other annotation, in bytes. No valid annotation is as long.
const LONGEST_ANNOTATION: usize = 128;

/// Returns the annotations of an owner that users of this operator write, because they matter to its Workload.
pub fn annotations(owner: &ObjectMeta) -> BTreeMap<String, String> {
    let all = owner.annotations.iter().flatten();
    let ours = all.filter(|(name, _)| a::OF_USERS.contains(&name.as_str()));
    let bounded = |(name, value): (&String, &String)| {
        let most = if name == a::SEMAPHORE {
            LONGEST_SEMAPHORES
        } else {
            LONGEST_ANNOTATION
        };
        let value = &value[..value.floor_char_boundary(most)];
        (name.clone(), value.to_owned())
    };
    ours.map(bounded).collect()
}

/// Returns the owner of a Workload.
///
/// # Errors
/// The Workload has no owner that this operator can serve. The text says why, for people.
pub fn owner(object: &Object) -> Result<Owner, String> {
    let known = || {
        let kinds = OWNERS.map(|kind| kind.name().to_string());
        format!(
            "consul-semaphore.io/slots works for these owners: {}",
            kinds.join(", ")
        )
    };
    let Some(reference) = controller(&object.metadata) else {
        return Err(format!("no controller owns this Workload. {}", known()));
    };
    // The API server bounds neither the name nor the uid in an owner reference.
    if ![&reference.name, &reference.uid]
        .into_iter()
        .all(|name| read::may_be_a_name(name))
    {
        return Err("the name or uid of its owner is too long".to_owned());
    }
    let is_it = |kind: &Kind| {
        let resource = kind.resource();
        let (group, _) = resource.api_version.rsplit_once('/').unwrap_or_default();
        let (of, _) = reference.api_version.rsplit_once('/').unwrap_or_default();
        (group, resource.kind.as_str()) == (of, reference.kind.as_str())
    };
    let Some(kind) = OWNERS.into_iter().find(is_it) else {
        let kind = read::shown(&reference.kind);
        return Err(format!("a {kind} owns this Workload. {}", known()));
    };
    Ok(Owner {
        kind,
        name: reference.name.as_str().into(),
        uid: reference.uid.as_str().into(),
    })
}

fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

/// Whether an object with these labels is in one of Kueue's queues.
pub fn is_in_a_queue(metadata: &ObjectMeta) -> bool {
    let mut labels = metadata.labels.iter();
    labels.any(|labels| labels.contains_key(QUEUE))
}

/// Whether a Workload is done.
pub fn is_finished(object: &Object) -> bool {
    KueueWorkload::of(object).is_ok_and(|workload| workload.is_finished())
}

/// Returns what Kueue does with a Workload, for people. The reader need not know which admission checks are the
/// operator's.
///
/// # Errors
/// The object is not a Workload.
pub fn describe(object: &Object) -> serde_json::Result<String> {
    let workload = KueueWorkload::of(object)?;
    let conditions = &workload.fields.status.conditions;
    let entries = workload.fields.status.admission_checks.iter().flatten();
    let checks: Vec<String> = entries
        .map(|entry| {
            let [name, state, message] =
                [&entry.name, &entry.state, &entry.message].map(|text| read::shown(text));
            let because = if message.is_empty() {
                String::new()
            } else {
                format!(": {message}")
            };
            format!("{name} is {state}{because}")
        })
        .collect();
    let asks = match checks.as_slice() {
        [] => format!(
            "it asks for no slot, because its ClusterQueue names no AdmissionCheck of {CONTROLLER}"
        ),
        checks => format!("of its admission checks {}", checks.join(", ")),
    };
    let does = if conditions.is("Admitted") {
        "has admitted it"
    } else if workload.may_run() {
        "has reserved its quota"
    } else {
        "has not reserved its quota"
    };
    Ok(format!("Kueue {does}; {asks}"))
}

/// The part of a Workload that is needed.
pub(super) struct KueueWorkload<'a> {
    fields: Fields<'a, WorkloadSpec, WorkloadStatus>,
    /// The Workload's own metadata, but with the uid and the annotations of its owner.
    metadata: ObjectMeta,
    beside: Arc<Beside>,
    /// Whether Kueue has reset our entries since the Workload last ran, and the operator has not answered that yet.
    is_reset: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WorkloadSpec {
    active: Option<bool>,
    pod_sets: Option<Vec<PodSet>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodSet {
    name: String,
    template: PodSetTemplate,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodSetTemplate {
    spec: PodSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WorkloadStatus {
    conditions: Conditions,
    admission_checks: Option<Vec<AdmissionCheckState>>,
}

/// An entry in `status.admissionChecks`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AdmissionCheckState {
    name: String,
    state: String,
    message: String,
    pod_set_updates: Option<Vec<PodSetUpdate>>,
}

impl AdmissionCheckState {
    /// Returns the sessions in the message of the entry.
    fn sessions(&self) -> Option<String> {
        let (_, sessions) = self.message.rsplit_once(SESSIONS)?;
        Some(sessions.to_owned())
    }

    /// Returns the state that the entry had when Kueue reset it; `None` if the entry was written since.
    fn before_eviction(&self) -> Option<&str> {
        let before = self.message.strip_prefix(RESET);
        before.filter(|_| self.state == PENDING)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodSetUpdate {
    annotations: Option<BTreeMap<String, String>>,
}

impl<'a> KueueWorkload<'a> {
    pub(super) fn of(object: &'a Object) -> serde_json::Result<Self> {
        let beside = object.beside.clone().unwrap_or_default();
        let fields: Fields<'_, WorkloadSpec, WorkloadStatus> = Fields::of(object)?;
        let entries = fields.status.admission_checks.iter().flatten();
        let ours = entries.filter(|entry| beside.checks.contains(&entry.name));
        let before = ours.clone().find_map(AdmissionCheckState::before_eviction);
        // A Workload that was rejected may have waited without ever running.
        let has_run = match (&beside.earlier, before) {
            (_, None) => false,
            (Earlier::Slots { .. }, Some(_)) => true,
            (Earlier::Unknown | Earlier::Nothing, Some(state)) => state != REJECTED,
        };
        let kept_them = has_run && before != Some(RETRY);
        let is_rejected = ours.clone().any(|entry| entry.state == REJECTED);
        let said = ours.clone().find_map(AdmissionCheckState::sessions);
        let had = || (kept_them || is_rejected).then(|| beside.earlier.sessions());
        let own = fields.metadata;
        let mut annotations = beside.annotations.clone();
        if let Some(sessions) = said.or_else(had) {
            annotations.insert(a::SESSION.to_owned(), sessions);
        }
        let metadata = ObjectMeta {
            name: own.name.clone(),
            namespace: own.namespace.clone(),
            uid: controller(own).map(|owner| owner.uid.clone()),
            resource_version: own.resource_version.clone(),
            creation_timestamp: own.creation_timestamp.clone(),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        };
        // The slots of the last run may still be held in Consul. A Workload that asks for no slot is answered at once.
        let is_over =
            beside.earlier == Earlier::Nothing && !beside.annotations.contains_key(a::SEMAPHORE);
        Ok(Self {
            is_reset: has_run && !is_over,
            fields,
            metadata,
            beside,
        })
    }

    /// Returns our entries, each with its place in the list.
    fn entries(&self) -> impl Iterator<Item = (usize, &AdmissionCheckState)> {
        let entries = self.fields.status.admission_checks.iter().flatten();
        entries
            .enumerate()
            .filter(|(_, entry)| self.beside.checks.contains(&entry.name))
    }

    /// Whether each of our entries is in this state.
    fn all_are(&self, state: &str) -> bool {
        let mut entries = self.entries();
        entries.all(|(_, entry)| entry.state == state)
    }

    /// Whether the Workload is done.
    fn is_finished(&self) -> bool {
        self.fields.status.conditions.is("Finished")
    }

    /// Whether the Workload has its quota, and Kueue does not take the quota away.
    fn may_run(&self) -> bool {
        let conditions = &self.fields.status.conditions;
        let active = self.fields.spec.active.unwrap_or(true);
        active && conditions.is("QuotaReserved") && !conditions.is("Evicted")
    }
}

impl Read for KueueWorkload<'_> {
    fn kind(&self) -> Kind {
        Kind::KueueWorkload
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    /// Returns the annotations in our entry, also if the Workload lost its slot or was rejected: its pods count until
    /// Kueue has evicted it.
    fn grant(&self) -> Option<&BTreeMap<String, String>> {
        let mut granted = self.entries().filter(|(_, entry)| entry.state != PENDING);
        granted.find_map(|(_, entry)| {
            let updates = entry.pod_set_updates.as_ref()?;
            updates.first()?.annotations.as_ref()
        })
    }

    fn earlier_grant(&self) -> Option<&Granted> {
        match &self.beside.earlier {
            Earlier::Slots { granted, .. } => Some(granted).filter(|_| self.is_reset),
            Earlier::Unknown | Earlier::Nothing => None,
        }
    }

    fn phase(&self, granted: bool) -> Phase {
        let conditions = &self.fields.status.conditions;
        let ended = Phase::Finished { at_rest: false };
        if self.is_finished() {
            return ended;
        }
        if self.fields.metadata.deletion_timestamp.is_some() {
            return Phase::Deleting;
        }
        let any_is = |state: &str| self.entries().any(|(_, entry)| entry.state == state);
        let retries = any_is(RETRY);
        if self.is_reset || retries && granted {
            Phase::Stopping
        } else if !self.may_run() || retries || any_is(REJECTED) {
            ended
        } else if self.all_are(READY) || conditions.is("Admitted") {
            Phase::Running
        } else {
            Phase::Idle
        }
    }

    /// Whether Kueue takes the quota away for a while, because it needs the quota for others or because another
    /// admission check retries. A Workload that was rejected or made inactive is not interrupted: it waits anew if it
    /// is made active again.
    fn is_interrupted(&self) -> bool {
        let is_open = self.fields.metadata.deletion_timestamp.is_none() && !self.is_finished();
        let active = self.fields.spec.active.unwrap_or(true);
        let any_is = |state: &str| self.entries().any(|(_, entry)| entry.state == state);
        let stays = is_open && active && !any_is(REJECTED);
        stays && (!self.may_run() || any_is(RETRY))
    }

    /// Returns when the Workload got its quota, because before that it waits for Kueue.
    fn queued_at(&self, _was_started: bool) -> Option<&Time> {
        let reserved = self.fields.status.conditions.get("QuotaReserved")?;
        reserved.last_transition_time.as_ref()
    }

    /// Returns the traits of a Workload. It bears no record, because the operator writes only its own entries in the
    /// status.
    fn traits(&self) -> Traits {
        Traits {
            bears_a_record: false,
            ..Traits::default()
        }
    }

    fn grace(&self) -> Duration {
        let pods = self.fields.spec.pod_sets.iter().flatten();
        let graces =
            pods.map(|pods| read::grace(pods.template.spec.termination_grace_period_seconds));
        graces.max().unwrap_or_else(|| read::grace(None))
    }

    /// Returns why a slice of an elastic Job can't wait: Kueue has several Workloads for such a Job, and they run at
    /// once.
    fn unfit(&self) -> Option<String> {
        let annotations = self.fields.metadata.annotations.as_ref()?;
        let is_elastic = annotations.get(ELASTIC).is_some_and(|it| it == "true");
        is_elastic.then(|| {
            format!(
                "an elastic Job can't wait for slots: create it again without the annotation {ELASTIC}"
            )
        })
    }

    fn shape(&self) -> Shape {
        let pod_sets = self.fields.spec.pod_sets.iter().flatten();
        Shape::Checks {
            places: self.entries().map(|(place, _)| place).collect(),
            pod_sets: pod_sets.map(|pods| pods.name.as_str().into()).collect(),
            is_reset: self.is_reset,
        }
    }
}

const PENDING: &str = "Pending";
const READY: &str = "Ready";
const RETRY: &str = "Retry";
const REJECTED: &str = "Rejected";

/// Returns the request for a write that the engine asks for.
pub(super) fn request(write: &Write, shape: &Shape, now: jiff::Timestamp) -> Option<Request> {
    let change = Change::of(write.target(), shape, now)?;
    let request = match write {
        Write::Start(write) => change.start(write, shape),
        Write::Suspend(_) => change.retry("it has lost its slot"),
        Write::GiveBack(write) => change.give_back(&write.sessions),
        Write::Rename(write) => change.says(&has(&write.sessions)),
        Write::RecordWait(_) => return None,
        Write::Skip(_) => change.to(REJECTED, "all slots were taken when it came"),
        Write::Fail(write) => change.to(REJECTED, write.why.reason()),
        Write::End(write) => change.to(REJECTED, write.why.reason()),
    };
    Some(request)
}

/// Returns the request that stops a Workload that runs although no grant started it.
pub(super) fn stop(workload: &Target, shape: &Shape, now: jiff::Timestamp) -> Option<Request> {
    let change = Change::of(workload, shape, now)?;
    Some(change.retry("it ran without a slot"))
}

fn has<'a>(sessions: impl IntoIterator<Item = &'a SessionId>) -> String {
    format!("it has its slots: {SESSIONS}{}", listed(sessions))
}

/// A change of our entries.
struct Change<'a> {
    patch: JsonPatch,
    places: &'a [usize],
    now: String,
}

impl<'a> Change<'a> {
    fn of(target: &Target, shape: &'a Shape, now: jiff::Timestamp) -> Option<Self> {
        let Shape::Checks { places, .. } = shape else {
            return None;
        };
        (!places.is_empty()).then(|| Self {
            patch: JsonPatch::of(target),
            places,
            now: format!("{now:.0}"),
        })
    }

    /// Changes only the message of our entries.
    fn says(mut self, message: &str) -> Request {
        for place in self.places {
            let at = format!("/status/admissionChecks/{place}/message");
            self.patch.add(&at, &json!(message));
        }
        Request::Status(self.patch.into_value())
    }

    fn to(mut self, state: &str, message: &str) -> Request {
        for place in self.places {
            let at = format!("/status/admissionChecks/{place}");
            self.patch.replace(&format!("{at}/state"), &json!(state));
            let time = format!("{at}/lastTransitionTime");
            self.patch.add(&time, &json!(self.now));
        }
        self.says(message)
    }

    /// Returns our entries to Pending. None of them then lets the Workload run or names slots for its pods.
    fn give_back(mut self, sessions: &[SessionId]) -> Request {
        for place in self.places {
            let at = format!("/status/admissionChecks/{place}/podSetUpdates");
            self.patch.add(&at, &json!([]));
        }
        let named = match sessions {
            [] => String::new(),
            sessions => format!(": {SESSIONS}{}", listed(sessions)),
        };
        self.to(PENDING, &format!("it gave its slots back{named}"))
    }

    /// Asks Kueue to evict the Workload. Kueue's pause begins at the time of the change.
    fn retry(mut self, message: &str) -> Request {
        for place in self.places {
            let at = format!("/status/admissionChecks/{place}/requeueAfterSeconds");
            self.patch.add(&at, &json!(RETRY_AFTER));
        }
        self.to(RETRY, message)
    }

    /// Lets the Workload start. Only the first of our entries writes the sequencers for the pods, because Kueue refuses
    /// the same update from two entries.
    fn start(mut self, start: &Start, shape: &Shape) -> Request {
        if let (Shape::Checks { pod_sets, .. }, Some(first)) = (shape, self.places.first()) {
            let update = |name: &Arc<str>| {
                json!({
                    "name": **name,
                    "labels": holder_label(start),
                    "annotations": sequencers(start),
                })
            };
            let updates: Vec<Value> = pod_sets.iter().map(update).collect();
            let at = format!("/status/admissionChecks/{first}/podSetUpdates");
            self.patch.add(&at, &updates.into());
        }
        self.to(READY, &has(start.sessions()))
    }
}

/// A Workload for which our admission check is asked.
#[derive(Debug)]
pub struct Asked {
    target: Target,
    shape: Shape,
    waits: bool,
    is_finished: bool,
    looks_back: bool,
    said: Vec<String>,
}

impl Asked {
    /// Reads a Workload; `None` if no admission check of ours is asked.
    ///
    /// # Errors
    /// The object is not a Workload.
    pub fn of(object: &Object) -> serde_json::Result<Option<Self>> {
        let workload = KueueWorkload::of(object)?;
        let said: Vec<String> = workload
            .entries()
            .map(|(_, entry)| entry.message.clone())
            .collect();
        let own = &object.metadata;
        let (Some(name), Some(version)) = (&own.name, &own.resource_version) else {
            return Ok(None);
        };
        let uid = workload.metadata.uid.as_ref().or(own.uid.as_ref());
        Ok((!said.is_empty()).then(|| Self {
            target: Target {
                kind: Kind::KueueWorkload.name(),
                name: name.as_str().into(),
                uid: uid.map_or("", String::as_str).into(),
                version: version.as_str().into(),
            },
            shape: workload.shape(),
            waits: workload.phase(false) == Phase::Idle,
            is_finished: workload.is_finished(),
            looks_back: workload.is_reset && workload.beside.earlier == Earlier::Unknown,
            said,
        }))
    }

    /// Returns which Workload this is, with the uid of its owner.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Whether Kueue waits for our answer, and no pod of an earlier run delays it.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Whether the Workload is done.
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Whether the Workload was evicted and the slots in which its pods run must be found on the pods.
    pub fn looks_back(&self) -> bool {
        self.looks_back
    }

    /// Returns the request that says that the Workload needs no slot.
    pub fn ready(&self, now: jiff::Timestamp) -> Option<Request> {
        let change = Change::of(&self.target, &self.shape, now)?;
        Some(change.to(READY, "its owner asks for no slot"))
    }

    /// Returns the request that says why the Workload waits on; `None` if its entries say so already.
    pub fn pending(&self, why: &str, now: jiff::Timestamp) -> Option<Request> {
        if self.said.iter().all(|said| said == why) {
            return None;
        }
        let change = Change::of(&self.target, &self.shape, now)?;
        Some(change.to(PENDING, why))
    }
}

/// An `AdmissionCheck` that this controller is to answer.
#[derive(Debug)]
pub struct AdmissionCheck {
    /// Name of the check.
    pub name: String,
    version: Option<String>,
    generation: Option<i64>,
    has_parameters: bool,
    conditions: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AdmissionCheckSpec {
    controller_name: String,
    parameters: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AdmissionCheckStatus {
    conditions: Option<Vec<Value>>,
}

impl AdmissionCheck {
    /// Reads a check; `None` if it belongs to another controller.
    ///
    /// # Errors
    /// The object is not an `AdmissionCheck`.
    pub fn of(object: &Object) -> serde_json::Result<Option<Self>> {
        let Fields {
            metadata,
            spec,
            status,
        } = Fields::<'_, AdmissionCheckSpec, AdmissionCheckStatus>::of(object)?;
        let name = metadata.name.clone().unwrap_or_default();
        Ok((spec.controller_name == CONTROLLER).then(|| Self {
            name,
            version: metadata.resource_version.clone(),
            generation: metadata.generation,
            has_parameters: spec.parameters.is_some(),
            conditions: status.conditions.unwrap_or_default(),
        }))
    }

    /// Returns the merge patch of the check's status that says at `now` that this controller works; `None` if the
    /// status says so already.
    pub fn active(&self, now: jiff::Timestamp) -> Option<Value> {
        let message = if self.has_parameters {
            "consul-semaphore-operator answers this check, and ignores its parameters, because it supports none"
        } else {
            "consul-semaphore-operator answers this check"
        };
        let is_it = |condition: &&Value| condition["type"] == "Active";
        let is_true = |condition: &&Value| is_it(condition) && condition["status"] == "True";
        let known = self.conditions.iter().find(is_true);
        let says_so = known.is_some_and(|known| {
            known["message"] == message && known["observedGeneration"].as_i64() == self.generation
        });
        if says_so {
            return None;
        }
        let changed = known.and_then(|known| known["lastTransitionTime"].as_str());
        let since = changed.map_or_else(|| format!("{now:.0}"), ToOwned::to_owned);
        let others = self.conditions.iter().filter(|it| !is_it(it)).cloned();
        let active = json!({
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": message,
            "observedGeneration": self.generation,
            "lastTransitionTime": since,
        });
        let conditions: Vec<Value> = others.chain([active]).collect();
        Some(json!({
            "metadata": { "resourceVersion": self.version },
            "status": { "conditions": conditions },
        }))
    }
}
