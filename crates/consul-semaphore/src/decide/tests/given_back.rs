//! How slots, contenders and sessions are given back.

use super::*;

#[test]
fn one_that_cannot_be_started_blocks_nobody() {
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &waiting("a"), false);
    facts
        .queue(&[waiting("a"), waiting("b")])
        .session("b", "sb");
    facts.excluded.barred.insert("a".into());
    // Another replica may be about to start it: the workload is written to first.
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec![], vec![]));
    assert_eq!(plan.starts, []);
    let [told] = &plan.give_backs[..] else {
        panic!("{plan:?}")
    };
    assert_eq!((&told.sessions[..], told.hold), (&["sa".into()][..], false));

    let told = samples::workload("a", Phase::Idle, None, Some("sa"));
    facts.ours.clear();
    facts.ours("sa", &told, true);
    facts.queue = vec![told.into(), waiting("b").into()];
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["b"]));
}

/// The reason why the start was refused, such as missing rights, ended while the workload gave its slot back.
#[test]
fn one_that_can_be_started_again_is_not_passed_when_it_gives_its_slot_back() {
    for limit in [1, 2] {
        let told = samples::workload("a", Phase::Idle, None, Some("sa"));
        let mut facts = Facts::new(limit, &["sa"]);
        facts.ours("sa", &told, true);
        facts.queue(&[told, waiting("b")]).session("b", "sb");
        let plan = facts.decide();
        assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec![]));
        assert_eq!(asks_sessions(&plan), ["a"]);
    }
}

#[test]
fn one_that_cannot_even_be_told_blocks_nobody_either() {
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &waiting("a"), true);
    facts
        .queue(&[waiting("a"), waiting("b")])
        .session("b", "sb");
    facts.excluded.barred.insert("a".into());
    facts.excluded.immovable.insert("a".into());
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["b"]));
    assert_eq!(plan.give_backs, []);
}

#[test]
fn one_that_cannot_be_told_keeps_its_slot_until_its_pods_are_proved_gone() {
    // It ran, lost its slot and was granted another one: its pods may exist, whatever its status says.
    let workload = samples::workload("a", Phase::Idle, Some("old"), None);
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &workload, false).queue(&[workload]);
    facts.excluded.barred.insert("a".into());
    facts.excluded.immovable.insert("a".into());
    let plan = facts.decide();
    assert_eq!((plan.transaction, plan.give_backs), (None, vec![]));
    facts.ours[0].pods_gone = true;
    assert_eq!(released(&facts.decide()), ["sa"]);
}

#[test]
fn a_slot_is_not_released_while_its_workload_is_written_to() {
    // Another PATCH that would start it may still be in flight.
    let mut facts = Facts::new(1, &["sa"]);
    facts
        .ours("sa", &waiting("a"), false)
        .queue(&[waiting("a")]);
    facts.excluded.barred.insert("a".into());
    facts.excluded.busy.insert("a".into());
    assert_eq!(released(&facts.decide()), [""; 0]);
}

#[test]
fn a_user_s_suspension_is_a_hold() {
    let workload = stopped("a", "sa");
    let mut facts = Facts::new(1, &["sa"]);
    facts
        .ours("sa", &workload, true)
        .bound(workload.clone())
        .queue(&[workload]);
    let plan = facts.decide();
    assert_eq!(plan.transaction, None, "the PATCH comes before the release");
    assert!(plan.give_backs[0].hold);
}

#[test]
fn a_user_s_suspension_that_cannot_be_noted_keeps_no_slot() {
    let workload = stopped("a", "sa");
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &workload, true).bound(workload.clone());
    facts
        .queue(&[workload.clone(), waiting("b")])
        .session("b", "sb");
    facts.excluded.immovable.insert("a".into());
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["b"]));
    assert_eq!(plan.give_backs, []);
    // Once it can be written to, it is put on hold, and not started.
    let mut facts = Facts::new(1, &[]);
    facts.bound(workload.clone()).queue(&[workload]);
    let plan = facts.decide();
    assert!(plan.give_backs[0].hold);
    assert_eq!(granted(&plan), [""; 0]);
}

#[test]
fn a_user_s_suspension_is_a_hold_even_if_the_slot_was_lost() {
    // Its slot was moved to another session while its user suspended it.
    let workload = stopped("a", "old");
    for holders in [&["new"][..], &[]] {
        let mut facts = Facts::new(1, holders);
        facts.ours("new", &workload, true).bound(workload.clone());
        let plan = facts.decide();
        assert_eq!(plan.transaction, None, "{holders:?}");
        assert!(plan.give_backs[0].hold, "{holders:?}");
    }
}

