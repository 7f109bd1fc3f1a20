//! `Workload` of `kueue.x-k8s.io/v1beta2`, as of Kueue v0.19: what Kueue has of a Job in one of its queues, the owner
//! of the Workload. The owner says what it waits for, and its uid is that of the workload: Kueue may make another
//! Workload for it.
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
//! What Kueue resets says nothing of earlier slots any more. So the caller remembers their sessions ([`Beside`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use consul_client::SessionId;
use consul_semaphore::{
    Phase, Uid,
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
    pods::{self, PodQuery},
    read::{self, Read},
    request::{JsonPatch, Request, holder_label, listed, sequencers},
    shape::Shape,
};

/// The controller of admission checks that this operator is: `spec.controllerName` of an `AdmissionCheck`.
pub const CONTROLLER: &str = "consul-semaphore.io/slots";

/// The label of what Kueue manages, with the name of its queue.
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// How long Kueue leaves its quota to others after it has lost its slot, in seconds.
const RETRY_AFTER: i32 = 10;

/// What comes before the sessions in the message of our entry.
const SESSIONS: &str = "sessions ";

/// Where the API server has it.
pub(super) fn resource() -> ApiResource {
    super::resource("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
}

/// Where the API server has the admission checks of Kueue.
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

/// The pods of its owner, of whatever kind that is.
pub(super) fn pods(uid: &Uid) -> Vec<PodQuery> {
    vec![pods::of(uid).into(), super::job_set::selector(uid).into()]
}

/// What its owner is made of, of whatever kind that is.
pub(super) fn parts(uid: &Uid) -> Vec<(Kind, String)> {
    vec![(Kind::Job, super::job_set::selector(uid))]
}

/// The owner of a Workload: what the user made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: Arc<str>,
    /// Its uid.
    pub uid: Uid,
}

/// What is known beside a Workload itself, and decides what it means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The names of the `AdmissionChecks` that are ours.
    pub checks: Arc<BTreeSet<String>>,
    /// The annotations of its owner, as far as they are for users of this operator.
    pub annotations: BTreeMap<String, String>,
    /// The sessions that held its slots when it was last seen with some.
    pub sessions: Vec<SessionId>,
}

/// The longest text of an annotation that is kept, in bytes: no valid one is as long.
const LONGEST: usize = 4096;

/// The annotations of an owner that matter beside its Workload: those that users write.
pub fn annotations(owner: &ObjectMeta) -> BTreeMap<String, String> {
    let all = owner.annotations.iter().flatten();
    let ours = all.filter(|(name, _)| a::OF_USERS.contains(&name.as_str()));
    let bounded = |value: &str| value[..value.floor_char_boundary(LONGEST)].to_owned();
    ours.map(|(name, value)| (name.clone(), bounded(value)))
        .collect()
}

/// The owner of a Workload.
///
/// # Errors
/// Why it has none that this operator can serve, for people.
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
    // The API server bounds neither.
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

