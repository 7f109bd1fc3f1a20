//! Which index a granted slot has.

use super::*;

impl Facts {
    /// Lets the contender of a session tell this index, and reads it.
    fn index(&mut self, session: &str, index: u32) -> &mut Self {
        let body = ContenderBody {
            slot_index: Some(index),
            ..samples::contender_body(session)
        };
        let key = format!("p/{session}");
        let mut entries = self.entries.iter_mut();
        let contender = entries.find(|entry| entry.key == key).unwrap();
        contender.value = serde_json::to_vec(&body).unwrap();
        let reading = self.reading();
        self.memory.indices.observe(&reading);
        self
    }
}

/// The index and the name that each session is granted.
fn indices(plan: &Plan) -> Vec<(&str, Option<u32>, Option<String>)> {
    let operations = plan.transaction.iter().flat_map(|t| &t.operations);
    let granted = operations.filter_map(|operation| match operation {
        Op::Lock { session, value, .. } => Some((session, ContenderBody::read(value)?)),
        _ => None,
    });
    granted
        .map(|(session, body)| (session.as_str(), body.slot_index, body.slot_name))
        .collect()
}

/// A workload that runs in the slot of this session, as its grant says with this index.
fn runs_at(name: &str, session: &str, index: u32) -> Workload {
    let mut runs = running(name, session);
    let granted = runs.granted.as_mut().unwrap();
    granted.slots[0].index = Some(index);
    runs
}

#[test]
fn each_slot_has_the_smallest_index_that_no_other_has() {
    let mut facts = Facts::new(4, &["x", "y"]);
    facts.contender("x").index("x", 1).contender("y");
    facts.queue(&[waiting("a"), waiting("b")]);
    facts.session("a", "sa").session("b", "sb");
    let expected = [("sa", Some(0), None), ("sb", Some(2), None)];
    assert_eq!(indices(&facts.decide()), expected);
}

#[test]
fn an_index_is_handed_over_together_with_its_slot() {
    let done = done("a", "sa");
    let mut facts = Facts::new(2, &["sa", "x"]);
    facts.contender("x").index("x", 0);
    facts.ours("sa", &done, true).index("sa", 1).bound(done);
    facts.queue(&[waiting("b")]).session("b", "sb");
    assert_eq!(indices(&facts.decide()), [("sb", Some(1), None)]);
}

#[test]
fn a_slot_that_is_granted_again_keeps_its_index() {
    let mut facts = Facts::new(3, &["sa"]);
    facts.bound(runs_at("a", "sa", 2)).session("a", "new");
    facts.queue(&[waiting("b")]).session("b", "sb");
    let expected = [("new", Some(2), None), ("sb", Some(0), None)];
    assert_eq!(indices(&facts.decide()), expected);
}

#[test]
fn what_runs_keeps_its_index_while_it_has_no_slot() {
    let mut facts = Facts::new(3, &[]);
    facts.bound(runs_at("a", "sa", 0));
    facts.queue(&[waiting("b")]).session("b", "sb");
    assert_eq!(indices(&facts.decide()), [("sb", Some(1), None)]);
}

#[test]
fn a_dead_holder_has_its_index_until_it_is_pruned() {
    let mut facts = Facts::new(2, &["x"]);
    facts.contender("x").index("x", 0);
    facts.entries.retain(|entry| entry.key != "p/x");
    facts.queue(&[waiting("b")]).session("b", "sb");
    assert_eq!(indices(&facts.decide()), [("sb", Some(1), None)]);
    facts.settings.lock_delay = Duration::ZERO;
    assert_eq!(indices(&facts.decide()), [("sb", Some(0), None)]);
}

#[test]
fn a_session_that_was_taken_out_of_the_holders_has_its_index_again() {
    let mut facts = Facts::new(1, &[]);
    facts.ours("sa", &waiting("a"), true).index("sa", 0);
    facts.queue(&[waiting("a")]);
    assert_eq!(indices(&facts.decide()), [("sa", Some(0), None)]);
}

#[test]
fn a_slot_has_the_name_at_its_index_if_there_is_one() {
    let mut facts = Facts::new(3, &["x"]);
    facts.settings.slot_names = vec!["gpu-a".to_owned(), "gpu-b".to_owned()];
    facts.contender("x").index("x", 0);
    facts.queue(&[waiting("a"), waiting("b")]);
    facts.session("a", "sa").session("b", "sb");
    let expected = [
        ("sa", Some(1), Some("gpu-b".to_owned())),
        ("sb", Some(2), None),
    ];
    assert_eq!(indices(&facts.decide()), expected);
}

#[test]
fn a_start_of_a_rate_has_no_index() {
    let mut facts = Facts::new(2, &[]);
    facts.settings.period = Some(Duration::from_mins(1));
    facts.queue(&[waiting("a")]).session("a", "sa");
    assert_eq!(indices(&facts.decide()), [("sa", None, None)]);
}

#[test]
fn a_start_says_the_index_and_a_name_that_is_short_enough() {
    let started = |name: &str| {
        let mut facts = Facts::new(1, &["sa"]);
        facts.ours("sa", &waiting("a"), false).index("sa", 0);
        facts.queue(&[waiting("a")]);
        let contender = facts.entries.last_mut().unwrap();
        let body = ContenderBody {
            slot_name: Some(name.to_owned()),
            ..ContenderBody::read(&contender.value).unwrap()
        };
        contender.value = serde_json::to_vec(&body).unwrap();
        let slot = facts.decide().starts[0].slot.clone();
        (slot.index(), slot.name().map(str::to_owned))
    };
    assert_eq!(started("gpu-a"), (Some(0), Some("gpu-a".to_owned())));
    assert_eq!(started(&"x".repeat(64)), (Some(0), None));
}