#[test]
fn a_workload_on_hold_keeps_no_grant_whose_session_died() {
    // When the hold is removed, such a grant would put it on hold again, or first in the queue.
    for reported in [Some("sa"), None] {
        let on_hold = Workload {
            hold: true,
            ..samples::workload("a", Phase::Idle, Some("sa"), reported)
        };
        let mut facts = Facts::new(1, &[]);
        facts.bound(on_hold);
        let plan = facts.decide();
        let told = &plan.give_backs[0];
        assert_eq!((&told.sessions[..], told.hold), (&["sa".into()][..], false));
    }
}

#[test]
fn of_two_contenders_the_one_that_started_the_workload_stays() {
    let workload = running("a", "sb");
    let mut facts = Facts::new(2, &["sa", "sb"]);
    facts
        .ours("sa", &workload, false)
        .ours("sb", &workload, false);
    facts.bound(workload);
    assert_eq!(released(&facts.decide()), ["sa"]);
}

#[test]
fn of_two_contenders_the_one_with_the_slot_stays() {
    // A start decided on before may be in flight.
    let mut facts = Facts::new(1, &["sb"]);
    facts.ours("sa", &waiting("a"), false);
    facts.ours("sb", &waiting("a"), false);
    let plan = facts.decide();
    assert_eq!(released(&plan), ["sa"]);
    assert_eq!(plan.starts[0].slot.session(), &"sb".into());
}

#[test]
fn of_two_contenders_without_a_slot_the_older_stays() {
    let mut facts = Facts::new(1, &[]);
    facts.ours("sa", &waiting("a"), false);
    facts.entries.last_mut().unwrap().create_index += 1;
    facts.ours("sb", &waiting("a"), false);
    facts.queue(&[waiting("a")]);
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["a"]));
    assert_eq!(
        written(&plan),
        serde_json::json!({"Limit": 1, "Holders": {"sb": true}})
    );
}

#[test]
fn a_contender_without_a_slot_goes_only_if_it_still_has_none() {
    let mut gone = waiting("a");
    gone.hold = true;
    let mut facts = Facts::new(1, &[]);
    facts.ours("sa", &gone, false);
    let transaction = facts.decide().transaction.unwrap();
    let delete = Op::DeleteCas {
        key: "p/sa".into(),
        index: 5,
    };
    assert_eq!(transaction.operations, [delete]);
}

#[test]
fn a_workload_that_runs_in_another_semaphores_slot_is_not_renamed() {
    // Both would keep writing their own session into it, and wake each other, forever.
    let mut elsewhere = running("a", "other");
    elsewhere.granted = Some(Granted::by("elsewhere/other", "other"));
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &elsewhere, false).bound(elsewhere);
    assert_eq!(facts.decide().renames, []);
}

#[test]
fn a_session_with_a_contender_is_never_surplus() {
    // The answer to its grant was lost, so it still counts as made ahead.
    let workload = running("a", "sa");
    let mut facts = Facts::new(1, &["sa"]);
    facts
        .ours("sa", &workload, false)
        .bound(workload)
        .session("a", "sa");
    assert_eq!(facts.decide().surplus, []);
}

#[test]
fn a_semaphore_that_is_deleted_removes_its_lock_unless_others_use_it() {
    let mut facts = Facts::new(1, &[]);
    facts.settings.terminating = true;
    let plan = facts.decide();
    let delete = Op::DeleteCas {
        key: samples::LOCK_KEY.into(),
        index: 5,
    };
    assert_eq!(plan.transaction.unwrap().operations, [delete]);
    assert!(!plan.finished);

    facts.contender("foreign");
    let plan = facts.decide();
    assert_eq!(plan.transaction, None);
    assert!(plan.finished);

    facts.entries.clear();
    assert!(facts.decide().finished);
}

#[test]
fn a_semaphore_that_is_deleted_lets_running_workloads_finish() {
    let workload = running("a", "sa");
    let mut facts = Facts::new(1, &["sa"]);
    facts.settings.terminating = true;
    facts.ours("sa", &workload, false).bound(workload);
    facts.queue(&[waiting("b")]).session("b", "sb");
    let plan = facts.decide();
    assert_eq!(plan.transaction, None);
    assert!(!plan.finished);
    assert_eq!(
        plan.surplus,
        [SlotId {
            workload: "b".into(),
            ordinal: 0,
        }]
    );
}

#[test]
fn a_semaphore_that_is_deleted_waits_for_pods_whose_workload_is_gone() {
    let mut facts = Facts::new(1, &["sa"]);
    facts.settings.terminating = true;
    facts.contender("sa");
    facts.ours.push(samples::ours("sa", None));
    let plan = facts.decide();
    assert_eq!((plan.transaction, plan.finished), (None, false));
}