/// What of a Workload matters.
pub(super) struct Workload<'a> {
    fields: Fields<'a, Spec, State>,
    /// Its own, with the uid of its owner, and what the owner asks for.
    metadata: ObjectMeta,
    beside: Arc<Beside>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    active: Option<bool>,
    pod_sets: Option<Vec<PodSet>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodSet {
    name: String,
    template: Template,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Template {
    spec: PodSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct State {
    conditions: Conditions,
    admission_checks: Option<Vec<Entry>>,
}

/// An entry in `status.admissionChecks`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entry {
    name: String,
    state: String,
    message: String,
    pod_set_updates: Option<Vec<PodSetUpdate>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodSetUpdate {
    annotations: Option<BTreeMap<String, String>>,
}

impl<'a> Workload<'a> {
    pub(super) fn of(object: &'a Object) -> serde_json::Result<Self> {
        let beside = object.beside.clone().unwrap_or_default();
        let fields: Fields<'_, Spec, State> = Fields::of(object)?;
        let entries = fields.status.admission_checks.iter().flatten();
        let mut ours = entries.filter(|entry| beside.checks.contains(&entry.name));
        let own = fields.metadata;
        let mut annotations = beside.annotations.clone();
        let said = ours.find_map(|entry| entry.message.rsplit_once(SESSIONS));
        let remembered = || Some(listed(&beside.sessions)).filter(|sessions| !sessions.is_empty());
        if let Some(sessions) = said
            .map(|(_, sessions)| sessions.to_owned())
            .or_else(remembered)
        {
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
        Ok(Self {
            fields,
            metadata,
            beside,
        })
    }

    /// Our entries, each with its place.
    fn entries(&self) -> impl Iterator<Item = (usize, &Entry)> {
        let entries = self.fields.status.admission_checks.iter().flatten();
        let entries = entries.enumerate();
        entries.filter(|(_, entry)| self.beside.checks.contains(&entry.name))
    }

    /// Whether each of our entries is in this state.
    fn all_are(&self, state: &str) -> bool {
        let mut entries = self.entries();
        entries.all(|(_, entry)| entry.state == state)
    }

    /// Whether it has its quota, and nothing of Kueue's takes it away.
    fn may_run(&self) -> bool {
        let conditions = &self.fields.status.conditions;
        let active = self.fields.spec.active.unwrap_or(true);
        active && conditions.is("QuotaReserved") && !conditions.is("Evicted")
    }
}

impl Read for Workload<'_> {
    fn kind(&self) -> Kind {
        Kind::KueueWorkload
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    /// Also of one that lost its slot: its pods count until Kueue has evicted it.
    fn grant(&self) -> Option<&BTreeMap<String, String>> {
        let has_one = |state: &str| matches!(state, READY | RETRY);
        let mut granted = self.entries().filter(|(_, entry)| has_one(&entry.state));
        granted.find_map(|(_, entry)| {
            let updates = entry.pod_set_updates.as_ref()?;
            updates.first()?.annotations.as_ref()
        })
    }

    fn phase(&self, granted: bool) -> Phase {
        let conditions = &self.fields.status.conditions;
        let ended = Phase::Finished { at_rest: false };
        if conditions.is("Finished") {
            return ended;
        }
        if self.fields.metadata.deletion_timestamp.is_some() {
            return Phase::Deleting;
        }
        let any_is = |state: &str| self.entries().any(|(_, entry)| entry.state == state);
        let retries = any_is(RETRY);
        if self.may_run() && retries && granted {
            Phase::Stopping
        } else if !self.may_run() || retries || any_is(REJECTED) {
            ended
        } else if self.all_are(READY) || conditions.is("Admitted") {
            Phase::Running
        } else {
            Phase::Idle
        }
    }

    /// Since it has its quota: before that it waits for Kueue.
    fn queued_at(&self, _had_a_slot: bool) -> Option<&Time> {
        let reserved = self.fields.status.conditions.get("QuotaReserved")?;
        reserved.last_transition_time.as_ref()
    }

    fn grace(&self) -> Duration {
        let pods = self.fields.spec.pod_sets.iter().flatten();
        let graces =
            pods.map(|pods| read::grace(pods.template.spec.termination_grace_period_seconds));
        graces.max().unwrap_or_else(|| read::grace(None))
    }

    fn shape(&self) -> Shape {
        let pod_sets = self.fields.spec.pod_sets.iter().flatten();
        Shape::Checks {
            places: self.entries().map(|(place, _)| place).collect(),
            pod_sets: pod_sets.map(|pods| pods.name.as_str().into()).collect(),
        }
    }
}

const PENDING: &str = "Pending";
const READY: &str = "Ready";
const RETRY: &str = "Retry";
const REJECTED: &str = "Rejected";

/// What to send for a write that the engine asks for.
pub(super) fn request(write: &Write, shape: &Shape, now: jiff::Timestamp) -> Option<Request> {
    let change = Change::of(write.target(), shape, now)?;
    let request = match write {
        Write::Start(write) => change.start(write, shape),
        Write::Suspend(_) => change.retry("it has lost its slot"),
        Write::GiveBack(write) => change.says(&gave_back(&write.sessions)),
        Write::Rename(write) => change.says(&has(&write.sessions)),
        Write::Skip(_) => change.to(REJECTED, "all slots were taken when it came"),
        Write::Fail(write) => change.to(REJECTED, write.why.reason()),
        Write::End(write) => change.to(REJECTED, write.why.reason()),
    };
    Some(request)
}

/// What stops one that runs though no grant started it.
pub(super) fn stop(workload: &Target, shape: &Shape, now: jiff::Timestamp) -> Option<Request> {
    let change = Change::of(workload, shape, now)?;
    Some(change.retry("it ran without a slot"))
}

fn has<'a>(sessions: impl IntoIterator<Item = &'a SessionId>) -> String {
    format!("it has its slots: {SESSIONS}{}", listed(sessions))
}

fn gave_back<'a>(sessions: impl IntoIterator<Item = &'a SessionId>) -> String {
    format!("it gave its slots back: {SESSIONS}{}", listed(sessions))
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

    /// The same in other words.
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

    /// The time of the change is also when Kueue's pause begins.
    fn retry(mut self, message: &str) -> Request {
        for place in self.places {
            let at = format!("/status/admissionChecks/{place}/requeueAfterSeconds");
            self.patch.add(&at, &json!(RETRY_AFTER));
        }
        self.to(RETRY, message)
    }

    /// The first of our entries writes the sequencers where the pods read them: what two entries write alike, Kueue
    /// refuses.
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

/// A Workload that our admission check is asked about.
#[derive(Debug)]
pub struct Asked {
    target: Target,
    shape: Shape,
    waits: bool,
    said: Vec<String>,
}

impl Asked {
    /// Reads it; `None` if no admission check of ours is asked.
    ///
    /// # Errors
    /// If this is no Workload.
    pub fn of(object: &Object) -> serde_json::Result<Option<Self>> {
        let workload = Workload::of(object)?;
        let said = workload.entries().map(|(_, entry)| entry.message.clone());
        let said: Vec<String> = said.collect();
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
            said,
        }))
    }

    /// Which Workload it is, with the uid of its owner.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Whether Kueue waits for our answer.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// It needs no slot.
    pub fn ready(&self, now: jiff::Timestamp) -> Option<Request> {
        let change = Change::of(&self.target, &self.shape, now)?;
        Some(change.to(READY, "its owner asks for no slot"))
    }

    /// It waits on, for this reason; `None` if it says so already.
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
pub struct Check {
    /// Its name.
    pub name: String,
    version: Option<String>,
    generation: Option<i64>,
    has_parameters: bool,
    conditions: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CheckSpec {
    controller_name: String,
    parameters: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CheckStatus {
    conditions: Option<Vec<Value>>,
}

impl Check {
    /// Reads it; `None` if it is another controller's.
    ///
    /// # Errors
    /// If this is no `AdmissionCheck`.
    pub fn of(object: &Object) -> serde_json::Result<Option<Self>> {
        let Fields {
            metadata,
            spec,
            status,
        } = Fields::<'_, CheckSpec, CheckStatus>::of(object)?;
        let name = metadata.name.clone().unwrap_or_default();
        Ok((spec.controller_name == CONTROLLER).then(|| Self {
            name,
            version: metadata.resource_version.clone(),
            generation: metadata.generation,
            has_parameters: spec.parameters.is_some(),
            conditions: status.conditions.unwrap_or_default(),
        }))
    }

    /// The merge patch of its status that says at `now` that this controller works; `None` if it says so already.
    pub fn active(&self, now: jiff::Timestamp) -> Option<Value> {
        let message = if self.has_parameters {
            "consul-semaphore-operator answers this check, and ignores its parameters: it knows none"
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
        let since = known.and_then(|known| known["lastTransitionTime"].as_str());
        let since = since.map_or_else(|| format!("{now:.0}"), ToOwned::to_owned);
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
