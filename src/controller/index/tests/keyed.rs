use super::*;

/// A workload that waits for this key of the keyed semaphore `db`, with these changes.
fn keyed(name: &str, key: &str, change: impl FnOnce(&mut TrackedWorkload)) -> TrackedWorkload {
    tracked(name, |tracked| {
        workload(tracked).requests[0].key = Some(key.parse().unwrap());
        change(tracked);
    })
}

fn started(tracked: &mut TrackedWorkload, lock_key: &str) {
    workload(tracked).phase = Phase::Running;
    workload(tracked).granted = Some(Granted::by(&lock_key.replace(".lock", "s"), "s"));
}

#[test]
fn each_key_has_a_queue() {
    let index = empty();
    add(&index, "db", "p", true);
    assert!(index.take_marked().is_empty(), "no key is in use");
    put(
        &index,
        keyed("younger", "k1", |tracked| workload(tracked).since = 5),
    );
    put(&index, keyed("older", "k2", |_| {}));
    let both = [queue_of("db", "k1"), queue_of("db", "k2")];
    assert_eq!(index.take_marked(), both.clone().into());
    let mut keys = index.keys(&reference("db"));
    keys.sort();
    assert_eq!(keys, both.map(|queue| queue.key));
    assert_eq!(
        names(&index.all_waiting(&queue_of("db", "k1"))),
        ["younger"]
    );
    assert_eq!(names(&index.all_waiting(&queue_of("db", "k2"))), ["older"]);
    assert_eq!(
        names(&index.head(&reference("db"), 9)),
        ["older", "younger"]
    );
    assert_eq!(names(&index.head(&reference("db"), 1)), ["older"]);
}

#[test]
fn one_that_waits_for_two_keys_is_shown_once() {
    let index = empty();
    add(&index, "db", "p", true);
    put(
        &index,
        keyed("both", "k1", |tracked| {
            let mut second = workload(tracked).requests[0].clone();
            second.key = Some("k2".parse().unwrap());
            workload(tracked).requests.push(second);
        }),
    );
    for (number, key) in ["k1", "k2", "k3"].iter().enumerate() {
        let since = 5 - i64::try_from(number).unwrap();
        let later = keyed(key, key, |tracked| workload(tracked).since = since);
        put(&index, later);
    }
    let head = |most| index.head(&reference("db"), most);
    assert_eq!(names(&head(9)), ["both", "k3", "k2", "k1"]);
    assert_eq!(names(&head(2)), ["both", "k3"]);
}

#[test]
fn a_change_marks_the_queue_of_its_key_and_no_other() {
    let index = empty();
    add(&index, "db", "p", true);
    let (one, other) = (queue_of("db", "k1"), queue_of("db", "k2"));
    index.open(&one);
    index.open(&other);
    put(&index, keyed("a", "k1", |_| {}));
    assert_eq!(index.take_marked(), [one].into());
    index.pod_ended("batch", "p/k2/.lock", &"x".into());
    assert_eq!(index.take_marked(), [other.clone()].into());
    assert_eq!(index.touched(&other), ["x".into()].into());
}

#[test]
fn one_that_waits_moves_to_the_queue_of_another_key_and_is_new_there() {
    let index = empty();
    add(&index, "db", "p", true);
    let (before, after) = (queue_of("db", "k1"), queue_of("db", "k2"));
    put(&index, keyed("a", "k1", |_| {}));
    put(
        &index,
        keyed("a", "k2", |tracked| workload(tracked).version = "11".into()),
    );
    assert!(index.all_waiting(&before).is_empty() && index.newcomers(&before).is_empty());
    assert_eq!(names_of(&index.newcomers(&after)), ["a"]);
    assert_eq!(names(&index.head(&reference("db"), 9)), ["a"]);
    assert!(index.close(&before), "nobody is left");
    assert!(!index.close(&after));
}

#[test]
fn one_that_holds_stays_with_the_key_that_started_it_whatever_it_says() {
    let index = empty();
    add(&index, "db", "p", true);
    put(
        &index,
        keyed("a", "k2", |tracked| started(tracked, "p/k1/.lock")),
    );
    assert_eq!(names(&index.slice(&queue_of("db", "k1"), 9).bound), ["a"]);
    assert!(index.slice(&queue_of("db", "k2"), 9).bound.is_empty());
    // Suspended because its slot was lost: it comes first at that key.
    let lost = |tracked: &mut TrackedWorkload| {
        started(tracked, "p/k1/.lock");
        workload(tracked).phase = Phase::Idle;
    };
    put(&index, keyed("a", "k2", lost));
    assert_eq!(names(&index.slice(&queue_of("db", "k1"), 9).bound), ["a"]);
    put(&index, keyed("a", "k2", |_| {}));
    assert_eq!(names(&index.all_waiting(&queue_of("db", "k2"))), ["a"]);
}

