//! Workloads that ask for several slots, and for slots of several semaphores.

use std::num::NonZeroU32;

use super::*;
use crate::{AHEAD, Asked, ContenderBody, SlotRequest, plan::Stance};

pub(super) fn asks(semaphore: &str, slots: u32) -> SlotRequest {
    SlotRequest {
        slots: NonZeroU32::new(slots).unwrap(),
        ..SlotRequest::one(semaphore, None)
    }
}

/// Longer than a test takes by itself.
pub(super) const PASS_OVER: Duration = Duration::from_mins(10);

impl World {
    /// Semaphores with these names and limits, each at a prefix of its name; nobody needs to record the limits.
    pub(super) fn with(semaphores: &[(&str, u32)]) -> Self {
        let mut world = Self::default();
        world.add(semaphores);
        world
    }

    pub(super) fn add(&mut self, semaphores: &[(&str, u32)]) {
        for (name, limit) in semaphores {
            let settings = Settings {
                name: (*name).to_owned(),
                prefix: name.parse().unwrap(),
                pass_over: PASS_OVER,
                ..spec(*limit, false).settings
            };
            let now = self.now();
            self.engine
                .add_standalone(&semaphore(name), settings, 64, now, &self.store);
        }
    }

    /// A workload comes that asks for all of these.
    pub(super) fn comes(&mut self, name: &str, requests: &[SlotRequest]) {
        self.arrives(name, requests);
        self.settle();
    }

    /// Lets a workload come at the same time as others.
    pub(super) fn arrives(&mut self, name: &str, requests: &[SlotRequest]) {
        let workload = Arc::new(Workload {
            requests: requests.to_vec(),
            since: self.seconds.try_into().unwrap(),
            ..samples::workload(name, Phase::Idle, None, None)
        });
        self.joins(&workload);
    }
    /// The first workload was passed over for long enough.
    pub(super) fn passes_over(&mut self) {
        self.seconds += PASS_OVER.as_secs() + 1;
        self.settle();
    }

    pub(super) fn touch(&mut self) {
        let now = self.now();
        let queues: Vec<QueueRef> = self.store.workloads.keys().cloned().collect();
        for queue in queues {
            self.engine.touched(&queue, now, &self.store);
        }
    }

    /// The operator restarts.
    pub(super) fn restarts(&mut self, semaphores: &[(&str, u32)]) {
        self.engine = Engine::default();
        self.hung.clear();
        self.add(semaphores);
        self.settle();
    }

    /// Who holds slots at a prefix: workload and ordinal, and the raft index of the grant.
    pub(super) fn holders(&self, prefix: &str) -> Vec<(String, u32, u64)> {
        let prefix = prefix.parse().unwrap();
        let entries = self.consul.below(&prefix);
        let lock_key = format!("{prefix}/.lock");
        let entries = entries.filter(|entry| entry.key != lock_key);
        let mut holders: Vec<_> = entries
            .map(|entry| {
                let body = ContenderBody::read(&entry.value).unwrap();
                (body.name, body.ordinal, entry.modify_index)
            })
            .collect();
        holders.sort();
        holders
    }

    pub(super) fn lock(&self, prefix: &str) -> serde_json::Value {
        let lock = self.consul.get(&format!("{prefix}/.lock")).unwrap();
        serde_json::from_slice(&lock.value).unwrap()
    }

    /// The contender of a workload's slot is deleted and removed from the lock.
    pub(super) fn loses(&mut self, prefix: &str, name: &str) {
        let folder = prefix.parse().unwrap();
        let session = {
            let mut entries = self.consul.below(&folder);
            let lost = entries.find(|entry| {
                ContenderBody::read(&entry.value).is_some_and(|body| body.name == name)
            });
            lost.unwrap().session.clone().unwrap()
        };
        self.consul.destroy(&session);
        let mut lock = self.lock(prefix);
        lock["Holders"]
            .as_object_mut()
            .unwrap()
            .remove(session.as_str());
        let flags = crate::lock::SEMAPHORE_FLAGS;
        let key = format!("{prefix}/.lock");
        self.consul
            .put(&key, lock.to_string().as_bytes(), flags, None);
    }

    /// How many passes are made when a workload goes from the end of the queue to its head, and back. Both were done
    /// once before: its session is made anew each time.
    fn passes_for(&mut self, name: &str) -> usize {
        for priority in [1, 0, 1, 0] {
            if priority == 1 {
                self.passes = 0;
            }
            self.change(&Uid::from(name), |workload| workload.priority = priority);
            for workloads in self.store.workloads.values_mut() {
                workloads.sort_by_cached_key(|workload| workload.place());
            }
            self.settle();
        }
        self.passes
    }

