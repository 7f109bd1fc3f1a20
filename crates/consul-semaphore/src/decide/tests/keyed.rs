//! One key of a keyed semaphore: it has nothing in Consul while nobody uses it.

use std::sync::Arc;

use super::{unused::LEAVE_UNUSED_LOCK_FOR, *};
use crate::{Mode, MutexMemory, SlotRequest, lock::MUTEX_FLAGS};
use consul_client::Op;

/// The facts of the key `k`, with nothing in Consul.
fn unused(limit: u32) -> Facts {
    let mut facts = Facts::new(limit, &[]);
    facts.settings.key = Some("k".parse().unwrap());
    facts.settings.transient = true;
    facts.entries.clear();
    facts
}

fn waiting_for_k(name: &str) -> Workload {
    Workload {
        requests: vec![SlotRequest::one("db", Some("k".parse().unwrap()))],
        ..waiting(name)
    }
}

fn done() -> Workload {
    let ended = Phase::Finished { at_rest: true };
    samples::workload("a", ended, Some("sa"), Some("sa"))
}

fn removes(plan: &Plan) -> bool {
    let transaction = plan.transaction.as_ref();
    transaction.is_some_and(|transaction| {
        let mut operations = transaction.operations.iter();
        let removed = operations
            .any(|op| matches!(op, Op::DeleteCas { key, .. } if key == samples::LOCK_KEY));
        assert!(!removed || !transaction.writes_lock());
        removed
    })
}

#[test]
fn its_lock_is_written_with_the_first_holder_and_not_before() {
    let mut facts = unused(1);
    assert_eq!(facts.decide().transaction, None);
    facts.queue(&[waiting_for_k("a")]);
    let plan = facts.decide();
    assert_eq!((plan.transaction, plan.sessions.len()), (None, 1));

    facts.session("a", "sa");
    let plan = facts.decide();
    assert_eq!(granted(&plan), ["a"]);
    assert_eq!(
        written(&plan),
        serde_json::json!({"Limit": 1, "Holders": {"sa": true}})
    );
    assert_eq!(plan.transaction.and_then(|written| written.limit), Some(1));
}

#[test]
fn its_limit_is_recorded_as_ours_before() {
    let mut facts = unused(1);
    facts.applied = Vec::new();
    facts.queue(&[waiting_for_k("a")]).session("a", "sa");
    let plan = facts.decide();
    assert_eq!((plan.record, plan.transaction), (Some(vec![1]), None));
}

#[test]
fn it_goes_with_the_last_holder() {
    let mut facts = unused(1);
    facts.lock(1, &["sa"]).ours("sa", &done(), false);
    let plan = facts.decide();
    assert_eq!(released(&plan), ["sa"]);
    assert!(removes(&plan), "{plan:?}");

    // The next workload in the queue takes it over.
    facts.queue(&[waiting_for_k("b")]).session("b", "sb");
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["b"]));
    assert!(!removes(&plan));
}

#[test]
fn it_stays_while_anybody_takes_part() {
    let mut facts = unused(2);
    facts.lock(2, &[]).entry("p/theirs", Some("theirs"), "");
    assert_eq!(facts.decide().transaction, None);
    facts.lock(2, &["theirs"]);
    assert_eq!(facts.decide().transaction, None);
}

#[test]
fn what_somebody_left_behind_is_no_conflict() {
    let mut facts = unused(1);
    facts.lock(7, &[]);
    assert!(removes(&facts.decide()));
    facts.queue(&[waiting_for_k("a")]).session("a", "sa");
    assert!(removes(&facts.decide()), "for the one that waits");
    facts.raw_lock("a note");
    assert_eq!(facts.decide().transaction, None, "it is no semaphore's");
}

