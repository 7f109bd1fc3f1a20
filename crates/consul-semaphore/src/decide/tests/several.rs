//! Workloads that ask for several slots of a semaphore.

use std::num::NonZeroU32;

use super::*;
use crate::{Granted, GrantedSlot, SlotRequest};

/// A workload that asks for two slots.
fn asks_for_two(name: &str) -> Workload {
    let request = SlotRequest {
        slots: NonZeroU32::MIN.saturating_add(1),
        ..SlotRequest::one("db", None)
    };
    Workload {
        requests: vec![request],
        ..waiting(name)
    }
}

/// A workload that runs in the slots of these sessions.
fn runs_in(name: &str, sessions: [&str; 2]) -> Workload {
    let slots = sessions.map(|session| GrantedSlot {
        lock_key: samples::LOCK_KEY.into(),
        session: session.into(),
        index: None,
    });
    Workload {
        phase: Phase::Running,
        granted: Some(Granted {
            slots: slots.into(),
        }),
        reported: sessions.map(Into::into).into(),
        ..asks_for_two(name)
    }
}

impl Facts {
    /// A live contender of ours for the slot of this ordinal.
    fn slot(&mut self, session: &str, workload: &Workload, ordinal: u32) -> &mut Self {
        self.ours(session, workload, true);
        let ours = self.ours.last_mut().unwrap();
        ours.identity = Arc::new(Identity {
            ordinal,
            ..Identity::clone(&ours.identity)
        });
        self
    }

    pub(super) fn session_for(&mut self, uid: &str, ordinal: u32, session: &str) -> &mut Self {
        let slot = SlotId {
            workload: uid.into(),
            ordinal,
        };
        self.sessions.insert(slot, session.into());
        self
    }
}

#[test]
fn a_session_is_made_for_each_slot_and_all_are_granted_at_once() {
    let mut facts = Facts::new(2, &[]);
    facts.queue(&[asks_for_two("a")]);
    let plan = facts.decide();
    assert_eq!(
        (granted(&plan), asks_sessions(&plan)),
        (vec![], vec!["a", "a"])
    );
    facts.session_for("a", 0, "s0");
    let plan = facts.decide();
    assert_eq!((granted(&plan), asks_sessions(&plan)), (vec![], vec!["a"]));
    facts.session_for("a", 1, "s1");
    let plan = facts.decide();
    let grants = plan.transaction.unwrap().grants;
    let sessions = BTreeMap::from([(0, "s0".into()), (1, "s1".into())]);
    assert_eq!(grants[0].sessions, sessions);
}

#[test]
fn what_is_free_but_not_enough_goes_to_those_behind_until_it_is_kept() {
    let mut facts = Facts::new(2, &["other"]);
    facts.contender("other");
    let behind = Workload {
        since: 1,
        ..waiting("b")
    };
    facts.queue(&[asks_for_two("a"), behind]);
    facts.session_for("a", 0, "a0").session_for("a", 1, "a1");
    facts.session_for("b", 0, "b0");
    let plan = facts.decide();
    assert_eq!(granted(&plan), ["b"]);
    let waits = Part::Waits(Waits {
        free: false,
        ready: true,
        first: true,
        enough: Enough::Soon,
    });
    assert_eq!(plan.parts[&"a".into()], waits);
    facts.stances.insert("a".into(), Stance::Keeps);
    assert_eq!(granted(&facts.decide()), [""; 0]);
}

#[test]
fn what_is_free_elsewhere_only_in_part_is_not_kept() {
    let both = Workload {
        requests: vec![
            SlotRequest::one("db", None),
            SlotRequest::one("other", None),
        ],
        ..waiting("a")
    };
    let behind = Workload {
        since: 1,
        ..waiting("b")
    };
    let mut facts = Facts::new(1, &[]);
    facts.queue(&[both, behind]);
    facts.session_for("a", 0, "a0").session_for("b", 0, "b0");
    let plan = facts.decide();
    let free = Part::Waits(Waits {
        free: true,
        ready: true,
        first: true,
        enough: Enough::Soon,
    });
    assert_eq!((granted(&plan), &plan.parts[&"a".into()]), (vec![], &free));
    for (stance, expected) in [
        (Stance::PassedOver, vec!["b"]),
        (Stance::Stopped, vec!["b"]),
        (Stance::Keeps, vec![]),
    ] {
        facts.stances.insert("a".into(), stance);
        let plan = facts.decide();
        assert_eq!(
            (granted(&plan), &plan.parts[&"a".into()]),
            (expected, &free),
            "{stance:?}"
        );
    }
}

