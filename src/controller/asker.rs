//! A Job that names a semaphore, as the operator reads it: for programs that show lines to people and
//! are to say the same.

use std::sync::Arc;

use k8s_openapi::api::batch::v1 as batch;

use super::{
    events::Reason,
    job::{Kept, Obstacle},
};
use consul_client::clock::Moment;
use consul_semaphore::Job;
use consul_semaphore_api::annotations::{AnnotationError, KEY};

/// A Job that names a semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The name of the `ConsulSemaphore`, which is in the Job's namespace.
    pub semaphore: Arc<str>,
    /// What there is to know of it.
    pub job: Arc<Job>,
    obstacle: Option<Obstacle>,
    no_key: Option<AnnotationError>,
}

impl Asker {
    /// Reads a Job; `None` if it names no semaphore.
    pub fn read(job: &batch::Job) -> Option<Self> {
        let Kept {
            namespace: _,
            job,
            names,
            obstacle,
            no_key,
        } = Kept::read(job, Moment::default())?;
        Some(Self {
            semaphore: names?,
            job,
            obstacle,
            no_key,
        })
    }

    /// What on the Job itself keeps it out of the line, if anything does: the word that its event has, and
    /// why. `keyed` says whether its semaphore is.
    pub fn obstacle(&self, keyed: bool) -> Option<(String, String)> {
        let malformed = |why: String| (format!("{:?}", Reason::Malformed), why);
        match &self.obstacle {
            Some(Obstacle::Malformed(error)) => return Some(malformed(error.to_string())),
            Some(Obstacle::Managed(manager)) => {
                return Some((format!("{:?}", Reason::ManagedElsewhere), manager.clone()));
            }
            None => {}
        }
        if !keyed || self.job.key.is_some() {
            return None;
        }
        let why = self.no_key.as_ref().map(ToString::to_string);
        Some(malformed(why.unwrap_or_else(|| {
            format!("the semaphore is keyed, and the Job has no annotation {KEY}")
        })))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn asker(annotations: &Value, managed_by: Option<&str>) -> Option<Asker> {
        let job = json!({
            "metadata": {
                "name": "a", "namespace": "batch", "uid": "u", "resourceVersion": "7",
                "annotations": annotations,
            },
            "spec": { "suspend": true, "managedBy": managed_by, "template": {} },
        });
        Asker::read(&serde_json::from_value(job).unwrap())
    }

    #[test]
    fn one_that_names_a_semaphore_is_read_also_if_it_is_not_in_line() {
        assert_eq!(asker(&json!({}), None), None);
        let plain = json!({ "consul-semaphore.io/semaphore": "db" });
        let one = asker(&plain, None).unwrap();
        assert_eq!((&*one.semaphore, one.obstacle(false)), ("db", None));
        let (word, why) = one.obstacle(true).unwrap();
        assert!(word == "Malformed" && why.contains(KEY), "{word}: {why}");
        let managed = asker(&plain, Some("kueue.x-k8s.io/multikueue")).unwrap();
        let (word, why) = managed.obstacle(false).unwrap();
        assert!(word == "ManagedElsewhere" && why.contains("multikueue"));
    }

    #[test]
    fn what_can_not_be_followed_is_told() {
        let with = |name: &str, value: &str| {
            json!({
                "consul-semaphore.io/semaphore": "db",
                format!("consul-semaphore.io/{name}"): value,
            })
        };
        let (word, why) = asker(&with("priority", "high"), None)
            .and_then(|one| one.obstacle(false))
            .unwrap();
        assert!(word == "Malformed" && why.contains("whole number"), "{why}");
        let bad_key = asker(&with("key", "a/b"), None).unwrap();
        assert_eq!(bad_key.obstacle(false), None);
        let (_, why) = bad_key.obstacle(true).unwrap();
        assert!(why.contains("a/b"), "{why}");
    }
}
