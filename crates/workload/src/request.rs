//! The requests that write to a workload.

use consul_client::SessionId;
use consul_semaphore::{
    WaitBegan,
    plan::{End, GiveBack, RecordWait, Rename, Start, Stop, Suspend, Target},
};
use consul_semaphore_api::annotations as a;
use serde_json::{Map, Value, json};

use crate::{Kind, Object, shape::Template, slots};

/// A request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A merge patch.
    Patch(Value),
    /// A JSON Patch.
    Json(Value),
    /// A JSON Patch of the subresource `status`.
    Status(Value),
    /// A deletion, conditional on the uid and the version of the decision. The pods are deleted after the workload.
    Delete,
}

/// The number of fields of a request that are named, and the greatest length of such a name, in characters.
const MOST_FIELDS: usize = 4;
const MOST_PATH: usize = 100;

impl Request {
    /// Returns some of the fields that the request writes, for people, as in `spec.suspend`. Fields of the spec and the
    /// status come before fields of the metadata.
    pub fn fields(&self) -> Vec<String> {
        let mut fields = Vec::new();
        match self {
            Self::Patch(patch) => leaves(patch, "", &mut fields),
            Self::Json(patch) | Self::Status(patch) => {
                let operations = patch.as_array().into_iter().flatten();
                let pointers = operations.filter_map(|operation| operation["path"].as_str());
                fields.extend(
                    pointers.map(|pointer| pointer.trim_start_matches('/').replace('/', ".")),
                );
            }
            Self::Delete => {}
        }
        fields.retain(|field| !matches!(&**field, "metadata.uid" | "metadata.resourceVersion"));
        fields.sort_by_key(|field| field.starts_with("metadata"));
        fields.truncate(MOST_FIELDS);
        let short = fields.into_iter();
        short
            .map(|field| field.chars().take(MOST_PATH).collect())
            .collect()
    }
}

/// Collects the paths to the values of a merge patch.
fn leaves(patch: &Value, above: &str, found: &mut Vec<String>) {
    let Some(fields) = patch.as_object() else {
        found.push(above.trim_start_matches('.').to_owned());
        return;
    };
    for (name, value) in fields {
        leaves(value, &format!("{above}.{name}"), found);
    }
}

/// The workloads that the operator ends together with the workload that is made of them, because the controller of that
/// one does not end them.
#[derive(Clone, Debug, PartialEq)]
pub struct EndBelow {
    /// The kind of these workloads.
    pub kind: Kind,
    /// The label selector of these workloads.
    pub labels: String,
    /// The merge patch for each of these workloads that runs.
    pub patch: Value,
}

impl EndBelow {
    /// Whether the object is one of these workloads: it may still make pods, and another object made it.
    pub fn ends(&self, object: &Object) -> bool {
        let mut owners = object.metadata.owner_references.iter().flatten();
        owners.any(|owner| owner.controller == Some(true)) && self.kind.may_make_pods(object)
    }
}

/// Suspends a workload whose kind has `spec.suspend`. The workload's controller ends its pods.
pub(crate) fn suspend(suspend: &Suspend) -> Request {
    suspend_with(&suspend.workload, &json!({ (a::SESSION): null }))
}

/// Suspends a workload that runs although no grant started it.
pub(crate) fn suspend_ungranted(stop: &Stop) -> Request {
    suspend_with(&stop.workload, &unheld(stop))
}

/// Puts a workload on hold.
pub(crate) fn hold(workload: &Target) -> Request {
    let annotations = json!({ (a::HOLD): "true" });
    Request::Patch(json!({ "metadata": metadata(workload, &annotations) }))
}

/// Returns the annotations of a workload that is stopped. A user who started the workload ended the hold by that, so
/// the annotation for the hold goes.
pub(crate) fn unheld(stop: &Stop) -> Value {
    if stop.unhold {
        json!({ (a::HOLD): null })
    } else {
        json!({})
    }
}

fn suspend_with(workload: &Target, annotations: &Value) -> Request {
    Request::Patch(json!({
        "metadata": metadata(workload, annotations),
        "spec": { "suspend": true },
    }))
}