    /// For whom free slots are kept.
    fn keeps_for(&self, name: &str) -> Vec<String> {
        let state = self.engine.semaphore(&semaphore(name)).unwrap();
        let stances = state.queues()[&None].stances();
        let kept = stances.filter(|(_, stance)| *stance == Stance::Keeps);
        kept.map(|(uid, _)| uid.to_string()).collect()
    }

    pub(super) fn given_back(&self) -> Vec<&str> {
        self.given_back.iter().map(String::as_str).collect()
    }
}

#[test]
fn slots_of_one_semaphore_are_granted_together() {
    let mut world = World::with(&[("db", 3)]);
    world.comes("a", &[asks("db", 2)]);
    assert_eq!(world.started, ["a"]);
    let holders = world.holders("db");
    let [(_, 0, first), (_, 1, second)] = holders[..] else {
        panic!("{holders:?}");
    };
    assert_eq!(first, second, "one transaction");
    world.comes("b", &[asks("db", 2)]);
    world.comes("c", &[asks("db", 1)]);
    assert_eq!(world.started, ["a", "c"], "b can't have both");
}

#[test]
fn slots_that_come_free_together_are_granted_in_the_same_transaction() {
    let mut world = World::with(&[("db", 1), ("licenses", 1), ("tests", 2)]);
    let all = [asks("db", 1), asks("licenses", 1), asks("tests", 2)];
    for name in ["a", "b", "c"] {
        world.comes(name, &all);
    }
    for (name, next) in [("a", "b"), ("b", "c")] {
        let before = world.transactions;
        world.ends(name);
        assert_eq!(world.started.last().unwrap(), next);
        let holders = world.holders("tests");
        let of_next = holders.iter().filter(|(name, ..)| name == next);
        assert_eq!(of_next.count(), 2, "{holders:?}");
        // The next workload's contenders may follow.
        assert!(
            world.transactions - before <= 2,
            "{before} {}",
            world.transactions
        );
        assert!(!holders.iter().any(|(of, ..)| of == name), "{holders:?}");
    }
}

#[test]
fn an_urgent_workload_before_a_large_one_costs_no_more_passes() {
    let mut world = World::with(&[("db", 3)]);
    for name in ["a", "b", "c"] {
        world.comes(name, &[asks("db", 1)]);
    }
    for number in 0..60 {
        world.comes(&format!("small-{number}"), &[asks("db", 1)]);
    }
    let alone = world.passes_for("small-59");
    let large = Arc::new(Workload {
        requests: vec![asks("db", 2)],
        since: 0,
        ..samples::workload("large", Phase::Idle, None, None)
    });
    world.joins(&large);
    world.settle();
    world.passes_over();
    assert_eq!(world.keeps_for("db"), ["large"]);
    assert_eq!(world.passes_for("small-59"), alone);
    assert_eq!(world.keeps_for("db"), ["large"]);
}

/// A write to a workload may take longer where sessions never expire.
#[test]
fn a_start_in_slots_of_several_semaphores_is_answered_before_the_shortest_evidence_ends() {
    for first in [None, Some(Duration::from_secs(10))] {
        let mut world = World::default();
        let other = first.xor(Some(Duration::from_secs(10)));
        for (name, ttl) in [("x", first), ("y", other)] {
            let settings = Settings {
                name: name.to_owned(),
                prefix: name.parse().unwrap(),
                ttl,
                ..spec(1, false).settings
            };
            let now = world.now();
            world
                .engine
                .add_standalone(&semaphore(name), settings, 64, now, &world.store);
        }
        world.comes("a", &[asks("x", 1), asks("y", 1)]);
        assert_eq!(world.started, ["a"], "{first:?} first");
    }
}

#[test]
fn slots_of_several_semaphores_are_granted_in_one_transaction() {
    let mut world = World::with(&[("db", 1), ("licenses", 3)]);
    world.comes("a", &[asks("db", 1), asks("licenses", 2)]);
    assert_eq!(world.started, ["a"]);
    let (db, licenses) = (world.holders("db"), world.holders("licenses"));
    assert_eq!((db.len(), licenses.len()), (1, 2));
    let granted = db[0].2;
    assert!(licenses.iter().all(|(_, _, index)| *index == granted));
    let granted = world.workload_in("db", "a").granted.clone().unwrap();
    let keys: Vec<&str> = granted.slots.iter().map(|slot| &*slot.lock_key).collect();
    assert_eq!(keys, ["db/.lock", "licenses/.lock", "licenses/.lock"]);
}

