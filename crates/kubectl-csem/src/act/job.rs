//! `hold`, `unhold` and `bump`, which set annotations that decide a Job's place in the queue.

use consul_client::clock::Moment;
use consul_semaphore::Phase;
use consul_semaphore_api::annotations::{HOLD, PRIORITY, SEMAPHORE};
use consul_semaphore_workload::{Obstacle, TrackedWorkload, WorkloadObject, phase};
use serde_json::{Value, json};

use crate::{cluster::Cluster, failure::Failure, terminal};

/// The requested change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Hold,
    Unhold,
    Priority(i32),
}

/// What has to be done.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The Job is already as requested.
    Nothing(String),
    /// The annotation, its value, and the message once it is written.
    Write {
        annotation: &'static str,
        value: Option<String>,
        done: String,
    },
}

pub(crate) async fn change(cluster: &Cluster, name: &str, change: Change) -> Result<(), Failure> {
    let cluster = cluster.to_change();
    cluster.installed().await?;
    let job = cluster.job(name).await?;
    match step(&job, change)? {
        Step::Nothing(said) => terminal::write(&format!("job.batch/{name} {said}\n")),
        Step::Write {
            annotation,
            value,
            done,
        } => {
            cluster
                .patch_job(name, &patch(&job, annotation, value.as_deref()))
                .await?;
            terminal::write(&format!("job.batch/{name} {done}\n"))
        }
    }
}

/// The patch names the uid, so that it can't hit a new Job with the same name.
fn patch(job: &WorkloadObject, annotation: &str, value: Option<&str>) -> Value {
    json!({ "metadata": { "uid": job.metadata.uid, "annotations": { annotation: value } } })
}

/// Decides from the current Job. The annotations of a Job that holds a slot take effect only when its pods have
/// ended.
fn step(job: &WorkloadObject, change: Change) -> Result<Step, Failure> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let annotations = job.metadata.annotations.clone().unwrap_or_default();
    if !annotations.contains_key(SEMAPHORE) {
        return Err(Failure::impossible(format!(
            "the Job {name} needs no slot: it has no annotation {SEMAPHORE}"
        )));
    }
    let refuse = |is: &str| {
        let message = format!("the Job {name} {is}, so it does not wait");
        Err(Failure::impossible(message))
    };
    let later = match phase(job) {
        Phase::Finished { .. } => return refuse("is done"),
        Phase::Deleting => return refuse("is being deleted"),
        Phase::Running => {
            ". It keeps running: this takes effect when it is queued again. To stop it, suspend it"
        }
        Phase::Idle | Phase::Stopping => "",
    };
    let annotation = match change {
        Change::Hold | Change::Unhold => HOLD,
        Change::Priority(_) => PRIORITY,
    };
    let (value, there, done) = match change {
        Change::Hold => {
            let done = "is on hold: it stays out of the queue until `kubectl csem unhold`";
            (
                Some("true".to_owned()),
                "is on hold already",
                done.to_owned(),
            )
        }
        Change::Unhold => (None, "is not on hold", "is no longer on hold".to_owned()),
        Change::Priority(priority) => {
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
        // Any other value is not a hold, and may be malformed: unhold removes it as well.
        Change::Unhold => now.is_none(),
        Change::Hold | Change::Priority(_) => now == value.as_ref(),
    };
    if same {
        return Ok(Step::Nothing(there.to_owned()));
    }
    let workload = TrackedWorkload::read(job, Moment::default());
    let obstacle = match workload.and_then(|workload| workload.obstacle) {
        Some(Obstacle::Managed(why)) => {
            format!(". The operator ignores this Job, so it gets no slot: {why}")
        }
        // The new value may be what corrects it.
        _ => String::new(),
    };
    Ok(Step::Write {
        annotation,
        value,
        done: format!("{done}{later}{obstacle}"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::from_value;

    use super::*;

    fn job(annotations: &Value, spec: &Value, conditions: &Value) -> WorkloadObject {
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
        from_value(job).unwrap()
    }

    fn waiting(annotations: &Value) -> WorkloadObject {
        let suspended = json!([{ "type": "Suspended", "status": "True" }]);
        job(
            annotations,
            &json!({ "suspend": true, "template": {} }),
            &suspended,
        )
    }

    /// The written annotation with its value, and the message.
    fn written(job: &WorkloadObject, change: Change) -> (&'static str, Option<String>, String) {
        match step(job, change).unwrap() {
            Step::Write {
                annotation,
                value,
                done,
            } => (annotation, value, done),
            Step::Nothing(said) => panic!("nothing is written: {said}"),
        }
    }

    #[test]
    fn a_waiting_job_gets_the_annotation() {
        let (annotation, value, done) = written(&waiting(&json!({})), Change::Hold);
        assert_eq!((annotation, value.as_deref()), (HOLD, Some("true")));
        assert!(
            done.contains("on hold") && !done.contains("keeps running"),
            "{done}"
        );
        let (annotation, value, _) = written(&waiting(&json!({})), Change::Priority(-5));
        assert_eq!((annotation, value.as_deref()), (PRIORITY, Some("-5")));
    }

    #[test]
    fn what_can_not_be_read_is_replaced_or_taken_away() {
        let malformed = waiting(&json!({ HOLD: "maybe", PRIORITY: "high" }));
        assert_eq!(written(&malformed, Change::Unhold).1, None);
        assert_eq!(
            written(&malformed, Change::Priority(1)).1.as_deref(),
            Some("1")
        );
        assert_eq!(written(&malformed, Change::Hold).1.as_deref(), Some("true"));
    }

    #[test]
    fn a_value_that_is_set_already_is_not_written_again() {
        let job = waiting(&json!({ HOLD: "true", PRIORITY: "7" }));
        for change in [Change::Hold, Change::Priority(7)] {
            assert!(
                matches!(step(&job, change).unwrap(), Step::Nothing(_)),
                "{change:?}"
            );
        }
        let step = step(&waiting(&json!({})), Change::Unhold).unwrap();
        assert_eq!(step, Step::Nothing("is not on hold".to_owned()));
    }

    #[test]
    fn for_a_running_job_the_message_says_when_it_takes_effect() {
        let running = job(&json!({}), &json!({ "template": {} }), &json!([]));
        let (.., done) = written(&running, Change::Hold);
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
            for change in [Change::Hold, Change::Unhold, Change::Priority(7)] {
                let refused = step(job, change).unwrap_err();
                assert_eq!(refused.message, "the Job a is done, so it does not wait");
            }
        }
        let mut deleted = waiting(&json!({}));
        deleted.metadata.deletion_timestamp = from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let refused = step(&deleted, Change::Hold).unwrap_err();
        assert!(
            refused.message.contains("is being deleted"),
            "{}",
            refused.message
        );
        let mut others = waiting(&json!({}));
        others.metadata.annotations = None;
        let refused = step(&others, Change::Hold).unwrap_err();
        assert!(refused.message.contains(SEMAPHORE), "{}", refused.message);
    }

    #[test]
    fn one_that_something_else_manages_is_reported() {
        let spec = json!({ "suspend": true, "managedBy": "example.com/queue", "template": {} });
        let (.., done) = written(&job(&json!({}), &spec, &json!([])), Change::Hold);
        assert!(done.contains("example.com/queue"), "{done}");
    }

    #[test]
    fn the_patch_is_for_this_very_job() {
        let patch = patch(&waiting(&json!({})), HOLD, None);
        let expected = json!({ "metadata": { "uid": "u", "annotations": { HOLD: null } } });
        assert_eq!(patch, expected);
    }
}
