//! Who is granted a slot and started, and who is not.

use super::*;

#[test]
fn as_many_as_fit_are_granted_at_once() {
    let mut facts = Facts::new(2, &[]);
    facts.queue(&[waiting("a"), waiting("b"), waiting("c")]);
    facts.session("a", "sa").session("b", "sb");
    let plan = facts.decide();
    assert_eq!(granted(&plan), ["a", "b"]);
    assert_eq!(asks_sessions(&plan), ["c"], "made ahead");
    assert_eq!(
        written(&plan),
        serde_json::json!({"Limit": 2, "Holders": {"sa": true, "sb": true}})
    );
}

#[test]
fn a_hand_over_is_one_transaction() {
    let done = samples::workload(
        "a",
        Phase::Finished { at_rest: true },
        Some("sa"),
        Some("sa"),
    );
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &done, false).bound(done);
    facts.queue(&[waiting("b")]).session("b", "sb");
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["b"]));
    assert_eq!(
        written(&plan),
        serde_json::json!({"Limit": 1, "Holders": {"sb": true}})
    );
}

#[test]
fn nobody_is_passed_while_its_session_is_being_made() {
    let mut facts = Facts::new(1, &[]);
    facts
        .queue(&[waiting("a"), waiting("b")])
        .session("b", "sb");
    let plan = facts.decide();
    assert_eq!(granted(&plan), [""; 0]);
    assert_eq!(asks_sessions(&plan), ["a"]);
}

#[test]
fn nobody_is_passed_even_while_there_is_room_for_both() {
    let mut facts = Facts::new(2, &[]);
    facts
        .queue(&[waiting("a"), waiting("b")])
        .session("b", "sb");
    let plan = facts.decide();
    assert!(plan.transaction.is_none(), "{plan:?}");
    assert_eq!(asks_sessions(&plan), ["a"]);
    facts.session("a", "sa");
    assert_eq!(granted(&facts.decide()), ["a", "b"], "in one write");
}

#[test]
fn sessions_are_made_for_those_next_in_line_and_for_nobody_else() {
    let mut facts = Facts::new(2, &[]);
    facts.queue(&["a", "b", "c", "d", "e", "f"].map(waiting));
    // Two for the free slots, and as many ahead.
    assert_eq!(asks_sessions(&facts.decide()), ["a", "b", "c", "d"]);
}

#[test]
fn a_workload_that_the_operator_suspended_waits_first_in_the_queue() {
    // Someone removed its session from Holders; its contender lives.
    let lost = samples::workload("b", Phase::Idle, Some("sb"), None);
    let mut facts = Facts::new(1, &[]);
    facts
        .ours("sb", &lost, false)
        .bound(lost.clone())
        .queue(&[waiting("a"), lost])
        .session("a", "sa");
    let plan = facts.decide();
    assert_eq!(plan.give_backs, []);
    assert_eq!(granted(&plan), ["b"]);
}

#[test]
fn a_cut_short_start_is_completed() {
    let mut facts = Facts::new(1, &["sa"]);
    facts
        .ours("sa", &waiting("a"), false)
        .queue(&[waiting("a")]);
    let plan = facts.decide();
    assert_eq!(plan.starts[0].slot.session(), &"sa".into());
    assert_eq!(plan.starts[0].slot.fencing_token(), 5);
}
