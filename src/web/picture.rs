//! Keeps the current state of all semaphores, and what changed since a reader's last read.
//!
//! Each change has a number. A reader passes the last number that it has seen, and gets what changed since, in its
//! current state: a semaphore that changed twice is sent once. So a slow browser misses intermediate states, and
//! costs no more than a fast one.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde_json::value::{RawValue, to_raw_value};

use super::{trend::Trend, view::View};

/// Number of deleted semaphores that are remembered. A reader that is further behind starts again.
const REMEMBERED_DELETIONS: usize = 1_000;

/// The name of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SemaphoreName {
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
}

/// All semaphores.
#[derive(Default)]
pub(super) struct Picture {
    /// Number of the last change.
    number: u64,
    semaphores: BTreeMap<SemaphoreName, Entry>,
    /// Last change of each semaphore, including deleted ones.
    changes: BTreeMap<u64, SemaphoreName>,
    gone: VecDeque<(u64, SemaphoreName)>,
    /// Number of the last deletion that is forgotten. All earlier deletions are forgotten, too.
    forgotten: u64,
    /// Problem of each watch; `None` once the watch has listed everything.
    watches: BTreeMap<String, Option<String>>,
}

struct Entry {
    number: u64,
    /// Text of the semaphore; `None` if the semaphore was deleted.
    shown: Option<Arc<ShownSemaphore>>,
    trend: Trend,
}

/// A semaphore in the form in which it is sent.
#[derive(Debug, serde::Serialize)]
pub(super) struct ShownSemaphore {
    is: Box<RawValue>,
    trend: Box<RawValue>,
}

/// Some of the changes, the oldest first.
#[derive(Debug)]
pub(super) struct Changes {
    /// Number of the last of these changes.
    pub(super) number: u64,
    /// Current state of the semaphores; `None` for a deleted one.
    pub(super) semaphores: Vec<(SemaphoreName, Option<Arc<ShownSemaphore>>)>,
}

impl Picture {
    /// Notes that a watch is incomplete, for this reason.
    pub(super) fn awaits(&mut self, watch: &str, why: &str) {
        let why = format!("{watch}: {why}");
        self.watches.insert(watch.to_owned(), Some(why));
    }

    /// Notes that a watch is complete; returns whether that is a change.
    pub(super) fn knows(&mut self, watch: &str) -> bool {
        self.watches.insert(watch.to_owned(), None) != Some(None)
    }

