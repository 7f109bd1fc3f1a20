//! Free slots that are kept for a workload that asks for several: how many, against whom, and when not.

use super::{several::PASS_OVER, several::asks, *};
use crate::windows::{WindowSpec, Windows};

/// Windows that are closed now, or that allow so much.
fn window(limit: Option<u32>) -> Windows {
    let schedule = if limit.is_some() {
        "* * * * *"
    } else {
        "0 0 1 7 *"
    };
    let window = WindowSpec {
        schedule: schedule.into(),
        duration: Duration::from_hours(1),
        time_zone: None,
        limit,
    };
    Windows::new(vec![window], samples::time(0))
}

/// `licenses` is taken by `one`, and `both` is the first in `db`, whose only slot `two` has.
fn both_wait() -> World {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.comes("one", &[asks("licenses", 1)]);
    world.comes("two", &[asks("db", 1)]);
    world.comes("both", &[asks("db", 1), asks("licenses", 1)]);
    world
}

#[test]
fn no_more_is_kept_than_is_asked_for() {
    let mut world = World::with(&[("db", 3), ("licenses", 1)]);
    world.comes("one", &[asks("licenses", 1)]);
    for name in ["a", "b", "c"] {
        world.comes(name, &[asks("db", 1)]);
    }
    world.comes("both", &[asks("db", 1), asks("licenses", 1)]);
    world.passes_over();
    world.comes("d", &[asks("db", 1)]);
    world.comes("e", &[asks("db", 1)]);
    world.ends("a");
    assert_eq!(world.started, ["one", "a", "b", "c"]);
    world.ends("b");
    assert_eq!(world.started[4..], ["d"]);
    world.ends("one");
    assert_eq!(world.started[5..], ["both"]);
}

#[test]
fn what_is_kept_is_there_for_one_that_comes_before() {
    let mut world = both_wait();
    world.passes_over();
    world.ends("two");
    world.comes("three", &[asks("db", 1)]);
    assert_eq!(world.started, ["one", "two"]);
    world.waits("urgent", &["db"], |workload| workload.priority = 1);
    assert_eq!(world.started[2..], ["urgent"]);
    world.ends("urgent");
    world.ends("one");
    assert_eq!(world.started[3..], ["both"]);
}

#[test]
fn nothing_is_kept_while_another_of_its_semaphores_can_not_grant() {
    let obstacles: [fn(&mut World); 4] = [
        |world| world.settings("licenses", |settings| settings.paused = true),
        |world| {
            world.settings("licenses", |settings| {
                settings.restrictions.windows = window(None);
            });
        },
        // Another program's limit.
        |world| {
            let mut lock = world.lock("licenses");
            lock["Limit"] = 7.into();
            let flags = crate::lock::SEMAPHORE_FLAGS;
            let body = lock.to_string();
            world
                .consul
                .put("licenses/.lock", body.as_bytes(), flags, None);
        },
        // Something that is no semaphore.
        |world| world.consul.put("licenses/.lock", b"?", 7, None),
    ];
    for (number, obstacle) in obstacles.into_iter().enumerate() {
        let mut world = both_wait();
        obstacle(&mut world);
        world.list_all();
        world.settle();
        world.passes_over();
        world.ends("two");
        world.comes("three", &[asks("db", 1)]);
        assert_eq!(world.started[2..], ["three"], "obstacle {number}");
    }
}

#[test]
fn nothing_is_kept_for_one_whose_start_is_refused() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.starts_are_refused = true;
    world.comes("both", &[asks("db", 1), asks("licenses", 1)]);
    world.list_all();
    world.settle();
    assert_eq!(world.holders("db"), []);
    world.starts_are_refused = false;
    world.comes("small", &[asks("db", 1)]);
    assert_eq!(world.started, ["small"]);
}

