//! Workloads that are no Jobs, as the API server's watch shows them.

use super::{GRANTED_TO, HOLD, SEMAPHORE, SESSION, ago, asks, first, prefix_of, version};
use crate::record::{Job, JobState, Start, What, WorkloadKind};
use kube::{ResourceExt as _, api::DynamicObject};

/// A `JobSet`. Its status does not show pods that terminate: those have records of their own.
pub(super) fn job_set(object: &DynamicObject, there: bool) -> Option<What> {
    let suspended = object.data["spec"]["suspend"] == true;
    let state = if is_gone(object, there) {
        JobState::Gone
    } else if condition(object, "Completed") == "True" || condition(object, "Failed") == "True" {
        JobState::Finished
    } else if !suspended {
        JobState::Running
    } else if is_on_hold(object) {
        JobState::Held
    } else if condition(object, "Suspended") == "True" {
        JobState::Waiting
    } else {
        JobState::Stopping
    };
    // Nobody can change its template while it runs.
    let template = "/spec/replicatedJobs/0/template/spec/template/metadata/annotations";
    let template = object.data.pointer(template);
    let session = template.and_then(|annotations| annotations[SESSION].as_str());
    let start = session.filter(|_| !suspended).and_then(|session| {
        let ago = ago(object, |fields| fields["f:spec"].get("f:suspend").is_some())?;
        started(object, session, ago)
    });
    record(object, WorkloadKind::JobSet, state, start)
}

/// A `PipelineRun`. One that is to end counts as suspended: it can't be held again.
pub(super) fn pipeline_run(object: &DynamicObject, there: bool) -> Option<What> {
    let status = object.data["spec"]["status"].as_str();
    let pending = status == Some("PipelineRunPending");
    let state = if is_gone(object, there) {
        JobState::Gone
    } else if ["True", "False"].contains(&condition(object, "Succeeded")) {
        JobState::Finished
    } else if pending && is_on_hold(object) {
        JobState::Held
    } else if pending {
        JobState::Waiting
    } else if status.is_some() {
        JobState::Stopping
    } else {
        JobState::Running
    };
    // It starts once, and no field of it says when: the grant was recorded by the same write.
    let start = (state == JobState::Running).then(|| {
        let ago = ago(object, |fields| {
            let annotation = format!("f:{GRANTED_TO}");
            let annotations = &fields["f:metadata"]["f:annotations"];
            annotations.get(&annotation).is_some()
        })?;
        started(object, object.metadata.uid.as_deref()?, ago)
    });
    record(object, WorkloadKind::PipelineRun, state, start.flatten())
}

fn record(
    object: &DynamicObject,
    kind: WorkloadKind,
    state: JobState,
    start: Option<Start>,
) -> Option<What> {
    let semaphore = object.annotations().get(SEMAPHORE)?;
    let namespace = object.metadata.namespace.as_deref()?;
    Some(What::Job(Job {
        kind,
        uid: object.uid()?,
        name: object.name_any(),
        prefix: prefix_of(namespace, first(semaphore)),
        asks: asks(namespace, semaphore),
        rv: version(&object.metadata),
        state,
        session: object.annotations().get(SESSION).cloned(),
        start,
    }))
}

/// Its start, if it was the operator's.
fn started(object: &DynamicObject, session: &str, ago: f64) -> Option<Start> {
    let granted_to = object.annotations().get(GRANTED_TO);
    (granted_to == object.metadata.uid.as_ref()).then(|| Start {
        session: session.to_owned(),
        ago,
    })
}

fn is_gone(object: &DynamicObject, there: bool) -> bool {
    !there || object.metadata.deletion_timestamp.is_some()
}

fn is_on_hold(object: &DynamicObject) -> bool {
    let hold = object.annotations().get(HOLD);
    hold.is_some_and(|hold| hold == "true")
}

/// The status of the condition of this type.
fn condition<'a>(object: &'a DynamicObject, of: &str) -> &'a str {
    let conditions = object.data["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let found = conditions.find(|condition| condition["type"] == of);
    let status = found.and_then(|condition| condition["status"].as_str());
    status.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(spec: &Value, conditions: &[(&str, &str)]) -> DynamicObject {
        let conditions = conditions.iter();
        let conditions =
            conditions.map(|(type_, status)| json!({ "type": type_, "status": status }));
        let conditions: Vec<Value> = conditions.collect();
        let fields = json!({ "f:spec": { "f:suspend": {} }, "f:metadata": { "f:annotations": { "f:consul-semaphore.io/granted-to": {} } } });
        serde_json::from_value(json!({
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7",
                "annotations": { SEMAPHORE: "db:1, licenses:2", GRANTED_TO: "u" },
                "managedFields": [{
                    "manager": "consul-semaphore-operator", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields,
                }],
            },
            "spec": spec, "status": { "conditions": conditions },
        }))
        .unwrap()
    }

    fn read(what: Option<What>) -> Job {
        match what {
            Some(What::Job(job)) => job,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_job_set_waits_when_its_controller_has_suspended_it_and_is_done_by_its_conditions() {
        let state = |spec: Value, conditions: &[(&str, &str)]| {
            read(job_set(&object(&spec, conditions), true)).state
        };
        let held = json!({ "suspend": true });
        assert_eq!(state(held.clone(), &[]), JobState::Stopping);
        let suspended = ("Suspended", "True");
        assert_eq!(state(held.clone(), &[suspended]), JobState::Waiting);
        let resumed = ("Suspended", "False");
        assert_eq!(
            state(json!({ "suspend": false }), &[resumed]),
            JobState::Running
        );
        let failed = ("Failed", "True");
        assert_eq!(
            state(held.clone(), &[suspended, failed]),
            JobState::Finished
        );
        let gone = job_set(&object(&held, &[]), false);
        assert_eq!(read(gone).state, JobState::Gone);
    }

    #[test]
    fn a_pipeline_run_that_is_to_end_runs_no_more_and_is_done_by_its_condition() {
        let state = |spec: Value, conditions: &[(&str, &str)]| {
            read(pipeline_run(&object(&spec, conditions), true)).state
        };
        let unknown = ("Succeeded", "Unknown");
        let pending = json!({ "status": "PipelineRunPending" });
        assert_eq!(state(pending, &[unknown]), JobState::Waiting);
        assert_eq!(state(json!({}), &[unknown]), JobState::Running);
        let cancelled = json!({ "status": "Cancelled" });
        assert_eq!(state(cancelled.clone(), &[unknown]), JobState::Stopping);
        let ended = ("Succeeded", "False");
        assert_eq!(state(cancelled, &[ended]), JobState::Finished);
    }

    #[test]
    fn a_start_is_by_the_operator_and_of_this_workload() {
        let running = object(&json!({}), &[]);
        let job = read(pipeline_run(&running, true));
        assert_eq!(job.start.map(|start| start.session).as_deref(), Some("u"));
        assert_eq!(job.asks.len(), 2);
        let mut copy = running.clone();
        copy.metadata.uid = Some("other".to_owned());
        assert!(read(pipeline_run(&copy, true)).start.is_none());
        let mut by_hand = running;
        for fields in by_hand.metadata.managed_fields.iter_mut().flatten() {
            fields.manager = Some("kubectl".to_owned());
        }
        assert!(read(pipeline_run(&by_hand, true)).start.is_none());
        let annotations = json!({ SESSION: "s" });
        let template =
            json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } });
        let jobs = json!({ "suspend": false, "replicatedJobs": [{ "template": template }] });
        let set = read(job_set(&object(&jobs, &[]), true));
        assert_eq!(set.start.map(|start| start.session).as_deref(), Some("s"));
    }
}
