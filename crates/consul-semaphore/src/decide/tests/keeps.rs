//! Slots that are kept across clusters for one that asks for several.

use std::num::NonZeroU32;

use serde_json::{Value, json};

use super::*;
use crate::Turns;
use crate::{
    Mode, SlotRequest,
    turns::{KEEP_SLOTS_FOR, REWRITE_CONTENDER_AFTER},
};

/// A workload that joined the queue at this second and asks for so many slots.
fn asks_for(slots: u32, name: &str, since: i64) -> Workload {
    let request = SlotRequest {
        slots: NonZeroU32::new(slots).unwrap(),
        ..SlotRequest::one("db", None)
    };
    Workload {
        since,
        requests: vec![request],
        ..waiting(name)
    }
}

impl Facts {
    /// A contender of this cluster that has waited since this second, for which so many slots are to be kept.
    fn keeper(&mut self, session: &str, cluster: &str, since: i64, keeps: u32) -> &mut Self {
        let since = jiff::Timestamp::from_second(since).unwrap();
        let body = json!({
            "cluster": "us", "clusterId": cluster, "kind": "Job", "namespace": "x", "name": "y",
            "uid": session, "semaphore": "z", "time": since,
            "waiting": { "priority": 0, "since": since, "slots": 2, "keeps": keeps },
        });
        self.entry(&format!("p/{session}"), Some(session), &body.to_string())
    }

    /// The contenders are as they are for this long.
    fn seen_for(&mut self, time: Duration) -> &mut Self {
        let reading = self.reading();
        let since = Moment::from_boot(Duration::from_secs(1_000 + NOW).saturating_sub(time));
        self.memory.turns = Turns::new(self.settings.fair);
        self.memory
            .turns
            .observe(&reading, since, samples::time(NOW));
        self
    }

    /// Decides a thousand seconds later than usual, so that much time can have passed.
    fn decide_late(&self) -> Plan {
        let reading = self.reading();
        decide(&Observed {
            now: second(1_000 + NOW),
            ..self.observed(Some(&reading))
        })
    }

    /// One of two slots is free, and `a` keeps it.
    fn keeping() -> Self {
        let mut facts = Self::new(2, &["other"]);
        facts.contender("other").queue(&[asks_for(2, "a", 5)]);
        facts.session_for("a", 0, "a0").session_for("a", 1, "a1");
        facts.stances.insert("a".into(), Stance::Keeps);
        facts
    }

    /// One of two slots is free, `a` keeps it, and others were told so by the contender `a0`.
    fn telling() -> Self {
        let mut facts = Self::keeping();
        let shown = bodies(&facts.decide());
        facts.sessions.clear();
        facts.session_for("a", 1, "a1");
        let ours = samples::ours("a0", Some(asks_for(2, "a", 5)));
        facts.ours.push(ours);
        facts.entry("p/a0", Some("a0"), &shown[0].to_string());
        facts
    }
}

/// The bodies of the contenders that the plan writes.
fn bodies(plan: &Plan) -> Vec<Value> {
    let operations = plan.transaction.iter().flat_map(|t| &t.operations);
    let bodies = operations.filter_map(|operation| match operation {
        Op::Lock { value, .. } => serde_json::from_slice(value).ok(),
        _ => None,
    });
    bodies.collect()
}

/// How many slots others are told to keep, by each contender that the plan writes.
fn told(plan: &Plan) -> Vec<Option<u64>> {
    let bodies = bodies(plan);
    let keeps = bodies.iter().map(|body| body["waiting"]["keeps"].as_u64());
    keeps.collect()
}

#[test]
fn who_keeps_slots_tells_others_how_many_also_where_nobody_else_is_seen() {
    let mut facts = Facts::keeping();
    assert_eq!(told(&facts.decide()), [Some(2)]);
    facts.stances.clear();
    assert_eq!(told(&facts.decide()), [None], "it only waits");
    facts = Facts::keeping();
    facts.entries.pop();
    let holder = running("other", "other");
    facts.ours("other", &holder, false).bound(holder);
    assert_eq!(told(&facts.decide()), [Some(2)], "it is alone");
}

#[test]
fn it_tells_them_in_each_of_its_semaphores_also_where_enough_is_free() {
    let mut facts = Facts::new(1, &[]);
    let both = Workload {
        requests: vec![
            SlotRequest::one("db", None),
            SlotRequest::one("licenses", None),
        ],
        ..waiting("a")
    };
    facts.queue(&[both]).session_for("a", 0, "a0");
    facts.stances.insert("a".into(), Stance::Keeps);
    let asked = [("p/.lock", 1), ("q/.lock", 1)].map(|(key, slots)| (key.to_owned(), slots));
    facts.requests.insert("a".into(), Asked::of(asked));
    let plan = facts.decide();
    assert_eq!(told(&plan), [Some(1)]);
    let request =
        json!([{ "lockKey": "p/.lock", "slots": 1 }, { "lockKey": "q/.lock", "slots": 1 }]);
    assert_eq!(bodies(&plan)[0]["request"], request);
}

#[test]
fn it_tells_them_anew_every_twenty_seconds() {
    let mut facts = Facts::telling();
    facts.seen_for(REWRITE_CONTENDER_AFTER.saturating_sub(Duration::from_secs(1)));
    let plan = facts.decide_late();
    assert_eq!(
        (told(&plan), plan.anew),
        (vec![], Some(second(1_001 + NOW)))
    );
    facts.seen_for(REWRITE_CONTENDER_AFTER);
    assert_eq!(told(&facts.decide_late()), [Some(2)]);
}

