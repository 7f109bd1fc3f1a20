//! Tells workloads whose annotations nobody reads: misspelt ones, and those in another place.
//!
//! Nothing is kept of workloads with which nothing is wrong, so those of others cost three lookups each.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use super::events::{Events, Reason};
use crate::workload::Sighting;
use consul_semaphore::Uid;

/// What was told to which workload.
pub(super) struct Advisor {
    events: Events,
    told: HashMap<Uid, Told>,
    /// How many lists of all workloads have begun.
    lists: u64,
}

/// What a workload was told, and in which list or after which it was last seen.
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

    /// A list of all workloads begins.
    pub(super) fn list_begins(&mut self) {
        self.lists += 1;
    }

    /// The list is complete: workloads that are not in it are gone.
    pub(super) fn list_ends(&mut self) {
        let lists = self.lists;
        self.told.retain(|_, told| told.list == lists);
    }

    /// A workload is gone.
    pub(super) fn forget(&mut self, uid: &Uid) {
        self.told.remove(uid);
    }

    /// A workload as the watch shows it: its users are told what is wrong, once.
    pub(super) fn look(&mut self, workload: &Sighting) {
        let Sighting {
            namespace,
            name,
            uid,
            advice,
            ..
        } = workload;
        let Some(advice) = advice else {
            if !self.told.is_empty() {
                self.forget(uid);
            }
            return;
        };
        let now = Told {
            advice: hash(advice),
            list: self.lists,
        };
        let known = self.told.get(uid).map(|told| told.advice);
        if known != Some(now.advice) {
            self.events
                .workload_once(namespace, name, uid, Reason::Malformed, advice.clone());
        }
        self.told.insert(uid.clone(), now);
    }
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

    fn workload(change: impl FnOnce(&mut Value)) -> Sighting {
        let mut workload = json!({
            "metadata": {
                "name": "a", "namespace": "batch", "uid": "u",
                "annotations": { "consul-semaphore.io/semaphor": "db" },
            },
            "spec": { "template": {} },
        });
        change(&mut workload);
        Sighting::of(serde_json::from_value(workload).unwrap()).unwrap()
    }

    #[test]
    fn a_workload_is_told_once_and_again_when_something_else_is_wrong() {
        let (events, mut told) = Events::heard();
        let mut advisor = Advisor::new(events);
        advisor.list_begins();
        for _ in 0..3 {
            advisor.look(&workload(|_| {}));
        }
        advisor.list_ends();
        // The watch begins anew.
        advisor.list_begins();
        advisor.look(&workload(|_| {}));
        advisor.list_ends();
        let first = told.next().unwrap();
        assert!(
            first.contains("write consul-semaphore.io/semaphore"),
            "{first}"
        );
        assert_eq!(told.next(), None);

        let other = json!({ "consul-semaphore.io/priority": "1" });
        advisor.look(&workload(|workload| {
            workload["metadata"]["annotations"] = other;
        }));
        assert!(told.next().unwrap().contains("means nothing without"));

        // A list without it: it is gone, and nothing is remembered.
        advisor.list_begins();
        advisor.list_ends();
        assert!(advisor.told.is_empty());
    }
}
