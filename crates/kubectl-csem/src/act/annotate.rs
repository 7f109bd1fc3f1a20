//! The commands `hold`, `unhold` and `bump`. They set annotations that decide a workload's place in the queue.

use consul_semaphore::Phase;
use consul_semaphore_api::annotations::{HOLD, PRIORITY, SEMAPHORE, WAITS_LABEL};
use consul_semaphore_workload::{Object, TrackedWorkload};
use serde_json::{Value, json};

use crate::{cluster::ClusterClient, failure::Failure, terminal, workload_name::WorkloadName};

/// The requested change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnnotationChange {
    Hold,
    Unhold,
    Priority(i32),
}

/// The next thing to do for a change.
#[derive(Debug, PartialEq, Eq)]
enum AnnotationStep {
    /// The workload is already as requested.
    Nothing(String),
    /// The annotation must be written. `done` is the message once it is written.
    Write {
        annotation: &'static str,
        value: Option<String>,
        done: String,
    },
}

pub(crate) async fn change(
    cluster: &ClusterClient,
    named: &WorkloadName,
    change: AnnotationChange,
) -> Result<(), Failure> {
    let cluster = cluster.to_change();
    cluster.installed().await?;
    let object = cluster.workload(named).await?;
    let printed = named.printed();
    match step(named, &object, change)? {
        AnnotationStep::Nothing(said) => terminal::write(&format!("{printed} {said}\n")),
        AnnotationStep::Write {
            annotation,
            value,
            done,
        } => {
            let patch = patch(&object, annotation, value.as_deref());
            cluster.patch_workload(named, &patch).await?;
            terminal::write(&format!("{printed} {done}\n"))
        }
    }
}

/// Returns a merge patch. It names the uid, so that it can't change a new workload with the same name.
fn patch(object: &Object, annotation: &str, value: Option<&str>) -> Value {
    json!({ "metadata": { "uid": object.metadata.uid, "annotations": { annotation: value } } })
}

/// Decides what to do from the current workload. The annotations of a workload that holds a slot take effect only when
/// its pods have ended.
fn step(
    named: &WorkloadName,
    object: &Object,
    change: AnnotationChange,
) -> Result<AnnotationStep, Failure> {
    let title = named.title();
    let annotations = object.metadata.annotations.clone().unwrap_or_default();
    if !annotations.contains_key(SEMAPHORE) {
        return Err(Failure::impossible(format!(
            "the {title} needs no slot: it has no annotation {SEMAPHORE}"
        )));
    }
    let refuse = |is: &str| {
        let message = format!("the {title} {is}, so it does not wait");
        Err(Failure::impossible(message))
    };
    let phase = named.phase(object)?;
    match phase {
        Phase::Finished { .. } => return refuse("is done"),
        Phase::Deleting => return refuse("is being deleted"),
        Phase::Idle | Phase::Stopping | Phase::Running => {}
    }
    let annotation = match change {
        AnnotationChange::Hold | AnnotationChange::Unhold => HOLD,
        AnnotationChange::Priority(_) => PRIORITY,
    };
    let (value, there, done) = match change {
        AnnotationChange::Hold => {
            let done = "is on hold: it stays out of the queue until `kubectl csem unhold`";
            (
                Some("true".to_owned()),
                "is on hold already",
                done.to_owned(),
            )
        }
        AnnotationChange::Unhold => (None, "is not on hold", "is no longer on hold".to_owned()),
        AnnotationChange::Priority(priority) => {
            let done = format!("has the priority {priority}");
            (
                Some(priority.to_string()),
                "has that priority already",
                done,
            )
        }
    };
    let now = annotations.get(annotation);
    let same = match change {
        // A value other than `true` is not a hold and may be malformed, so `unhold` removes it as well.
        AnnotationChange::Unhold => now.is_none(),
        AnnotationChange::Hold | AnnotationChange::Priority(_) => now == value.as_ref(),
    };
    if same {
        return Ok(AnnotationStep::Nothing(there.to_owned()));
    }
    let more = remark(named, object, phase)?;
    Ok(AnnotationStep::Write {
        annotation,
        value,
        done: format!("{done}{more}"),
    })
}

