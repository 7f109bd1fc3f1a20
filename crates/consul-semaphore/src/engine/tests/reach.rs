//! How far a pass reads: whoever can't be granted what it asks for hides nobody who can.

use super::{
    several::{PASS_OVER, asks},
    *,
};
use crate::{
    settings::Reserved,
    windows::{WindowSpec, Windows},
};

/// More than a pass reads of those that can be granted something.
const MANY: usize = 60;

/// A window that allows so many slots is open, and a larger one opens on the next leap day.
fn small_window(limit: u32) -> Windows {
    let window = |schedule: &str, limit| WindowSpec {
        schedule: schedule.into(),
        duration: Duration::from_hours(1),
        time_zone: None,
        limit,
    };
    let windows = vec![window("* * * * *", Some(limit)), window("0 0 29 2 *", None)];
    Windows::new(windows, samples::time(0))
}

impl World {
    /// Lets [`MANY`] workloads come that all ask for this.
    fn many_come(&mut self, requests: &[SlotRequest]) {
        for number in 0..MANY {
            self.comes(&format!("large-{number:02}"), requests);
        }
    }
}

#[test]
fn those_that_ask_for_more_than_this_window_has_hide_nobody() {
    let mut world = World::with(&[("db", 3)]);
    world.settings("db", |settings| {
        settings.restrictions.windows = small_window(1);
    });
    world.many_come(&[asks("db", 2)]);
    world.comes("small", &[asks("db", 1)]);
    assert_eq!(world.started, ["small"]);
}

#[test]
fn those_that_are_passed_over_hide_nobody() {
    let mut world = World::with(&[("db", 3)]);
    for name in ["a", "b"] {
        world.comes(name, &[asks("db", 1)]);
    }
    world.many_come(&[asks("db", 2)]);
    world.comes("small", &[asks("db", 1)]);
    assert_eq!(world.started[2..], ["small"]);
}

#[test]
fn those_that_lack_slots_elsewhere_hide_nobody_whatever_they_ask_for_there() {
    let mut world = World::with(&[("db", 1), ("licenses", 1), ("tests", 1)]);
    world.comes("a", &[asks("licenses", 1)]);
    world.comes("b", &[asks("tests", 1)]);
    for number in 0..MANY {
        let elsewhere = ["licenses", "tests"][number % 2];
        let name = format!("large-{number:02}");
        world.comes(&name, &[asks("db", 1), asks(elsewhere, 1)]);
    }
    world.comes("small", &[asks("db", 1)]);
    assert_eq!(world.started[2..], ["small"]);
}

/// Workloads that lost their slots come before all others, whatever their priority.
#[test]
fn those_that_lost_their_slots_and_may_not_have_the_reserved_ones_hide_nobody() {
    let mut world = World::with(&[("db", 2)]);
    world.settings("db", |settings| {
        settings.restrictions.reserved = Some(Reserved {
            slots: 2,
            min_priority: 10,
        });
    });
    for number in 0..MANY {
        world.waits(&format!("lost-{number:02}"), &["db"], |workload| {
            workload.granted = Some(crate::Granted::by("db/s", "s"));
        });
    }
    world.waits("urgent", &["db"], |workload| workload.priority = 10);
    assert_eq!(world.started, ["urgent"]);
}

#[test]
fn of_those_that_ask_for_the_same_a_pass_reads_few() {
    let mut world = World::with(&[("db", 2), ("licenses", 1)]);
    world.comes("a", &[asks("licenses", 1)]);
    for number in 0..500 {
        let name = format!("large-{number:03}");
        world.arrives(&name, &[asks("db", 1), asks("licenses", 1)]);
    }
    world.run(1);
    world.touch();
    world.settle();
    for name in ["db", "licenses"] {
        let semaphore = self::semaphore(name);
        let state = world.engine.semaphore(&semaphore).unwrap();
        let concluded = state.queues()[&None].concluded.as_ref().unwrap();
        let read = concluded.0.parts.len();
        assert!(read < MANY, "{name}: {read} of 500");
    }
}

/// Both slots of `db` are held by others for as long as a large workload is passed over; whenever one of them ends,
/// the next small one is there already.
fn is_served_beside_small_ones(world: &mut World, large: &str) {
    world.comes("small-1", &[asks("db", 1)]);
    world.passes_over();
    for number in 0..6 {
        world.comes(&format!("small-{}", number + 2), &[asks("db", 1)]);
        world.ends(&format!("small-{number}"));
        world.passes_over();
        if world.started.iter().any(|name| name == large) {
            return;
        }
    }
    panic!("{large} is not served: {:?}", world.started);
}

#[test]
fn who_asks_for_more_than_this_window_has_keeps_nobody_behind_it_from_keeping() {
    let mut world = World::with(&[("db", 5)]);
    world.settings("db", |settings| {
        settings.restrictions.windows = small_window(2);
    });
    world.comes("small-0", &[asks("db", 1)]);
    world.comes("never", &[asks("db", 3)]);
    world.comes("large", &[asks("db", 2)]);
    is_served_beside_small_ones(&mut world, "large");
}

#[test]
fn who_asks_elsewhere_for_more_than_a_window_has_keeps_nobody_from_keeping() {
    let mut world = World::with(&[("db", 2), ("licenses", 3)]);
    world.settings("licenses", |settings| {
        settings.restrictions.windows = small_window(1);
    });
    world.comes("small-0", &[asks("db", 1)]);
    world.comes("never", &[asks("db", 2), asks("licenses", 2)]);
    world.comes("large", &[asks("db", 2)]);
    is_served_beside_small_ones(&mut world, "large");
}

/// The slot of `licenses` is in its cooldown.
fn licenses_cool(world: &mut World) {
    world.settings("licenses", |settings| settings.cooldown = PASS_OVER * 100);
    world.comes("cools", &[asks("licenses", 1)]);
    world.ends("cools");
    world.started.clear();
}

#[test]
fn who_waits_for_a_long_cooldown_elsewhere_keeps_nobody_from_keeping() {
    let mut world = World::with(&[("db", 2), ("licenses", 1)]);
    licenses_cool(&mut world);
    world.comes("small-0", &[asks("db", 1)]);
    world.comes("late", &[asks("db", 2), asks("licenses", 1)]);
    world.comes("large", &[asks("db", 2)]);
    is_served_beside_small_ones(&mut world, "large");
}

/// What is kept is not lost either for the one pass in which nothing is decided yet about the one that comes before.
#[test]
fn who_keeps_goes_on_when_one_comes_before_it_that_may_not() {
    for elsewhere in [false, true] {
        let mut world = World::with(&[("db", 3), ("licenses", 1)]);
        licenses_cool(&mut world);
        world.settings("db", |settings| {
            settings.restrictions.windows = small_window(2);
        });
        for name in ["a", "b"] {
            world.comes(name, &[asks("db", 1)]);
        }
        world.comes("large", &[asks("db", 2)]);
        world.passes_over();
        world.ends("a");
        // It comes at the same time as a small one.
        let requests = if elsewhere {
            vec![asks("db", 1), asks("licenses", 1)]
        } else {
            vec![asks("db", 3)]
        };
        let before = Arc::new(Workload {
            requests,
            priority: 1,
            ..samples::workload("before", Phase::Idle, None, None)
        });
        world.joins(&before);
        world.comes("small", &[asks("db", 1)]);
        assert_eq!(world.started, ["a", "b"], "elsewhere: {elsewhere}");
        world.ends("b");
        assert_eq!(world.started[2..], ["large"], "elsewhere: {elsewhere}");
    }
}
