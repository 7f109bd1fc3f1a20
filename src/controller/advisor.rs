//! Tells Jobs whose annotations nobody reads: misspelt ones, and those in another place.
//!
//! Nothing is kept of Jobs with which nothing is wrong, so those of others cost three lookups each.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use k8s_openapi::api::batch::v1 as batch;

use super::{
    events::{Events, Reason},
    job,
};
use consul_semaphore::Uid;
use consul_semaphore_api::advice::{Places, advise};

/// What was told to which Job.
pub(super) struct Advisor {
    events: Events,
    told: HashMap<Uid, Told>,
    /// How many lists of all Jobs have begun.
    lists: u64,
}

/// What a Job was told, and in which list or after which it was last seen.
struct Told {
    advice: u64,
    list: u64,
}

impl Advisor {
    pub(super) fn new(events: Events) -> Self {
        Self {
            events,
            told: HashMap::new(),
            lists: 0,
        }
    }

    /// A list of all Jobs begins.
    pub(super) fn list_begins(&mut self) {
        self.lists += 1;
    }

    /// The list is complete: Jobs that are not in it are gone.
    pub(super) fn list_ends(&mut self) {
        let lists = self.lists;
        self.told.retain(|_, told| told.list == lists);
    }

    /// A Job is gone.
    pub(super) fn forget(&mut self, uid: &str) {
        self.told.remove(&Uid::from(uid));
    }

    /// A Job as the watch shows it: it is told what is wrong, once.
    pub(super) fn look(&mut self, job: &batch::Job) {
        let Some((namespace, name, uid)) = named(job) else {
            return;
        };
        let Some(advice) = advice(job) else {
            if !self.told.is_empty() {
                self.forget(uid);
            }
            return;
        };
        let uid = Uid::from(uid);
        let now = Told {
            advice: hash(&advice),
            list: self.lists,
        };
        let known = self.told.get(&uid).map(|told| told.advice);
        if known != Some(now.advice) {
            self.events
                .job_once(namespace, name, &uid, Reason::Malformed, advice);
        }
        self.told.insert(uid, now);
    }
}

fn named(job: &batch::Job) -> Option<(&str, &str, &str)> {
    let metadata = &job.metadata;
    Some((
        metadata.namespace.as_deref()?,
        metadata.name.as_deref()?,
        metadata.uid.as_deref()?,
    ))
}

/// What is to be said to a Job. One that is done needs no advice any more.
fn advice(job: &batch::Job) -> Option<String> {
    let none = BTreeMap::new();
    let template = job.spec.as_ref().and_then(|spec| {
        let metadata = spec.template.metadata.as_ref()?;
        metadata.annotations.as_ref()
    });
    let advice = advise(Places {
        annotations: job.metadata.annotations.as_ref().unwrap_or(&none),
        labels: job.metadata.labels.as_ref().unwrap_or(&none),
        template: template.unwrap_or(&none),
    })?;
    (!job::is_over(job)).then_some(advice)
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(change: impl FnOnce(&mut Value)) -> batch::Job {
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

    #[test]
    fn a_job_is_told_once_and_again_when_something_else_is_wrong() {
        let (events, mut told) = Events::heard();
        let mut advisor = Advisor::new(events);
        advisor.list_begins();
        for _ in 0..3 {
            advisor.look(&job(|_| {}));
        }
        advisor.list_ends();
        // The watch begins anew.
        advisor.list_begins();
        advisor.look(&job(|_| {}));
        advisor.list_ends();
        let first = told.next().unwrap();
        assert!(
            first.contains("write consul-semaphore.io/semaphore"),
            "{first}"
        );
        assert_eq!(told.next(), None);

        let other = json!({ "consul-semaphore.io/priority": "1" });
        advisor.look(&job(|job| job["metadata"]["annotations"] = other));
        assert!(told.next().unwrap().contains("means nothing without"));

        // A list without it: it is gone, and nothing is remembered.
        advisor.list_begins();
        advisor.list_ends();
        assert!(advisor.told.is_empty());
    }
}
