//! Workloads that ask for several slots, and for slots of several semaphores.

use std::num::NonZeroU32;

use super::*;
use crate::{ContenderBody, SlotRequest};

fn asks(semaphore: &str, slots: u32) -> SlotRequest {
    SlotRequest {
        slots: NonZeroU32::new(slots).unwrap(),
        ..SlotRequest::one(semaphore, None)
    }
}

impl World {
    /// Semaphores with these names and limits, each at a prefix of its name; nobody needs to record the limits.
    fn with(semaphores: &[(&str, u32)]) -> Self {
        let mut world = Self::default();
        world.add(semaphores);
        world
    }

    fn add(&mut self, semaphores: &[(&str, u32)]) {
        for (name, limit) in semaphores {
            let settings = Settings {
                name: (*name).to_owned(),
                prefix: name.parse().unwrap(),
                ..spec(*limit, false).settings
            };
            let now = self.now();
            self.engine
                .add_standalone(&semaphore(name), settings, 64, now, &self.store);
        }
    }

    /// A workload comes that asks for all of these.
    fn comes(&mut self, name: &str, requests: &[SlotRequest]) {
        let workload = Arc::new(Workload {
            requests: requests.to_vec(),
            ..samples::workload(name, Phase::Idle, None, None)
        });
        for request in requests {
            let queue = queue(&request.semaphore, None);
            let workloads = self.store.workloads.entry(queue).or_default();
            workloads.push(workload.clone());
        }
        self.touch();
        self.settle();
    }

    fn touch(&mut self) {
        let now = self.now();
        let queues: Vec<QueueRef> = self.store.workloads.keys().cloned().collect();
        for queue in queues {
            self.engine.touched(&queue, now, &self.store);
        }
    }

    /// The operator restarts.
    fn restarts(&mut self, semaphores: &[(&str, u32)]) {
        self.engine = Engine::default();
        self.hung.clear();
        self.add(semaphores);
        self.settle();
    }

    /// Who holds slots at a prefix: workload and ordinal, and the raft index of the grant.
    fn holders(&self, prefix: &str) -> Vec<(String, u32, u64)> {
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

    fn lock(&self, prefix: &str) -> serde_json::Value {
        let lock = self.consul.get(&format!("{prefix}/.lock")).unwrap();
        serde_json::from_slice(&lock.value).unwrap()
    }

    /// The contender of a workload's slot is deleted and removed from the lock.
    fn loses(&mut self, prefix: &str, name: &str) {
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

    fn given_back(&self) -> Vec<&str> {
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
    assert_eq!(world.started, ["a"], "what is free is kept for the first");
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

#[test]
fn an_answer_that_is_lost_is_looked_up_at_all_lock_keys() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.answers_are_lost = 1;
    world.comes("a", &[asks("db", 1), asks("licenses", 1)]);
    assert_eq!(world.started, ["a"]);
    assert_eq!(world.holders("db").len(), 1);
}

#[test]
fn what_is_free_is_kept_for_the_first_of_those_who_ask_for_it() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.comes("first", &[asks("db", 1)]);
    world.comes("second", &[asks("db", 1), asks("licenses", 1)]);
    world.comes("third", &[asks("licenses", 1)]);
    assert_eq!(world.started, ["first"]);
    world.ends("first");
    world.ends("second");
    assert_eq!(world.started, ["first", "second", "third"]);
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
