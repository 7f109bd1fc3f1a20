//! What the watch of a prefix brings, laid out for the grantors below it.
//!
//! A keyed semaphore has one watch for all its keys. Each listing is split by key; a grantor is woken
//! when something of its key has changed, and takes what is there when its next pass begins. So a
//! listing costs the comparison of indexes, and nothing for the keys that are as they were.

#![expect(
    clippy::ref_option,
    reason = "a semaphore without keys is found in the same maps, by None"
)]

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};

use tokio::sync::Semaphore;

use consul_client::{self as consul, Entry, Listing, SessionId, clock::Moment};
use consul_semaphore::{Key, Prefix, engine::News};

/// How many calls of Consul the grantors of one semaphore make at once.
const TURNS: usize = 32;

/// The last of what a watch brought; clones share one.
#[derive(Clone)]
pub(super) struct Feed {
    state: Arc<Mutex<State>>,
    turns: Arc<Semaphore>,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            turns: Arc::new(Semaphore::new(TURNS)),
        }
    }
}

#[derive(Default)]
struct State {
    /// Counts what was brought, from 1.
    number: u64,
    last: Option<Result<Shown, consul::Error>>,
    /// Which listing was the last before which Consul's index went back; 0: none.
    reset: u64,
    slices: HashMap<Option<Key>, Slice>,
}

/// What is true of all keys.
#[derive(Clone, Copy)]
struct Shown {
    index: u64,
    sent: Moment,
}

struct Slice {
    entries: Arc<Vec<Entry>>,
    /// Since which listing it is like this.
    since: u64,
}

/// Who is to be woken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Concerned {
    /// These, whose part has changed.
    Keys(Vec<Option<Key>>),
    /// All that there are, and these.
    All(Vec<Option<Key>>),
}

impl Feed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Takes what the watch of this prefix brought.
    pub(super) fn bring(
        &self,
        prefix: &Prefix,
        keyed: bool,
        listing: Result<Listing, consul::Error>,
    ) -> Concerned {
        let mut state = self.state();
        state.number += 1;
        let silent_before = !matches!(state.last, Some(Ok(_)));
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => {
                state.last = Some(Err(error));
                return Concerned::All(Vec::new());
            }
        };
        let shown = Shown {
            index: listing.index,
            sent: listing.sent,
        };
        if listing.reset {
            state.reset = state.number;
        }
        state.last = Some(Ok(shown));
        let changed = if keyed {
            state.split(prefix, listing.entries)
        } else {
            state.replace(None, listing.entries);
            vec![None]
        };
        if silent_before || listing.reset {
            Concerned::All(changed)
        } else {
            Concerned::Keys(changed)
        }
    }

    /// What was brought for a key since `heard`, which is what counts now.
    pub(super) fn news(
        &self,
        key: &Option<Key>,
        heard: &mut u64,
    ) -> Option<Result<News, consul::Error>> {
        let state = self.state();
        if state.number <= *heard {
            return None;
        }
        // It counts also if another listing came before anybody asked. Who was not there knows nothing
        // that could be out of date by it.
        let reset = *heard > 0 && state.reset > *heard;
        *heard = state.number;
        Some(match state.last.clone()? {
            Err(error) => Err(error),
            Ok(Shown { index, sent }) => Ok(News {
                entries: state.entries(key),
                index,
                sent,
                reset,
            }),
        })
    }

    /// What is below a key, as the watch showed it last.
    pub(super) fn entries(&self, key: &Option<Key>) -> Arc<Vec<Entry>> {
        self.state().entries(key)
    }

    /// The sessions that lock anything, as the watch showed it last.
    pub(super) fn sessions(&self) -> HashSet<SessionId> {
        let state = self.state();
        let entries = state.slices.values().flat_map(|slice| slice.entries.iter());
        entries.filter_map(|entry| entry.session.clone()).collect()
    }

    /// Turns to call Consul, for those who have something to ask of their own.
    pub(super) fn turns(&self) -> Arc<Semaphore> {
        self.turns.clone()
    }

    /// Whether the watch has brought nothing yet.
    pub(super) fn is_silent(&self) -> bool {
        self.state().last.is_none()
    }

    /// Whether the watch has brought what is in Consul.
    pub(super) fn is_known(&self) -> bool {
        matches!(self.state().last, Some(Ok(_)))
    }

    /// Whether what is below a key has changed since `heard`.
    pub(super) fn has_changed(&self, key: &Option<Key>, heard: u64) -> bool {
        let state = self.state();
        state
            .slices
            .get(key)
            .is_some_and(|slice| slice.since > heard)
    }
}

