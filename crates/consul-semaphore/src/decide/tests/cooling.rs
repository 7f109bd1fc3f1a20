//! Slots of finished workloads, which stay held for a while.

use super::*;

/// A semaphore of one slot, whose holder is finished; its grant came with a cooldown of a minute. The next workload
/// in the queue has its session.
fn facts() -> Facts {
    let done = done("a", "sa");
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &done, false).cooldown("sa", 60, None);
    facts.queue(&[waiting("b")]).session("b", "sb");
    facts
}

/// The body of the contender that the plan writes.
fn body(plan: &Plan) -> ContenderBody {
    let operations = plan.transaction.iter().flat_map(|t| &t.operations);
    let mut bodies = operations.filter_map(|operation| match operation {
        Op::Lock { key, value, .. } if key == "p/sa" => ContenderBody::read(value),
        _ => None,
    });
    bodies.next().unwrap()
}

#[test]
fn the_end_is_written_when_the_workload_is_done_and_nobody_has_the_slot() {
    let plan = facts().decide();
    assert_eq!((released(&plan), granted(&plan)), (vec![], vec![]));
    let written = body(&plan);
    assert_eq!(written.cools_until, Some(samples::time(NOW + 60)));
    assert_eq!(written.cooldown, 60);
    let transaction = plan.transaction.unwrap();
    assert_eq!(transaction.cooldowns[0].until, samples::time(NOW + 60));
    let check = Op::CheckIndex {
        key: "p/sa".into(),
        index: 5,
    };
    assert_eq!(transaction.operations[0], check, "it is written once");
    assert!(!transaction.writes_lock());
}

#[test]
fn it_is_released_when_it_has_cooled_in_one_write_with_the_next_grant() {
    let mut facts = facts();
    facts.cooldown("sa", 60, Some(NOW + 10)).read_coolings();
    let plan = facts.decide();
    assert_eq!(plan.transaction, None);
    assert_eq!(plan.wake, Some(second(NOW + 10)));

    let mut facts = self::facts();
    facts.cooldown("sa", 60, Some(NOW)).read_coolings();
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["b"]));
}

#[test]
fn a_later_change_of_the_spec_does_not_change_the_end() {
    let mut facts = facts();
    facts.settings.cooldown = Duration::from_hours(1);
    assert_eq!(
        body(&facts.decide()).cools_until,
        Some(samples::time(NOW + 60))
    );
    facts.cooldown("sa", 0, None);
    assert_eq!(released(&facts.decide()), ["sa"]);
}

#[test]
fn a_grant_says_how_long_its_slot_is_to_cool() {
    let mut facts = Facts::new(1, &[]);
    facts.settings.cooldown = Duration::from_mins(1);
    facts.queue(&[waiting("a")]).session("a", "sa");
    let body = body(&facts.decide());
    assert_eq!((body.cooldown, body.cools_until), (60, None));
}

#[test]
fn a_workload_that_is_gone_has_its_slot_cool_once_its_pods_are() {
    let mut facts = facts();
    facts.ours[0].workload = None;
    assert_eq!(facts.decide().transaction, None);
    facts.ours[0].pods_gone = true;
    assert_eq!(
        body(&facts.decide()).cools_until,
        Some(samples::time(NOW + 60))
    );
}

#[test]
fn what_is_gone_and_cools_is_released_though_it_has_pods_again() {
    let mut facts = facts();
    facts.ours[0].workload = None;
    facts.cooldown("sa", 60, Some(NOW)).read_coolings();
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["b"]));
}

#[test]
fn what_was_never_started_or_is_given_back_does_not_cool() {
    let deleting = samples::workload("a", Phase::Deleting, None, None);
    let told = samples::workload("a", Phase::Idle, None, Some("sa"));
    for workload in [deleting, told] {
        let mut facts = facts();
        facts.ours[0].workload = Some(workload.into());
        facts.ours[0].pods_gone = true;
        assert_eq!(released(&facts.decide()), ["sa"]);
    }
}

#[test]
fn what_holds_no_slot_does_not_cool() {
    let mut facts = facts();
    facts.lock(1, &[]);
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["b"]));
    // It may hold a slot, if the lock is what it was before.
    facts.raw_lock("garbage");
    assert_eq!(body(&facts.decide()).cooldown, 60);
}

#[test]
fn a_workload_is_not_started_in_a_slot_that_cools() {
    // Its annotation was missing for a moment, so it counted as deleted.
    let mut facts = facts();
    facts.ours[0].workload = Some(waiting("a").into());
    facts.cooldown("sa", 60, Some(NOW + 10)).read_coolings();
    let plan = facts.decide();
    assert_eq!(plan.starts, []);
    assert!(!plan.give_backs[0].hold);
}

#[test]
fn a_semaphore_that_is_deleted_waits_for_what_cools() {
    let mut facts = facts();
    facts.settings.terminating = true;
    facts.cooldown("sa", 60, Some(NOW + 10)).read_coolings();
    let plan = facts.decide();
    assert_eq!((plan.transaction, plan.finished), (None, false));
    assert_eq!(plan.wake, Some(second(NOW + 10)));
}