#[test]
fn who_asks_for_several_holds_nothing_while_one_of_them_is_taken() {
    let mut world = World::with(&[("db", 1), ("licenses", 2)]);
    world.comes("first", &[asks("db", 1)]);
    world.comes("both", &[asks("db", 1), asks("licenses", 1)]);
    assert_eq!(world.started, ["first"]);
    assert_eq!(world.holders("licenses"), []);
    world.ends("first");
    assert_eq!(world.started, ["first", "both"]);
}

#[test]
fn nobody_passes_one_whose_sessions_are_still_being_made() {
    let both = [asks("db", 1), asks("licenses", 1)];
    let mut world = World::with(&[("db", 2), ("licenses", 2)]);
    world.no_sessions_for = Some("a");
    world.arrives("a", &both);
    world.arrives("b", &both);
    world.comes("c", &[asks("db", 1)]);
    assert_eq!(world.started, [""; 0]);
}

#[test]
fn one_that_can_have_no_sessions_elsewhere_is_in_nobodys_way() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.refuses_sessions = Some("licenses");
    world.arrives("both", &[asks("db", 1), asks("licenses", 1)]);
    world.arrives("behind", &[asks("db", 1)]);
    world.runs_for(20, 1);
    assert_eq!(world.started, ["behind"]);
    world.refuses_sessions = None;
    world.ends("behind");
    world.run(1);
    assert_eq!(world.started, ["behind", "both"]);
}

#[test]
fn sessions_are_made_ahead_for_few_of_those_that_lack_slots_elsewhere() {
    let mut world = World::with(&[("db", 1), ("licenses", 20)]);
    world.comes("first", &[asks("db", 1)]);
    let both = [asks("db", 1), asks("licenses", 1)];
    for number in 0..60 {
        world.arrives(&format!("job-{number:02}"), &both);
    }
    world.run(3);
    let sessions = world.own_sessions();
    let of_licenses = sessions
        .iter()
        .filter(|session| session.name.contains("/licenses/"));
    assert_eq!(of_licenses.count(), AHEAD);

    // One that needs nothing elsewhere gets a slot at once. Of the others each gets its slots in its turn.
    world.comes("behind", &[asks("licenses", 1)]);
    assert_eq!(world.started, ["first", "behind"]);
    world.ends("first");
    for number in 0..60 {
        let name = format!("job-{number:02}");
        assert_eq!(world.started.last(), Some(&name));
        world.ends(&name);
        world.run(1);
    }
}

#[test]
fn when_somebody_else_is_faster_at_one_lock_key_nothing_is_granted_at_the_others() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    // Both prefixes have been read, and another workload takes a slot at one of them.
    world.comes("before", &[asks("licenses", 1)]);
    world.ends("before");
    let body = br#"{"Limit":1,"Holders":{"other":true}}"#;
    let session = world.consul.make_session("other");
    let flags = crate::lock::SEMAPHORE_FLAGS;
    world
        .consul
        .put("licenses/other", b"", flags, Some(session));
    world.consul.put("licenses/.lock", body, flags, None);
    world.comes("a", &[asks("db", 1), asks("licenses", 1)]);
    assert_eq!(world.started, ["before"]);
    assert_eq!(world.lock("db")["Holders"], serde_json::json!({}));
}

#[test]
fn a_grant_that_was_cut_short_is_completed_if_all_of_it_is_held() {
    let semaphores = [("db", 1), ("licenses", 3)];
    let mut world = World::with(&semaphores);
    world.starts_are_lost = true;
    world.comes("a", &[asks("db", 1), asks("licenses", 2)]);
    assert!(world.started.is_empty() && world.holders("licenses").len() == 2);
    world.starts_are_lost = false;
    world.restarts(&semaphores);
    assert_eq!(world.started, ["a"]);
    assert_eq!(world.given_back(), [""; 0]);
}

