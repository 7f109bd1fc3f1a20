use consul_semaphore_api::conditions::{ConditionType, Finding, Reason};

use super::*;
use crate::controller::semaphore::conditions::GrantObstacle;

/// The slots of a queue.
#[derive(Clone, Copy)]
struct Slots {
    held: u32,
    limit: u32,
    /// Number of free slots that are left to others.
    left: u32,
}

/// A workload of the queue.
#[derive(Clone, Copy)]
struct Asking {
    name: &'static str,
    slots: u32,
    /// Number of free slots that are reserved for others.
    withheld: u32,
    refused: bool,
    stance: Option<Stance>,
}

fn one(name: &'static str) -> Asking {
    Asking {
        name,
        slots: 1,
        withheld: 0,
        refused: false,
        stance: None,
    }
}

fn slots(held: u32, limit: u32) -> Slots {
    Slots {
        held,
        limit,
        left: 0,
    }
}

/// Returns the findings of a queue whose slots are held, or about to be granted.
fn findings(slots: Slots) -> Vec<Finding> {
    let (free, reason) = match slots.limit.saturating_sub(slots.held) {
        0 => (false, Reason::AllSlotsHeld),
        _ => (true, Reason::SlotsFree),
    };
    let message = format!("{} of {} slots are held", slots.held, slots.limit);
    vec![
        Finding::new(ConditionType::Ready, true, Reason::Reconciled, "well"),
        Finding::new(ConditionType::SlotsAvailable, free, reason, message),
    ]
}

/// Returns why each of these workloads waits, as a word and a message.
fn why(slots: Slots, findings: &[Finding], queue: &[Asking]) -> Vec<String> {
    let lacks = [SlotRequest::one("licenses", None)];
    let mut before = Before::default();
    let each = queue.iter().map(|asking| {
        let need = Need {
            slots: asking.slots,
            withheld: asking.withheld,
        };
        let free = slots.limit.saturating_sub(slots.held + asking.withheld);
        let outlook = Outlook {
            obstacle: GrantObstacle::of(findings, Some(free), need),
            free,
            unheld: false,
        };
        let why = before.next(
            asking.name,
            &Facts {
                need,
                outlook: &outlook,
                refused: asking.refused,
                stance: asking.stance.map(|stance| (stance, &lacks[..])),
                left: slots.left,
            },
        );
        format!("{}: {}", why.reason, why.message)
    });
    each.collect()
}

/// Like [`why`], where nothing but the slots matters.
fn why_by_slots(slots: Slots, queue: &[Asking]) -> Vec<String> {
    why(slots, &findings(slots), queue)
}

#[test]
fn the_first_waits_for_a_slot_and_the_others_for_those_before_them() {
    let expected = [
        "AllSlotsHeld: 2 of 2 slots are held",
        "Behind: behind a",
        "Behind: behind b",
    ];
    let queue = [one("a"), one("b"), one("c")];
    assert_eq!(why_by_slots(slots(2, 2), &queue), expected);
}

#[test]
fn as_many_are_next_as_slots_are_free() {
    let reported = why_by_slots(slots(1, 3), &[one("a"), one("b"), one("c")]);
    assert!(reported[0].starts_with("Next: a slot is free, and the workload is about to start"));
    assert_eq!(reported[0], reported[1]);
    assert_eq!(reported[2], "Behind: behind b");
}

#[test]
fn a_free_slot_may_be_left_to_others() {
    let left = Slots {
        left: 1,
        ..slots(1, 3)
    };
    let reported = why_by_slots(left, &[one("a"), one("b")]);
    assert!(reported[0].starts_with("Next: "), "{reported:?}");
    assert!(reported[1].starts_with("LeftToOthers: a slot is free, but left to another cluster"));
}

