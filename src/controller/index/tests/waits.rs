//! Waits that end, and workloads that replace each other.

use consul_client::clock;
use consul_semaphore::{Wait, WaitBegan};

use super::*;

/// A workload that waits since then, and replaces others.
fn replaces(name: &str, created: i64) -> TrackedWorkload {
    tracked(name, |tracked| {
        let workload = workload(tracked);
        workload.since = created;
        workload.wait.created = created;
        workload.on_contention = OnContention::ReplaceWaiting;
    })
}

fn superseded(index: &Index, at: &QueueRef) -> Vec<(String, String)> {
    let superseded = index.superseded(at, 9).into_iter();
    let names = superseded.map(|one| {
        let newer = one.newer[0].workload.name.to_string();
        (one.workload.name.to_string(), newer)
    });
    names.collect()
}

fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> Vec<(String, String)> {
    pairs
        .map(|(older, newer)| (older.to_owned(), newer.to_owned()))
        .into()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn the_newest_supersedes_those_that_ask_for_the_same_whenever_they_are_seen() {
    let index = with_db();
    put(&index, replaces("b", 20));
    put(&index, replaces("a", 10));
    put(&index, tracked("plain", |_| {}));
    let held = |tracked: &mut TrackedWorkload| workload(tracked).hold = true;
    let mut on_hold = replaces("on-hold", 99);
    held(&mut on_hold);
    put(&index, on_hold);
    assert_eq!(superseded(&index, &queue("db")), pairs([("a", "b")]));
    assert!(marked(&index));
    put(&index, replaces("c", 30));
    assert!(marked(&index));
    let both = pairs([("a", "c"), ("b", "c")]);
    assert_eq!(superseded(&index, &queue("db")), both);
    // The newest one is gone: the next one waits on.
    index.remove(&"c".into());
    assert_eq!(superseded(&index, &queue("db")), pairs([("a", "b")]));
    // Of the same second, the name decides.
    put(&index, replaces("bb", 20));
    let both = pairs([("a", "bb"), ("b", "bb")]);
    assert_eq!(superseded(&index, &queue("db")), both);
}

#[test]
fn what_asks_for_other_slots_or_had_one_is_not_superseded() {
    let index = with_db();
    add(&index, "other", "db", false);
    put(&index, replaces("a", 10));
    let mut had = replaces("had", 20);
    workload(&mut had).reported = vec!["s".into()];
    put(&index, had);
    let mut two = replaces("two", 20);
    workload(&mut two).requests[0].slots = 2.try_into().unwrap();
    put(&index, two);
    assert_eq!(superseded(&index, &queue("db")), []);
    // The lock key counts, not the semaphore's name.
    let mut same = replaces("same", 20);
    workload(&mut same).requests = vec![SlotRequest::one("other", None)];
    put(&index, same);
    assert_eq!(superseded(&index, &queue("db")), pairs([("a", "same")]));
    assert_eq!(superseded(&index, &queue("other")), []);
}

#[test]
fn the_running_ones_that_hold_the_same_can_be_replaced() {
    let index = with_db();
    let runs = |name: &str, policy: OnContention| {
        tracked(name, |tracked| {
            let workload = workload(tracked);
            workload.phase = Phase::Running;
            workload.granted = Some(Granted::by("db/s", "s"));
            workload.on_contention = policy;
        })
    };
    put(&index, runs("a", OnContention::ReplaceWaiting));
    put(&index, runs("b", OnContention::Wait));
    put(&index, replaces("c", 10));
    let located = index.replaceable(&"c".into()).into_iter();
    let replaceable: Vec<_> = located
        .map(|one| (one.namespace.to_string(), one.workload.name.to_string()))
        .collect();
    assert_eq!(replaceable, pairs([("batch", "a")]));
}

#[test]
fn the_longest_wait_is_known_whatever_its_place() {
    let index = with_db();
    let db = queue("db").semaphore;
    assert_eq!(index.longest_wait_since(&db), None);
    let waits = |name: &str, since: i64, priority: i32| {
        tracked(name, |tracked| {
            workload(tracked).since = since;
            workload(tracked).priority = priority;
        })
    };
    for (name, since, priority) in [("new", 30, 9), ("old", 10, 0), ("newer", 40, 5)] {
        put(&index, waits(name, since, priority));
    }
    assert_eq!(index.longest_wait_since(&db), Some(at(10)));
    index.remove(&"old".into());
    assert_eq!(index.longest_wait_since(&db), Some(at(30)));
    index.remove(&"new".into());
    index.remove(&"newer".into());
    assert_eq!(index.longest_wait_since(&db), None);
}

#[test]
fn waits_are_over_in_the_order_of_their_deadlines() {
    let index = with_db();
    let waits = |name: &str, since: i64, timeout: Option<u64>| {
        tracked(name, |tracked| {
            let workload = workload(tracked);
            workload.since = since;
            workload.wait = Wait {
                timeout: timeout.map(Duration::from_secs),
                ..Wait::default()
            };
        })
    };
    let overdue = |now: i64| {
        let overdue = index.overdue(&queue("db"), at(now), 9).into_iter();
        let names = overdue.map(|one| one.workload.name.to_string());
        names.collect::<Vec<_>>()
    };
    put(&index, waits("a", 0, Some(100)));
    put(&index, waits("b", 50, Some(10)));
    put(&index, waits("c", 0, None));
    assert_eq!(index.next_overdue(&queue("db")), Some(at(60)));
    assert_eq!(overdue(59), [""; 0]);
    assert_eq!(overdue(100), ["b", "a"]);
    index.postpone(&queue("db"), &"b".into(), at(200));
    index.postpone(&queue("db"), &"c".into(), at(90));
    assert_eq!(overdue(199), ["a"]);
    index.remove(&"a".into());
    assert_eq!(index.next_overdue(&queue("db")), Some(at(200)));
    // The semaphore's default is for those that don't say so themselves.
    let default = Offer {
        wait_timeout: Some(Duration::from_secs(5)),
        ..offer("db", false)
    };
    block_on(index.update_semaphore(&reference("db"), default));
    assert_eq!(overdue(199), ["c"]);
    assert_eq!(overdue(200), ["c", "b"]);
    assert!(index.any_deadline(&reference("db")));
}

#[test]
fn a_time_on_hold_does_not_count() {
    let index = with_db();
    let held = |version: &str, hold: bool| {
        tracked("a", |tracked| {
            let workload = workload(tracked);
            workload.version = version.into();
            workload.hold = hold;
            workload.wait.timeout = Some(Duration::from_secs(100));
        })
    };
    put(&index, held("10", true));
    assert_eq!(index.next_overdue(&queue("db")), None);
    assert_eq!(to_record(&index), [("a".into(), WaitBegan::OnHold)]);
    let before = clock::time().as_second();
    put(&index, held("11", false));
    let next = index.next_overdue(&queue("db")).unwrap().as_second();
    assert!(next >= before + 100, "{next}");
    assert_eq!(to_record(&index), [("a".into(), WaitBegan::At(next - 100))]);
}

#[test]
fn what_was_recorded_of_a_wait_is_true_for_the_next_process() {
    let ends = |recorded| {
        let index = with_db();
        put(
            &index,
            tracked("a", |tracked| {
                let workload = workload(tracked);
                workload.wait.timeout = Some(Duration::from_secs(100));
                workload.wait.recorded = Some(recorded);
            }),
        );
        let next = index.next_overdue(&queue("db")).unwrap().as_second();
        (next, to_record(&index))
    };
    assert_eq!(ends(WaitBegan::At(700)), (800, Vec::new()));
    // It was taken off hold while no operator ran.
    let before = clock::time().as_second();
    let (next, recorded) = ends(WaitBegan::OnHold);
    assert!(next >= before + 100, "{next}");
    assert_eq!(recorded, [("a".into(), WaitBegan::At(next - 100))]);
}

/// Starts of the waits at `db` that are to be recorded, by the names of the workloads.
fn to_record(index: &Index) -> Vec<(String, WaitBegan)> {
    let unrecorded = index.unrecorded(&queue("db"), 9).into_iter();
    let records = unrecorded.map(|workload| {
        let began = workload.wait_to_record().unwrap();
        (workload.name.to_string(), began)
    });
    records.collect()
}
