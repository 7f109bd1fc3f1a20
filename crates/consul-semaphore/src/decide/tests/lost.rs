//! Running workloads that lose their slot.

use super::*;
use crate::{
    OnSlotLost, SessionState, Termination,
    plan::{End, Ended, Suspended},
};

#[test]
fn a_workload_that_lost_its_slot_has_it_again_in_one_write() {
    let mut facts = Facts::new(1, &["sa"]);
    facts.bound(running("a", "sa")).session("a", "new");
    let plan = facts.decide();
    assert_eq!(granted(&plan), ["a"]);
    assert!(plan.suspends.is_empty());
    assert_eq!(
        written(&plan),
        serde_json::json!({"Limit": 1, "Holders": {"new": true}})
    );
}

#[test]
fn a_workload_that_lost_its_slot_twice_has_it_again() {
    // Its template names the first session, its annotation the second.
    let twice = samples::workload("a", Phase::Running, Some("first"), Some("second"));
    let mut facts = Facts::new(1, &["second"]);
    facts.bound(twice).session("a", "third");
    let plan = facts.decide();
    assert_eq!(granted(&plan), ["a"]);
    assert_eq!(
        written(&plan),
        serde_json::json!({"Limit": 1, "Holders": {"third": true}})
    );
}

#[test]
fn a_swapped_holder_must_still_be_dead() {
    let mut facts = Facts::new(1, &["sa"]);
    facts.bound(running("a", "sa")).session("a", "new");
    let operations = facts.decide().transaction.unwrap().operations;
    assert!(operations.contains(&Op::CheckNotExists { key: "p/sa".into() }));
}

#[test]
fn the_key_of_a_freed_contender_of_ours_goes_with_its_holder() {
    let freed = || {
        let mut facts = Facts::new(1, &["sa"]);
        facts.settings.lock_delay = Duration::ZERO;
        facts.entry("p/sa", None, "");
        facts
    };
    let first = |facts: &Facts| facts.decide().transaction.unwrap().operations[0].clone();
    let (key, index) = ("p/sa".to_owned(), 5);
    let check = Op::CheckIndex {
        key: key.clone(),
        index,
    };
    assert_eq!(first(&freed()), check, "somebody else's");
    let delete = Op::DeleteCas { key, index };
    let mut running_on = freed();
    running_on.bound(running("a", "sa")).session("a", "new");
    assert_eq!(first(&running_on), delete, "swapped");
    let mut suspended = freed();
    suspended.queue(&[samples::workload("a", Phase::Idle, Some("sa"), None)]);
    assert_eq!(first(&suspended), delete, "pruned");
}

#[test]
fn a_dead_holder_that_is_to_be_swapped_is_not_pruned() {
    let mut facts = Facts::new(1, &["sa"]);
    facts.settings.lock_delay = Duration::ZERO;
    facts.bound(running("a", "sa"));
    let plan = facts.decide();
    assert_eq!(plan.transaction, None);
    assert_eq!(asks_sessions(&plan), ["a"]);
}

#[test]
fn a_lost_slot_is_kept_for_its_workload_while_its_session_is_being_made() {
    let mut facts = Facts::new(1, &[]);
    facts.bound(running("a", "sa"));
    facts.queue(&[waiting("b")]).session("b", "sb");
    let plan = facts.decide();
    assert_eq!(granted(&plan), [""; 0]);
    assert_eq!(asks_sessions(&plan), ["a"]);
}

#[test]
fn nobody_is_suspended_because_a_transaction_is_full() {
    let mut facts = Facts::new(9, &[]);
    facts.operations = 3;
    for name in ["a", "b", "c"] {
        facts.bound(running(name, &format!("s{name}")));
        facts.session(name, &format!("new-{name}"));
    }
    let plan = facts.decide();
    assert_eq!(granted(&plan), ["a", "b"]);
    assert!(plan.suspends.is_empty());
}

#[test]
fn a_workload_without_room_is_suspended_and_others_keep_theirs() {
    let mut facts = Facts::new(1, &["foreign"]);
    facts.contender("foreign");
    facts.bound(running("a", "sa")).session("a", "new");
    let plan = facts.decide();
    assert_eq!(plan.transaction, None);
    assert_eq!(plan.suspends.len(), 1);
    assert_eq!(plan.suspends[0].why, Suspended::SlotLost);
}

