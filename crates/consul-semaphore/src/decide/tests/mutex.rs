//! The rules for a lock key that is itself locked.

use super::*;
use crate::MutexMemory;
use crate::{
    Mode,
    lock::{MUTEX_FLAGS, SEMAPHORE_FLAGS},
    mutex::MOST_TURNS_IN_A_ROW,
};

/// The facts about a mutex whose key does not exist.
fn mutex() -> Facts {
    let mut facts = Facts::new(1, &[]);
    facts.settings.mode = Mode::Mutex;
    facts.applied = Vec::new();
    facts.entries = Vec::new();
    facts
}

/// The key, with these flags.
fn key(facts: &mut Facts, holder: Option<&str>, flags: u64, value: &str) {
    facts.entries = vec![Entry {
        key: samples::LOCK_KEY.into(),
        value: value.into(),
        flags,
        session: holder.map(Into::into),
        lock_index: 1,
        create_index: 3,
        modify_index: 5,
    }];
    let reading = facts.reading();
    facts.memory.mutex.observe(&reading, second(READ));
}

/// The facts about a mutex that this workload of ours holds.
fn held_for(workload: &Workload) -> Facts {
    let mut facts = mutex();
    key(&mut facts, Some("sa"), MUTEX_FLAGS, "body");
    facts.ours.push(samples::ours("sa", Some(workload.clone())));
    facts
}

fn done(name: &str, session: &str) -> Workload {
    let finished = Phase::Finished { at_rest: true };
    samples::workload(name, finished, Some(session), Some(session))
}

/// What the transaction does, in short.
fn operations(plan: &Plan) -> Vec<String> {
    let operations = plan.transaction.iter().flat_map(|t| &t.operations);
    let short = operations.map(|operation| {
        assert_eq!(
            operation.key(),
            samples::LOCK_KEY,
            "no other key is touched"
        );
        match operation {
            Op::CheckNotExists { .. } => "check-not-exists".to_owned(),
            Op::CheckIndex { index, .. } => format!("check-index {index}"),
            Op::Lock { flags, session, .. } => format!("lock {session} {flags:#x}"),
            Op::Unlock { session, .. } => format!("unlock {session}"),
            Op::Delete { .. } => "delete".to_owned(),
            Op::DeleteCas { index, .. } => format!("delete-cas {index}"),
            other => panic!("{other:?}"),
        }
    });
    short.collect()
}

fn lock(session: &str) -> String {
    format!("lock {session} {MUTEX_FLAGS:#x}")
}

#[test]
fn a_free_mutex_is_locked_as_it_was_read() {
    let mut facts = mutex();
    facts.queue(&[waiting("a"), waiting("b")]);
    facts.session("a", "sa").session("b", "sb");
    let plan = facts.decide();
    assert_eq!(
        operations(&plan),
        ["check-not-exists".to_owned(), lock("sa")]
    );
    assert_eq!(
        (plan.record, plan.applied),
        (None, vec![]),
        "it has no limit"
    );

    key(&mut facts, None, MUTEX_FLAGS, "left by api.Lock");
    let plan = facts.decide();
    assert_eq!(operations(&plan), ["check-index 5".to_owned(), lock("sa")]);

    key(&mut facts, None, 0, "left by ?release");
    let plan = facts.decide();
    assert_eq!(operations(&plan), ["check-index 5", "lock sa 0x0"]);
}

#[test]
fn a_held_mutex_is_waited_for_with_a_session_made_ahead() {
    let mut facts = mutex();
    key(&mut facts, Some("other"), MUTEX_FLAGS, "");
    facts.queue(&[waiting("a"), waiting("b")]);
    let plan = facts.decide();
    assert_eq!(
        (&plan.transaction, asks_sessions(&plan)),
        (&None, vec!["a"])
    );
    assert_eq!(plan.agreement, Some(Agreement::Agreed));
}

#[test]
fn a_hand_over_is_one_transaction_and_a_release_leaves_nothing() {
    let mut facts = held_for(&done("a", "sa"));
    let plan = facts.decide();
    assert_eq!(operations(&plan), ["unlock sa", "delete"]);

    facts.queue(&[waiting("b")]).session("b", "sb");
    let plan = facts.decide();
    assert_eq!(operations(&plan), ["unlock sa".to_owned(), lock("sb")]);
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["b"]));
}

#[test]
fn the_slot_is_that_of_the_last_lock_of_the_key() {
    let mut facts = held_for(&done("a", "sa"));
    facts.queue(&[waiting("b")]).session("b", "sb");
    let transaction = facts.decide().transaction.expect("a hand-over");
    let entry = |session: Option<&str>, lock_index| Entry {
        key: samples::LOCK_KEY.into(),
        value: Vec::new(),
        flags: MUTEX_FLAGS,
        session: session.map(Into::into),
        lock_index,
        create_index: 3,
        modify_index: 9,
    };
    let answer = [entry(None, 1), entry(Some("sb"), 2)];
    let [start] = &transaction.starts(&answer)[..] else {
        panic!("one workload is started");
    };
    let slot = &start.slot;
    assert_eq!(slot.key(), samples::LOCK_KEY);
    assert_eq!((slot.lock_index(), slot.fencing_token()), (2, 9));

    let after = facts
        .reading()
        .after(&transaction.operations, &answer, second(NOW));
    assert!(after.holds(&"sb".into()) && !after.holds(&"sa".into()));
    assert_eq!(after.sent, second(NOW));
}

