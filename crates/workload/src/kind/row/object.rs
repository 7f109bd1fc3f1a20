//! An object of a kind that is a row: how the object is read, and what is written to it.

use std::{sync::Arc, time::Duration};

use consul_semaphore::{
    Phase, Termination, Traits,
    engine::Write,
    plan::{Start, Stop, Target},
};
use consul_semaphore_api::annotations as a;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value as Json, json};

use super::{
    Check, Hold, Kind, Path, Pods, Row,
    path::{MOST_ITEMS, field},
    value::Filling,
};
use crate::{
    Object,
    object::Conditions,
    read::{self, Read},
    request::{
        JsonPatch, Request, give_back_and_clear, holder_label, metadata, record, record_wait,
        rename, template_annotations, unheld,
    },
    shape::{Failing, RowFacts, Shape, Template},
};

/// An object with the row of its kind.
pub(in crate::kind) struct RowObject<'a> {
    kind: &'a Kind,
    row: &'a Arc<Row>,
    object: &'a Object,
    conditions: Conditions,
}

impl<'a> RowObject<'a> {
    pub(in crate::kind) fn of(kind: &'a Kind, row: &'a Arc<Row>, object: &'a Object) -> Self {
        // Another kind may use the name `conditions` for something else. The object then counts as one without
        // conditions.
        let conditions = object
            .status()
            .and_then(|status| field(status, "conditions"))
            .and_then(|conditions| serde_json::from_str(conditions.get()).ok());
        Self {
            kind,
            row,
            object,
            conditions: conditions.unwrap_or_default(),
        }
    }

    fn is(&self, check: &Check) -> bool {
        match check {
            Check::Condition(type_) => self.conditions.is(type_),
            Check::Field(path, one_of) => {
                let mut found = path.find(self.object).into_iter().flatten();
                found.any(|value| one_of.iter().any(|one| one.is(value)))
            }
            Check::Present(path) => {
                let mut found = path.find(self.object).into_iter().flatten();
                found.any(|value| value.get() != "null")
            }
        }
    }

    fn is_any(&self, checks: &[Check]) -> bool {
        checks.iter().any(|check| self.is(check))
    }

    fn is_held(&self) -> bool {
        let Hold { path, held, .. } = &self.row.life.hold;
        let mut found = path.find(self.object).into_iter().flatten();
        found.any(|value| held.is(value))
    }

    fn text(&self, path: &Path) -> Option<String> {
        let found = path.find(self.object).into_iter().flatten().next()?;
        serde_json::from_str(found.get()).ok()
    }

    /// Returns, for each path to metadata in the row, what each place that the path finds contains.
    fn templates(&self) -> impl Iterator<Item = Box<[Template]>> {
        let paths = self.row.pods.metadata.iter();
        paths.map(|path| {
            let places = path.find_in_parent(self.object).into_iter();
            let templates = places.map(|(parent, metadata)| match (parent, metadata) {
                (None, _) => Template::Absent,
                (Some(_), None) => Template::Bare,
                (Some(_), Some(metadata)) => Template::Has {
                    labels: field(metadata, "labels").is_some(),
                    annotations: field(metadata, "annotations").is_some(),
                },
            });
            templates.collect()
        })
    }
}

