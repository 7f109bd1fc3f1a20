//! Waits that end without a slot, and running workloads that newer ones replace.

use std::num::NonZeroU32;

use super::*;
use crate::{
    OnContention, Wait, WaitBegan, WaitSettings,
    plan::Skipped,
    windows::{WindowSpec, Windows},
};

const MINUTE: Duration = Duration::from_mins(1);

impl World {
    /// A workload comes that asks for slots of these semaphores.
    pub(super) fn waits(
        &mut self,
        name: &str,
        semaphores: &[&str],
        change: impl FnOnce(&mut Workload),
    ) {
        let since = self.now().time.as_second();
        let requests = semaphores.iter();
        let mut workload = Workload {
            requests: requests.map(|name| SlotRequest::one(*name, None)).collect(),
            since,
            wait: Wait {
                created: since,
                ..Wait::default()
            },
            ..samples::workload(name, Phase::Idle, None, None)
        };
        change(&mut workload);
        self.joins(&Arc::new(workload));
        self.settle();
    }

    /// Lets a workload come that replaces others.
    fn replaces(&mut self, name: &str, policy: OnContention) {
        self.waits(name, &["db"], |workload| workload.on_contention = policy);
    }

    pub(super) fn later(&mut self, time: Duration) {
        self.seconds += time.as_secs();
        let now = self.now();
        let queues: Vec<QueueRef> = self.store.workloads.keys().cloned().collect();
        for queue in queues {
            self.engine.touched(&queue, now, &self.store);
        }
        self.settle();
    }

    pub(super) fn failed(&self) -> Vec<(&str, &str)> {
        let failed = self.failed.iter();
        failed
            .map(|(name, why)| (name.as_str(), why.reason()))
            .collect()
    }

    pub(super) fn settings(&mut self, name: &str, change: impl FnOnce(&mut Settings)) {
        let now = self.now();
        let mut spec = self
            .engine
            .semaphore(&semaphore(name))
            .unwrap()
            .spec()
            .clone();
        change(&mut spec.settings);
        let known = || unreachable!("it is known");
        let reference = semaphore(name);
        self.engine
            .put(&reference, spec, false, known, now, &self.store);
        self.settle();
    }
}

/// A workload that may wait for a minute.
fn hasty(workload: &mut Workload) {
    workload.wait.timeout = Some(MINUTE);
}

#[test]
fn a_workload_that_waits_for_too_long_fails_and_is_told_who_held_the_slots() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.waits("a", &["db"], |_| {});
    world.waits("b", &["db"], hasty);
    world.waits("c", &["db"], |_| {});
    world.waits("d", &["licenses", "db"], hasty);
    world.later(MINUTE / 3);
    assert_eq!(world.failed(), []);
    let due = world.now().moment + MINUTE;
    world.later(MINUTE * 2);
    assert_eq!(
        world.failed(),
        [("b", "WaitTimedOut"), ("d", "WaitTimedOut")]
    );
    let Failed::TimedOut { asked, taken, .. } = &world.failed[0].1 else {
        panic!("{:?}", world.failed)
    };
    assert_eq!(asked, "db");
    let [(semaphore, Skipped::Taken { by, others: 0 })] = &taken[..] else {
        panic!("{taken:?}")
    };
    let named = by[0].holder.as_ref().map(ToString::to_string);
    assert_eq!(named.as_deref(), Some("prod-eu batch/a"));
    assert!(semaphore.contains("db"), "{semaphore}");
    let reading = world.engine.queue(&queue("db", None)).unwrap().reading();
    assert!(
        reading.unwrap().sent >= due,
        "it was read after the deadline"
    );
    world.ends("a");
    assert_eq!(world.started, ["a", "c"]);
}

#[test]
fn a_time_in_which_nothing_can_be_granted_does_not_count() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.waits("a", &["db"], |_| {});
    world.waits("b", &["db"], hasty);
    world.waits("c", &["licenses", "db"], hasty);
    world.settings("licenses", |settings| settings.paused = true);
    world.later(MINUTE * 5);
    assert_eq!(world.failed(), [("b", "WaitTimedOut")]);
    world.settings("licenses", |settings| settings.paused = false);
    world.later(MINUTE / 3);
    assert_eq!(world.failed().len(), 1);
    world.later(MINUTE);
    assert_eq!(world.failed()[1..], [("c", "WaitTimedOut")]);
}