#[test]
fn without_a_key_it_is_a_stray_of_a_keyed_semaphore_alone() {
    let index = empty();
    add(&index, "db", "p", true);
    let without = tracked("a", |_| {});
    put(&index, without.clone());
    assert_eq!(names_of(&unclaimed(&index)), ["a"]);
    let no_key = Unclaimed::Obstacle(Obstacle::NoKey("db".into()));
    assert_eq!(index.state().why_unclaimed(&without), Some(no_key));
    put(
        &index,
        keyed("a", "k1", |tracked| workload(tracked).version = "11".into()),
    );
    assert!(unclaimed(&index).is_empty());
    // A semaphore that is not keyed ignores the key.
    add(&index, "plain", "q", false);
    let plain = keyed("b", "k1", |tracked| {
        workload(tracked).requests[0].semaphore = "plain".into();
    });
    assert_eq!(index.state().why_unclaimed(&plain), None);
    assert!(index.ignores_key(&plain));
    put(&index, plain);
    assert_eq!(names(&index.all_waiting(&queue("plain"))), ["b"]);
}

#[test]
fn two_semaphores_can_mean_the_same_lock_key() {
    let index = empty();
    add(&index, "db", "p", true);
    add(&index, "plain", "p/k1", false);
    put(
        &index,
        tracked("a", |tracked| {
            workload(tracked).requests[0].semaphore = "plain".into();
            started(tracked, "p/k1/.lock");
        }),
    );
    put(
        &index,
        keyed("b", "k1", |tracked| started(tracked, "p/k1/.lock")),
    );
    assert_eq!(names(&index.slice(&queue("plain"), 9).bound), ["a"]);
    assert_eq!(names(&index.slice(&queue_of("db", "k1"), 9).bound), ["b"]);
    // A keyed semaphore does not use the lock key at its own prefix.
    let above = index.state().queues_at(&"batch".into(), "p/.lock");
    assert_eq!(above, []);
}

#[test]
fn a_queue_with_a_contender_of_a_workload_is_marked_when_the_workload_changes_its_key() {
    let index = empty();
    add(&index, "db", "p", true);
    let (old, new) = (queue_of("db", "k1"), queue_of("db", "k2"));
    index.open(&old);
    index.open(&new);
    put(&index, keyed("a", "k1", |_| {}));
    index.workloads_of(&old, &[&"a".into()]);
    index.take_marked();
    let both: BTreeSet<_> = [old.clone(), new.clone()].into();
    put(&index, keyed("a", "k2", |_| {}));
    assert_eq!(index.take_marked(), both);
    // It has its slot at the new key: its slot at the old one is settled.
    put(
        &index,
        keyed("a", "k2", |tracked| started(tracked, "p/k2/.lock")),
    );
    assert_eq!(index.take_marked(), both);
    index.workloads_of(&old, &[]);
    index.remove(&"a".into());
    assert_eq!(index.take_marked(), [new].into());
}

#[test]
fn contenders_may_come_and_go_one_by_one() {
    let index = empty();
    add(&index, "db", "p", true);
    let queue = queue_of("db", "k1");
    index.open(&queue);
    put(&index, keyed("a", "k2", |_| {}));
    index.take_marked();
    let uid: Uid = "a".into();
    let known = index.contends(&queue, &uid, Some(&"s".into()));
    assert_eq!(
        known.map(|workload| workload.uid.clone()),
        Some(uid.clone())
    );
    put(
        &index,
        keyed("a", "k2", |tracked| started(tracked, "p/k2/.lock")),
    );
    assert!(index.take_marked().contains(&queue));
    assert_eq!(index.contends(&queue, &uid, None), None);
    index.remove(&uid);
    assert!(!index.take_marked().contains(&queue));
    assert!(index.state().contenders.queues_of(&uid).next().is_none());
}

#[test]
fn a_deleted_queue_has_no_contenders() {
    let index = empty();
    add(&index, "db", "p", true);
    let uid: Uid = "a".into();
    let count = || index.state().contenders.queues_of(&uid).count();
    for key in ["k1", "k2"] {
        index.open(&queue_of("db", key));
        index.workloads_of(&queue_of("db", key), &[&uid]);
    }
    assert_eq!(count(), 2);
    assert!(index.close(&queue_of("db", "k1")));
    assert_eq!(count(), 1);
    block_on(index.remove_semaphore(&reference("db")));
    assert_eq!(count(), 0);
}