impl State {
    fn entries(&self, key: &Option<Key>) -> Arc<Vec<Entry>> {
        let slice = self.slices.get(key);
        slice.map(|slice| slice.entries.clone()).unwrap_or_default()
    }

    fn replace(&mut self, key: Option<Key>, entries: Vec<Entry>) {
        let slice = Slice {
            entries: Arc::new(entries),
            since: self.number,
        };
        self.slices.insert(key, slice);
    }

    /// Sorts the entries by key, and says of which keys anything has changed.
    fn split(&mut self, prefix: &Prefix, entries: Vec<Entry>) -> Vec<Option<Key>> {
        let mut by_key: HashMap<Option<Key>, Vec<Entry>> = HashMap::new();
        // They come ordered, so those of one key follow each other, but for keys such as `a` and `a-b`.
        let mut last: Option<(String, Option<Key>)> = None;
        for entry in entries {
            let Some(name) = key_of(prefix, &entry.key) else {
                continue;
            };
            if last.as_ref().is_none_or(|(text, _)| text != name) {
                last = Some((name.to_owned(), name.parse().ok()));
            }
            if let Some((_, Some(key))) = &last {
                by_key.entry(Some(key.clone())).or_default().push(entry);
            }
        }
        let gone = self.slices.keys().filter(|key| !by_key.contains_key(*key));
        let gone: Vec<_> = gone.cloned().collect();
        for key in &gone {
            self.slices.remove(key);
        }
        let mut changed = gone;
        for (key, entries) in by_key {
            let known = self.slices.get(&key);
            if known.is_none_or(|known| !alike(&known.entries, &entries)) {
                changed.push(key.clone());
                self.replace(key, entries);
            }
        }
        changed
    }
}

/// Whether nothing was written between the two.
fn alike(before: &[Entry], after: &[Entry]) -> bool {
    let mut pairs = before.iter().zip(after);
    let same = |(a, b): (&Entry, &Entry)| a.modify_index == b.modify_index && a.key == b.key;
    before.len() == after.len() && pairs.all(same)
}

