//! Windows, and slots that are reserved.

use super::*;
use crate::{
    Reserved,
    windows::{WindowSpec, Windows},
};

/// The present of these tests is 13:47 UTC.
fn window(schedule: &str, limit: Option<u32>) -> WindowSpec {
    WindowSpec {
        schedule: schedule.into(),
        duration: Duration::from_hours(1),
        time_zone: None,
        limit,
    }
}

fn open(limit: Option<u32>) -> WindowSpec {
    window("0 13 * * *", limit)
}

impl Facts {
    fn windows<const N: usize>(&mut self, windows: [WindowSpec; N]) -> &mut Self {
        let windows = Windows::new(windows.into(), samples::time(NOW));
        self.settings.restrictions.windows = windows;
        self
    }

    fn reserve(&mut self, slots: u32, min_priority: i32) -> &mut Self {
        self.settings.restrictions.reserved = Some(Reserved {
            slots,
            min_priority,
        });
        self
    }

    /// Two that wait with their sessions.
    fn two_wait(&mut self) -> &mut Self {
        self.queue(&[waiting("a"), waiting("b")]);
        self.session("a", "sa").session("b", "sb")
    }
}

fn of_priority(name: &str, priority: i32) -> Workload {
    Workload {
        priority,
        ..waiting(name)
    }
}

#[test]
fn outside_all_windows_nothing_is_granted_until_one_opens() {
    let mut facts = Facts::new(2, &[]);
    facts.two_wait().windows([window("49 13 * * *", None)]);
    let plan = facts.decide();
    assert_eq!(granted(&plan), [""; 0]);
    assert!(!plan.open);
    assert_eq!(plan.wake, Some(second(NOW + 120)));
    facts.windows([open(None)]);
    let plan = facts.decide();
    assert_eq!(granted(&plan), ["a", "b"]);
    // It closes at 14:00, but somebody may set the clock before that.
    assert_eq!(plan.wake, Some(second(NOW + 300)));
}

#[test]
fn inside_a_window_its_limit_counts() {
    let mut facts = Facts::new(3, &["foreign"]);
    facts.contender("foreign");
    facts.two_wait().windows([open(Some(2))]);
    let plan = facts.decide();
    assert_eq!(granted(&plan), ["a"]);
    let body = serde_json::json!({"Limit": 3, "Holders": {"foreign": true, "sa": true}});
    assert_eq!(written(&plan), body, "the limit in Consul stays");
    facts.windows([open(Some(1))]);
    assert_eq!(granted(&facts.decide()), [""; 0]);
}

#[test]
fn a_running_workload_has_its_lost_slot_again_outside_all_windows() {
    let running = samples::workload("a", Phase::Running, Some("dead"), Some("dead"));
    let mut facts = Facts::new(1, &["dead"]);
    facts.bound(running).session("a", "sa");
    facts.windows([window("0 3 * * *", None)]).reserve(1, 10);
    assert_eq!(granted(&facts.decide()), ["a"]);
}

#[test]
fn the_last_slots_are_for_those_of_the_priority() {
    let mut facts = Facts::new(2, &[]);
    facts.two_wait().reserve(1, 10);
    assert_eq!(granted(&facts.decide()), ["a"]);
    facts.queue.clear();
    facts.queue(&[of_priority("a", 10), waiting("b")]);
    assert_eq!(granted(&facts.decide()), ["a"]);
    facts.queue.clear();
    facts.queue(&[of_priority("a", 10), of_priority("b", 10)]);
    assert_eq!(granted(&facts.decide()), ["a", "b"]);
}

#[test]
fn they_are_reserved_from_the_limit_of_the_window() {
    let mut facts = Facts::new(5, &[]);
    facts.two_wait().windows([open(Some(2))]).reserve(1, 10);
    assert_eq!(granted(&facts.decide()), ["a"]);
}

#[test]
fn one_that_may_not_have_them_keeps_them_from_nobody() {
    // It lost its slot, so it is the first, but its priority is low.
    let lost = samples::workload("b", Phase::Idle, Some("gone"), None);
    let mut facts = Facts::new(1, &[]);
    facts
        .bound(lost.clone())
        .queue(&[lost, of_priority("a", 10)]);
    facts.session("a", "sa").session("b", "sb").reserve(1, 10);
    assert_eq!(granted(&facts.decide()), ["a"]);
}

#[test]
fn a_workload_that_must_not_wait_is_judged_by_the_limit_of_the_window() {
    let skips = |facts: &Facts| facts.decide().skips.len();
    let mut facts = Facts::new(3, &["foreign"]);
    facts.contender("foreign").queue(&[skippable("a")]);
    facts.windows([open(Some(1))]);
    assert_eq!(skips(&facts), 1, "all slots of the window are taken");
    facts.windows([window("0 3 * * *", Some(1))]);
    assert_eq!(skips(&facts), 0, "it is outside all windows");
    facts.windows([open(Some(2))]).reserve(1, 10);
    assert_eq!(skips(&facts), 0, "the free slot is reserved");
}