#[test]
fn nothing_is_kept_where_slots_cool_for_longer() {
    for (cooldown, started) in [(PASS_OVER * 3, &["three"][..]), (PASS_OVER / 2, &[])] {
        let mut world = World::with(&[("db", 1), ("licenses", 1)]);
        world.settings("licenses", |settings| settings.cooldown = cooldown);
        world.settings("db", |settings| {
            settings.pass_over = Duration::from_mins(1);
        });
        world.comes("one", &[asks("licenses", 1)]);
        world.comes("two", &[asks("db", 1)]);
        world.ends("one");
        world.comes("both", &[asks("db", 1), asks("licenses", 1)]);
        world.seconds += 90;
        world.touch();
        world.settle();
        world.ends("two");
        world.comes("three", &[asks("db", 1)]);
        assert_eq!(&world.started[2..], started, "{cooldown:?}");
    }
}

/// Otherwise those behind it would take each of them as it comes free, and it would never have both.
#[test]
fn slots_that_come_free_far_apart_are_kept_until_the_last_one_is_free() {
    let mut world = World::with(&[("db", 2)]);
    world.settings("db", |settings| settings.cooldown = PASS_OVER * 3);
    world.comes("one", &[asks("db", 1)]);
    world.comes("other", &[asks("db", 1)]);
    world.comes("two", &[asks("db", 2)]);
    world.comes("small", &[asks("db", 1)]);
    world.ends("one");
    world.passes_over();
    world.passes_over();
    world.ends("other");
    world.passes_over();
    world.passes_over();
    assert_eq!(world.started, ["one", "other"], "the first slot is free");
    world.passes_over();
    world.passes_over();
    assert_eq!(world.started, ["one", "other", "two"]);
}

#[test]
fn nothing_is_kept_for_more_than_is_in_force_now() {
    let smaller: [fn(&mut Settings); 2] = [
        |settings| settings.restrictions.windows = window(Some(1)),
        |settings| settings.limit = 1,
    ];
    for (number, smaller) in smaller.into_iter().enumerate() {
        let mut world = World::with(&[("db", 2)]);
        world.comes("a", &[asks("db", 1)]);
        world.comes("two", &[asks("db", 2)]);
        world.settings("db", smaller);
        if number == 1 {
            world.record();
        }
        world.passes_over();
        world.comes("b", &[asks("db", 1)]);
        world.ends("a");
        assert_eq!(world.started, ["a", "b"], "smaller {number}");
    }
}

/// S is before R in B, and waits for C, which is paused: R is the first in A and in B.
#[test]
fn one_whose_other_semaphore_is_paused_is_not_before_anybody() {
    let mut world = World::with(&[("a", 1), ("b", 1), ("c", 1)]);
    for name in ["a", "b", "c"] {
        world.comes(&format!("in-{name}"), &[asks(name, 1)]);
    }
    world.comes("s", &[asks("b", 1), asks("c", 1)]);
    world.comes("r", &[asks("a", 1), asks("b", 1)]);
    world.pauses("c", true);
    world.settle();
    world.passes_over();
    world.ends("in-a");
    world.comes("small", &[asks("a", 1)]);
    assert_eq!(world.started, ["in-a", "in-b", "in-c"], "A is kept for R");
    world.ends("in-b");
    assert_eq!(world.started[3..], ["r"]);
}

#[test]
fn two_can_keep_at_once() {
    let mut world = World::with(&[("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
    for name in ["a", "b", "c", "d"] {
        world.comes(&format!("in-{name}"), &[asks(name, 1)]);
    }
    world.comes("r", &[asks("a", 1), asks("b", 1)]);
    world.comes("s", &[asks("c", 1), asks("d", 1)]);
    world.passes_over();
    world.ends("in-a");
    world.ends("in-c");
    world.comes("small-a", &[asks("a", 1)]);
    world.comes("small-c", &[asks("c", 1)]);
    assert_eq!(world.started.len(), 4);
    world.ends("in-d");
    world.ends("in-b");
    assert_eq!(world.started[4..], ["s", "r"]);
}

#[test]
fn what_must_not_wait_waits_for_what_is_kept() {
    let mut world = both_wait();
    world.passes_over();
    world.ends("two");
    let fails = |workload: &mut Workload| workload.on_contention = crate::OnContention::Fail;
    world.waits("hasty", &["db"], fails);
    assert_eq!((world.failed(), world.started.len()), (vec![], 2));
    world.ends("one");
    assert_eq!(world.started[2..], ["both"]);
    assert_eq!(world.failed(), [("hasty", "Contended")]);
}
