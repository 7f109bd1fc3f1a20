//! Workloads that come into a queue that is full.

use super::*;
use crate::OnContention;

const MINUTE: Duration = Duration::from_mins(1);

/// Semaphores with these limits, whose queues have room for so many.
fn bounded(semaphores: &[(&str, u32)], most: u32) -> World {
    let mut world = World::with(semaphores);
    for (name, _) in semaphores {
        world.bound(name, Some(most));
    }
    world
}

impl World {
    fn bound(&mut self, name: &str, most: Option<u32>) {
        self.settings(name, |settings| settings.wait.max_waiting = most);
    }

    fn come(&mut self, names: &[&str]) {
        for name in names {
            self.waits(name, &["db"], |_| {});
        }
    }

    /// The names of those that failed because a queue was full. Nothing else fails.
    fn turned_away(&self) -> Vec<&str> {
        let failed = self.failed().into_iter();
        failed
            .map(|(name, why)| {
                assert_eq!(why, "QueueFull");
                name
            })
            .collect()
    }

    /// A workload comes, and whatever is tried again is tried so many times.
    fn waits_for(&mut self, name: &str, times: usize) {
        let workload = Workload {
            requests: vec![SlotRequest::one("db", None)],
            since: self.now().time.as_second(),
            ..samples::workload(name, Phase::Idle, None, None)
        };
        self.joins(&Arc::new(workload));
        self.runs_for(times, 1);
    }

    /// Another program writes a limit, and leaves the holders as they are.
    fn overwrite_limit(&mut self, limit: u32) {
        let lock = self.consul.get("db/.lock").unwrap().clone();
        let mut body: serde_json::Value = serde_json::from_slice(&lock.value).unwrap();
        body["Limit"] = limit.into();
        let value = body.to_string();
        self.consul
            .put("db/.lock", value.as_bytes(), lock.flags, None);
        self.list_all();
    }

    /// Another process takes over, which counts all that wait as admitted.
    fn restart(&mut self, semaphores: &[(&str, u32)], most: u32) {
        let store = std::mem::take(&mut self.store);
        let consul = std::mem::take(&mut self.consul);
        let (seconds, failed) = (self.seconds + 1, std::mem::take(&mut self.failed));
        *self = World {
            store,
            consul,
            failed,
            seconds,
            ..World::default()
        };
        self.store.unadmitted.borrow_mut().clear();
        self.add(semaphores);
        for (name, _) in semaphores {
            self.bound(name, Some(most));
        }
    }
}

#[test]
fn what_comes_into_a_full_queue_fails_and_is_told_how_many_wait() {
    let mut world = bounded(&[("db", 1)], 2);
    world.come(&["a", "b", "c", "d", "e"]);
    assert_eq!(world.started, ["a"]);
    assert_eq!(world.turned_away(), ["d", "e"]);
    let why = Failed::QueueFull {
        semaphore: queue("db", None).title(),
        waiting: 2,
        most: 2,
    };
    assert_eq!(world.failed[0].1, why);

    // One is started, so there is room for one.
    world.ends("a");
    world.come(&["f", "g"]);
    assert_eq!(world.started, ["a", "b"]);
    assert_eq!(world.turned_away(), ["d", "e", "g"]);
}

#[test]
fn of_several_that_come_at_once_the_first_to_come_are_admitted_whatever_their_priority() {
    let mut world = bounded(&[("db", 1)], 2);
    world.come(&["a"]);
    for (name, priority) in [("b", 0), ("c", 0), ("d", 9), ("e", 0)] {
        let workload = Workload {
            requests: vec![SlotRequest::one("db", None)],
            priority,
            ..samples::workload(name, Phase::Idle, None, None)
        };
        world.joins(&Arc::new(workload));
    }
    world.settle();
    assert_eq!(world.turned_away(), ["d", "e"]);
}

#[test]
fn what_can_start_at_once_does_not_fail_however_many_come() {
    let mut world = bounded(&[("db", 100)], 1);
    for number in 0..200 {
        let workload = Workload {
            requests: vec![SlotRequest::one("db", None)],
            ..samples::workload(&format!("w{number:03}"), Phase::Idle, None, None)
        };
        world.joins(&Arc::new(workload));
    }
    world.settle();
    assert_eq!(world.started.len(), 100);
    assert_eq!(world.turned_away().len(), 99);

    // Two slots are free for the one that waits, and none for it alone.
    let mut world = bounded(&[("db", 3)], 1);
    world.come(&["a"]);
    world.waits("large", &["db"], |workload| {
        workload.requests[0].slots = 3.try_into().unwrap();
    });
    world.come(&["b", "c"]);
    assert_eq!(world.started, ["a", "b", "c"]);
    assert_eq!(world.turned_away(), [""; 0]);
}

