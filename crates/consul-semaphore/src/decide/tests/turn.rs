//! Who yields to whom among all who wait at a prefix.

use super::*;
use crate::Turns;
use crate::turns::WINDOW;

/// A workload that joined the queue at this second.
fn since(name: &str, since: i64) -> Workload {
    Workload {
        since,
        ..waiting(name)
    }
}

impl Facts {
    /// A contender of another cluster that has waited with this priority since this second.
    fn elsewhere(&mut self, session: &str, priority: i32, since: i64) -> &mut Self {
        let since = jiff::Timestamp::from_second(since).unwrap();
        let body = serde_json::json!({
            "cluster": "us", "clusterId": "d", "kind": "Job", "namespace": "x", "name": "y",
            "uid": session, "semaphore": "z", "time": since,
            "waiting": { "priority": priority, "since": since },
        });
        self.entry(&format!("p/{session}"), Some(session), &body.to_string())
    }

    /// A slot has been free for this long.
    fn free_for(&mut self, time: Duration) -> &mut Self {
        let reading = self.reading();
        let now = second(NOW);
        let ages = |since: Moment| now.since(since) >= time;
        let durations = (0..=NOW * 10).rev().map(|n| Duration::from_millis(n * 100));
        let began = durations.map(Moment::from_boot).find(|since| ages(*since));
        self.memory.turns = Turns::new(self.settings.fair);
        self.memory
            .turns
            .observe(&reading, began.unwrap(), samples::time(NOW));
        self
    }
}

/// The contenders that the plan writes for workloads that wait.
fn shown(plan: &Plan) -> Vec<(String, i32)> {
    let operations = plan.transaction.iter().flat_map(|t| &t.operations);
    let bodies = operations.filter_map(|operation| match operation {
        Op::Lock { value, .. } => serde_json::from_slice::<serde_json::Value>(value).ok(),
        _ => None,
    });
    let shown = bodies.filter(|body| !body["waiting"].is_null());
    let priority = |body: &serde_json::Value| body["waiting"]["priority"].as_i64();
    shown
        .map(|body| {
            let name = body["name"].as_str().unwrap().to_owned();
            (name, priority(&body).unwrap().try_into().unwrap())
        })
        .collect()
}

/// A contender elsewhere is left as many slots as it says, and no more than a workload may ask for.
#[test]
fn as_many_slots_are_left_as_a_contender_waits_for() {
    for (slots, expected) in [(1, 2), (2, 1), (3, 0), (u32::MAX, 0), (0, 2)] {
        let mut facts = Facts::new(3, &[]);
        let began = jiff::Timestamp::from_second(0).unwrap();
        let body = serde_json::json!({
            "cluster": "us", "clusterId": "d", "kind": "Job", "namespace": "x", "name": "y",
            "uid": "u", "semaphore": "z", "time": began,
            "waiting": { "priority": 0, "since": began, "slots": slots },
        });
        facts.entry("p/other", Some("other"), &body.to_string());
        facts.queue(&["a", "b", "c"].map(|name| since(name, 5)));
        for name in ["a", "b", "c"] {
            facts.session_for(name, 0, name);
        }
        assert_eq!(granted(&facts.decide()).len(), expected, "{slots}");
    }
}

#[test]
fn a_free_slot_goes_to_the_first_of_all_clusters() {
    for (priority, began, expected) in [
        (0, 4, &[][..]),
        (0, 6, &["a"]),
        (1, 6, &[]),
        (-1, 4, &["a"]),
    ] {
        let mut facts = Facts::new(1, &[]);
        facts.elsewhere("s", priority, began);
        facts.queue(&[since("a", 5)]).session("a", "sa");
        let plan = facts.decide();
        assert_eq!(granted(&plan), expected, "{priority} since {began}");
    }
}

#[test]
fn one_slot_is_left_to_each_of_those_who_come_before() {
    let mut facts = Facts::new(3, &["h"]);
    facts
        .contender("h")
        .elsewhere("s", 0, 4)
        .elsewhere("t", 0, 6);
    facts.queue(&[since("a", 5), since("b", 7)]);
    facts.session("a", "sa").session("b", "sb");
    assert_eq!(granted(&facts.decide()), ["a"], "the other one is for s");
}

#[test]
fn a_silent_program_comes_before_younger_contenders() {
    let mut facts = Facts::new(1, &[]);
    facts
        .contender("go")
        .queue(&[since("a", 5)])
        .session("a", "sa");
    let plan = facts.decide();
    assert_eq!(granted(&plan), [""; 0], "it has no contender yet");
    assert_eq!(shown(&plan), [("a".into(), 0)]);

    // Both contenders are equally old.
    facts.ours("sa", &since("a", 5), false);
    assert_eq!(granted(&facts.decide()), ["a"]);
    facts.entries.last_mut().unwrap().create_index = 9;
    assert_eq!(granted(&facts.decide()), [""; 0], "it is older");
}

