use super::*;

/// A `JobSet` that was suspended after the grant of this session, because its slot was lost.
fn stopped(session: &str) -> TrackedWorkload {
    tracked("a", |tracked| {
        let workload = workload(tracked);
        workload.kind = "JobSet".into();
        workload.granted = Some(Granted::by(&format!("db/{session}"), session));
    })
}

fn due(index: &Index) -> Vec<String> {
    let unproved = index.unproved(9, |_| false);
    let names = unproved.iter().map(|it| it.workload.name.to_string());
    names.collect()
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
    let asked = index.unproved(9, |_| true);
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

#[test]
fn it_is_asked_about_at_once_when_one_of_its_pods_has_ended() {
    let index = with_db();
    put(&index, stopped("s"));
    assert!(due(&index).is_empty(), "it is not its turn");
    index.pod_ended("batch", "db/.lock", &"a".into());
    assert_eq!(due(&index), ["a"]);
    assert!(due(&index).is_empty());
    index.remove(&"a".into());
    assert!(!index.is_unproved(&"a".into()));
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
    let asked = index.unproved(9, |_| true);
    index.proved(&asked[0]);
    assert!(is_queued());
    put(&index, of_kueue("12", 5));
    assert!(is_queued(), "so it stays");
    // It has been evicted, and has its quota again.
    put(&index, of_kueue("13", 6));
    assert!(!is_queued());
    index.proved(&index.unproved(9, |_| true)[0]);
    assert!(is_queued());
    // The same within one second, when it was seen to run.
    let mut runs = of_kueue("14", 6);
    workload(&mut runs).phase = Phase::Running;
    put(&index, runs);
    put(&index, of_kueue("15", 6));
    assert!(!is_queued());
}

/// It has the uid of its owner, which is watched, too.
#[test]
fn what_is_forgotten_of_another_kind_is_not_forgotten_of_this_one() {
    let index = with_db();
    put(&index, of_kueue("11", 5));
    index.forget(&"Job".into(), &"a".into());
    assert!(index.workload(&"a".into()).is_some());
    index.forget(&"Workload".into(), &"a".into());
    assert!(index.workload(&"a".into()).is_none());
}