impl Read for RowObject<'_> {
    fn kind(&self) -> Kind {
        self.kind.clone()
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.object.metadata
    }

    fn phase(&self, granted: bool) -> Phase {
        let life = &self.row.life;
        if self.is_any(&life.finished) {
            // The status does not show pods that still terminate.
            return Phase::Finished { at_rest: false };
        }
        if self.object.metadata.deletion_timestamp.is_some() {
            return Phase::Deleting;
        }
        let suspended = self.is_any(&life.suspended);
        if !self.is_held() {
            // Someone unsuspended the object, and its controller has not reacted yet, as in a Job.
            return if suspended && !granted {
                Phase::Stopping
            } else {
                Phase::Running
            };
        }
        // An object that is to fail does so once its pods are gone.
        if suspended && self.termination().is_none() {
            Phase::Idle
        } else {
            Phase::Stopping
        }
    }

    fn termination(&self) -> Option<Termination> {
        let mark = read::marked(&self.object.metadata);
        mark.map(|_| Termination::Immediate)
    }

    fn suspended_at(&self) -> Option<&Time> {
        let suspended = self.row.life.suspended.iter();
        let mut conditions = suspended.filter_map(|check| match check {
            Check::Condition(type_) => self.conditions.get(type_),
            Check::Field(..) | Check::Present(_) => None,
        });
        conditions.next()?.last_transition_time.as_ref()
    }

    fn was_suspended(&self) -> bool {
        let was = |check: &Check| match check {
            Check::Condition(type_) => self.conditions.get(type_).is_some(),
            Check::Field(..) | Check::Present(_) => self.is(check),
        };
        self.row.life.suspended.iter().any(was)
    }

    fn traits(&self) -> Traits {
        Traits {
            can_be_suspended: true,
            runs_again: self.row.life.runs_again,
            ..Traits::default()
        }
    }

    /// Returns the longest grace period of all its pods.
    fn grace(&self) -> Duration {
        let paths = self.row.pods.grace.iter();
        let found = paths.flat_map(|path| path.find(self.object));
        let graces = found.map(|seconds| {
            let seconds = seconds.and_then(|seconds| serde_json::from_str(seconds.get()).ok());
            read::grace(seconds)
        });
        graces.max().unwrap_or_else(|| read::grace(None))
    }

    fn managed_by(&self) -> Option<String> {
        let manager = self.row.managed_by.as_ref()?;
        let name = self.text(&manager.path)?;
        read::managed_by(&manager.path, Some(&name), &manager.own)
    }

    fn unfit(&self) -> Option<String> {
        let metadata = &self.object.metadata;
        let name = metadata.name.as_deref().unwrap_or_default();
        let uid = metadata.uid.as_deref().unwrap_or_default();
        let Pods {
            labels,
            jobs,
            jobs_with_holder,
            ..
        } = &self.row.pods;
        let mut selectors = labels.iter().chain(jobs).chain(jobs_with_holder);
        if selectors.any(|selector| selector.of(name, uid).is_none()) {
            return Some("its name is too long for the labels by which its pods are found".into());
        }
        let requires = self.row.requires.iter();
        let unmet = requires.filter(|requirement| {
            let value = requirement
                .path
                .find(self.object)
                .into_iter()
                .flatten()
                .next();
            !value.map_or(
                requirement.optional || requirement.one_of.is_empty(),
                |value| requirement.one_of.iter().any(|one| one.is(value)),
            )
        });
        let demands: Vec<String> = unmet.map(super::Requirement::title).collect();
        (!demands.is_empty()).then(|| {
            let kind = self.row.kind();
            format!("a {kind} can't be held like this: {}", demands.join("; "))
        })
    }

    fn too_large(&self) -> Option<String> {
        let templates: usize = self.templates().map(|templates| templates.len()).sum();
        (templates >= MOST_ITEMS).then(|| {
            let most = MOST_ITEMS - 1;
            format!("it has more than {most} pod templates, so the operator can't start it")
        })
    }

    fn shape(&self) -> Shape {
        let life = &self.row.life;
        let failed = life.failed.as_ref();
        let condition = failed.and_then(|failed| failed.condition.as_ref());
        let place = condition.and_then(|condition| self.conditions.place(&condition.type_));
        let ended = self.is_any(&life.finished);
        let suspended = !ended && self.is_held() && self.is_any(&life.suspended);
        let mark = read::marked(&self.object.metadata);
        let reason = mark.filter(|_| suspended);
        Shape::Listed(Box::new(RowFacts {
            row: self.row.clone(),
            templates: self.templates().collect(),
            failing: reason.map(|reason| Failing {
                reason: reason.to_owned(),
                condition: place,
                conditions: self.conditions.are_there(),
            }),
            again: mark.is_some() && ended && life.runs_again,
        }))
    }
}

/// Returns the request for a write that the engine asks for.
pub(in crate::kind) fn request(row: &Arc<Row>, write: &Write, shape: &Shape) -> Option<Request> {
    let request = match write {
        Write::Start(write) => start(row, write, shape)?,
        Write::Suspend(write) => held(row, &write.workload, &json!({ (a::SESSION): null })),
        // The object may run again, so the mark that makes it fail goes.
        Write::GiveBack(write) => give_back_and_clear(write, &[a::FAILED]),
        Write::Rename(write) => rename(write),
        Write::RecordWait(write) => record_wait(write),
        Write::Skip(_) => Request::Delete,
        Write::Fail(write) => fails(row, &write.workload, write.why.reason()),
        Write::End(write) => fails(row, &write.workload, write.why.reason()),
    };
    Some(request)
}

