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
