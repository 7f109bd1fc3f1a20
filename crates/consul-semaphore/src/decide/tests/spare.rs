//! The slots that stay free although workloads wait.

use super::*;

#[test]
fn what_waiting_workloads_get_is_not_spare() {
    let mut facts = Facts::new(4, &["foreign"]);
    facts.contender("foreign");
    assert_eq!(facts.decide().spare, Some(3));
    facts.queue(&[waiting("a"), waiting("b")]);
    facts.session("a", "sa");
    let plan = facts.decide();
    assert_eq!(granted(&plan), ["a"]);
    assert_eq!(plan.spare, Some(1), "the session of b is being made");
}

/// The next transactions grant them.
#[test]
fn what_does_not_fit_into_the_transaction_is_spare() {
    let mut facts = Facts::new(5, &[]);
    facts.operations = 3;
    for (name, session) in [("a", "sa"), ("b", "sb"), ("c", "sc")] {
        facts.queue(&[waiting(name)]).session(name, session);
    }
    let plan = facts.decide();
    assert_eq!(granted(&plan).len(), 2);
    assert_eq!(plan.spare, Some(3));
}

#[test]
fn a_semaphore_that_grants_nothing_has_no_spare_slots_and_one_in_doubt_may_have_any() {
    let spare = |change: fn(&mut Facts)| {
        let mut facts = Facts::new(2, &[]);
        change(&mut facts);
        facts.decide().spare
    };
    assert_eq!(spare(|_| {}), Some(2));
    assert_eq!(spare(|facts| facts.settings.paused = true), Some(0));
    assert_eq!(spare(|facts| facts.settings.terminating = true), None);
    for lock in [r#"{"Limit":9,"Holders":{}}"#, "no lock"] {
        let mut facts = Facts::new(2, &[]);
        facts.raw_lock(lock);
        assert_eq!(facts.decide().spare, None, "{lock}");
    }
    assert_eq!(Facts::new(2, &[]).decide_without_consul().spare, None);
}