#[test]
fn a_grant_that_was_given_back_before_the_first_start_ends_no_wait() {
    let mut world = World::with(&[("db", 1)]);
    world.waits("a", &["db"], |_| {});
    for (name, was_started) in [("b", false), ("c", true)] {
        world.waits(name, &["db"], |workload| {
            hasty(workload);
            workload.wait.recorded = workload.wait_given_back().filter(|_| !was_started);
            workload.reported = vec!["s".into()];
        });
    }
    world.later(MINUTE * 2);
    assert_eq!(world.failed(), [("b", "WaitTimedOut")]);
}

#[test]
fn who_can_never_be_started_does_not_wait_for_ever_beside_free_slots() {
    let mut world = World::with(&[("db", 1)]);
    world.refuses_to_start = Some("bad");
    world.waits("bad", &["db"], hasty);
    assert!(!world.given_back.is_empty());
    // Others come and go, so it is not that nothing can be started.
    for number in 0..60 {
        let name = format!("w{number}");
        world.waits(&name, &["db"], |_| {});
        world.ends(&name);
        world.later(MINUTE / 10);
    }
    assert!(world.started.iter().any(|name| name == "w0"));
    assert_eq!(world.failed(), [("bad", "WaitTimedOut")]);
}

#[test]
fn a_hold_and_its_end_are_recorded() {
    let mut world = World::with(&[("db", 1)]);
    let recorded = |world: &World| world.workload_in("db", "b").wait.recorded;
    world.waits("a", &["db"], |_| {});
    world.waits("b", &["db"], |_| {});
    assert_eq!(recorded(&world), None, "nothing was on hold");
    for hold in [true, false] {
        let now = world.now().time;
        world.change(&"b".into(), |workload| {
            let earlier = workload.clone();
            workload.hold = hold;
            workload.note_wait(Some(&earlier), now);
        });
        world.settle();
        let expected = if hold {
            WaitBegan::OnHold
        } else {
            WaitBegan::At(now.as_second())
        };
        assert_eq!(recorded(&world), Some(expected));
    }
}

#[test]
fn a_time_outside_the_windows_does_not_count() {
    let mut world = World::with(&[("db", 1)]);
    world.waits("a", &["db"], |_| {});
    world.waits("b", &["db"], hasty);
    world.settings("db", |settings| {
        let july = WindowSpec {
            schedule: "0 0 1 7 *".into(),
            duration: Duration::from_hours(1),
            time_zone: None,
            limit: None,
        };
        settings.restrictions.windows = Windows::new(vec![july], samples::time(0));
    });
    world.later(MINUTE * 5);
    assert_eq!(world.failed(), []);
    world.settings("db", |settings| {
        settings.restrictions.windows = Windows::default();
    });
    world.later(MINUTE / 3);
    assert_eq!(world.failed(), []);
    world.later(MINUTE);
    assert_eq!(world.failed(), [("b", "WaitTimedOut")]);
}

#[test]
fn what_can_be_granted_at_the_deadline_does_not_fail() {
    let mut world = World::with(&[("db", 1)]);
    world.waits("a", &["db"], |_| {});
    world.waits("b", &["db"], hasty);
    world.seconds += 600;
    world.ends("a");
    world.later(MINUTE);
    assert_eq!(
        (world.failed(), &world.started[..]),
        (vec![], &["a".into(), "b".into()][..])
    );
}

#[test]
fn what_has_a_slot_does_not_fail() {
    let mut world = World::with(&[("db", 1)]);
    world.starts_are_lost = true;
    world.waits("a", &["db"], hasty);
    world.later(MINUTE * 5);
    assert_eq!((world.failed(), world.started.len()), (vec![], 0));

    // Its grant has no answer.
    let mut world = World::with(&[("db", 1)]);
    world.waits("x", &["db"], |_| {});
    world.hung.insert(queue("db", None));
    world.ends("x");
    world.waits("a", &["db"], hasty);
    world.later(MINUTE * 5);
    assert_eq!(world.failed(), []);
}

#[test]
fn what_must_not_wait_fails_unless_it_can_start() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    let fails = |workload: &mut Workload| workload.on_contention = OnContention::Fail;
    world.waits("a", &["db"], fails);
    world.waits("b", &["db"], fails);
    world.waits("c", &["licenses", "db"], fails);
    assert_eq!(world.failed(), [("b", "Contended"), ("c", "Contended")]);
    world.ends("a");
    world.waits("d", &["licenses", "db"], fails);
    assert_eq!(world.started, ["a", "d"]);
}

