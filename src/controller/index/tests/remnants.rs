use super::*;
use consul_semaphore::engine::START_SETTLE_TIME;

/// A `JobSet` that was suspended after the grant of this session, because its slot was lost.
fn stopped(session: &str) -> TrackedWorkload {
    tracked("a", |tracked| {
        let workload = workload(tracked);
        workload.kind = "JobSet".into();
        workload.granted = Some(Granted::by(&format!("db/{session}"), session));
    })
}

/// The unproved workloads of which a pod has ended since their pods were asked for.
fn touched(index: &Index) -> Vec<String> {
    let due = index.take_unproved().into_iter();
    due.filter(|uid| index.is_touched(uid) && index.unproved(uid).is_some())
        .map(|uid| uid.to_string())
        .collect()
}

#[test]
fn what_may_have_pods_counts_as_stopping_until_none_is_left() {
    let index = with_db();
    put(&index, stopped("s"));
    let slice = index.slice(&queue("db"), 9);
    assert_eq!(
        (names(&slice.waiting), names(&slice.bound)),
        (vec![], vec!["a"])
    );
    assert_eq!(slice.bound[0].phase, Phase::Stopping);
    let asked = unproved(&index);
    assert_eq!(
        asked[0].workload.phase,
        Phase::Idle,
        "as its status shows it"
    );

    index.proved(&asked[0]);
    let slice = index.slice(&queue("db"), 9);
    assert_eq!(
        (names(&slice.waiting), names(&slice.bound)),
        (vec!["a"], vec![])
    );
    assert!(!index.is_unproved(&"a".into()));
    // So it stays, whatever else changes.
    let mut changed = stopped("s");
    workload(&mut changed).version = "11".into();
    put(&index, changed);
    assert_eq!(names(&index.all_waiting(&queue("db"))), ["a"]);
    // Another grant has pods of its own.
    let mut again = stopped("t");
    workload(&mut again).version = "12".into();
    put(&index, again);
    assert!(index.is_unproved(&"a".into()));
    assert!(index.all_waiting(&queue("db")).is_empty());
    // A late answer about the grant before says nothing of these.
    index.proved(&asked[0]);
    assert!(index.is_unproved(&"a".into()));
}

/// The controller may have acted on the start and not yet have made the pods.
#[test]
fn that_it_has_no_pods_counts_only_some_time_after_it_was_started() {
    let index = with_db();
    let second = |second| Moment::from_boot(Duration::from_secs(second));
    let seen = |at, phase| {
        let mut tracked = stopped("s");
        let workload = workload(&mut tracked);
        (workload.seen, workload.phase) = (second(at), phase);
        tracked
    };
    put(&index, seen(10, Phase::Running));
    put(&index, seen(12, Phase::Running));
    put(&index, seen(13, Phase::Stopping));
    put(&index, seen(14, Phase::Idle));
    let asked = unproved(&index).remove(0);
    let counts = |at| Some(second(at) + START_SETTLE_TIME);
    assert_eq!(index.proof_counts_from(&asked), counts(10));
    index.proved(&asked);
    // It is started again.
    put(&index, seen(20, Phase::Running));
    put(&index, seen(21, Phase::Idle));
    assert_eq!(index.proof_counts_from(&asked), counts(20));
    // A replica that did not see the start waits from when it saw it first.
    index.remove(&"a".into());
    put(&index, seen(31, Phase::Idle));
    assert_eq!(index.proof_counts_from(&asked), counts(31));
    // One that is stopped only to fail never had a slot.
    let mut failing = seen(31, Phase::Idle);
    workload(&mut failing).granted = None;
    assert_eq!(index.proof_counts_from(&failing), None);
}

#[test]
fn it_is_asked_about_at_once_when_one_of_its_pods_has_ended() {
    let index = with_db();
    put(&index, stopped("s"));
    assert!(touched(&index).is_empty());
    index.pod_ended("batch", "db/.lock", &"a".into());
    assert!(index.unproved_changed().now_or_never().is_some());
    assert_eq!(touched(&index), ["a"]);
    assert!(touched(&index).is_empty());
    index.remove(&"a".into());
    assert!(!index.is_unproved(&"a".into()));
}

/// Whoever may make pods writes any uid into their labels.
#[test]
fn a_pod_of_another_namespace_says_nothing_of_it() {
    let index = with_db();
    put(&index, stopped("s"));
    assert_eq!(index.take_unproved(), ["a".into()].into());
    index.pod_ended("elsewhere", "db/.lock", &"a".into());
    assert!(index.take_unproved().is_empty());
    assert!(!index.is_touched(&"a".into()));
}

#[test]
fn what_was_deleted_while_it_was_asked_about_is_forgotten() {
    let index = with_db();
    put(&index, stopped("s"));
    let asked = unproved(&index).remove(0);
    index.remove(&"a".into());
    index.proved(&asked);
    // Whatever has its uid now is not proved by that.
    put(&index, stopped("s"));
    assert!(index.is_unproved(&"a".into()));
}

/// A Workload of Kueue that waits since this time. Kueue may have taken a grant from it that had pods.
fn of_kueue(version: &str, since: i64) -> TrackedWorkload {
    tracked("a", |tracked| {
        let workload = workload(tracked);
        workload.kind = "Workload".into();
        workload.version = version.into();
        workload.since = since;
    })
}