#[test]
fn whoever_does_not_take_its_turn_is_passed_over() {
    let mut facts = Facts::new(1, &[]);
    facts.elsewhere("s", 9, 0);
    facts.queue(&[since("a", 5)]).session("a", "sa");
    facts.free_for(WINDOW / 2);
    let plan = facts.decide();
    assert_eq!(granted(&plan), [""; 0]);
    assert_eq!(plan.wake, Some(second(NOW) + WINDOW / 2));
    facts.free_for(WINDOW);
    assert_eq!(granted(&facts.decide()), ["a"]);
}

#[test]
fn a_slot_is_given_back_alone_while_somebody_elsewhere_comes_first() {
    let done = samples::workload(
        "a",
        Phase::Finished { at_rest: true },
        Some("sa"),
        Some("sa"),
    );
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &done, false).bound(done);
    facts.elsewhere("s", 0, 4);
    facts.queue(&[since("b", 5)]).session("b", "sb");
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec![]));
    assert_eq!(shown(&plan), [("b".into(), 0)], "it is seen to wait");
}

#[test]
fn without_other_contenders_no_waiting_contender_is_made() {
    let mut facts = Facts::new(1, &["sa"]);
    facts
        .ours("sa", &running("a", "sa"), false)
        .bound(running("a", "sa"));
    facts.queue(&[waiting("b")]).session("b", "sb");
    assert_eq!(shown(&facts.decide()), []);
    facts.settings.limit = 2;
    facts.applied = vec![2];
    facts.lock(2, &["sa", "h"]).contender("h");
    assert_eq!(shown(&facts.decide()), [("b".into(), 0)], "somebody holds");
    facts.settings.fair = None;
    assert_eq!(shown(&facts.decide()), [], "nobody is to know");
}

#[test]
fn a_workload_whose_priority_changes_is_shown_anew() {
    let mut facts = Facts::new(1, &["h"]);
    let workload = since("a", 5);
    facts.contender("h").elsewhere("sa", 0, 5);
    facts.ours.push(samples::ours("sa", Some(workload.clone())));
    let entry = facts.entries.last_mut().unwrap();
    let text = String::from_utf8(entry.value.clone()).unwrap();
    let body = text.replace(r#""name":"y""#, r#""name":"a""#);
    entry.value = body.replace(r#""uid":"sa""#, r#""uid":"a""#).into();
    facts.queue(std::slice::from_ref(&workload));
    assert_eq!(shown(&facts.decide()), [], "it is as it is shown");
    facts.queue = vec![
        Workload {
            priority: 7,
            ..workload
        }
        .into(),
    ];
    assert_eq!(shown(&facts.decide()), [("a".into(), 7)]);
}

#[test]
fn without_fair_order_the_faster_contender_gets_the_slot() {
    let mut facts = Facts::new(1, &[]);
    facts.settings.fair = None;
    facts.elsewhere("s", 9, 0);
    facts.queue(&[since("a", 5)]).session("a", "sa");
    assert_eq!(granted(&facts.decide()), ["a"]);
}

/// A contender written late would bring a holder back to life that was found dead.
#[test]
fn a_contender_is_made_only_while_consul_is_as_it_was_read() {
    let mut facts = Facts::new(1, &["h"]);
    facts
        .contender("h")
        .queue(&[waiting("a")])
        .session("a", "sa");
    let plan = facts.decide();
    let operations = &plan.transaction.as_ref().unwrap().operations;
    let missing = Op::CheckNotExists { key: "p/sa".into() };
    let unchanged = Op::CheckIndex {
        key: samples::LOCK_KEY.into(),
        index: 5,
    };
    assert!(operations.contains(&missing) && operations.contains(&unchanged));
}

/// In a long queue `.lock` changes many times while a contender is written. A slot can't have been granted to a session
/// that no transaction was sent for.
#[test]
fn a_session_that_was_never_used_joins_the_queue_however_often_the_lock_changes() {
    let mut facts = Facts::new(1, &["h"]);
    facts
        .contender("h")
        .queue(&[waiting("a")])
        .session("a", "sa");
    facts.unused.insert("sa".into());
    let transaction = facts.decide().transaction.unwrap();
    assert_eq!(transaction.joins, ["sa".into()]);
    let keys: Vec<_> = transaction.operations.iter().map(Op::key).collect();
    assert_eq!(keys, ["p/sa", "p/sa"], "the check and the write");
}

#[test]
fn of_overtaken_workloads_only_the_first_keeps_its_contender() {
    // One is shown for each slot.
    let mut facts = Facts::new(1, &["h"]);
    facts.contender("h");
    let [second, third] = [since("a", 5), since("c", 6)];
    facts.ours("sc", &third, false).ours("sa", &second, false);
    let first = Workload {
        priority: 9,
        ..since("b", 7)
    };
    facts.queue(&[first, second, third]).session("b", "sb");
    let plan = facts.decide();
    assert_eq!(shown(&plan), [("b".into(), 9)]);
    assert_eq!(released(&plan), ["sc"]);
    let delete = Op::DeleteCas {
        key: "p/sc".into(),
        index: 5,
    };
    let operations = &plan.transaction.as_ref().unwrap().operations;
    assert!(operations.contains(&delete), "unless it has a slot by now");
}