#[test]
fn a_grant_that_was_cut_short_is_given_back_if_some_of_it_is_lost() {
    let semaphores = [("db", 1), ("licenses", 3)];
    for lost in ["db", "licenses"] {
        let mut world = World::with(&semaphores);
        world.starts_are_lost = true;
        world.comes("a", &[asks("db", 1), asks("licenses", 2)]);
        world.loses(lost, "a");
        world.starts_are_lost = false;
        world.restarts(&semaphores);
        assert!(world.given_back().iter().all(|name| *name == "a"));
        assert!(!world.given_back().is_empty(), "{lost}");
        world.settle();
        assert_eq!(world.started, ["a"], "once all of it is granted anew");
        let holders = world.holders("licenses");
        assert!(
            holders
                .iter()
                .all(|(.., granted)| *granted == world.holders("db")[0].2)
        );
    }
}

/// Only the contenders still say what was granted together.
#[test]
fn a_grant_that_was_cut_short_is_given_back_if_less_is_asked_for_now() {
    let semaphores = [("db", 1), ("licenses", 3)];
    let mut world = World::with(&semaphores);
    world.starts_are_lost = true;
    world.comes("a", &[asks("db", 1), asks("licenses", 2)]);
    world.change(&"a".into(), |workload| workload.requests.truncate(1));
    let licenses = world.store.workloads.get_mut(&queue("licenses", None));
    licenses.unwrap().clear();
    let granted = world.holders("db")[0].2;
    world.starts_are_lost = false;
    world.restarts(&semaphores);
    assert!(world.given_back().contains(&"a"));
    assert_eq!(
        world.started,
        ["a"],
        "once what it asks for is granted anew"
    );
    assert!(world.holders("db")[0].2 > granted);
}

#[test]
fn each_contender_says_all_that_was_granted_with_it() {
    let mut world = World::with(&[("db", 1), ("licenses", 3)]);
    world.comes("a", &[asks("db", 1), asks("licenses", 2)]);
    world.comes("b", &[asks("licenses", 1)]);
    let request = |name: &str| {
        let parts = ["db", "licenses"].map(|prefix| prefix.parse().unwrap());
        let entries = parts.iter().flat_map(|prefix| world.consul.below(prefix));
        let bodies = entries.filter_map(|entry| ContenderBody::read(&entry.value));
        let of_it = bodies.filter(|body| body.name == name);
        of_it.map(|body| body.request).collect::<Vec<_>>()
    };
    let all = Asked::of([("db/.lock".to_owned(), 1), ("licenses/.lock".to_owned(), 2)]);
    assert_eq!(request("a"), vec![all; 3]);
    assert_eq!(request("b"), [Asked::default()]);
}

#[test]
fn an_answer_that_is_lost_is_looked_up_at_all_lock_keys() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.answers_are_lost = 1;
    world.comes("a", &[asks("db", 1), asks("licenses", 1)]);
    assert_eq!(world.started, ["a"]);
    assert_eq!(world.holders("db").len(), 1);
}

#[test]
fn slots_go_to_others_until_the_first_was_passed_over_for_long_enough() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.comes("first", &[asks("db", 1)]);
    world.comes("second", &[asks("db", 1), asks("licenses", 1)]);
    world.comes("third", &[asks("licenses", 1)]);
    assert_eq!(world.started, ["first", "third"]);
    world.passes_over();
    world.ends("third");
    world.comes("fourth", &[asks("licenses", 1)]);
    assert_eq!(world.started, ["first", "third"], "kept for the second");
    world.ends("first");
    world.ends("second");
    assert_eq!(world.started, ["first", "third", "second", "fourth"]);
}

#[test]
fn each_queue_says_what_is_missing_and_what_becomes_of_its_free_slots() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.comes("first", &[asks("db", 1)]);
    world.comes("second", &[asks("db", 1), asks("licenses", 1)]);
    let said = |world: &World, name: &str| {
        let state = world.engine.semaphore(&semaphore(name)).unwrap();
        let QueueState { queue, .. } = state.queues().get(&None).unwrap();
        let uid = Uid::from("second");
        let mut stances = state.queues()[&None].stances();
        let stance = stances.find(|(of, _)| **of == uid);
        let lacking: Vec<_> = queue
            .lacking(&uid)
            .iter()
            .map(ToString::to_string)
            .collect();
        (stance.map(|(_, stance)| stance), lacking.join(", "))
    };
    let lacks_db = |stance| (stance, "db".to_owned());
    assert_eq!(said(&world, "db"), lacks_db(None));
    let passed_over = lacks_db(Some(Stance::PassedOver));
    assert_eq!(said(&world, "licenses"), passed_over);
    world.passes_over();
    for name in ["db", "licenses"] {
        assert_eq!(said(&world, name), lacks_db(Some(Stance::Keeps)), "{name}");
    }
    while world.engine.take_changed().is_some() {}
    world.comes("third", &[asks("licenses", 1)]);
    world.pauses("licenses", true);
    world.settle();
    let both = (Some(Stance::Stopped), "db, licenses".to_owned());
    assert_eq!(said(&world, "db"), both);
    let mut changed = std::iter::from_fn(|| world.engine.take_changed());
    assert!(
        changed.any(|changed| changed == semaphore("db")),
        "its status says so"
    );
    // The license was not kept while none was granted.
    world.pauses("licenses", false);
    world.ends("first");
    assert_eq!(world.started, ["first", "third"]);
    world.ends("third");
    assert_eq!(said(&world, "db"), (None, String::new()), "it runs");
}