/// Returns when the change takes effect, unless that is at once.
fn remark(named: &WorkloadName, object: &Object, phase: Phase) -> Result<String, Failure> {
    let kind = named.kind.name();
    let workload = named.tracked(object)?;
    let ignored = workload.as_ref().filter(|workload| workload.is_managed());
    // Any other obstacle may be one that the new value corrects, so it is not mentioned.
    if let Some(obstacle) = ignored.and_then(|workload| workload.obstacle.as_ref()) {
        return Ok(format!(
            ". The operator ignores this {kind}, so it gets no slot: {obstacle}"
        ));
    }
    if !named.kind.is_seen(object) {
        return Ok(format!(
            ". The operator does not see this {kind}: give it the label {WAITS_LABEL}=true"
        ));
    }
    let stays = |workload: &TrackedWorkload| !workload.workload.traits.can_be_suspended;
    let later = match phase {
        Phase::Running if workload.as_ref().is_some_and(stays) => {
            ". It keeps running: it can't be suspended any more"
        }
        Phase::Running => {
            ". It keeps running: this takes effect when it is queued again. To stop it, suspend it"
        }
        _ => "",
    };
    Ok(later.to_owned())
}

#[cfg(test)]
mod tests {
    use consul_semaphore_api::annotations::{GRANTED_TO, LOCK_KEY, SESSION};
    use serde_json::from_value;

    use super::*;

    /// Returns the step for a Job.
    fn step(object: &Object, change: AnnotationChange) -> Result<AnnotationStep, Failure> {
        super::step(&WorkloadName::parse("a").unwrap(), object, change)
    }

    fn job(annotations: &Value, spec: &Value, conditions: &Value) -> Object {
        let mut all = json!({ SEMAPHORE: "db" });
        for (name, value) in annotations.as_object().unwrap() {
            all[name] = value.clone();
        }
        let job = json!({
            "metadata": {
                "name": "a", "namespace": "batch", "uid": "u", "resourceVersion": "7", "annotations": all,
            },
            "spec": spec,
            "status": { "conditions": conditions },
        });
        serde_json::from_str(&job.to_string()).unwrap()
    }

    fn waiting(annotations: &Value) -> Object {
        let suspended = json!([{ "type": "Suspended", "status": "True" }]);
        job(
            annotations,
            &json!({ "suspend": true, "template": {} }),
            &suspended,
        )
    }

    /// Returns the annotation that is written, its value, and the message.
    fn written(job: &Object, change: AnnotationChange) -> (&'static str, Option<String>, String) {
        match step(job, change).unwrap() {
            AnnotationStep::Write {
                annotation,
                value,
                done,
            } => (annotation, value, done),
            AnnotationStep::Nothing(said) => panic!("nothing is written: {said}"),
        }
    }

    #[test]
    fn a_waiting_job_gets_the_annotation() {
        let (annotation, value, done) = written(&waiting(&json!({})), AnnotationChange::Hold);
        assert_eq!((annotation, value.as_deref()), (HOLD, Some("true")));
        assert!(
            done.contains("on hold") && !done.contains("keeps running"),
            "{done}"
        );
        let (annotation, value, _) = written(&waiting(&json!({})), AnnotationChange::Priority(-5));
        assert_eq!((annotation, value.as_deref()), (PRIORITY, Some("-5")));
    }

    #[test]
    fn what_can_not_be_read_is_replaced_or_taken_away() {
        let malformed = waiting(&json!({ HOLD: "maybe", PRIORITY: "high" }));
        assert_eq!(written(&malformed, AnnotationChange::Unhold).1, None);
        assert_eq!(
            written(&malformed, AnnotationChange::Priority(1))
                .1
                .as_deref(),
            Some("1")
        );
        assert_eq!(
            written(&malformed, AnnotationChange::Hold).1.as_deref(),
            Some("true")
        );
    }

    #[test]
    fn a_value_that_is_set_already_is_not_written_again() {
        let job = waiting(&json!({ HOLD: "true", PRIORITY: "7" }));
        for change in [AnnotationChange::Hold, AnnotationChange::Priority(7)] {
            assert!(
                matches!(step(&job, change).unwrap(), AnnotationStep::Nothing(_)),
                "{change:?}"
            );
        }
        let step = step(&waiting(&json!({})), AnnotationChange::Unhold).unwrap();
        assert_eq!(step, AnnotationStep::Nothing("is not on hold".to_owned()));
    }