#[test]
fn a_key_that_is_a_semaphores_is_left_alone() {
    let semaphore = r#"{"Limit":3,"Holders":{}}"#;
    for (flags, value) in [
        (SEMAPHORE_FLAGS, ""),
        (SEMAPHORE_FLAGS, semaphore),
        (0, semaphore),
    ] {
        let mut facts = mutex();
        key(&mut facts, None, flags, value);
        facts.queue(&[waiting("a")]).session("a", "sa");
        let plan = facts.decide();
        assert_eq!(
            (plan.transaction, plan.agreement),
            (None, None),
            "{flags} {value}"
        );
    }
}

#[test]
fn a_mutex_that_rests_is_asked_for_again_in_a_while() {
    let mut facts = mutex();
    facts.queue(&[waiting("a")]).session("a", "sa");
    facts.memory.mutex.delay(second(NOW), 0.0);
    let plan = facts.decide();
    assert_eq!(plan.transaction, None);
    let wake = plan.wake.expect("a time");
    assert!(wake > second(NOW) && wake < second(NOW + 1));
    facts.memory.mutex = MutexMemory::default();
    assert_eq!(granted(&facts.decide()), ["a"]);
}

#[test]
fn a_running_workload_in_a_lock_delay_is_suspended_or_continues() {
    let mut facts = mutex();
    facts.bound(running("a", "sa")).session("a", "sb");
    assert_eq!(granted(&facts.decide()), ["a"], "it may be free");

    facts.memory.mutex.delay(second(NOW), 0.0);
    let suspended: Vec<_> = facts
        .decide()
        .suspends
        .into_iter()
        .map(|s| s.workload.uid)
        .collect();
    assert_eq!(suspended, ["a".into()]);
    facts.settings.on_slot_lost = crate::OnSlotLost::Continue;
    let plan = facts.decide();
    assert!(plan.suspends.is_empty() && plan.unheld.len() == 1);
}

#[test]
fn pods_of_a_workload_that_lost_the_mutex_keep_it_from_the_next() {
    let mut facts = mutex();
    let stopping = samples::workload("a", Phase::Stopping, Some("sa"), None);
    facts
        .bound(stopping)
        .queue(&[waiting("b")])
        .session("b", "sb");
    assert_eq!(facts.decide().transaction, None);
}

#[test]
fn others_have_a_turn_after_many_of_ours() {
    let mut facts = held_for(&done("a", "sa"));
    facts.queue(&[waiting("b")]).session("b", "sb");
    for _ in 0..MOST_TURNS_IN_A_ROW {
        facts.memory.mutex.took(&"sa".into(), second(READ));
    }
    assert_eq!(operations(&facts.decide()), ["unlock sa", "delete"]);
    let mut unfair = facts.settings.clone();
    unfair.fair = None;
    let settings = std::mem::replace(&mut facts.settings, unfair);
    assert_eq!(granted(&facts.decide()), ["b"]);

    facts.settings = settings;
    facts.entries.clear();
    facts.ours.clear();
    let reading = facts.reading();
    facts.memory.mutex.observe(&reading, second(NOW));
    let plan = facts.decide();
    assert_eq!(plan.transaction, None);
    assert!(plan.wake.is_some_and(|wake| wake < second(NOW + 1)));
    facts.memory.mutex.observe(&reading, second(NOW));
    let long_ago = second(READ);
    facts.memory.mutex = MutexMemory::default();
    facts.memory.mutex.observe(&reading, long_ago);
    for _ in 0..MOST_TURNS_IN_A_ROW {
        facts.memory.mutex.took(&"sa".into(), long_ago);
    }
    assert_eq!(granted(&facts.decide()), ["b"], "nobody came");
}

#[test]
fn a_semaphore_does_not_pause_after_grants_in_a_row() {
    let mut facts = Facts::new(1, &[]);
    facts.queue(&[waiting("b")]).session("b", "sb");
    for _ in 0..MOST_TURNS_IN_A_ROW {
        facts.memory.mutex.took(&"sa".into(), second(READ));
    }
    assert_eq!(granted(&facts.decide()), ["b"]);
}

#[test]
fn a_deleted_one_removes_its_key_if_nobody_has_it() {
    let mut facts = mutex();
    facts.settings.terminating = true;
    assert!(facts.decide().finished, "there is no key");

    key(&mut facts, None, MUTEX_FLAGS, "left by api.Lock");
    let plan = facts.decide();
    assert_eq!(
        (operations(&plan), plan.finished),
        (vec!["delete-cas 5".to_owned()], false)
    );

    key(&mut facts, Some("other"), MUTEX_FLAGS, "");
    let plan = facts.decide();
    assert_eq!((plan.transaction, plan.finished), (None, true));
}

#[test]
fn a_semaphore_takes_the_place_of_a_mutex_that_nobody_holds_once_it_has_rested() {
    let mut facts = Facts::new(1, &[]);
    facts.queue(&[waiting("a")]).session("a", "sa");
    key(&mut facts, Some("other"), MUTEX_FLAGS, "");
    assert_eq!(facts.decide().transaction, None, "it is held");

    key(&mut facts, None, MUTEX_FLAGS, "left by api.Lock");
    facts.settings.lock_delay = Duration::from_secs(NOW - READ + 1);
    let plan = facts.decide();
    assert_eq!((plan.transaction, plan.wake), (None, Some(second(NOW + 1))));
    facts.settings.lock_delay = Duration::from_secs(NOW - READ);
    assert_eq!(operations(&facts.decide()), ["delete-cas 5"]);
}