#[test]
fn slots_are_kept_for_one_that_asks_for_several_of_one_semaphore() {
    let mut world = World::with(&[("db", 2)]);
    world.comes("a", &[asks("db", 1)]);
    world.comes("b", &[asks("db", 1)]);
    world.comes("both", &[asks("db", 2)]);
    world.comes("c", &[asks("db", 1)]);
    world.ends("a");
    assert_eq!(world.started, ["a", "b", "c"]);
    world.comes("d", &[asks("db", 1)]);
    world.passes_over();
    world.ends("b");
    assert_eq!(
        world.started,
        ["a", "b", "c"],
        "kept for the one that asks for both"
    );
    world.ends("c");
    assert_eq!(world.started, ["a", "b", "c", "both"]);
    world.ends("both");
    assert_eq!(world.started, ["a", "b", "c", "both", "d"]);
}

/// What waited there had been passed over for long enough, and that is forgotten with the semaphore.
#[test]
fn a_semaphore_that_is_made_again_keeps_nothing_at_once() {
    let mut world = World::with(&[("db", 2)]);
    world.comes("a", &[asks("db", 1)]);
    world.comes("b", &[asks("db", 1)]);
    world.comes("both", &[asks("db", 2)]);
    world.passes_over();
    let now = world.now();
    world.engine.remove(&semaphore("db"), now, &world.store);
    world.add(&[("db", 2)]);
    world.settle();
    world.comes("c", &[asks("db", 1)]);
    world.ends("a");
    assert_eq!(world.started, ["a", "b", "c"], "both is passed over anew");
    world.passes_over();
    world.comes("d", &[asks("db", 1)]);
    world.ends("b");
    assert_eq!(world.started, ["a", "b", "c"], "a slot is kept again");
}

/// R is the first in A and the second in B. S is before it in B, and waits for C: A must not idle for R meanwhile.
#[test]
fn nothing_is_kept_for_one_that_is_not_the_first_in_all_its_queues() {
    let mut world = World::with(&[("a", 1), ("b", 1), ("c", 1)]);
    world.comes("in-c", &[asks("c", 1)]);
    world.comes("in-a", &[asks("a", 1)]);
    world.comes("in-b", &[asks("b", 1)]);
    world.comes("r-s", &[asks("b", 1), asks("c", 1)]);
    world.comes("r-t", &[asks("a", 1), asks("b", 1)]);
    world.passes_over();
    world.ends("in-a");
    world.comes("small", &[asks("a", 1)]);
    assert_eq!(world.started, ["in-c", "in-a", "in-b", "small"]);
    // B is kept for S alone.
    world.ends("in-b");
    world.ends("small");
    assert_eq!(world.started, ["in-c", "in-a", "in-b", "small"]);
    world.ends("in-c");
    world.ends("r-s");
    assert_eq!(
        world.started,
        ["in-c", "in-a", "in-b", "small", "r-s", "r-t"]
    );
}

#[test]
fn nothing_is_kept_while_one_of_the_semaphores_grants_nothing() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.comes("one", &[asks("licenses", 1)]);
    world.ends("one");
    world.pauses("licenses", true);
    world.comes("both", &[asks("db", 1), asks("licenses", 1)]);
    world.comes("two", &[asks("db", 1)]);
    world.passes_over();
    world.ends("two");
    world.comes("three", &[asks("db", 1)]);
    assert_eq!(world.started, ["one", "two", "three"]);
    world.pauses("licenses", false);
    world.comes("four", &[asks("db", 1)]);
    world.ends("three");
    assert_eq!(world.started, ["one", "two", "three", "both"]);
}