/// A prefix without keys is shared with programs that follow the guide and create the list beforehand.
#[test]
fn a_list_stays_where_there_are_no_keys() {
    let mut facts = unused(1);
    facts.raw_lock(r#"{"Limit":1,"Holders":[]}"#);
    assert!(removes(&facts.decide()));
    facts.settings.key = None;
    assert_eq!(facts.decide().transaction, None);
    facts.lock(1, &[]);
    assert!(removes(&facts.decide()), "it is a map");
}

#[test]
fn a_workload_of_another_key_is_not_granted_its_slots() {
    let mut facts = unused(1);
    let other = Workload {
        requests: vec![SlotRequest::one("db", Some("other".parse().unwrap()))],
        ..waiting("a")
    };
    facts.queue(&[other]).session("a", "sa");
    assert_eq!(facts.decide().transaction, None);
}

/// The key `k` of a keyed mutex, left over and not locked since.
fn left() -> Facts {
    let mut facts = unused(1);
    facts.settings.mode = Mode::Mutex;
    facts.applied = Vec::new();
    facts.entry(samples::LOCK_KEY, None, "left by api.Lock");
    facts.entries[0].flags = MUTEX_FLAGS;
    facts
}

#[test]
fn a_mutex_that_somebody_left_behind_goes_unless_the_next_one_takes_it() {
    let mut facts = left();
    assert!(removes(&facts.decide()));
    facts.queue(&[waiting_for_k("a")]);
    assert!(!removes(&facts.decide()));
    facts.session("a", "sa");
    let plan = facts.decide();
    assert_eq!(granted(&plan), ["a"]);
    assert!(!removes(&plan));

    let mut facts = left();
    facts.entries[0].session = Some("other".into());
    assert_eq!(facts.decide().transaction, None, "it is held");
}

#[test]
fn a_late_skip_workload_is_deleted_even_for_an_unused_key() {
    let scheduled = samples::time(NOW).checked_sub(Duration::from_secs(61));
    let cron_job = CronJob {
        api_version: "batch/v1".into(),
        kind: "CronJob".into(),
        name: "hourly".into(),
        uid: "c".into(),
        scheduled: scheduled.ok(),
    };
    let late = Workload {
        on_contention: OnContention::Skip,
        cron_job: Some(Arc::new(cron_job)),
        ..waiting_for_k("a")
    };
    let mut facts = unused(1);
    facts.settings.cooldown = Duration::from_mins(1);
    facts.queue(&[late]);
    let plan = facts.decide();
    assert_eq!(
        (plan.skips.len(), &plan.transaction),
        (1, &None),
        "{plan:?}"
    );
}

/// A `ConsulSemaphore` for that very lock key would write it again at once.
#[test]
fn a_lock_left_behind_is_deleted_after_a_delay() {
    let mut facts = unused(1);
    facts.lock(1, &[]);
    let reading = facts.reading();
    facts.memory.mutex.observe(&reading, second(NOW));
    let plan = facts.decide();
    assert_eq!(plan.transaction, None);
    assert_eq!(plan.wake, Some(second(NOW) + LEAVE_UNUSED_LOCK_FOR));
    facts.memory.mutex = MutexMemory::default();
    facts.memory.mutex.observe(&reading, second(0));
    assert!(removes(&facts.decide()));
}

/// The workload's key was changed while the workload was granted this slot and not yet started in it.
#[test]
fn a_workload_that_runs_by_another_grant_keeps_no_slot_here() {
    let elsewhere = |phase| {
        let mut workload = samples::workload("a", phase, Some("other"), Some("other"));
        workload.granted = Some(Granted::by("p/other/other", "other"));
        workload
    };
    let ended = Phase::Finished { at_rest: false };
    for phase in [Phase::Running, Phase::Stopping, ended] {
        let mut facts = unused(1);
        facts.lock(1, &["sa"]).ours("sa", &elsewhere(phase), false);
        facts.cooldown("sa", 60, None);
        assert_eq!(released(&facts.decide()), ["sa"], "{phase:?}");
    }
    // That other grant gives it up first.
    let mut facts = unused(1);
    facts
        .lock(1, &["sa"])
        .ours("sa", &elsewhere(Phase::Idle), false);
    assert_eq!(released(&facts.decide()), [""; 0]);
}

/// A whole prefix is used by `exec`, for example: the lock may belong to a `ConsulSemaphore`.
#[test]
fn of_a_whole_prefix_another_limit_is_a_conflict_also_while_nobody_uses_it() {
    let mut facts = unused(1);
    facts.settings.key = None;
    facts.lock(7, &[]);
    let reading = facts.reading();
    facts.memory.mutex.observe(&reading, second(0));
    facts.queue(&[waiting("a")]).session("a", "sa");
    let plan = facts.decide();
    assert_eq!(plan.transaction, None);
    assert_eq!(plan.agreement, Some(Agreement::Conflict { theirs: 7 }));
}
