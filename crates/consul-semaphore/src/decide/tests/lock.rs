//! What is done about `.lock`: its limit, its dead holders, a body that can't be parsed.

use super::*;

#[test]
fn a_limit_is_recorded_before_it_is_written() {
    let mut facts = Facts::new(3, &[]);
    facts.settings.limit = 5;
    facts.queue(&[waiting("a")]).session("a", "sa");
    let plan = facts.decide();
    assert_eq!(plan.record, Some(vec![3, 5]));
    assert_eq!(plan.transaction, None);

    facts.applied = vec![3, 5];
    let plan = facts.decide();
    assert_eq!(plan.record, None);
    assert_eq!(
        written(&plan),
        serde_json::json!({"Limit": 5, "Holders": {"sa": true}})
    );

    facts.lock(5, &[]);
    assert_eq!(facts.decide().applied, [5]);
}

#[test]
fn a_limit_is_forgotten_only_when_no_write_of_it_can_come_any_more() {
    // The spec said 3, the answer to that write was lost, and now it says 5 again.
    let mut facts = Facts::new(5, &[]);
    facts.applied = vec![5, 3];
    facts.fenced = false;
    let plan = facts.decide();
    assert_eq!(plan.agreement, Some(Agreement::Agreed));
    assert_eq!(plan.applied, [5, 3]);
    let written = plan.transaction.expect("the lock is written");
    assert!(written.writes_lock() && written.limit.is_none());

    facts.fenced = true;
    let plan = facts.decide();
    assert_eq!((plan.applied.clone(), plan.transaction), (vec![5], None));
}

#[test]
fn a_foreign_limit_stops_grants_and_nothing_else() {
    let done = samples::workload(
        "a",
        Phase::Finished { at_rest: true },
        Some("sa"),
        Some("sa"),
    );
    let mut facts = Facts::new(3, &[]);
    facts.lock(7, &["sa"]).ours("sa", &done, false);
    facts.queue(&[waiting("b")]).session("b", "sb");
    let plan = facts.decide();
    assert_eq!(plan.agreement, Some(Agreement::Conflict { theirs: 7 }));
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec![]));
    assert_eq!(written(&plan)["Limit"], 7);
}

#[test]
fn what_is_not_understood_is_left_alone() {
    let done = samples::workload(
        "a",
        Phase::Finished { at_rest: true },
        Some("sa"),
        Some("sa"),
    );
    let mut facts = Facts::new(1, &[]);
    facts.raw_lock("not json").ours("sa", &done, false);
    facts.queue(&[waiting("b")]).session("b", "sb");
    let transaction = facts.decide().transaction.unwrap();
    let delete = Op::DeleteCas {
        key: "p/sa".into(),
        index: 5,
    };
    assert_eq!(transaction.operations, [delete], "only the contender goes");
}

#[test]
fn a_dead_holder_rests_for_the_lock_delay() {
    let mut facts = Facts::new(1, &["dead"]);
    facts.settings.lock_delay = Duration::from_secs(15);
    assert_eq!(facts.decide().wake, Some(second(NOW + 15)));

    let listing = Listing {
        entries: facts.entries.clone().into(),
        index: 5,
        sent: second(READ),
        reset: false,
    };
    let reading = Reading::new(facts.settings.prefix.clone(), facts.settings.mode, listing);
    facts.memory.deaths.observe(&reading, second(NOW - 15));
    let plan = facts.decide();
    assert_eq!(plan.wake, None);
    let transaction = plan.transaction.unwrap();
    assert_eq!(transaction.prunes, ["dead".into()]);
    let check = Op::CheckNotExists {
        key: "p/dead".into(),
    };
    assert_eq!(transaction.operations[0], check);
}
