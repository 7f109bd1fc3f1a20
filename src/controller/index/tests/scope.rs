//! An operator that works for a part of the cluster.

use jiff::Timestamp;

use super::*;

/// Like [`tracked`], in another namespace.
fn tracked_in(namespace: &str, name: &str) -> TrackedWorkload {
    tracked(name, |tracked| tracked.namespace = namespace.into())
}

fn running(tracked: &mut TrackedWorkload) {
    workload(tracked).phase = Phase::Running;
}

fn granted_at(tracked: &mut TrackedWorkload, lock_key: &str) {
    workload(tracked).granted = Some(Granted::by(&lock_key.replace(".lock", "s"), "s"));
}

/// Whether no workload needs any action.
fn leaves_all_alone(index: &Index) -> bool {
    unclaimed(index).is_empty() && ungranted(index).is_empty()
}

#[test]
fn the_workloads_of_anothers_semaphore_are_left_alone_whatever_is_wrong_with_them() {
    let index = empty();
    add_others(&index, "db", "db", false);
    put(&index, tracked("waits", |_| {}));
    put(&index, tracked("runs", running));
    let granted = |tracked: &mut TrackedWorkload| granted_at(tracked, "db/.lock");
    put(&index, tracked("granted", granted));
    for obstacle in [
        Obstacle::Malformed(AnnotationError::Priority("high".into())),
        Obstacle::Managed("Kueue".into()),
    ] {
        let name = format!("{obstacle:?}");
        put(
            &index,
            tracked(&name, |tracked| {
                running(tracked);
                workload(tracked).requests.clear();
                tracked.barred_from = vec!["db".into()];
                tracked.obstacle = Some(obstacle);
            }),
        );
    }
    // Its annotation was removed while it ran in a slot of the other operator.
    put(
        &index,
        tracked("unasked", |tracked| {
            granted_at(tracked, "db/.lock");
            workload(tracked).requests.clear();
        }),
    );
    assert!(leaves_all_alone(&index));
    index.pod_ended("batch", "db/.lock", &"granted".into());
    assert!(index.newcomers(&queue("db")).is_empty());

    add_others(&index, "keyed", "keyed", true);
    let keyless =
        |tracked: &mut TrackedWorkload| workload(tracked).requests[0].semaphore = "keyed".into();
    put(&index, tracked("keyless", keyless));
    assert!(leaves_all_alone(&index));
}

#[test]
fn a_workload_stays_with_the_operator_that_started_it_whatever_it_asks_for_then() {
    let index = empty();
    add(&index, "db", "db", false);
    add_others(&index, "other", "other", false);
    let started = |wants: &str, lock_key: &str| {
        tracked("a", |tracked| {
            running(tracked);
            workload(tracked).requests[0].semaphore = wants.into();
            granted_at(tracked, lock_key);
        })
    };
    put(&index, started("other", "db/.lock"));
    assert_eq!(names(&index.slice(&queue("db"), 9).bound), ["a"]);
    put(&index, started("db", "other/.lock"));
    assert!(index.slice(&queue("db"), 9).bound.is_empty());
    assert!(leaves_all_alone(&index));
}

#[test]
fn a_semaphore_changes_hands_with_all_its_workloads() {
    let index = with_db();
    put(&index, tracked("waits", |_| {}));
    put(&index, tracked("runs", running));
    put(
        &index,
        tracked("started", |tracked| {
            running(tracked);
            granted_at(tracked, "db/.lock");
        }),
    );
    assert_eq!(names_of(&ungranted(&index)), ["runs"]);
    add_others(&index, "db", "db", false);
    assert!(leaves_all_alone(&index));
    assert_eq!(index.all_waiting(&queue("db")).len(), 0);

    index.take_ungranted();
    while index.ungranted_changed().now_or_never().is_some() {}
    add(&index, "db", "db", false);
    assert!(
        index.ungranted_changed().now_or_never().is_some(),
        "one that must be suspended is notified"
    );
    let slice = index.slice(&queue("db"), 9);
    assert_eq!(
        (names(&slice.waiting), names(&slice.bound)),
        (vec!["waits"], vec!["started"])
    );
    assert_eq!(names_of(&ungranted(&index)), ["runs"]);
    // The other operator has emitted the event that they wait.
    assert!(index.newcomers(&queue("db")).is_empty());

    add_others(&index, "db", "db", false);
    block_on(index.remove_semaphore(&reference("db")));
    assert_eq!(
        names_of(&unclaimed(&index)),
        ["runs", "started", "waits"],
        "nobody's"
    );
}