#[test]
fn an_admitted_workload_waits_on_whatever_becomes_of_the_bound() {
    let mut world = World::with(&[("db", 1)]);
    world.come(&["a", "b", "c", "d"]);
    world.bound("db", Some(1));
    world.later(MINUTE);
    assert_eq!(world.turned_away(), [""; 0], "they came before it");
    world.come(&["e"]);
    assert_eq!(world.turned_away(), ["e"]);
    world.bound("db", Some(4));
    world.come(&["f", "g"]);
    assert_eq!(world.turned_away(), ["e", "g"]);
    world.restart(&[("db", 1)], 1);
    world.later(MINUTE);
    assert_eq!(world.turned_away(), ["e", "g"]);
    world.come(&["h"]);
    assert_eq!(world.turned_away(), ["e", "g", "h"]);
    for name in ["a", "b", "c", "d", "f"] {
        world.ends(name);
    }
    assert_eq!(world.started, ["b", "c", "d", "f"]);
}

#[test]
fn only_what_waits_counts() {
    let mut world = bounded(&[("db", 1)], 1);
    world.come(&["a"]);
    world.waits("held", &["db"], |workload| workload.hold = true);
    world.come(&["b", "c"]);
    assert_eq!(world.turned_away(), ["c"]);
    // What was on hold comes into the queue now.
    world.change(&"held".into(), |workload| workload.hold = false);
    world.settle();
    assert_eq!(world.turned_away(), ["c", "held"]);

    // What can't be started does not count.
    let mut world = bounded(&[("db", 1)], 1);
    world.refuses_to_start = Some("bad");
    world.come(&["bad"]);
    assert!(!world.given_back.is_empty());
    world.come(&["a", "b", "c"]);
    assert_eq!(world.started, ["a"]);
    assert_eq!(world.turned_away(), ["c"]);
    world.later(MINUTE * 5);
    assert_eq!(world.turned_away(), ["c"], "it was granted once");
}

/// Nothing admitted it before, because it did not wait.
#[test]
fn what_was_ever_granted_slots_was_admitted() {
    let mut world = bounded(&[("db", 1)], 1);
    world.come(&["a", "b"]);
    world.waits("given-back", &["db"], |workload| {
        workload.reported = vec!["s".into()];
    });
    world.come(&["c"]);
    assert_eq!(world.turned_away(), ["c"]);
}

#[test]
fn a_paused_semaphore_has_a_full_queue_too() {
    let mut world = bounded(&[("db", 1)], 1);
    world.settings("db", |settings| settings.paused = true);
    world.come(&["a", "b"]);
    assert_eq!(world.turned_away(), ["b"]);
    world.settings("db", |settings| settings.paused = false);
    assert_eq!(world.started, ["a"]);
}

#[test]
fn nothing_is_decided_while_facts_are_uncertain() {
    let doubts: [[fn(&mut World); 2]; 3] = [
        [
            |world| world.store.lists = true,
            |world| world.store.lists = false,
        ],
        [
            |world| world.unread = Some("db"),
            |world| world.unread = None,
        ],
        [
            |world| world.overwrite_limit(5),
            |world| world.overwrite_limit(1),
        ],
    ];
    for (number, [begins, ends]) in doubts.into_iter().enumerate() {
        let mut world = bounded(&[("db", 1)], 1);
        world.come(&["a", "b"]);
        begins(&mut world);
        world.engine.read_again(&queue("db", None));
        world.waits_for("c", 100);
        assert_eq!(world.turned_away(), [""; 0], "{number}");
        ends(&mut world);
        for _ in 0..10 {
            world.later(MINUTE);
        }
        assert_eq!(world.turned_away(), ["c"], "{number}");
    }
}

#[test]
fn one_full_queue_of_several_is_enough() {
    let mut world = bounded(&[("db", 1), ("licenses", 1)], 1);
    world.bound("licenses", None);
    world.come(&["a"]);
    world.waits("both", &["licenses", "db"], |_| {});
    world.waits("more", &["licenses", "db"], |_| {});
    assert_eq!(world.turned_away(), ["more"]);
    world.waits("other", &["licenses"], |_| {});
    assert_eq!(world.started, ["a", "other"]);
    let Failed::QueueFull { semaphore, .. } = &world.failed[0].1 else {
        panic!("{:?}", world.failed)
    };
    assert_eq!(*semaphore, queue("db", None).title());
}

#[test]
fn a_queue_that_awaits_an_answer_is_not_passed_over_again_and_again() {
    let mut world = bounded(&[("db", 1), ("licenses", 1)], 1);
    world.come(&["a", "b"]);
    world.waits("x", &["licenses"], |_| {});
    world.hung.insert(queue("licenses", None));
    world.ends("x");
    let requests = ["licenses", "db"].map(|name| SlotRequest::one(name, None));
    world.arrives("both", &requests);
    world.run(0);
    assert_eq!(world.turned_away(), [""; 0]);
}

#[test]
fn what_must_not_wait_is_judged_by_that_first() {
    let mut world = bounded(&[("db", 1)], 1);
    world.come(&["a", "b"]);
    world.waits("c", &["db"], |workload| {
        workload.on_contention = OnContention::Fail;
    });
    assert_eq!(world.failed(), [("c", "Contended")]);
}