#[test]
fn nothing_is_given_back_while_a_start_is_under_way() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.starts_are_lost = true;
    world.comes("a", &[asks("db", 1), asks("licenses", 1)]);
    world.touch();
    world.settle();
    assert_eq!(world.given_back(), [""; 0]);
    assert_eq!(world.holders("licenses").len(), 1);
}

#[test]
fn a_queue_waits_for_no_transaction_of_one_that_is_gone() {
    let mut world = World::with(&[("db", 1), ("licenses", 2)]);
    for name in ["db", "licenses"] {
        let now = world.now();
        world.engine.touched(&queue(name, None), now, &world.store);
    }
    world.settle();
    world.hung.insert(queue("db", None));
    world.comes("a", &[asks("db", 1), asks("licenses", 1)]);
    world.comes("b", &[asks("licenses", 1)]);
    assert!(world.started.is_empty(), "an answer is waited for");
    let now = world.now();
    world.engine.remove(&semaphore("db"), now, &world.store);
    world.store.workloads.remove(&queue("db", None));
    let licenses = queue("licenses", None);
    let workloads = world.store.workloads.get_mut(&licenses).unwrap();
    workloads.retain(|workload| &*workload.name == "b");
    for _ in 0..60 {
        world.touch();
        world.settle();
    }
    assert_eq!(world.started, ["b"]);
}

/// The indexes of grants at a prefix, and how many slots each has granted.
fn grants(world: &World, prefix: &str, name: &str) -> Vec<usize> {
    let mut grants: BTreeMap<u64, usize> = BTreeMap::new();
    for (holder, _, index) in world.holders(prefix) {
        if holder == name {
            *grants.entry(index).or_default() += 1;
        }
    }
    grants.into_values().collect()
}

/// Consul takes 64 operations here.
#[test]
fn what_finds_no_room_beside_others_is_granted_whole_after_them() {
    let mut world = World::with(&[("db", 90), ("licenses", 30)]);
    for number in 0..25 {
        world.arrives(&format!("a{number}"), &[asks("db", 1)]);
    }
    world.arrives("b-large", &[asks("db", 45)]);
    world.arrives("c-wide", &[asks("db", 20), asks("licenses", 30)]);
    world.settle();
    assert_eq!(world.started.len(), 27);
    assert_eq!(grants(&world, "db", "b-large"), [45], "whole");
    assert_eq!(grants(&world, "db", "c-wide"), [20]);
    assert_eq!(grants(&world, "licenses", "c-wide"), [30]);
}

/// Consul takes 64 operations here, and slots are given back to make room for the workload.
#[test]
fn what_finds_no_room_beside_releases_is_granted_whole_after_them() {
    let mut world = World::with(&[("db", 50), ("licenses", 10)]);
    let small: Vec<String> = (0..30).map(|number| format!("a{number}")).collect();
    for name in &small {
        world.arrives(name, &[asks("db", 1)]);
    }
    world.settle();
    world.comes("wide", &[asks("db", 40), asks("licenses", 10)]);
    assert_eq!(world.started.len(), 30);
    for name in &small {
        world.change(&Uid::from(&**name), |workload| {
            workload.phase = Phase::Finished { at_rest: true };
        });
    }
    world.settle();
    assert_eq!(world.started.len(), 31);
    assert_eq!(grants(&world, "db", "wide"), [40]);
    assert_eq!(world.holders("db").len(), 40);
}

/// The `.lock`s of two semaphores with many holders, for example.
#[test]
fn what_is_too_large_for_one_transaction_says_so_and_blocks_nobody() {
    let mut world = World::with(&[("db", 9), ("licenses", 9)]);
    world.comes("before", &[asks("db", 1)]);
    world.most_bytes = Some(450);
    world.arrives("a-both", &[asks("db", 1), asks("licenses", 1)]);
    world.arrives("b-small", &[asks("db", 1)]);
    world.arrives("c-small", &[asks("licenses", 1)]);
    world.settle();
    assert_eq!(world.started, ["before", "b-small", "c-small"]);
    assert_eq!(world.too_large, ["a-both", "a-both"], "once by each queue");
    world.passes_over();
    world.arrives("d-small", &[asks("db", 1)]);
    world.settle();
    assert_eq!(world.started.last().unwrap(), "d-small");
    assert_eq!(world.too_large.len(), 2);
    world.most_bytes = None;
    world.passes_over();
    assert_eq!(
        world.started.last().unwrap(),
        "a-both",
        "there is room again"
    );
}