#[test]
fn one_of_kueues_is_not_queued_before_its_pods_are_known_to_be_gone() {
    let index = with_db();
    let is_queued = || !index.all_waiting(&queue("db")).is_empty();
    put(&index, of_kueue("11", 5));
    assert!(!is_queued());
    let asked = unproved(&index);
    index.proved(&asked[0]);
    assert!(is_queued());
    put(&index, of_kueue("12", 5));
    assert!(is_queued(), "so it stays");
    // It has been evicted, and has its quota again.
    put(&index, of_kueue("13", 6));
    assert!(!is_queued());
    index.proved(&unproved(&index)[0]);
    assert!(is_queued());
    // The same within one second, when it was seen to run.
    let mut runs = of_kueue("14", 6);
    workload(&mut runs).phase = Phase::Running;
    put(&index, runs);
    put(&index, of_kueue("15", 6));
    assert!(!is_queued());
}

/// A Workload that Kueue has evicted, and that had a slot of this session.
fn evicted(session: &str) -> TrackedWorkload {
    let mut tracked = of_kueue("11", 5);
    let (places, pod_sets) = (Box::new([0]), Box::new(["main".into()]));
    tracked.shape = consul_semaphore_workload::Shape::Checks {
        places,
        pod_sets,
        is_reset: true,
    };
    let evicted = workload(&mut tracked);
    evicted.phase = Phase::Stopping;
    evicted.granted = Some(Granted::by(&format!("db/{session}"), session));
    evicted.reported = vec![session.into()];
    tracked
}

#[test]
fn a_job_that_still_has_a_start_time_is_asked_about_until_it_has_none() {
    let index = with_db();
    let suspended = |version: &str, shape| {
        tracked("a", |tracked| {
            tracked.shape = shape;
            workload(tracked).version = version.into();
        })
    };
    let mut started = suspended("11", consul_semaphore_workload::Shape::Started);
    workload(&mut started).phase = Phase::Stopping;
    put(&index, started);
    let asked = unproved(&index).remove(0);
    index.proved(&asked);
    let uid: Uid = "a".into();
    assert!(index.is_unproved(&uid), "that there are no pods is not all");
    assert_eq!(index.workload(&uid).unwrap().phase, Phase::Stopping);
    // If it may not be cleared, its slot is free all the same.
    index.let_slots_go(&asked);
    assert_eq!(
        index.workload(&uid).unwrap().phase,
        Phase::Finished { at_rest: true }
    );
    assert!(index.is_unproved(&uid), "that is tried on");
    put(
        &index,
        suspended("12", consul_semaphore_workload::Shape::Plain),
    );
    assert!(!index.is_unproved(&uid));
    assert_eq!(index.workload(&uid).unwrap().phase, Phase::Idle);
}

#[test]
fn the_slots_of_an_evicted_one_are_free_without_pods_also_if_that_cannot_be_written() {
    let index = with_db();
    let uid: Uid = "a".into();
    let phase = || index.workload(&uid).unwrap().phase;
    put(&index, evicted("s"));
    let asked = unproved(&index).remove(0);
    assert_eq!(phase(), Phase::Stopping);
    index.let_slots_go(&asked);
    assert_eq!(phase(), Phase::Finished { at_rest: true });
    assert!(index.is_unproved(&uid), "that is tried on");
    // Whatever else changes.
    let mut changed = evicted("s");
    workload(&mut changed).version = "12".into();
    workload(&mut changed).priority = 7;
    put(&index, changed);
    assert_eq!(phase(), Phase::Finished { at_rest: true });
    // It is written at last.
    put(&index, of_kueue("13", 6));
    assert_eq!(phase(), Phase::Stopping, "its pods are asked for once more");
    put(&index, evicted("t"));
    assert_eq!(phase(), Phase::Stopping);
}

/// The workload's slot was regained, so its pods name another session than the one that holds the slot.
#[test]
fn of_an_evicted_one_all_sessions_of_its_contenders_are_known_once_its_queue_is() {
    let index = empty();
    add(&index, "db", "db", false);
    let (uid, db): (Uid, _) = ("a".into(), queue("db"));
    put(&index, evicted("s"));
    let asked = unproved(&index).remove(0);
    assert!(!index.knows_contenders(&asked));
    index.workloads_of(&db, &[&uid]);
    index.contends(&db, &uid, Some(&"t".into()));
    assert!(index.knows_contenders(&asked));
    assert_eq!(index.contending_sessions(&uid), ["t".into()]);
    index.contends(&db, &uid, None);
    assert!(index.contending_sessions(&uid).is_empty() && index.knows_contenders(&asked));
}

#[test]
fn slots_that_only_cool_down_keep_no_workload_from_running_without_one() {
    let index = with_db();
    let (uid, db): (Uid, _) = ("a".into(), queue("db"));
    index.contends(&db, &uid, Some(&"s".into()));
    assert!(index.has_contender(&uid));
    index.cools(&db, &uid);
    assert!(!index.has_contender(&uid));
    index.contends(&db, &uid, Some(&"s".into()));
    assert!(!index.has_contender(&uid), "it is the same");
    index.contends(&db, &uid, Some(&"t".into()));
    assert!(index.has_contender(&uid));
}

/// A Workload of Kueue is stored under the uid of its owner, and the owner is watched, too.
#[test]
fn what_is_forgotten_of_another_kind_is_not_forgotten_of_this_one() {
    let index = with_db();
    put(&index, of_kueue("11", 5));
    index.forget(&"Job".into(), &"a".into());
    assert!(index.workload(&"a".into()).is_some());
    index.forget(&"Workload".into(), &"a".into());
    assert!(index.workload(&"a".into()).is_none());
}
