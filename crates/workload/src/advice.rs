//! Advice about annotations that have no effect, because they are misspelt or in the wrong place.

use std::collections::BTreeMap;

use consul_semaphore::{KindName, Phase};
use consul_semaphore_api::advice::{AnnotationPlaces, advise};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{
    Job, Kind, Object,
    read::{self, Read},
};

type Map = BTreeMap<String, String>;

/// Returns advice for the users of a Job if something is wrong with its annotations. A finished Job, or one that is
/// being deleted, gets none.
pub fn advice(object: &Job) -> Option<String> {
    let none = Map::new();
    let template = object.template().unwrap_or(&none);
    let advice = advise_on(&Kind::Job, &object.metadata, template)?;
    (!object.is_over()).then_some(advice)
}

/// Returns advice for the users of an object of any kind if something is wrong with its annotations. An object whose
/// owner decides when it runs gets none, because its annotations may be copies of its owner's.
pub fn advice_on(kind: &Kind, object: &Object) -> Option<String> {
    match kind {
        Kind::Job => advice(&object.job().ok()?),
        // Kueue makes Workloads, so no user writes their annotations.
        Kind::KueueWorkload => None,
        kind => kind.read(object, advice_on_any).ok().flatten(),
    }
}

/// Returns advice without a look at pod templates, because each kind has them in another place.
fn advice_on_any(object: &dyn Read) -> Option<String> {
    let advice = advise_on(&object.kind(), object.metadata(), &Map::new())?;
    let phase = object.phase(read::granted(object).is_some());
    let is_over = matches!(phase, Phase::Finished { .. } | Phase::Deleting);
    (!is_over && read::owner(object).is_none()).then_some(advice)
}

fn advise_on(kind: &Kind, metadata: &ObjectMeta, template: &Map) -> Option<String> {
    let none = Map::new();
    let name: KindName = kind.name();
    advise(AnnotationPlaces {
        kind: name.as_str(),
        made_by: match kind {
            Kind::Job => "in a CronJob: spec.jobTemplate.metadata.annotations",
            Kind::Workflow => "in a CronWorkflow: spec.workflowMetadata.annotations",
            _ => "",
        },
        annotations: metadata.annotations.as_ref().unwrap_or(&none),
        labels: metadata.labels.as_ref().unwrap_or(&none),
        template,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(change: impl FnOnce(&mut Value)) -> Job {
        let mut job = json!({
            "metadata": {
                "name": "a", "namespace": "batch", "uid": "u",
                "annotations": { "consul-semaphore.io/semaphor": "db" },
            },
            "spec": { "template": {} },
        });
        change(&mut job);
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn a_job_is_told_until_it_is_done() {
        assert!(advice(&job(|_| {})).is_some());
        for condition in ["Complete", "Failed"] {
            let done = json!([{ "type": condition, "status": "True" }]);
            assert_eq!(advice(&job(|job| job["status"]["conditions"] = done)), None);
        }
        assert_eq!(
            advice(&job(|job| job["metadata"]["annotations"] = json!({}))),
            None
        );
    }

    fn object(kind: &Kind, change: impl FnOnce(&mut Value)) -> Option<String> {
        let mut object = json!({
            "metadata": {
                "name": "a", "namespace": "batch", "uid": "u",
                "annotations": { "consul-semaphore.io/semaphor": "db" },
                "labels": { "consul-semaphore.io/waits": "true" },
            },
            "spec": {}, "status": {},
        });
        change(&mut object);
        advice_on(kind, &serde_json::from_value(object).unwrap())
    }

    #[test]
    fn each_kind_is_told_by_its_name() {
        for kind in Kind::all() {
            let told = object(&kind, |_| {});
            if kind == Kind::KueueWorkload {
                assert_eq!(told, None);
                continue;
            }
            let told = told.unwrap_or_else(|| panic!("{}", kind.name()));
            let expected = format!(
                "this {} does not ask for a slot, so the operator leaves it alone: the annotation \
                 consul-semaphore.io/semaphor is unknown: write consul-semaphore.io/semaphore",
                kind.name()
            );
            assert_eq!(told, expected);
            let right = json!({ "consul-semaphore.io/semaphore": "db" });
            let told_right = object(&kind, |it| it["metadata"]["annotations"] = right);
            assert_eq!(told_right, None, "{}", kind.name());
            let deleted_at = json!("2026-01-01T00:00:00Z");
            let told_deleted = object(&kind, |it| {
                it["metadata"]["deletionTimestamp"] = deleted_at;
            });
            assert_eq!(told_deleted, None, "{}", kind.name());
        }
    }

    /// Tekton copies the annotations of a run to everything that it makes.
    #[test]
    fn a_part_is_not_told_of_what_its_owner_was_told() {
        let owned = json!([{
            "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "run", "uid": "r", "controller": true,
        }]);
        let told = object(&Kind::TaskRun, |it| {
            it["metadata"]["ownerReferences"] = owned;
        });
        assert_eq!(told, None);
    }

    #[test]
    fn a_label_is_to_be_an_annotation_also_of_what_a_cron_workflow_makes() {
        let told = object(&Kind::Workflow, |it| {
            it["metadata"]["annotations"] = json!({});
            it["metadata"]["labels"]["consul-semaphore.io/semaphore"] = json!("db");
        });
        let told = told.unwrap();
        let place = "of the Workflow itself (in a CronWorkflow: spec.workflowMetadata.annotations)";
        assert!(told.contains(place), "{told}");
    }
}