#[test]
fn one_that_asks_for_several_slots_is_told_how_many_are_missing() {
    let two = Asking {
        slots: 2,
        ..one("a")
    };
    let of = |held| why_by_slots(slots(held, 3), &[two, one("b")]);
    assert!(of(0)[0].starts_with("Next: 2 slots are free, and the workload is about to start"));
    assert!(of(0)[1].starts_with("Next: a slot is free"));
    for (held, missing) in [(2, 1), (3, 2)] {
        let expected = [
            format!(
                "TooFewSlotsFree: {held} of 3 slots are held, and it asks for 2: {missing} more must become free"
            ),
            // The free slots are kept for the first workload.
            "Behind: behind a".to_owned(),
        ];
        assert_eq!(of(held), expected);
    }
}

#[test]
fn one_that_asks_for_slots_of_several_semaphores_is_told_what_is_done_for_it() {
    let of = |stance| {
        let several = Asking {
            stance: Some(stance),
            ..one("a")
        };
        why_by_slots(slots(2, 3), &[several, one("b"), one("c")])
    };
    let passed_over = of(Stance::PassedOver);
    assert_eq!(
        passed_over[0],
        "PassedOver: it waits for licenses; workloads behind it start meanwhile"
    );
    assert!(passed_over[1].starts_with("Next: a slot is free"));
    assert_eq!(passed_over[2], "Behind: behind b");
    let kept = of(Stance::Keeps);
    assert_eq!(
        kept[0],
        "SlotsKept: it waits for licenses; free slots here are kept for it"
    );
    assert_eq!(kept[1], "Behind: behind a");
    assert!(of(Stance::Stopped)[0].starts_with("OthersStopped: it waits for licenses; another"));
    assert!(of(Stance::Grants)[0].starts_with("Next: "));
}

#[test]
fn one_that_cannot_be_started_is_in_nobodys_way() {
    let refused = Asking {
        refused: true,
        ..one("a")
    };
    let reported = why_by_slots(slots(2, 2), &[refused, one("b")]);
    assert!(reported[0].starts_with("StartRefused: "), "{reported:?}");
    assert_eq!(reported[1], "AllSlotsHeld: 2 of 2 slots are held");
}

#[test]
fn only_those_of_a_lower_priority_are_told_that_slots_are_reserved() {
    let low = Asking {
        withheld: 1,
        ..one("a")
    };
    let mut reserved = findings(slots(2, 3));
    reserved[1].reason = Reason::Reserved;
    let of = |asking| why(slots(2, 3), &reserved, &[asking]).remove(0);
    assert!(of(one("a")).starts_with("Next: "), "{}", of(one("a")));
    assert_eq!(of(low), "Reserved: 2 of 3 slots are held");
}

/// The mutex is free, but nobody can lock it.
#[test]
fn a_mutex_in_its_lock_delay_says_so() {
    let mut delayed = findings(slots(1, 1));
    delayed[1].message = "the mutex is free, but in its lock-delay".to_owned();
    let reported = why(slots(0, 1), &delayed, &[one("a"), one("b")]);
    let expected = [
        "AllSlotsHeld: the mutex is free, but in its lock-delay",
        "Behind: behind a",
    ];
    assert_eq!(reported, expected);
}

#[test]
fn what_stops_the_semaphore_stops_everyone() {
    let mut unready = findings(slots(0, 1));
    unready[0] = Finding::new(ConditionType::Ready, false, Reason::LimitConflict, "3 or 2");
    let queue = [one("a"), one("b")];
    let reported = why(slots(0, 1), &unready, &queue);
    assert_eq!(reported, ["LimitConflict: 3 or 2"; 2]);
    for reason in [Reason::Paused, Reason::OutsideWindow] {
        let mut intended = findings(slots(0, 1));
        intended[1] = Finding::new(ConditionType::SlotsAvailable, false, reason, "later");
        let reported = why(slots(0, 1), &intended, &queue);
        assert_eq!(
            reported,
            [format!("{reason}: later"), format!("{reason}: later")]
        );
    }
}
