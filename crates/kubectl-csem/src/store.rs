//! A store for the objects of a watch.

use std::collections::BTreeMap;

use kube::runtime::watcher::Event;

/// The data that is kept of the objects of a watch, by the names of the objects.
#[derive(Debug)]
pub(crate) struct Store<K, V> {
    current: BTreeMap<K, V>,
    /// The objects of a list that is not yet complete.
    listing: BTreeMap<K, V>,
    listed: bool,
}

impl<K, V> Default for Store<K, V> {
    fn default() -> Self {
        Self {
            current: BTreeMap::new(),
            listing: BTreeMap::new(),
            listed: false,
        }
    }
}

impl<K: Ord, V> Store<K, V> {
    /// Applies an event. `read` returns the key of an object and the data to keep of it; `None` if the object is of no
    /// interest, or no longer.
    pub(crate) fn take<O>(&mut self, event: Event<O>, read: impl FnOnce(O) -> (K, Option<V>)) {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(object) => set(&mut self.listing, read(object)),
            Event::InitDone => {
                self.current = std::mem::take(&mut self.listing);
                self.listed = true;
            }
            Event::Apply(object) => set(&mut self.current, read(object)),
            Event::Delete(object) => {
                self.current.remove(&read(object).0);
            }
        }
    }

    /// Whether a complete list was received.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.current.values()
    }

    /// Removes the entries with the least measure once there are more than twice as many as `most`, so that `most` are
    /// left.
    pub(crate) fn keep<M: Ord>(&mut self, most: usize, measure: impl Fn(&V) -> M)
    where
        K: Clone,
    {
        for map in [&mut self.current, &mut self.listing] {
            if map.len() <= 2 * most {
                continue;
            }
            let mut keys: Vec<K> = map.keys().cloned().collect();
            keys.sort_by_cached_key(|key| map.get(key).map(&measure));
            for key in &keys[..keys.len() - most] {
                map.remove(key);
            }
        }
    }
}

fn set<K: Ord, V>(into: &mut BTreeMap<K, V>, (key, value): (K, Option<V>)) {
    match value {
        Some(value) => drop(into.insert(key, value)),
        None => drop(into.remove(&key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an entry; odd numbers are of no interest.
    fn read(number: u32) -> (u32, Option<u32>) {
        (number / 10, number.is_multiple_of(2).then_some(number))
    }

    fn values(store: &Store<u32, u32>) -> Vec<u32> {
        store.values().copied().collect()
    }

    #[test]
    fn a_list_replaces_all_when_it_is_complete() {
        let mut store = Store::default();
        store.take(Event::Init, read);
        store.take(Event::InitApply(10), read);
        assert!(values(&store).is_empty() && !store.is_listed());
        store.take(Event::InitDone, read);
        assert_eq!((values(&store), store.is_listed()), (vec![10], true));
        store.take(Event::Init, read);
        store.take(Event::InitApply(20), read);
        assert_eq!(values(&store), [10]);
        // The list starts anew.
        store.take(Event::Init, read);
        store.take(Event::InitApply(30), read);
        store.take(Event::InitDone, read);
        assert_eq!(values(&store), [30]);
    }

    #[test]
    fn what_is_of_no_interest_any_more_is_forgotten() {
        let mut store = Store::default();
        for number in [10, 20, 30] {
            store.take(Event::Apply(number), read);
        }
        store.take(Event::Apply(11), read);
        store.take(Event::Delete(22), read);
        assert_eq!(values(&store), [30]);
    }

    #[test]
    fn no_more_is_kept_than_is_asked_for() {
        let mut store = Store::default();
        for number in [50, 10, 40, 20, 30] {
            store.take(Event::Apply(number), read);
        }
        store.keep(3, |number| *number);
        assert_eq!(values(&store).len(), 5);
        store.keep(2, |number| *number);
        assert_eq!(values(&store), [40, 50]);
    }
}