#[test]
fn one_that_can_not_be_granted_is_in_nobodys_way() {
    let two = |name: &str, since| Workload {
        since,
        ..asks_for_two(name)
    };
    let mut facts = Facts::new(2, &["other"]);
    facts.contender("other").queue(&[two("a", 0), two("b", 1)]);
    let first = |facts: &Facts, name: &str| match facts.decide().parts[&name.into()] {
        Part::Waits(waits) => waits.first,
        ref part => panic!("{part:?}"),
    };
    assert!(first(&facts, "a") && !first(&facts, "b"));
    facts.stances.insert("a".into(), Stance::Stopped);
    assert!(first(&facts, "b"));
}

#[test]
fn one_that_holds_less_than_it_asks_for_is_not_started() {
    let workload = asks_for_two("a");
    let mut facts = Facts::new(2, &["s0"]);
    facts
        .slot("s0", &workload, 0)
        .queue(std::slice::from_ref(&workload));
    let plan = facts.decide();
    assert!(plan.starts.is_empty());
    assert_eq!(plan.give_backs[0].sessions, ["s0".into()]);
    facts.lock(2, &["s0", "s1"]).slot("s1", &workload, 1);
    let plan = facts.decide();
    let started: Vec<_> = plan.starts[0].sessions().map(AsRef::as_ref).collect();
    assert_eq!((started, plan.give_backs), (vec!["s0", "s1"], vec![]));
}

/// The user changes the workload's annotation between the grant and the start, and the operator restarts.
#[test]
fn one_that_asks_for_less_than_it_was_granted_is_not_started() {
    for (request, starts) in [
        (
            r#"[{"lockKey":"p/.lock","slots":1},{"lockKey":"q/.lock","slots":1}]"#,
            0,
        ),
        (r#"[{"lockKey":"p/.lock","slots":1}]"#, 1),
        ("null", 1),
    ] {
        let workload = waiting("a");
        let mut facts = Facts::new(2, &["s0"]);
        facts
            .slot("s0", &workload, 0)
            .queue(std::slice::from_ref(&workload));
        let body = format!(
            r#"{{"cluster":"","clusterId":"c","kind":"Job","namespace":"batch","name":"a","uid":"a","semaphore":"db",
            "time":"2026-03-01T12:00:00Z","request":{request}}}"#
        );
        facts.entries.last_mut().unwrap().value = body.into();
        let plan = facts.decide();
        let counts = (plan.starts.len(), plan.give_backs.len());
        assert_eq!(counts, (starts, 1 - starts), "{request}");
    }
}

#[test]
fn one_that_lost_more_than_there_is_is_suspended_and_granted_nothing() {
    let workload = runs_in("a", ["s0", "s1"]);
    let mut facts = Facts::new(2, &["other"]);
    facts.contender("other").bound(workload);
    facts.session_for("a", 0, "n0").session_for("a", 1, "n1");
    let plan = facts.decide();
    assert_eq!((granted(&plan), plan.suspends.len()), (vec![], 1));
    let mut facts = Facts::new(3, &["other"]);
    facts.contender("other").bound(runs_in("a", ["s0", "s1"]));
    facts.session_for("a", 0, "n0").session_for("a", 1, "n1");
    let plan = facts.decide();
    assert_eq!((granted(&plan), plan.suspends.len()), (vec!["a"], 0));
}

#[test]
fn the_annotation_names_all_sessions_that_hold_slots_now() {
    let workload = runs_in("a", ["s0", "s1"]);
    let mut facts = Facts::new(2, &["s0", "n1"]);
    facts.slot("s0", &workload, 0).slot("n1", &workload, 1);
    facts.bound(workload);
    assert_eq!(
        facts.decide().renames[0].sessions,
        ["s0".into(), "n1".into()]
    );
}
