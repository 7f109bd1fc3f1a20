//! The workloads that wait in a queue, arranged by what they ask for.
//!
//! A pass reads the first workloads of each [`RequestClass`], not the first of the queue. So workloads that can't be
//! granted what they ask for, and keep nothing, hide no workload behind them that can, however many they are.

use std::{
    collections::{BTreeMap, BTreeSet, btree_set},
    iter::Peekable,
    sync::Arc,
};

use super::QueueRef;
use crate::{AHEAD, Uid, Workload, workload::Place};

/// The number of workloads of each class that a pass reads beyond those that it needs. So many may be queued before the
/// workloads for which sessions were made ahead, and these sessions are kept.
const SPARE_WORKLOADS: usize = 8;

/// A pass reads at least this many of the workloads that must not wait, because it ends their waits wherever they are
/// in the queue.
const MOST_HASTY_READ: usize = 64;

/// The properties that decide whether a queue can grant a workload what it asks for. Of two workloads of one class, the
/// one behind can't be granted its slots when the one before it can't: both ask for the same at the same lock keys, and
/// the priority of the one behind is not higher.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestClass {
    /// Whether the workload lost its slots. Such a workload is before others of a higher priority.
    lost: bool,
    /// Whether the workload must not wait.
    hasty: bool,
    /// The number of slots that the workload asks for in this queue.
    slots: u32,
    /// The number of slots that the workload asks for in each other queue.
    elsewhere: Vec<(QueueRef, u32)>,
}

impl RequestClass {
    /// Returns the class of a workload in `queue`, which is one of the `queues` that it waits in.
    pub fn of(workload: &Workload, queue: &QueueRef, queues: &[QueueRef]) -> Self {
        let slots = |of: &QueueRef| {
            let request = workload.asks_for(&of.semaphore.name, of.key.as_ref());
            request.map_or(0, |request| request.slots.get())
        };
        let others = queues.iter().filter(|other| *other != queue);
        Self {
            lost: workload.lost(),
            hasty: workload.is_skippable(),
            slots: slots(queue),
            elsewhere: others.map(|other| (other.clone(), slots(other))).collect(),
        }
    }

    fn lane(&self) -> RequestLane {
        RequestLane {
            lost: self.lost,
            hasty: self.hasty,
            slots: self.slots,
            alone: self.elsewhere.is_empty(),
        }
    }
}

/// The properties that are common to classes that differ only in what they ask for elsewhere. There are few lanes,
/// whatever users write, because a request has at most [`MOST_SLOTS`](crate::MOST_SLOTS) slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RequestLane {
    lost: bool,
    hasty: bool,
    slots: u32,
    alone: bool,
}

/// The limits of what a pass reads of a queue: [`Self::most`] workloads of each lane, in order.
pub struct Reach<'a> {
    /// The number of workloads of each lane: see [`head`].
    pub most: usize,
    /// Whether a workload is dealt with apart from the others, because it is written to, can't be started, or has a
    /// contender. Such a workload is read, and does not count.
    pub apart: &'a dyn Fn(&Uid) -> bool,
    /// Whether a workload can't be granted slots here because others are missing elsewhere, and keeps none. Such a
    /// workload does not count, but at most `most` of its class are read.
    pub passed_over: &'a dyn Fn(&Uid) -> bool,
}

impl Reach<'_> {
    /// Returns a reach of so many workloads of each lane, whatever is known of them.
    pub fn first(most: usize) -> Self {
        Self {
            most,
            apart: &|_| false,
            passed_over: &|_| false,
        }
    }
}

/// Returns how many workloads of each lane a pass reads that can write so many operations: all that may be granted
/// slots at once, and those for which sessions are made ahead.
pub fn head(limit: u32, operations: usize) -> usize {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    limit.min(operations) + limit.min(AHEAD) + SPARE_WORKLOADS
}

/// The workloads that wait in a queue.
#[derive(Clone, Debug, Default)]
pub struct WaitingList {
    places: BTreeMap<Place, Arc<RequestClass>>,
    lanes: BTreeMap<RequestLane, Classes>,
}

/// The classes of one lane.
#[derive(Clone, Debug, Default)]
struct Classes {
    places: BTreeMap<Arc<RequestClass>, BTreeSet<Place>>,
    /// The classes by the first place of each.
    by_first: BTreeMap<Place, Arc<RequestClass>>,
}

impl WaitingList {
    /// Adds a workload of this class.
    pub fn insert(&mut self, place: Place, class: RequestClass) {
        self.remove(&place);
        let lane = self.lanes.entry(class.lane()).or_default();
        let class = lane.insert(place.clone(), class);
        self.places.insert(place, class);
    }

