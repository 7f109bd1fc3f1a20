//! Workloads that have come into a queue and were not admitted yet.

use super::*;

/// An index of an operator that has seen all workloads of its first list, which was empty.
fn listed() -> Index {
    let index = with_db();
    list(&index, &[]);
    index
}

fn list(index: &Index, workloads: &[&str]) {
    index.list_begins(&KindName::default(), &WatchScope::Cluster);
    for name in workloads {
        put(index, tracked(name, |_| {}));
    }
    index.list_ends(&KindName::default(), &WatchScope::Cluster);
}

fn unadmitted(index: &Index) -> Vec<String> {
    let unadmitted = index.unadmitted(&queue("db"), 9);
    names(&unadmitted)
        .into_iter()
        .map(ToOwned::to_owned)
        .collect()
}

/// The number of those that wait and were admitted, without these.
fn admitted(index: &Index, apart: &[&str]) -> Option<usize> {
    let apart = apart.iter().map(|name| Uid::from(*name));
    index.count_admitted(&queue("db"), &apart.collect())
}

#[test]
fn what_the_first_list_shows_counts_as_admitted_and_what_comes_later_does_not() {
    let index = with_db();
    list(&index, &["old"]);
    put(&index, tracked("new", |_| {}));
    // The watch was interrupted, and "newer" came meanwhile.
    list(&index, &["old", "new", "newer"]);
    assert_eq!(unadmitted(&index), ["new", "newer"]);
    assert_eq!(index.count_waiting(&queue("db")), 3);
    assert_eq!(admitted(&index, &[]), Some(1));
}

#[test]
fn they_are_in_the_order_in_which_they_came_whatever_their_priority() {
    let index = listed();
    for (name, since, priority) in [("b", 1, 0), ("a", 2, 9), ("c", 1, 5)] {
        put(
            &index,
            tracked(name, |tracked| {
                let workload = workload(tracked);
                (workload.since, workload.priority) = (since, priority);
            }),
        );
    }
    assert_eq!(unadmitted(&index), ["b", "c", "a"]);
    assert_eq!(names(&index.unadmitted(&queue("db"), 1)), ["b"]);
}

#[test]
fn who_is_admitted_stays_admitted_whatever_changes() {
    let index = listed();
    put(&index, tracked("a", |_| {}));
    put(&index, tracked("b", |_| {}));
    index.admit(&queue("db"), &"a".into());
    for (version, hold) in [("11", true), ("12", false)] {
        for name in ["a", "b"] {
            put(
                &index,
                tracked(name, |tracked| {
                    let workload = workload(tracked);
                    workload.version = version.into();
                    workload.hold = hold;
                }),
            );
        }
        let expected: &[&str] = if hold { &[] } else { &["b"] };
        assert_eq!(unadmitted(&index), expected);
    }
    add(&index, "db", "elsewhere", false);
    assert_eq!(unadmitted(&index), ["b"]);
    block_on(index.remove_semaphore(&reference("db")));
    add(&index, "db", "db", false);
    assert_eq!(unadmitted(&index), ["b"]);
}

#[test]
fn only_admitted_ones_that_wait_here_are_counted_off() {
    let index = listed();
    for name in ["a", "b", "new"] {
        put(&index, tracked(name, |_| {}));
    }
    put(
        &index,
        tracked("held", |tracked| workload(tracked).hold = true),
    );
    for name in ["a", "b", "held"] {
        index.admit(&queue("db"), &name.into());
    }
    assert_eq!(admitted(&index, &[]), Some(2));
    assert_eq!(admitted(&index, &["a", "new", "held", "unknown"]), Some(1));
}

#[test]
fn nothing_is_counted_while_the_workloads_are_listed_anew() {
    let index = listed();
    put(&index, tracked("a", |_| {}));
    index.list_begins(&KindName::from("JobSet"), &WatchScope::Cluster);
    assert_eq!(admitted(&index, &[]), Some(0), "it hides nothing");
    index.list_begins(
        &KindName::default(),
        &WatchScope::Namespace("elsewhere".into()),
    );
    assert_eq!(admitted(&index, &[]), Some(0));
    index.list_begins(&KindName::default(), &WatchScope::Cluster);
    assert_eq!(admitted(&index, &[]), None);
    index.list_ends(&KindName::default(), &WatchScope::Cluster);
    assert_eq!(admitted(&index, &[]), Some(0));
}

/// The first of its queues reports that it waits.
#[test]
fn the_other_queues_of_one_that_is_admitted_are_due() {
    let index = listed();
    add(&index, "licenses", "licenses", false);
    put(
        &index,
        tracked("a", |tracked| {
            let requests = ["licenses", "db"].map(|name| SlotRequest::one(name, None));
            workload(tracked).requests = requests.to_vec();
        }),
    );
    index.take_marked();
    index.admit(&queue("db"), &"a".into());
    assert_eq!(Vec::from_iter(index.take_marked()), [queue("licenses")]);
    assert!(index.unadmitted(&queue("licenses"), 9).is_empty());
    index.admit(&queue("db"), &"a".into());
    assert!(index.take_marked().is_empty(), "once");
}