/// Returns the annotations of a workload that is ended. A grant without a session says that the slot was lost, as in a
/// workload that is suspended.
pub(crate) fn ended(end: &End) -> Value {
    let mut annotations = json!({ (a::FAILED): end.why.reason() });
    if end.is_lost() {
        annotations[a::SESSION] = Value::Null;
    }
    annotations
}

/// Sets a deadline that is over at once. The controller that runs the pods then ends them and makes the workload
/// Failed.
pub(crate) fn end_by_deadline(end: &End) -> Request {
    Request::Patch(json!({
        "metadata": metadata(&end.workload, &ended(end)),
        "spec": { "activeDeadlineSeconds": 1 },
    }))
}

/// Writes the sessions that now hold a running workload's slots.
pub(crate) fn rename(rename: &Rename) -> Request {
    let annotations = json!({ (a::SESSION): listed(&rename.sessions) });
    Request::Patch(json!({ "metadata": metadata(&rename.workload, &annotations) }))
}

/// Records when the wait of a workload began.
pub(crate) fn record_wait(record: &RecordWait) -> Request {
    let annotations = json!({ (a::WAITS_SINCE): waits_since(Some(record.began)) });
    Request::Patch(json!({ "metadata": metadata(&record.workload, &annotations) }))
}

/// Returns the value of the annotation that says when a wait began; null if a start has ended the wait.
pub(crate) fn waits_since(began: Option<WaitBegan>) -> Value {
    began.map_or(Value::Null, |began| began.to_string().into())
}

/// Records that a workload gives its slot back, and clears the grant from the workload's own metadata, where all kinds
/// but Job record it. What is left of the grant in templates has no meaning without that record, and the next start
/// [replaces](template_annotations) it.
pub(crate) fn give_back(give_back: &GiveBack) -> Request {
    give_back_and_clear(give_back, &[])
}

/// Records that a workload gives its slot back, as [`give_back`] does, and removes these annotations.
pub(crate) fn give_back_and_clear(give_back: &GiveBack, clear: &[&str]) -> Request {
    let mut annotations = Value::from(no_sequencers());
    for name in clear {
        annotations[*name] = Value::Null;
    }
    annotations[a::SESSION] = listed(&give_back.sessions).into();
    annotations[a::WAITS_SINCE] = waits_since(give_back.began);
    if give_back.hold {
        annotations[a::HOLD] = "true".into();
    }
    let mut metadata = metadata(&give_back.workload, &annotations);
    metadata["labels"] = json!({ (a::HOLDER_LABEL): null });
    Request::Patch(json!({ "metadata": metadata }))
}

/// Returns the annotations in which pods find the sequencers of their workload's slots.
pub(crate) fn sequencers(start: &Start) -> Map<String, Value> {
    let mut annotations = Map::new();
    let mut add = |name: &str, value: String| annotations.insert(name.to_owned(), value.into());
    add(a::LOCK_KEY, start.slot.key().to_owned());
    add(a::SESSION, start.slot.session().to_string());
    add(a::LOCK_INDEX, start.slot.lock_index().to_string());
    add(a::FENCING_TOKEN, start.slot.fencing_token().to_string());
    add(a::GRANTED_TO, start.workload.uid.to_string());
    if let Some(index) = start.slot.index() {
        add(a::SLOT_INDEX, index.to_string());
    }
    if let Some(name) = start.slot.name() {
        add(a::SLOT_NAME, name.to_owned());
    }
    if !start.others.is_empty() {
        add(a::SLOTS, slots::written(start));
    }
    annotations
}

/// Returns the patch of annotations by which a template has the sequencers of this start, and nothing of an earlier one:
/// the annotations that the start does not set are null.
pub(crate) fn template_annotations(start: &Start) -> Map<String, Value> {
    let mut annotations = no_sequencers();
    annotations.extend(sequencers(start));
    annotations
}