#[test]
fn a_workload_is_told_that_it_waits_once_it_is_decided_that_its_semaphore_is_ours() {
    let index = empty();
    index.list_begins(&KindName::default(), &WatchScope::Cluster);
    let offer = offer("db", false);
    block_on(index.add_semaphore(&reference("db"), offer, Manager::Undecided));
    let made = |seconds| move |tracked: &mut TrackedWorkload| workload(tracked).since = seconds;
    put(&index, tracked("waited-before", made(0)));
    put(&index, tracked("waits", made(i64::MAX)));
    assert!(leaves_all_alone(&index));
    add(&index, "db", "db", false);
    assert_eq!(names_of(&index.newcomers(&queue("db"))), ["waits"]);
    add(&index, "db", "db", false);
    assert!(index.newcomers(&queue("db")).is_empty(), "once");
}

/// No operator is at work, for example, while the operator is upgraded.
#[test]
fn a_workload_that_came_while_no_operator_was_at_work_is_told_that_it_waits() {
    let index = Index::after(Timestamp::from_second(100).unwrap());
    let made = |seconds| move |tracked: &mut TrackedWorkload| workload(tracked).since = seconds;
    index.list_begins(&KindName::default(), &WatchScope::Cluster);
    put(&index, tracked("told-before", made(99)));
    put(&index, tracked("waits", made(100)));
    index.list_ends(&KindName::default(), &WatchScope::Cluster);
    add(&index, "db", "db", false);
    index.semaphores_are_known(&WatchScope::Cluster);
    assert_eq!(names_of(&index.newcomers(&queue("db"))), ["waits"]);
}

/// The workload is, for example, a Job that was suspended after a start, and whose start time is to be cleared.
#[test]
fn whether_anothers_workload_has_pods_left_is_not_asked() {
    let index = Index::default();
    add_others(&index, "db", "db", false);
    let started = consul_semaphore_workload::Shape::Started;
    put(&index, tracked("a", |tracked| tracked.shape = started));
    let asked = || unproved(&index).len();
    assert_eq!(asked(), 0, "whose it is may not be known yet");
    index.semaphores_are_known(&WatchScope::Cluster);
    assert_eq!(asked(), 0);

    index.take_unproved();
    while index.unproved_changed().now_or_never().is_some() {}
    add(&index, "db", "db", false);
    assert!(index.unproved_changed().now_or_never().is_some());
    assert_eq!(asked(), 1);
}

#[test]
fn a_list_of_one_namespace_says_nothing_of_another() {
    let index = empty();
    let [a, b] = ["a", "b"].map(|name| WatchScope::Namespace(name.into()));
    index.list_begins(&KindName::default(), &a);
    index.list_begins(&KindName::default(), &b);
    put(&index, tracked_in("a", "one"));
    put(&index, tracked_in("b", "two"));
    index.list_ends(&KindName::default(), &a);
    index.list_ends(&KindName::default(), &b);
    index.list_begins(&KindName::default(), &a);
    put(&index, tracked_in("b", "three"));
    put(&index, tracked_in("a", "four"));
    index.list_ends(&KindName::default(), &a);
    let there = |name: &str| index.workload(&name.into()).is_some();
    assert!(!there("one"), "it is gone");
    assert!(there("two") && there("three") && there("four"));
}

#[test]
fn a_workload_is_a_stray_once_the_semaphores_of_its_namespace_are_known() {
    let index = Index::default();
    put(&index, tracked_in("a", "one"));
    put(&index, tracked_in("b", "two"));
    assert!(leaves_all_alone(&index));
    index.semaphores_are_known(&WatchScope::Namespace("a".into()));
    assert_eq!(names_of(&unclaimed(&index)), ["one"]);
    index.semaphores_are_known(&WatchScope::Namespace("b".into()));
    assert_eq!(names_of(&unclaimed(&index)), ["one", "two"]);
}

#[test]
fn who_is_queued_while_another_namespace_is_listed_is_announced() {
    let index = with_db();
    index.list_begins(
        &KindName::default(),
        &WatchScope::Namespace("elsewhere".into()),
    );
    put(&index, tracked("new", |_| {}));
    assert_eq!(names_of(&index.newcomers(&queue("db"))), ["new"]);
}
