//! Keeps what the watch of a semaphore's prefix shows, by lock key.
//!
//! A keyed semaphore has one watch for all its keys. Each listing is divided among the keys. Only a queue whose entries
//! have changed is due for a pass; for the others only the time changes at which their part was last seen to be true.
//! So a listing costs a comparison of indexes, and nothing for keys that did not change.

#![expect(
    clippy::ref_option,
    reason = "a semaphore without keys is found in the same maps, by None"
)]

use std::collections::{BTreeMap, HashSet};

use super::News;
use crate::{Key, Prefix, reading::LOCK};
use consul_client::{self as consul, Entries, Listed, Listing, SessionId, clock::Moment};

/// The last listing of the watch of a prefix.
#[derive(Clone, Debug, Default)]
pub struct WatchedPrefix {
    /// The number of the last listing, from 1.
    number: u64,
    last: Option<Result<ListingStamp, consul::Error>>,
    /// The time since which the watch has been failing; `None` if it does not fail.
    failing_since: Option<Moment>,
    /// The number of the last listing before which Consul's index went back; 0: none.
    reset: u64,
    slices: BTreeMap<Option<Key>, Slice>,
}

/// The part of a listing that applies to all keys.
#[derive(Clone, Copy, Debug)]
struct ListingStamp {
    index: u64,
    sent: Moment,
}

#[derive(Clone, Debug)]
struct Slice {
    entries: Entries,
    /// The number of the listing since which the entries are the same.
    since: u64,
}

/// The queues that are due a pass.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Concerned {
    /// The queues of these keys, whose entries have changed.
    Keys(Vec<Option<Key>>),
    /// All existing queues, and the queues of these keys.
    All(Vec<Option<Key>>),
}

impl WatchedPrefix {
    /// Takes over what the watch brought, and returns the queues that it concerns.
    pub(super) fn bring(
        &mut self,
        prefix: &Prefix,
        keyed: bool,
        listing: Result<Listing, consul::Error>,
        now: Moment,
    ) -> Concerned {
        self.number += 1;
        let silent_before = !self.is_known();
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => {
                self.failing_since.get_or_insert(now);
                if error.is_too_much_to_keep() {
                    self.slices.clear();
                }
                self.last = Some(Err(error));
                return Concerned::All(Vec::new());
            }
        };
        self.failing_since = None;
        if listing.reset {
            self.reset = self.number;
        }
        self.last = Some(Ok(ListingStamp {
            index: listing.index,
            sent: listing.sent,
        }));
        let changed = if keyed {
            self.split(prefix, &listing.entries)
        } else {
            self.replace(None, listing.entries);
            vec![None]
        };
        if silent_before || listing.reset {
            Concerned::All(changed)
        } else {
            Concerned::Keys(changed)
        }
    }

    /// Returns what the watch has brought for a key since the listing `last_read`, and sets `last_read` to the last
    /// listing. `None` if the watch has brought nothing since.
    pub(super) fn news(
        &self,
        key: &Option<Key>,
        last_read: &mut u64,
    ) -> Option<Result<News, consul::Error>> {
        if self.number <= *last_read {
            return None;
        }
        // A reset counts even if another listing came after it. A queue that has read nothing yet knows nothing that
        // could be out of date.
        let reset = *last_read > 0 && self.reset > *last_read;
        *last_read = self.number;
        Some(match self.last.clone()? {
            Err(error) => Err(error),
            Ok(ListingStamp { index, sent }) => Ok(News {
                entries: self.entries(key),
                index,
                sent,
                reset,
            }),
        })
    }

    /// Returns the entries of a key, as the watch last showed them.
    pub fn entries(&self, key: &Option<Key>) -> Entries {
        let slice = self.slices.get(key);
        slice.map(|slice| slice.entries.clone()).unwrap_or_default()
    }

    /// Whether there is a lock key or a contender at this key. Other entries belong to no semaphore.
    pub(super) fn shows_use(&self, key: &Option<Key>) -> bool {
        let entries = self.slices.get(key).map(|slice| &slice.entries);
        entries.into_iter().flatten().any(|entry| {
            let name = entry.key.rsplit_once('/').map(|(_, name)| name);
            let session = entry.session.as_ref().map(SessionId::as_str);
            name == Some(LOCK) || (session.is_some() && name == session)
        })
    }

    /// Returns the sessions that lock anything, as the watch last showed it.
    pub(super) fn sessions(&self) -> HashSet<&SessionId> {
        let entries = self.slices.values().flat_map(|slice| slice.entries.iter());
        entries.filter_map(|entry| entry.session.as_ref()).collect()
    }

    /// Whether the watch has brought nothing yet.
    pub fn is_silent(&self) -> bool {
        self.last.is_none()
    }

    /// Whether the last answer of the watch was a listing, not an error.
    pub fn is_known(&self) -> bool {
        matches!(self.last, Some(Ok(_)))
    }

    /// Whether the last answer of the watch is a listing that was requested after this moment.
    pub(super) fn was_asked_after(&self, moment: Moment) -> bool {
        matches!(self.last, Some(Ok(stamp)) if stamp.sent > moment)
    }

    /// Returns the error of the watch and the time since which it fails; `None` if it does not fail.
    pub fn failure(&self) -> Option<(&consul::Error, Moment)> {
        match (&self.last, self.failing_since) {
            (Some(Err(error)), Some(since)) => Some((error, since)),
            _ => None,
        }
    }

    /// Whether Consul's index has ever gone back.
    pub fn went_back(&self) -> bool {
        self.reset > 0
    }

    /// Whether the entries of a key have changed since the listing `last_read`. Entries that are gone don't count.
    pub(super) fn has_changed(&self, key: &Option<Key>, last_read: u64) -> bool {
        let slice = self.slices.get(key);
        slice.is_some_and(|slice| slice.since > last_read)
    }

    fn replace(&mut self, key: Option<Key>, entries: Entries) {
        let slice = Slice {
            entries,
            since: self.number,
        };
        self.slices.insert(key, slice);
    }

    /// Sorts the entries by key, and returns the keys whose entries have changed.
    fn split(&mut self, prefix: &Prefix, entries: &Entries) -> Vec<Option<Key>> {
        let mut by_key: BTreeMap<Option<Key>, Vec<Listed>> = BTreeMap::new();
        // The entries come sorted, so the entries of one key are together, except for keys such as `a` and `a-b`.
        let mut last: Option<(String, Option<Key>)> = None;
        for entry in entries {
            let Some(name) = key_of(prefix, &entry.key) else {
                continue;
            };
            if last.as_ref().is_none_or(|(text, _)| text != name) {
                last = Some((name.to_owned(), name.parse().ok()));
            }
            if let Some((_, Some(key))) = &last {
                let part = by_key.entry(Some(key.clone())).or_default();
                part.push(entry.clone());
            }
        }
        let gone: Vec<_> = self
            .slices
            .keys()
            .filter(|key| !by_key.contains_key(*key))
            .cloned()
            .collect();
        for key in &gone {
            self.slices.remove(key);
        }
        let mut changed = gone;
        for (key, entries) in by_key {
            let known = self.slices.get(&key);
            if known.is_none_or(|known| !alike(&known.entries, &entries)) {
                changed.push(key.clone());
                self.replace(key, entries.into());
            }
        }
        changed
    }
}