/// A workload that can't be suspended runs until its controller has ended it, so it is told once.
#[test]
fn one_that_cannot_be_suspended_is_ended_once_instead() {
    let mut facts = Facts::new(1, &["foreign"]);
    facts.contender("foreign").session("a", "new");
    let mut a = running("a", "sa");
    a.traits.can_be_suspended = false;
    facts.bound(a.clone());
    let unproved = {
        let mut facts = Facts::new(1, &["sa"]);
        facts.ours("sa", &a, false).bound(a.clone());
        facts.evidence = evidence(&facts, NOW - 9);
        facts.decide_without_consul()
    };
    for (plan, expected) in [
        (facts.decide(), Suspended::SlotLost),
        (unproved, Suspended::Unproved),
    ] {
        assert_eq!(plan.suspends, []);
        let [End { why, .. }] = &plan.ends[..] else {
            panic!("{:?}", plan.ends);
        };
        assert!(matches!(why, Ended::Lost(lost) if lost.why == expected));
    }
    for (termination, ends) in [(Termination::Graceful, 1), (Termination::Immediate, 0)] {
        let mut facts = Facts::new(1, &["foreign"]);
        facts.contender("foreign").session("a", "new");
        let mut failing = a.clone();
        failing.wait.failing = Some(termination);
        facts.bound(failing);
        facts.queue(&[waiting("b")]).session("b", "sb");
        let plan = facts.decide();
        assert_eq!(
            (plan.suspends.len(), plan.ends.len()),
            (0, ends),
            "{termination:?}"
        );
    }
}

#[test]
fn a_workload_seen_after_the_reading_is_not_judged_by_it_and_nobody_takes_its_place() {
    let mut late = running("a", "sa");
    late.seen = second(READ + 1);
    let mut facts = Facts::new(1, &[]);
    facts.bound(late).session("a", "new");
    facts.queue(&[waiting("b")]).session("b", "sb");
    let plan = facts.decide();
    assert!(plan.reread);
    assert_eq!(granted(&plan), [""; 0]);
    assert_eq!(plan.surplus, []);
    assert!(plan.suspends.is_empty());
}

/// Evidence for the slots of these workloads that was last renewed and last read this many seconds after the boot.
fn evidence(facts: &Facts, proved: u64) -> Evidence {
    let mut evidence = Evidence::default();
    let running: Vec<&Workload> = facts.bound.iter().map(AsRef::as_ref).collect();
    let mut reading = facts.reading();
    reading.sent = second(proved);
    let life = SessionState::Renewed {
        sent: second(proved),
        ttl: Duration::from_secs(10),
    };
    evidence.observe(
        second(proved),
        &facts.settings,
        &running,
        Some(&reading),
        &facts.ours,
        |_| Some(life),
    );
    evidence
}

#[test]
fn a_workload_without_evidence_is_suspended_whether_or_not_consul_answers() {
    let mut facts = Facts::new(2, &["sa"]);
    let a = running("a", "sa");
    facts.ours("sa", &a, false).bound(a);
    for (proved, suspended) in [(NOW - 6, true), (NOW - 4, false)] {
        facts.evidence = evidence(&facts, proved);
        for plan in [facts.decide(), facts.decide_without_consul()] {
            let whys: Vec<_> = plan.suspends.iter().map(|suspend| suspend.why).collect();
            let expected: &[_] = if suspended {
                &[Suspended::Unproved]
            } else {
                &[]
            };
            assert_eq!(whys, expected);
            // Half a TTL, because the grace period is longer than that.
            let deadline = (!suspended).then(|| second(proved + 5));
            assert_eq!(plan.deadline, deadline);
            assert_eq!(plan.unheld, []);
        }
    }
}