    /// Removes a workload, if it is there.
    pub fn remove(&mut self, place: &Place) {
        let Some(class) = self.places.remove(place) else {
            return;
        };
        let lane = class.lane();
        if let Some(classes) = self.lanes.get_mut(&lane) {
            classes.remove(place, &class);
            if classes.places.is_empty() {
                self.lanes.remove(&lane);
            }
        }
    }

    /// Removes all workloads.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns all places, in the order of the queue.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.places.keys()
    }

    /// Returns the number of workloads.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether no workload waits.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether a workload is in the list, at this place.
    pub fn contains(&self, place: &Place) -> bool {
        self.places.contains_key(place)
    }

    /// Returns the places that a pass reads, in the order of the queue. No other places are visited.
    pub fn read(&self, reach: &Reach<'_>) -> Vec<&Place> {
        let mut read = Vec::new();
        for (lane, classes) in &self.lanes {
            let most = reach.most.max(if lane.hasty { MOST_HASTY_READ } else { 0 });
            classes.read(most, reach, &mut read);
        }
        read.sort_unstable();
        read
    }
}

impl Classes {
    fn insert(&mut self, place: Place, class: RequestClass) -> Arc<RequestClass> {
        let known = self.places.get_key_value(&class);
        let class = known.map_or_else(|| Arc::new(class), |(known, _)| known.clone());
        let places = self.places.entry(class.clone()).or_default();
        if places.first().is_none_or(|first| place < *first) {
            if let Some(first) = places.first() {
                self.by_first.remove(first);
            }
            self.by_first.insert(place.clone(), class.clone());
        }
        places.insert(place);
        class
    }

    fn remove(&mut self, place: &Place, class: &Arc<RequestClass>) {
        let Some(places) = self.places.get_mut(class) else {
            return;
        };
        places.remove(place);
        let was_first = self.by_first.remove(place).is_some();
        if let Some(first) = places.first().filter(|_| was_first) {
            self.by_first.insert(first.clone(), class.clone());
        }
        if places.is_empty() {
            self.places.remove(class);
        }
    }

    /// Adds the first places of these classes: `most` of the lane that count, and at most as many of each class.
    fn read<'a>(&'a self, most: usize, reach: &Reach<'_>, read: &mut Vec<&'a Place>) {
        let mut merged = Merged::of(self);
        let mut counted = 0;
        while counted < most
            && let Some((place, mut rest)) = merged.next()
        {
            read.push(place);
            if !(reach.apart)(place.uid()) {
                rest.read += 1;
                counted += usize::from(!(reach.passed_over)(place.uid()));
            }
            if rest.read < most {
                merged.put_back(rest);
            }
        }
    }
}

/// The places of a lane, in order.
struct Merged<'a> {
    classes: &'a Classes,
    /// The classes of which nothing has been read yet.
    unread: Peekable<std::collections::btree_map::Iter<'a, Place, Arc<RequestClass>>>,
    /// The classes of which some places have been read, by the next place of each.
    begun: BTreeMap<&'a Place, UnreadPlaces<'a>>,
}

/// The places of a class that have not been read.
struct UnreadPlaces<'a> {
    places: btree_set::Iter<'a, Place>,
    /// The number of places read, without the workloads that are dealt with apart.
    read: usize,
}

impl<'a> Merged<'a> {
    fn of(classes: &'a Classes) -> Self {
        Self {
            classes,
            unread: classes.by_first.iter().peekable(),
            begun: BTreeMap::new(),
        }
    }

    /// Returns the next place, and what is left of its class.
    fn next(&mut self) -> Option<(&'a Place, UnreadPlaces<'a>)> {
        let begun = self.begun.first_key_value().map(|(place, _)| *place);
        let is_next = |unread: &(&'a Place, &'a Arc<RequestClass>)| {
            begun.is_none_or(|begun| unread.0 < begun)
        };
        let Some((place, class)) = self.unread.next_if(is_next) else {
            return self.begun.pop_first();
        };
        let mut places = self.classes.places.get(class)?.iter();
        places.next();
        Some((place, UnreadPlaces { places, read: 0 }))
    }

