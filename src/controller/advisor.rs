//! Warns of annotations that have no effect: misspelt ones, and those in the wrong place.
//!
//! It remembers only workloads with a problem, so all others cost three lookups each.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use super::events::{Events, Reason};
use crate::workload::Sighting;
use consul_semaphore::Uid;

/// Which warning each workload has.
pub(super) struct Advisor {
    events: Events,
    reported: HashMap<Uid, Reported>,
    /// How many lists of all workloads have started.
    lists: u64,
}

/// The warning of a workload, and in which list (or after which) it was last seen.
struct Reported {
    advice: u64,
    list: u64,
}

impl Advisor {
    pub(super) fn new(events: Events) -> Self {
        Self {
            events,
            reported: HashMap::new(),
            lists: 0,
        }
    }

    /// A list of all workloads starts.
    pub(super) fn list_begins(&mut self) {
        self.lists += 1;
    }

    /// The list is complete: workloads that are not in it were deleted.
    pub(super) fn list_ends(&mut self) {
        let lists = self.lists;
        self.reported.retain(|_, reported| reported.list == lists);
    }

    /// A workload was deleted.
    pub(super) fn forget(&mut self, uid: &Uid) {
        self.reported.remove(uid);
    }

    /// Handles a workload from the watch: emits an event about what is wrong, once.
    pub(super) fn on_update(&mut self, workload: &Sighting) {
        let Sighting {
            namespace,
            uid,
            advice,
            ..
        } = workload;
        let Some(advice) = advice else {
            if !self.reported.is_empty() {
                self.forget(uid);
            }
            return;
        };
        let now = Reported {
            advice: hash(advice),
            list: self.lists,
        };
        let known = self.reported.get(uid).map(|reported| reported.advice);
        if known != Some(now.advice) {
            self.events.workload_once(
                namespace,
                workload,
                Reason::AnnotationIgnored,
                advice.clone(),
            );
        }
        self.reported.insert(uid.clone(), now);
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use consul_semaphore::KindName;

    fn workload(advice: &str) -> Sighting {
        Sighting {
            kind: KindName::default(),
            namespace: "batch".to_owned(),
            name: "a".to_owned(),
            uid: "u".into(),
            tracked: None,
            advice: Some(advice.to_owned()),
        }
    }

    #[test]
    fn a_problem_is_reported_once_and_again_when_something_else_is_wrong() {
        let (events, mut emitted) = Events::captured();
        let mut advisor = Advisor::new(events);
        advisor.list_begins();
        for _ in 0..3 {
            advisor.on_update(&workload("write this for that"));
        }
        advisor.list_ends();
        // The watch restarts.
        advisor.list_begins();
        advisor.on_update(&workload("write this for that"));
        advisor.list_ends();
        let first = emitted.next().unwrap();
        assert!(first.contains("write this for that"), "{first}");
        assert_eq!(emitted.next(), None);

        advisor.on_update(&workload("this means nothing"));
        assert!(emitted.next().unwrap().contains("this means nothing"));

        // A list without it: it was deleted, and nothing is remembered.
        advisor.list_begins();
        advisor.list_ends();
        assert!(advisor.reported.is_empty());
    }
}