#[test]
fn it_stops_telling_them_when_it_must_not_keep_any_more() {
    let mut facts = Facts::telling();
    facts.stances.clear();
    assert_eq!(told(&facts.decide()), [None], "it only waits");

    facts = Facts::telling();
    facts.lock(2, &[]);
    facts.session_for("a", 0, "a0");
    let plan = facts.decide();
    assert_eq!((granted(&plan), told(&plan)), (vec!["a"], vec![None; 2]));

    facts = Facts::telling();
    facts.settings.paused = true;
    assert_eq!(released(&facts.decide()), ["a0"]);

    // It can't be started for now.
    facts = Facts::telling();
    facts.excluded.barred.insert("a".into());
    assert_eq!(released(&facts.decide()), ["a0"]);

    facts = Facts::telling();
    facts.queue.clear();
    facts.ours.last_mut().unwrap().workload = None;
    facts.ours.last_mut().unwrap().pods_gone = true;
    assert_eq!(released(&facts.decide()), ["a0"], "it is gone");
}

#[test]
fn who_asks_for_a_mutex_or_for_no_fair_order_tells_nobody() {
    let mut facts = Facts::keeping();
    facts.settings.fair = None;
    assert_eq!(told(&facts.decide()), []);
    let mut facts = Facts::new(1, &[]);
    facts.settings.mode = Mode::Mutex;
    facts.entries.clear();
    facts.queue(&[asks_for(2, "a", 5)]);
    facts.session_for("a", 0, "a0").session_for("a", 1, "a1");
    facts.stances.insert("a".into(), Stance::Keeps);
    assert_eq!(told(&facts.decide()), []);
}

/// What is granted beside this keeper, which was seen for so long, to three workloads that ask for a slot each.
fn beside(facts: &mut Facts, time: Duration) -> usize {
    facts.queue(&["a", "b", "c"].map(|name| asks_for(1, name, 5)));
    for name in ["a", "b", "c"] {
        facts.session_for(name, 0, name);
    }
    facts.seen_for(time);
    granted(&facts.decide_late()).len()
}

#[test]
fn as_many_are_kept_for_a_minute_after_each_writing_instead_of_a_turn() {
    for (time, expected) in [
        (Duration::ZERO, 1),
        (KEEP_SLOTS_FOR.saturating_sub(Duration::from_secs(1)), 1),
        // Its turn is long over.
        (KEEP_SLOTS_FOR, 3),
    ] {
        let mut facts = Facts::new(3, &[]);
        facts.keeper("s", "d", 0, 2);
        assert_eq!(beside(&mut facts, time), expected, "{time:?}");
    }
}

#[test]
fn they_are_kept_in_the_one_order() {
    for (since, expected) in [(4, 1), (6, 3)] {
        let mut facts = Facts::new(3, &[]);
        facts.keeper("s", "d", since, 2);
        assert_eq!(
            beside(&mut facts, KEEP_SLOTS_FOR / 2),
            expected,
            "since {since}"
        );
    }
}

/// Only what stands in the value that its own session has locked is believed, and no more than the limit.
#[test]
fn a_hostile_body_keeps_no_more_than_it_may() {
    for (keeps, expected) in [(0, 3), (3, 0), (u32::MAX, 0)] {
        let mut facts = Facts::new(3, &[]);
        facts.keeper("s", "d", 0, keeps);
        assert_eq!(beside(&mut facts, KEEP_SLOTS_FOR / 2), expected, "{keeps}");
    }
    let mut facts = Facts::new(3, &[]);
    facts.keeper("s", "d", 0, 2);
    facts.entries.last_mut().unwrap().session = Some("other".into());
    assert_eq!(
        beside(&mut facts, KEEP_SLOTS_FOR / 2),
        3,
        "another session's"
    );
}

/// A copy of what our operator wrote once, for a workload that is gone.
#[test]
fn a_body_that_claims_to_be_of_our_cluster_is_believed_once() {
    let granted_when = |cluster: &str, is_neighbour: bool| {
        let mut facts = Facts::new(3, &[]);
        facts.keeper("s", cluster, 0, 2);
        assert_eq!(beside(&mut facts, KEEP_SLOTS_FOR / 2), 1, "at first");
        // It goes on being written.
        facts.entries.last_mut().unwrap().modify_index += 1;
        let (now, reading) = (second(1_000 + NOW), facts.reading());
        facts.memory.turns.note_neighbours(|_| is_neighbour);
        facts
            .memory
            .turns
            .observe(&reading, now, samples::time(NOW));
        let later = now + KEEP_SLOTS_FOR / 2;
        let plan = decide(&Observed {
            now: later,
            ..facts.observed(Some(&reading))
        });
        granted(&plan).len()
    };
    assert_eq!(granted_when("d", false), 1, "of another cluster");
    assert_eq!(granted_when("c", true), 1, "of another semaphore of ours");
    assert_eq!(granted_when("c", false), 3);
}

/// Otherwise whoever may write to one prefix could have the slots of others kept, for one that can't be served.
#[test]
fn nothing_is_kept_behind_a_keeper_elsewhere() {
    for (since, expected) in [(4, false), (6, true)] {
        let mut facts = Facts::new(2, &[]);
        facts.keeper("s", "d", since, 2);
        facts.queue(&[asks_for(2, "a", 5)]);
        facts.seen_for(Duration::ZERO);
        let plan = facts.decide_late();
        let Part::Waits(waits) = plan.parts[&"a".into()] else {
            panic!("{:?}", plan.parts);
        };
        assert_eq!(waits.first, expected, "since {since}");
    }
}