#[test]
fn only_the_newest_of_those_that_replace_each_other_waits() {
    use OnContention::{ReplaceRunning, ReplaceWaiting, Wait};
    let mut world = World::with(&[("db", 1)]);
    world.replaces("a", Wait);
    world.replaces("b", ReplaceWaiting);
    world.replaces("c", Wait);
    assert_eq!(world.failed(), []);
    world.replaces("d", ReplaceRunning);
    assert_eq!(world.failed(), [("b", "Superseded")]);
    let by = Failed::Superseded {
        by: "Job batch/d".into(),
    };
    assert_eq!(world.failed[0].1, by);
    // Neither what is on hold nor what asks for something else, and nothing that had a slot.
    world.waits("e", &["db"], |workload| {
        workload.on_contention = ReplaceWaiting;
        workload.hold = true;
    });
    world.waits("f", &["db"], |workload| {
        workload.on_contention = ReplaceWaiting;
        workload.reported = vec!["old".into()];
    });
    world.waits("g", &["db"], |workload| {
        workload.on_contention = ReplaceWaiting;
        workload.requests[0].slots = NonZeroU32::new(2).unwrap();
    });
    assert_eq!(world.failed().len(), 1);
    assert!(world.ended.is_empty(), "a has no such policy");
}

#[test]
fn a_running_workload_is_ended_for_the_first_one_that_waits_for_the_same() {
    use OnContention::{ReplaceRunning, ReplaceWaiting, Wait};
    let mut world = World::with(&[("db", 2)]);
    world.replaces("a", ReplaceWaiting);
    world.replaces("b", ReplaceRunning);
    assert_eq!(
        (&world.started[..], world.ended.len()),
        (&["a".into(), "b".into()][..], 0)
    );
    world.replaces("c", ReplaceWaiting);
    assert!(world.ended.is_empty(), "it only replaces what waits");
    world.replaces("d", ReplaceRunning);
    assert_eq!(world.failed(), [("c", "Superseded")]);
    assert_eq!(world.ended, ["a"], "the oldest");
    world.later(MINUTE * 5);
    assert_eq!(world.ended, ["a"], "no more than it lacks");
    world.ends("a");
    assert_eq!(world.started, ["a", "b", "d"]);

    // One that waits before it keeps it from replacing anything.
    world.waits("e", &["db"], |workload| {
        workload.on_contention = Wait;
        workload.priority = 1;
    });
    world.replaces("f", ReplaceRunning);
    assert_eq!(world.ended, ["a"]);
    world.ends("e");
}

#[test]
fn a_running_workload_is_not_ended_in_vain() {
    use OnContention::ReplaceRunning;
    let obstacles: [fn(&mut Settings); 4] = [
        |settings| settings.paused = true,
        |settings| settings.limit = 5,
        |settings| settings.wait.replace_after = MINUTE * 30,
        |settings| settings.cooldown = MINUTE,
    ];
    for (number, obstacle) in obstacles.into_iter().enumerate() {
        let mut world = World::with(&[("db", 1)]);
        // The cooldown of its grant counts.
        if number == 3 {
            world.settings("db", obstacle);
        }
        world.replaces("a", ReplaceRunning);
        world.settings("db", obstacle);
        world.replaces("b", ReplaceRunning);
        world.later(MINUTE);
        assert!(world.ended.is_empty(), "obstacle {number}");
    }
    let mut world = World::with(&[("db", 1)]);
    world.settings("db", |settings| {
        settings.wait = WaitSettings {
            replace_after: MINUTE,
            ..settings.wait
        };
    });
    world.replaces("a", ReplaceRunning);
    world.replaces("b", ReplaceRunning);
    assert!(world.ended.is_empty());
    world.later(MINUTE);
    assert_eq!(world.ended, ["a"]);
}

#[test]
fn a_foreign_contender_that_waits_keeps_running_workloads_alive() {
    let mut world = World::with(&[("db", 1)]);
    world.replaces("a", OnContention::ReplaceRunning);
    world.engine.queue(&queue("db", None)).unwrap();
    let session = world.consul.make_session("foreign");
    let key = format!("db/{session}");
    let flags = crate::lock::SEMAPHORE_FLAGS;
    world.consul.put(&key, b"", flags, Some(session));
    world.list_all();
    world.replaces("b", OnContention::ReplaceRunning);
    world.later(MINUTE);
    assert!(world.ended.is_empty());
}