    #[test]
    fn for_a_running_job_the_message_says_when_it_takes_effect() {
        let running = job(&json!({}), &json!({ "template": {} }), &json!([]));
        let (.., done) = written(&running, AnnotationChange::Hold);
        assert!(done.contains("keeps running"), "{done}");
    }

    #[test]
    fn a_job_that_can_not_wait_is_refused() {
        let done = job(
            &json!({}),
            &json!({ "template": {} }),
            &json!([{ "type": "Complete", "status": "True" }]),
        );
        let mut no_name = done.clone();
        let annotations = no_name.metadata.annotations.as_mut().unwrap();
        annotations.insert(SEMAPHORE.to_owned(), "No Name".to_owned());
        for job in [&done, &no_name] {
            for change in [
                AnnotationChange::Hold,
                AnnotationChange::Unhold,
                AnnotationChange::Priority(7),
            ] {
                let refused = step(job, change).unwrap_err();
                assert_eq!(refused.message, "the Job a is done, so it does not wait");
            }
        }
        let mut deleted = waiting(&json!({}));
        deleted.metadata.deletion_timestamp = from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let refused = step(&deleted, AnnotationChange::Hold).unwrap_err();
        assert!(
            refused.message.contains("is being deleted"),
            "{}",
            refused.message
        );
        let mut others = waiting(&json!({}));
        others.metadata.annotations = None;
        let refused = step(&others, AnnotationChange::Hold).unwrap_err();
        assert!(refused.message.contains(SEMAPHORE), "{}", refused.message);
    }

    #[test]
    fn one_that_something_else_manages_is_reported() {
        let spec = json!({ "suspend": true, "managedBy": "example.com/queue", "template": {} });
        let (.., done) = written(&job(&json!({}), &spec, &json!([])), AnnotationChange::Hold);
        assert!(done.contains("example.com/queue"), "{done}");
    }

    /// The workload is held as the admission policies hold it, and runs.
    #[test]
    fn a_workload_of_another_kind_is_told_what_is_special_about_it() {
        let pod = |change: &dyn Fn(&mut Value)| {
            let mut pod = json!({
                "metadata": {
                    "name": "a", "namespace": "batch", "uid": "u", "resourceVersion": "7",
                    "annotations": { SEMAPHORE: "db" }, "labels": { WAITS_LABEL: "true" },
                },
                "spec": { "schedulingGates": [{ "name": "consul-semaphore.io/slot" }] },
            });
            change(&mut pod);
            let pod: Object = serde_json::from_str(&pod.to_string()).unwrap();
            let named = WorkloadName::parse("pod/a").unwrap();
            match super::step(&named, &pod, AnnotationChange::Hold) {
                Ok(AnnotationStep::Write { done, .. }) => done,
                Ok(AnnotationStep::Nothing(said)) => said,
                Err(failure) => failure.message,
            }
        };
        let held = pod(&|_| {});
        assert!(held.ends_with("until `kubectl csem unhold`"), "{held}");
        let unseen = pod(&|pod| pod["metadata"]["labels"] = json!({}));
        assert!(
            unseen.contains("consul-semaphore.io/waits=true"),
            "{unseen}"
        );
        let started = pod(&|pod| pod["spec"] = json!({}));
        assert!(started.contains("ignores this Pod"), "{started}");
        let granted = pod(&|pod| {
            pod["spec"] = json!({});
            let grant = json!({
                SEMAPHORE: "db", GRANTED_TO: "u", LOCK_KEY: "p/s", SESSION: "s",
            });
            pod["metadata"]["annotations"] = grant;
        });
        assert!(granted.contains("can't be suspended"), "{granted}");
        let done = pod(&|pod| pod["status"] = json!({ "phase": "Succeeded" }));
        assert_eq!(done, "the Pod a is done, so it does not wait");
    }

    #[test]
    fn the_patch_is_for_this_very_job() {
        let patch = patch(&waiting(&json!({})), HOLD, None);
        let expected = json!({ "metadata": { "uid": "u", "annotations": { HOLD: null } } });
        assert_eq!(patch, expected);
    }
}