    /// Returns the problems of incomplete watches, one a line.
    pub(super) fn trouble(&self) -> Option<String> {
        let lines: Vec<&str> = self
            .watches
            .values()
            .flatten()
            .map(String::as_str)
            .collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Sets a semaphore's current state; returns whether it has changed.
    pub(super) fn put(&mut self, name: &SemaphoreName, view: &View<'_>, now: i64) -> bool {
        let Ok(is) = to_raw_value(view) else {
            // The keys are texts and the values plain, so writing them cannot fail.
            return false;
        };
        let before = self.semaphores.get(name);
        let shown = before.and_then(|entry| entry.shown.as_deref());
        if shown.is_some_and(|shown| shown.is.get() == is.get()) {
            return false;
        }
        let mut trend = before.map(|entry| entry.trend.clone()).unwrap_or_default();
        view.add_to(&mut trend, now);
        let Ok(shown) = to_raw_value(&trend).map(|trend| ShownSemaphore { is, trend }) else {
            return false;
        };
        self.set(name, Some(Arc::new(shown)), trend);
        true
    }

    /// Removes a semaphore that was deleted; returns whether it was known.
    pub(super) fn remove(&mut self, name: &SemaphoreName) -> bool {
        let there = self.semaphores.get(name);
        if there.is_none_or(|entry| entry.shown.is_none()) {
            return false;
        }
        self.set(name, None, Trend::default());
        self.gone.push_back((self.number, name.clone()));
        if self.gone.len() > REMEMBERED_DELETIONS
            && let Some((number, name)) = self.gone.pop_front()
        {
            self.forgotten = number;
            // The semaphore may have been created again.
            if self.changes.get(&number) == Some(&name) {
                self.changes.remove(&number);
                self.semaphores.remove(&name);
            }
        }
        true
    }

    /// Returns the names of the existing semaphores, in one namespace or in all.
    pub(super) fn names(&self, namespace: Option<&str>) -> Vec<SemaphoreName> {
        let entries = self.semaphores.iter();
        let there = entries.filter(|(name, entry)| {
            entry.shown.is_some() && namespace.is_none_or(|namespace| *name.namespace == *namespace)
        });
        there.map(|(name, _)| name.clone()).collect()
    }

    /// Returns at most `most` changes after the one with this number; `None` if the number is too old, so that the
    /// reader must start again.
    pub(super) fn after(&self, number: u64, most: usize) -> Option<Changes> {
        if number > 0 && number < self.forgotten {
            return None;
        }
        let mut changes = Changes {
            number,
            semaphores: Vec::new(),
        };
        for (at, name) in self.changes.range(number + 1..).take(most) {
            changes.number = *at;
            if let Some(entry) = self.semaphores.get(name) {
                changes.semaphores.push((name.clone(), entry.shown.clone()));
            }
        }
        Some(changes)
    }

    fn set(&mut self, name: &SemaphoreName, shown: Option<Arc<ShownSemaphore>>, trend: Trend) {
        self.number += 1;
        let entry = Entry {
            number: self.number,
            shown,
            trend,
        };
        if let Some(before) = self.semaphores.insert(name.clone(), entry) {
            self.changes.remove(&before.number);
        }
        self.changes.insert(self.number, name.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use consul_semaphore_api::{ConsulSemaphore, ConsulSemaphoreStatus};

    fn name(name: &str) -> SemaphoreName {
        SemaphoreName {
            namespace: "batch".into(),
            name: name.into(),
        }
    }

    fn put(picture: &mut Picture, called: &str, held: i32, now: i64) -> bool {
        let semaphore: ConsulSemaphore = serde_json::from_value(json!({
            "apiVersion": "consul-semaphore.io/v1alpha1",
            "kind": "ConsulSemaphore",
            "metadata": { "name": called, "namespace": "batch" },
            "spec": { "limit": 9 },
            "status": { "held": held, "limit": 9 },
        }))
        .unwrap();
        let none = ConsulSemaphoreStatus::default();
        picture.put(&name(called), &View::of(&semaphore, &none), now)
    }

    /// Returns names with how many slots are held, and the number to continue from.
    fn after(picture: &Picture, number: u64, most: usize) -> (Vec<(String, Option<i64>)>, u64) {
        let changes = picture.after(number, most).unwrap();
        let held = |shown: Arc<ShownSemaphore>| {
            let shown = serde_json::to_value(&*shown).unwrap();
            shown["is"]["held"].as_i64().unwrap()
        };
        let named =
            |(name, shown): (SemaphoreName, Option<_>)| (name.name.to_string(), shown.map(held));
        let seen = changes.semaphores.into_iter().map(named).collect();
        (seen, changes.number)
    }

    #[test]
    fn a_viewer_gets_the_current_state_of_each_change() {
        let mut picture = Picture::default();
        for (called, held) in [("a", 0), ("b", 0), ("a", 1), ("a", 2)] {
            assert!(put(&mut picture, called, held, 0));
        }
        assert!(!put(&mut picture, "a", 2, 99), "no news");
        let (seen, number) = after(&picture, 0, 10);
        assert_eq!(seen, [("b".into(), Some(0)), ("a".into(), Some(2))]);
        assert_eq!(after(&picture, number, 10), (vec![], number));
        assert!(picture.remove(&name("b")) && !picture.remove(&name("b")));
        let (seen, number) = after(&picture, number, 10);
        assert_eq!(seen, [("b".into(), None)]);
        assert!(put(&mut picture, "b", 3, 0), "made again");
        assert_eq!(after(&picture, number, 10).0, [("b".into(), Some(3))]);
        assert_eq!(picture.names(Some("batch")), [name("a"), name("b")]);
        assert_eq!(picture.names(Some("other")), []);
    }

    #[test]
    fn much_is_given_in_parts() {
        let mut picture = Picture::default();
        for called in ["a", "b", "c"] {
            put(&mut picture, called, 0, 0);
        }
        let (first, number) = after(&picture, 0, 2);
        put(&mut picture, "a", 1, 0);
        let (second, _) = after(&picture, number, 2);
        assert_eq!(first, [("a".into(), Some(0)), ("b".into(), Some(0))]);
        assert_eq!(second, [("c".into(), Some(0)), ("a".into(), Some(1))]);
    }

    #[test]
    fn its_use_goes_with_each() {
        let mut picture = Picture::default();
        put(&mut picture, "a", 1, 100);
        put(&mut picture, "a", 2, 200);
        let trend = |picture: &Picture| {
            let changes = picture.after(0, 9).unwrap();
            let shown = changes.semaphores[0].1.clone().unwrap();
            serde_json::to_value(&*shown).unwrap()["trend"].clone()
        };
        assert_eq!(trend(&picture), json!([[100, 1, 9], [200, 2, 9]]));
        picture.remove(&name("a"));
        put(&mut picture, "a", 3, 300);
        assert_eq!(trend(&picture), json!([[300, 3, 9]]), "it is another one");
    }

    #[test]
    fn what_is_gone_is_remembered_for_a_while() {
        let mut picture = Picture::default();
        put(&mut picture, "stays", 0, 0);
        let seen = picture.number;
        let come_and_go = |picture: &mut Picture, called: &str| {
            put(picture, called, 0, 0);
            picture.remove(&name(called));
        };
        for number in 0..REMEMBERED_DELETIONS {
            come_and_go(&mut picture, &number.to_string());
        }
        assert_eq!(
            picture.after(seen, usize::MAX).unwrap().semaphores.len(),
            REMEMBERED_DELETIONS
        );
        for _ in 0..2 {
            come_and_go(&mut picture, "one more");
        }
        assert!(picture.after(seen, 9).is_none(), "it begins anew");
        assert_eq!(after(&picture, 0, 1).0, [("stays".into(), Some(0))]);
        let kept = (
            picture.semaphores.len(),
            picture.changes.len(),
            picture.gone.len(),
        );
        assert!(
            kept.0 <= REMEMBERED_DELETIONS + 1
                && kept.1 <= REMEMBERED_DELETIONS + 1
                && kept.2 == REMEMBERED_DELETIONS,
            "{kept:?}"
        );
    }

    /// One semaphore changes each second, and others come and go.
    #[test]
    fn a_day_takes_no_more_than_an_hour() {
        let mut picture = Picture::default();
        let kept = |picture: &Picture| {
            let entries = picture.semaphores.values();
            let shown = entries.filter_map(|entry| entry.shown.as_ref());
            let bytes = shown.map(|shown| shown.is.get().len() + shown.trend.get().len());
            [
                bytes.sum(),
                picture.semaphores.len(),
                picture.changes.len(),
                picture.gone.len(),
            ]
        };
        let mut after_an_hour = None;
        for second in 0..24 * 3_600 {
            // All times have the same length.
            let now = 1_700_000_000 + second;
            let held = i32::try_from(second % 7).unwrap();
            put(&mut picture, "busy", held, now);
            if second % 2 == 0 {
                let passing = format!("passing-{second}");
                put(&mut picture, &passing, 1, now);
                picture.remove(&name(&passing));
            }
            if second == 3_600 {
                after_an_hour = Some(kept(&picture));
            }
        }
        assert_eq!(Some(kept(&picture)), after_an_hour);
    }

    #[test]
    fn it_says_what_cannot_be_watched() {
        let mut picture = Picture::default();
        picture.awaits("a", "being listed");
        picture.awaits("b", "forbidden");
        assert_eq!(picture.trouble().unwrap(), "a: being listed\nb: forbidden");
        assert!(picture.knows("a") && picture.knows("b") && !picture.knows("a"));
        assert_eq!(picture.trouble(), None);
    }
}