/// The first of the two segments that a key has below the prefix of a keyed semaphore.
fn key_of<'a>(prefix: &Prefix, key: &'a str) -> Option<&'a str> {
    let below = key.strip_prefix(prefix.as_str())?.strip_prefix('/')?;
    let (name, child) = below.split_once('/')?;
    (!child.is_empty() && !child.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, modify_index: u64) -> Entry {
        Entry {
            key: key.into(),
            value: Vec::new(),
            flags: 0,
            session: None,
            lock_index: 0,
            create_index: 1,
            modify_index,
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "as a watch brings it")]
    fn listing(index: u64, keys: &[(&str, u64)]) -> Result<Listing, consul::Error> {
        Ok(Listing {
            entries: keys.iter().map(|(key, index)| entry(key, *index)).collect(),
            index,
            sent: Moment::default(),
            reset: false,
        })
    }

    #[expect(clippy::unnecessary_wraps, reason = "as a map has it")]
    fn key(text: &str) -> Option<Key> {
        Some(text.parse().unwrap())
    }

    fn bring(feed: &Feed, brought: Result<Listing, consul::Error>) -> Concerned {
        let sorted = |mut keys: Vec<_>| {
            keys.sort();
            keys
        };
        match feed.bring(&"p".parse().unwrap(), true, brought) {
            Concerned::Keys(keys) => Concerned::Keys(sorted(keys)),
            Concerned::All(keys) => Concerned::All(sorted(keys)),
        }
    }

    fn names(feed: &Feed, of: &str) -> Vec<String> {
        let entries = feed.entries(&key(of));
        entries.iter().map(|entry| entry.key.clone()).collect()
    }

    #[test]
    fn a_listing_is_split_by_its_first_segment() {
        let feed = Feed::default();
        let keys = [
            ("p/.lock", 1),
            ("p/a-b/.lock", 2),
            ("p/a/.lock", 3),
            ("p/a/s", 4),
            ("p/note", 5),
            ("p/b/deeper/.lock", 6),
            ("p/b/", 7),
            ("p/no key/.lock", 8),
            ("p/.lock/s", 9),
            ("pp/c/.lock", 10),
        ];
        let concerned = bring(&feed, listing(10, &keys));
        assert_eq!(concerned, Concerned::All(vec![key("a"), key("a-b")]));
        assert_eq!(names(&feed, "a"), ["p/a/.lock", "p/a/s"]);
        assert_eq!(names(&feed, "b"), [""; 0]);
    }

    #[test]
    fn only_what_has_changed_concerns_anybody() {
        let feed = Feed::default();
        bring(&feed, listing(2, &[("p/a/.lock", 1), ("p/b/.lock", 2)]));
        let same = bring(&feed, listing(2, &[("p/a/.lock", 1), ("p/b/.lock", 2)]));
        assert_eq!(same, Concerned::Keys(Vec::new()));
        assert!(!feed.has_changed(&key("a"), 1));
        let written = bring(&feed, listing(3, &[("p/a/.lock", 3), ("p/b/.lock", 2)]));
        assert_eq!(written, Concerned::Keys(vec![key("a")]));
        assert!(feed.has_changed(&key("a"), 2) && !feed.has_changed(&key("b"), 2));
        let gone = bring(&feed, listing(4, &[("p/a/.lock", 3)]));
        assert_eq!(gone, Concerned::Keys(vec![key("b")]));
    }

    #[test]
    fn what_is_as_it_was_is_fresh_evidence_all_the_same() {
        let feed = Feed::default();
        let mut heard = 0;
        assert!(feed.news(&key("a"), &mut heard).is_none(), "nothing yet");
        bring(&feed, listing(2, &[("p/a/.lock", 1)]));
        bring(&feed, listing(5, &[("p/a/.lock", 1)]));
        let news = feed.news(&key("a"), &mut heard).unwrap().unwrap();
        assert_eq!((news.index, news.entries.len()), (5, 1));
        assert!(feed.news(&key("a"), &mut heard).is_none(), "heard already");
        let mut other = 0;
        let news = feed.news(&key("unused"), &mut other).unwrap().unwrap();
        assert!(news.entries.is_empty());
    }

    #[test]
    fn that_the_index_went_back_is_heard_by_all_however_late() {
        let feed = Feed::default();
        let mut heard = 0;
        bring(&feed, listing(9, &[("p/a/.lock", 1)]));
        assert!(!feed.news(&key("a"), &mut heard).unwrap().unwrap().reset);
        let reset = listing(2, &[("p/a/.lock", 1)]).map(|listing| Listing {
            reset: true,
            ..listing
        });
        assert!(matches!(bring(&feed, reset), Concerned::All(_)));
        bring(&feed, listing(3, &[("p/a/.lock", 3)]));
        assert!(feed.news(&key("a"), &mut heard).unwrap().unwrap().reset);
        bring(&feed, listing(4, &[("p/a/.lock", 4)]));
        assert!(!feed.news(&key("a"), &mut heard).unwrap().unwrap().reset);
        let mut newcomer = 0;
        assert!(!feed.news(&key("a"), &mut newcomer).unwrap().unwrap().reset);
    }

    #[test]
    fn an_error_concerns_all_and_so_does_its_end() {
        let feed = Feed::default();
        bring(&feed, listing(2, &[("p/a/.lock", 1)]));
        let mut heard = 1;
        let failed = bring(&feed, Err(consul::Error::Gone));
        assert_eq!(failed, Concerned::All(Vec::new()));
        assert!(feed.news(&key("a"), &mut heard).unwrap().is_err());
        let healed = bring(&feed, listing(2, &[("p/a/.lock", 1)]));
        assert_eq!(healed, Concerned::All(Vec::new()));
        assert!(feed.news(&key("a"), &mut heard).unwrap().is_ok());
    }
}