/// Returns the patch of annotations that removes all that [`sequencers`] writes.
pub(crate) fn no_sequencers() -> Map<String, Value> {
    let names = [
        a::LOCK_KEY,
        a::SESSION,
        a::LOCK_INDEX,
        a::FENCING_TOKEN,
        a::SLOT_INDEX,
        a::SLOT_NAME,
        a::SLOTS,
        a::GRANTED_TO,
    ];
    Map::from_iter(names.map(|name| (name.to_owned(), Value::Null)))
}

/// Returns the annotations that record a grant in the metadata of the workload itself. The annotation with the sessions
/// changes while the workload runs, so another one lists all slots as they were granted, even if there is only one.
pub(crate) fn record(start: &Start) -> Map<String, Value> {
    let mut annotations = template_annotations(start);
    annotations.insert(a::SESSION.to_owned(), listed(start.sessions()).into());
    annotations.insert(a::SLOTS.to_owned(), slots::written(start).into());
    annotations
}

/// Returns the label by which the pods of a workload in a slot are watched.
pub(crate) fn holder_label(start: &Start) -> Map<String, Value> {
    let uid = start.workload.uid.to_string();
    Map::from_iter([(a::HOLDER_LABEL.to_owned(), uid.into())])
}

/// Returns sessions as the annotation lists them.
pub(crate) fn listed<'a>(sessions: impl IntoIterator<Item = &'a SessionId>) -> String {
    let sessions: Vec<&str> = sessions.into_iter().map(SessionId::as_str).collect();
    sessions.join(",")
}

/// Returns metadata with conditions for the API server. Because of the version, it refuses a patch that was decided on
/// an older version; because of the uid, a patch that was decided on another workload of the same name.
pub(crate) fn metadata(workload: &Target, annotations: &Value) -> Value {
    json!({
        "uid": workload.uid.as_ref(),
        "resourceVersion": workload.version,
        "annotations": annotations,
    })
}

/// A JSON Patch for the version of a workload on which the patch was decided. The API server answers 409 if the
/// workload has changed since. A failed `test` would be answered with 422, as if the patch were wrong.
pub(crate) struct JsonPatch(Vec<Value>);

impl JsonPatch {
    pub(crate) fn of(workload: &Target) -> Self {
        let mut patch = Self(Vec::new());
        patch.replace("/metadata/resourceVersion", &json!(workload.version));
        patch
    }

    pub(crate) fn replace(&mut self, path: &str, value: &Value) {
        self.0
            .push(json!({ "op": "replace", "path": path, "value": value }));
    }

    pub(crate) fn add(&mut self, path: &str, value: &Value) {
        self.0
            .push(json!({ "op": "add", "path": path, "value": value }));
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.0.push(json!({ "op": "remove", "path": path }));
    }

    /// Adds entries to a map of strings, and removes those that are null. The map is made first if it is not `there`.
    pub(crate) fn add_all(&mut self, path: &str, mut entries: Map<String, Value>, there: bool) {
        if !there {
            entries.retain(|_, value| !value.is_null());
            return self.add(path, &entries.into());
        }
        for (name, value) in entries {
            // RFC 6901 escapes these two characters in a JSON Pointer.
            let name = name.replace('~', "~0").replace('/', "~1");
            let path = format!("{path}/{name}");
            if value.is_null() {
                // A patch that removes what is not there fails.
                self.add(&path, &json!(""));
                self.remove(&path);
            } else {
                self.add(&path, &value);
            }
        }
    }

    /// Adds labels and annotations to the metadata at a place. `template` says what exists there.
    pub(crate) fn add_metadata(
        &mut self,
        at: &str,
        template: Template,
        labels: Map<String, Value>,
        annotations: Map<String, Value>,
    ) {
        let (has_labels, has_annotations) = match template {
            Template::Absent => return,
            Template::Bare => {
                self.add(at, &json!({}));
                (false, false)
            }
            Template::Has {
                labels,
                annotations,
            } => (labels, annotations),
        };
        self.add_all(&format!("{at}/labels"), labels, has_labels);
        self.add_all(&format!("{at}/annotations"), annotations, has_annotations);
    }

    pub(crate) fn into_value(self) -> Value {
        self.0.into()
    }
}