/// Holds an object that runs although no grant started it.
pub(in crate::kind) fn stop(row: &Row, stop: &Stop) -> Request {
    held(row, &stop.workload, &unheld(stop))
}

/// Holds the object. Its controller ends its pods.
fn held(row: &Row, workload: &Target, annotations: &Json) -> Request {
    let Hold { path, held, .. } = &row.life.hold;
    let pointer = path.pointer(0);
    let steps = pointer.split('/').filter(|step| !step.is_empty());
    let mut patch = held.json();
    for step in steps.rev() {
        patch = json!({ step: patch });
    }
    patch["metadata"] = metadata(workload, annotations);
    Request::Patch(patch)
}

/// Holds the object and marks it to fail: its status says that it failed once no pod is left. If the row does not say
/// how to write a failure, the object is put on hold instead.
fn fails(row: &Row, workload: &Target, reason: &str) -> Request {
    let annotations = match row.life.failed {
        Some(_) => json!({ (a::FAILED): read::mark(reason, &workload.uid) }),
        None => json!({ (a::HOLD): "true" }),
    };
    held(row, workload, &annotations)
}

/// Removes the mark that makes the object fail.
pub(in crate::kind) fn unmark(workload: &Target) -> Request {
    let annotations = json!({ (a::FAILED): null });
    Request::Patch(json!({ "metadata": metadata(workload, &annotations) }))
}

/// Removes the mark that makes the object fail, and puts the object on hold.
pub(in crate::kind) fn hold(workload: &Target) -> Request {
    let annotations = json!({ (a::FAILED): null, (a::HOLD): "true" });
    Request::Patch(json!({ "metadata": metadata(workload, &annotations) }))
}

/// Returns the facts about an object; `None` if the object was read by another row.
fn facts<'s>(row: &Arc<Row>, shape: &'s Shape) -> Option<&'s RowFacts> {
    match shape {
        Shape::Listed(facts) => (facts.row == *row).then_some(&**facts),
        _ => None,
    }
}

/// Starts the object. One patch ends the hold, and writes the sequencers of its slots into its own annotations and into
/// the metadata of its pods.
fn start(row: &Arc<Row>, start: &Start, shape: &Shape) -> Option<Request> {
    let facts = facts(row, shape)?;
    let mut patch = JsonPatch::of(&start.workload);
    patch.add_all("/metadata/annotations", record(start), true);
    for (path, templates) in row.pods.metadata.iter().zip(&facts.templates) {
        for (place, template) in templates.iter().enumerate() {
            patch.add_metadata(
                &path.pointer(place),
                *template,
                holder_label(start),
                template_annotations(start),
            );
        }
    }
    let Hold { path, started, .. } = &row.life.hold;
    match started {
        Some(value) => patch.replace(&path.pointer(0), &value.json()),
        None => patch.remove(&path.pointer(0)),
    }
    Some(Request::Json(patch.into_value()))
}

/// Returns the request by which the status of a held object says that it failed; `None` if the object is not to fail.
pub(in crate::kind) fn failure(
    row: &Arc<Row>,
    workload: &Target,
    shape: &Shape,
    now: jiff::Timestamp,
) -> Option<Request> {
    let facts = facts(row, shape)?;
    let (failing, failed) = (facts.failing.as_ref()?, row.life.failed.as_ref()?);
    let (now, message) = (
        format!("{now:.0}"),
        "ended by consul-semaphore-operator: see the events",
    );
    let filling = Filling {
        reason: &failing.reason,
        message,
        now: &now,
    };
    let mut patch = JsonPatch::of(workload);
    if let Some(condition) = &failed.condition {
        let condition = json!({
            "type": condition.type_,
            "status": "True",
            "reason": condition.reason.json(&filling),
            "message": message,
            "lastTransitionTime": now,
        });
        match failing.condition {
            Some(place) => patch.replace(&format!("/status/conditions/{place}"), &condition),
            None if failing.conditions => patch.add("/status/conditions/-", &condition),
            None => patch.add("/status/conditions", &json!([condition])),
        }
    }
    for (path, value) in &failed.fields {
        patch.add(&path.pointer(0), &value.json(&filling));
    }
    Some(Request::Status(patch.into_value()))
}