/// Whether nothing was written between the two listings.
fn alike(before: &[Listed], after: &[Listed]) -> bool {
    let mut pairs = before.iter().zip(after);
    let same = |(a, b): (&Listed, &Listed)| a.modify_index == b.modify_index && a.key == b.key;
    before.len() == after.len() && pairs.all(same)
}

/// Returns the first of the two segments of a Consul key below the prefix of a keyed semaphore; `None` if the key does
/// not have two.
fn key_of<'a>(prefix: &Prefix, key: &'a str) -> Option<&'a str> {
    let below = key.strip_prefix(prefix.as_str())?.strip_prefix('/')?;
    let (name, child) = below.split_once('/')?;
    (!child.is_empty() && !child.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use consul_client::Entry;

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

    fn bring(watched: &mut WatchedPrefix, brought: Result<Listing, consul::Error>) -> Concerned {
        let sorted = |mut keys: Vec<_>| {
            keys.sort();
            keys
        };
        match watched.bring(&"p".parse().unwrap(), true, brought, Moment::default()) {
            Concerned::Keys(keys) => Concerned::Keys(sorted(keys)),
            Concerned::All(keys) => Concerned::All(sorted(keys)),
        }
    }

    fn names(watched: &WatchedPrefix, of: &str) -> Vec<String> {
        let entries = watched.entries(&key(of));
        entries.iter().map(|entry| entry.key.clone()).collect()
    }

    #[test]
    fn a_listing_is_split_by_its_first_segment() {
        let mut watched = WatchedPrefix::default();
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
        let concerned = bring(&mut watched, listing(10, &keys));
        assert_eq!(concerned, Concerned::All(vec![key("a"), key("a-b")]));
        assert_eq!(names(&watched, "a"), ["p/a/.lock", "p/a/s"]);
        assert_eq!(names(&watched, "b"), [""; 0]);
    }

    #[test]
    fn only_what_has_changed_concerns_anybody() {
        let mut watched = WatchedPrefix::default();
        bring(
            &mut watched,
            listing(2, &[("p/a/.lock", 1), ("p/b/.lock", 2)]),
        );
        let same = bring(
            &mut watched,
            listing(2, &[("p/a/.lock", 1), ("p/b/.lock", 2)]),
        );
        assert_eq!(same, Concerned::Keys(Vec::new()));
        assert!(!watched.has_changed(&key("a"), 1));
        let written = bring(
            &mut watched,
            listing(3, &[("p/a/.lock", 3), ("p/b/.lock", 2)]),
        );
        assert_eq!(written, Concerned::Keys(vec![key("a")]));
        assert!(watched.has_changed(&key("a"), 2) && !watched.has_changed(&key("b"), 2));
        let gone = bring(&mut watched, listing(4, &[("p/a/.lock", 3)]));
        assert_eq!(gone, Concerned::Keys(vec![key("b")]));
    }

    #[test]
    fn what_is_as_it_was_is_fresh_evidence_all_the_same() {
        let mut watched = WatchedPrefix::default();
        let mut last_read = 0;
        assert!(
            watched.news(&key("a"), &mut last_read).is_none(),
            "nothing yet"
        );
        bring(&mut watched, listing(2, &[("p/a/.lock", 1)]));
        bring(&mut watched, listing(5, &[("p/a/.lock", 1)]));
        let news = watched.news(&key("a"), &mut last_read).unwrap().unwrap();
        assert_eq!((news.index, news.entries.len()), (5, 1));
        assert!(
            watched.news(&key("a"), &mut last_read).is_none(),
            "read already"
        );
        let mut other = 0;
        let news = watched.news(&key("unused"), &mut other).unwrap().unwrap();
        assert!(news.entries.is_empty());
    }

    #[test]
    fn that_the_index_went_back_is_heard_by_all_however_late() {
        let mut watched = WatchedPrefix::default();
        let mut last_read = 0;
        bring(&mut watched, listing(9, &[("p/a/.lock", 1)]));
        assert!(
            !watched
                .news(&key("a"), &mut last_read)
                .unwrap()
                .unwrap()
                .reset
        );
        let reset = listing(2, &[("p/a/.lock", 1)]).map(|listing| Listing {
            reset: true,
            ..listing
        });
        assert!(matches!(bring(&mut watched, reset), Concerned::All(_)));
        bring(&mut watched, listing(3, &[("p/a/.lock", 3)]));
        assert!(
            watched
                .news(&key("a"), &mut last_read)
                .unwrap()
                .unwrap()
                .reset
        );
        bring(&mut watched, listing(4, &[("p/a/.lock", 4)]));
        assert!(
            !watched
                .news(&key("a"), &mut last_read)
                .unwrap()
                .unwrap()
                .reset
        );
        let mut newcomer = 0;
        assert!(
            !watched
                .news(&key("a"), &mut newcomer)
                .unwrap()
                .unwrap()
                .reset
        );
    }

    #[test]
    fn what_is_too_much_to_keep_is_dropped() {
        let mut watched = WatchedPrefix::default();
        bring(&mut watched, listing(2, &[("p/a/.lock", 1)]));
        bring(&mut watched, Err(consul::Error::Gone));
        assert_eq!(names(&watched, "a"), ["p/a/.lock"]);
        bring(&mut watched, Err(consul::Error::PrefixTooLarge(1)));
        assert_eq!(names(&watched, "a"), [""; 0]);
        let again = bring(&mut watched, listing(2, &[("p/a/.lock", 1)]));
        assert_eq!(again, Concerned::All(vec![key("a")]));
    }

    #[test]
    fn only_a_lock_key_or_a_contender_shows_that_a_key_is_used() {
        let mut watched = WatchedPrefix::default();
        let session = "s";
        let locked = |key: &str| Entry {
            session: Some(session.into()),
            ..entry(key, 1)
        };
        let entries = vec![
            entry("p/a/.lock", 1),
            locked("p/b/s"),
            entry("p/c/s", 1),
            locked("p/d/junk"),
        ];
        let listing = Listing {
            entries: entries.into(),
            index: 1,
            sent: Moment::default(),
            reset: false,
        };
        bring(&mut watched, Ok(listing));
        let used = ["a", "b", "c", "d"].map(|name| watched.shows_use(&key(name)));
        assert_eq!(used, [true, true, false, false]);
    }

    #[test]
    fn an_error_concerns_all_and_so_does_its_end() {
        let mut watched = WatchedPrefix::default();
        bring(&mut watched, listing(2, &[("p/a/.lock", 1)]));
        let mut last_read = 1;
        let failed = bring(&mut watched, Err(consul::Error::Gone));
        assert_eq!(failed, Concerned::All(Vec::new()));
        assert!(watched.news(&key("a"), &mut last_read).unwrap().is_err());
        let healed = bring(&mut watched, listing(2, &[("p/a/.lock", 1)]));
        assert_eq!(healed, Concerned::All(Vec::new()));
        assert!(watched.news(&key("a"), &mut last_read).unwrap().is_ok());
    }
}
