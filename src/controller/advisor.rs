//! Warns of annotations that have no effect (because they are misspelt or in the wrong place), and of effects that a
//! waiting workload has.
//!
//! The advisor remembers only workloads with a problem, so each other workload costs three lookups.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use super::events::{Events, Reason};
use crate::workload::Sighting;
use consul_semaphore::Uid;

/// Warnings that were emitted for each workload.
pub(super) struct Advisor {
    events: Events,
    reported: HashMap<Uid, EmittedWarnings>,
    /// Number of lists of all workloads that have started.
    lists: u64,
}

/// Warnings of a workload, as hashes, and the number of the last list in which, or after which, the workload was
/// seen.
struct EmittedWarnings {
    advice: Option<u64>,
    caution: Option<u64>,
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

    /// Notes that a list of all workloads starts.
    pub(super) fn list_begins(&mut self) {
        self.lists += 1;
    }

    /// Forgets the workloads that are not in the complete list, because they were deleted.
    pub(super) fn list_ends(&mut self) {
        let lists = self.lists;
        self.reported.retain(|_, reported| reported.list == lists);
    }

    /// Forgets a workload that was deleted.
    pub(super) fn forget(&mut self, uid: &Uid) {
        self.reported.remove(uid);
    }

    /// Handles a workload from the watch: emits one event for each problem, once.
    pub(super) fn on_update(&mut self, workload: &Sighting) {
        let Sighting {
            uid,
            advice,
            caution,
            ..
        } = workload;
        if advice.is_none() && caution.is_none() {
            if !self.reported.is_empty() {
                self.forget(uid);
            }
            return;
        }
        let now = EmittedWarnings {
            advice: advice.as_deref().map(hash),
            caution: caution.as_deref().map(hash),
            list: self.lists,
        };
        let known = self.reported.get(uid);
        let (advised, cautioned) =
            known.map_or((None, None), |known| (known.advice, known.caution));
        if now.advice != advised {
            self.warn(workload, Reason::AnnotationIgnored, advice.as_deref());
        }
        if now.caution != cautioned {
            self.warn(workload, Reason::CountsAsRunning, caution.as_deref());
        }
        self.reported.insert(uid.clone(), now);
    }

    fn warn(&self, workload: &Sighting, reason: Reason, note: Option<&str>) {
        if let Some(note) = note {
            let namespace = &workload.namespace;
            self.events
                .workload_once(namespace, workload, reason, note.to_owned());
        }
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
            caution: None,
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

        // A second problem gets its own event.
        let mut waiting = workload("this means nothing");
        waiting.caution = Some("it holds a lock".to_owned());
        advisor.on_update(&waiting);
        advisor.on_update(&waiting);
        let caution = emitted.next().unwrap();
        assert!(caution.contains("it holds a lock"), "{caution}");
        assert_eq!(emitted.next(), None);

        // A list without the workload means that it was deleted, so nothing is remembered.
        advisor.list_begins();
        advisor.list_ends();
        assert!(advisor.reported.is_empty());
    }
}
