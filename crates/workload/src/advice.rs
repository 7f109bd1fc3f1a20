//! What is wrong with annotations that have no effect: misspelt ones, and those in another place.

use std::collections::BTreeMap;

use consul_semaphore_api::advice::{Places, advise};

use crate::{Job, Kind, Object};

/// Advice for the users of a workload about its annotations, if something is wrong with them. A finished workload
/// needs no advice any more.
pub fn advice(object: &Job) -> Option<String> {
    let none = BTreeMap::new();
    let metadata = &object.metadata;
    let advice = advise(Places {
        annotations: metadata.annotations.as_ref().unwrap_or(&none),
        labels: metadata.labels.as_ref().unwrap_or(&none),
        template: object.template().unwrap_or(&none),
    })?;
    (!object.is_over()).then_some(advice)
}

/// The same about an object of any kind. Only of a Job is there any.
pub fn advice_on(kind: &Kind, object: &Object) -> Option<String> {
    match kind {
        Kind::Job => advice(&object.job().ok()?),
        _ => None,
    }
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
}