    fn put_back(&mut self, mut rest: UnreadPlaces<'a>) {
        if let Some(next) = rest.places.next() {
            self.begun.insert(next, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Phase, SlotRequest, engine::SemaphoreRef, samples};

    fn queue(name: &str) -> QueueRef {
        let semaphore = SemaphoreRef {
            namespace: "n".into(),
            name: name.into(),
        };
        QueueRef::new(&semaphore, None)
    }

    /// Returns a workload that asks for so many slots of `db`, and for one slot of another semaphore or of none.
    fn workload(number: usize, priority: i32, slots: u32, other: Option<&str>) -> Workload {
        let here = SlotRequest {
            slots: slots.try_into().unwrap(),
            ..SlotRequest::one("db", None)
        };
        let other = other.map(|other| SlotRequest::one(other, None));
        Workload {
            priority,
            requests: std::iter::once(here).chain(other).collect(),
            ..samples::workload(&format!("w{number:03}"), Phase::Idle, None, None)
        }
    }

    fn class(workload: &Workload) -> RequestClass {
        let requests = workload.requests.iter();
        let queues: Vec<_> = requests.map(|request| queue(&request.semaphore)).collect();
        RequestClass::of(workload, &queues[0], &queues)
    }

    fn list(workloads: &[Workload]) -> WaitingList {
        let mut list = WaitingList::default();
        for workload in workloads {
            list.insert(workload.place(), class(workload));
        }
        list
    }

    fn names(places: &[&Place]) -> Vec<String> {
        let names = places.iter().map(|place| place.uid().to_string());
        names.collect()
    }

    /// Returns what [`WaitingList::read`] should return, found in the whole list.
    fn expected(all: &[Workload], reach: &Reach<'_>) -> Vec<Place> {
        let mut all: Vec<&Workload> = all.iter().collect();
        all.sort_by_key(|workload| workload.place());
        let (mut lanes, mut classes) = (BTreeMap::new(), BTreeMap::new());
        let read = all.into_iter().filter(|workload| {
            let (uid, class) = (&workload.uid, class(workload));
            let lane: &mut usize = lanes.entry(class.lane()).or_default();
            let of_class: &mut usize = classes.entry(class).or_default();
            if *lane == reach.most || *of_class == reach.most {
                return false;
            }
            if !(reach.apart)(uid) {
                *of_class += 1;
                *lane += usize::from(!(reach.passed_over)(uid));
            }
            true
        });
        read.map(Workload::place).collect()
    }

    #[test]
    fn many_of_one_class_hide_none_of_another() {
        let large = (0..100).map(|number| workload(number, 0, 2, None));
        let joint = (100..200).map(|number| workload(number, 0, 1, Some("licenses")));
        let small = [workload(200, 0, 1, None)];
        let all: Vec<_> = large.chain(joint).chain(small).collect();
        let list = list(&all);
        let read = names(&list.read(&Reach::first(2)));
        assert_eq!(read, ["w000", "w001", "w100", "w101", "w200"]);
        assert_eq!(list.len(), 201);
    }

    /// Each workload asks for the key of a customer of its own, whose slot is taken.
    #[test]
    fn those_that_are_passed_over_count_neither_for_their_class_nor_for_others() {
        let customers: Vec<String> = (0..50).map(|number| format!("c{number}")).collect();
        let numbered = customers.iter().enumerate();
        let joint = numbered.map(|(number, key)| workload(number, 0, 1, Some(key)));
        let free = [workload(50, 0, 1, Some("free"))];
        let all: Vec<_> = joint.chain(free).collect();
        let reach = Reach {
            passed_over: &|uid| uid.as_ref() < "w050",
            ..Reach::first(1)
        };
        assert_eq!(list(&all).read(&reach).len(), 51);
        assert_eq!(list(&all).read(&Reach::first(1)).len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_read_is_the_first_of_each_class_in_order(
            asked in prop::collection::vec((-1..2_i32, 1..3_u32, prop::option::of(0..4_usize)), 0..40),
            removed in prop::collection::vec(0..40_usize, 0..20),
            (apart, passed_over) in (any::<u64>(), any::<u64>()),
            most in 0..6_usize,
        ) {
            let other = |other: usize| ["a", "b", "c", "d"][other];
            let numbered = asked.into_iter().enumerate();
            let mut all: Vec<_> = numbered
                .map(|(number, (priority, slots, elsewhere))| {
                    workload(number, priority, slots, elsewhere.map(other))
                })
                .collect();
            let mut list = list(&all);
            for number in removed {
                if number < all.len() {
                    list.remove(&all.swap_remove(number).place());
                }
            }
            let bit = |bits: u64, uid: &Uid| {
                let number: u32 = uid.as_ref()[1..].parse().unwrap();
                bits >> number & 1 == 1
            };
            let reach = Reach {
                most,
                apart: &|uid| bit(apart, uid),
                passed_over: &|uid| bit(passed_over, uid),
            };
            let read: Vec<_> = list.read(&reach).into_iter().cloned().collect();
            prop_assert_eq!(read, expected(&all, &reach));
            let mut places: Vec<_> = all.iter().map(Workload::place).collect();
            places.sort();
            prop_assert!(list.places().eq(&places));
            for workload in &all {
                list.remove(&workload.place());
            }
            prop_assert!(list.is_empty() && list.lanes.is_empty());
        }
    }
}