#[test]
fn with_continue_a_lost_slot_is_only_reported() {
    let mut facts = Facts::new(1, &["sa"]);
    facts.settings.on_slot_lost = OnSlotLost::Continue;
    let a = running("a", "sa");
    facts.ours("sa", &a, false).bound(a.clone());
    facts.evidence = evidence(&facts, NOW - 9);
    let plan = facts.decide_without_consul();
    assert_eq!((plan.suspends, plan.unheld), (vec![], vec![(&a).into()]));

    // Another program took its slot.
    let mut facts = Facts::new(1, &["s"]);
    facts.settings.on_slot_lost = OnSlotLost::Continue;
    facts.contender("s").bound(a.clone());
    let plan = facts.decide();
    assert_eq!((plan.suspends, plan.unheld), (vec![], vec![(&a).into()]));

    // A slot is free again.
    facts.lock(2, &["s"]).session("a", "new");
    facts.settings.limit = 2;
    facts.applied = vec![2];
    assert_eq!(granted(&facts.decide()), ["a"]);
}

#[test]
fn one_that_is_always_to_be_suspended_does_not_have_its_slot_again() {
    let mut facts = Facts::new(1, &["sa"]);
    facts.settings.on_slot_lost = OnSlotLost::Suspend;
    let a = running("a", "sa");
    facts.bound(a).session("a", "new");
    let plan = facts.decide();
    assert_eq!(granted(&plan), [""; 0]);
    assert_eq!(plan.suspends.len(), 1);
}

#[test]
fn the_dead_holder_of_a_workload_that_is_stopping_counts_until_its_pods_are_gone() {
    let mut facts = Facts::new(1, &["sa"]);
    facts.settings.lock_delay = Duration::ZERO;
    let phase = |phase| samples::workload("a", phase, Some("sa"), None);
    facts.bound(phase(Phase::Stopping));
    assert_eq!(facts.decide().transaction, None);
    facts.bound = vec![phase(Phase::Idle).into()];
    let plan = facts.decide();
    assert_eq!(plan.transaction.unwrap().prunes, ["sa".into()]);
}

#[test]
fn pods_whose_holder_was_removed_keep_their_slot_reserved() {
    for (phase, reported) in [
        (Phase::Running, Some("sa")),
        (Phase::Stopping, None),
        (Phase::Idle, None),
    ] {
        let mut facts = Facts::new(1, &[]);
        facts.settings.on_slot_lost = OnSlotLost::Suspend;
        facts.bound(samples::workload("a", phase, Some("sa"), reported));
        facts.queue(&[waiting("b")]).session("b", "sb");
        let next = (phase == Phase::Idle).then_some("b");
        assert_eq!(granted(&facts.decide()), Vec::from_iter(next), "{phase:?}");
    }
}

#[test]
fn nobody_takes_the_place_of_pods_while_their_workload_is_being_suspended() {
    let mut facts = Facts::new(1, &[]);
    facts.bound(running("a", "sa"));
    facts.excluded.busy.insert("a".into());
    facts.queue(&[waiting("b")]).session("b", "sb");
    assert_eq!(granted(&facts.decide()), [""; 0]);
}

#[test]
fn one_that_is_being_written_to_is_not_suspended_once_more() {
    let mut facts = Facts::new(1, &["sa"]);
    let a = running("a", "sa");
    facts.ours("sa", &a, false).bound(a);
    facts.evidence = evidence(&facts, NOW - 9);
    facts.excluded.busy.insert("a".into());
    for plan in [facts.decide(), facts.decide_without_consul()] {
        assert_eq!(plan.suspends, []);
    }
}

#[test]
fn a_workload_in_the_slot_of_a_neighbour_on_the_prefix_has_not_lost_it() {
    // Another ConsulSemaphore of this cluster manages it: its session is not ours.
    let mut facts = Facts::new(2, &["sa"]);
    facts.contender("sa").bound(running("a", "sa"));
    facts.session("a", "new");
    let plan = facts.decide();
    assert_eq!((plan.transaction, plan.suspends), (None, vec![]));
}

#[test]
fn nobody_is_suspended_because_a_limit_is_being_recorded() {
    let mut facts = Facts::new(1, &[]);
    facts.settings.limit = 2;
    facts.bound(running("a", "sa")).session("a", "new");
    let plan = facts.decide();
    assert_eq!(plan.record, Some(vec![1, 2]));
    assert_eq!((plan.transaction, plan.suspends), (None, vec![]));
    facts.applied = vec![1, 2];
    assert_eq!(granted(&facts.decide()), ["a"]);
}
