use std::time::Duration;

mod admission;
mod keyed;
mod load;
mod places;
mod remnants;
mod scope;
mod several;
mod starts;
mod tenants;
mod waits;

use futures::{FutureExt, executor::block_on};

use super::*;
use consul_client::clock::{self, Moment};
use consul_semaphore::{Granted, OnContention, Phase, SlotRequest};
use consul_semaphore_api::annotations::AnnotationError;
use consul_semaphore_workload::Obstacle;

fn reference(name: &str) -> SemaphoreRef {
    SemaphoreRef {
        namespace: "batch".into(),
        name: name.into(),
    }
}

fn queue(name: &str) -> QueueRef {
    QueueRef::new(&reference(name), None)
}

/// Workloads of a queue that a pass reads.
struct Slice {
    bound: Vec<Arc<Workload>>,
    waiting: Vec<Arc<Workload>>,
}

impl Index {
    /// The workloads of a queue that a pass reads which reads so many of each lane.
    fn slice(&self, queue: &QueueRef, most: usize) -> Slice {
        Slice {
            bound: self.bound(queue),
            waiting: self.waiting(queue, &Reach::first(most)),
        }
    }
}

fn queue_of(name: &str, key: &str) -> QueueRef {
    QueueRef::new(&reference(name), Some(key.parse().unwrap()))
}

fn offer(prefix: &str, keyed: bool) -> Offer {
    Offer {
        prefix: prefix.parse().unwrap(),
        keyed,
        consul: None,
        credential: Some(Credential::Operator),
        limit: 3,
        wait_timeout: None,
        restrictions: Restrictions::default(),
    }
}

fn add(index: &Index, name: &str, prefix: &str, keyed: bool) {
    block_on(index.add_semaphore(
        &reference(name),
        offer(prefix, keyed),
        Manager::ThisOperator,
    ));
}

/// A semaphore that another operator manages.
fn add_others(index: &Index, name: &str, prefix: &str, keyed: bool) {
    block_on(index.add_semaphore(&reference(name), offer(prefix, keyed), Manager::Others));
}

/// An index of a cluster whose semaphores are known.
fn empty() -> Index {
    let index = Index::default();
    index.semaphores_are_known(&WatchScope::Cluster);
    index
}

/// A workload in the queue for the semaphore `db`, with these changes.
fn tracked(name: &str, change: impl FnOnce(&mut TrackedWorkload)) -> TrackedWorkload {
    let mut tracked = TrackedWorkload {
        namespace: "batch".into(),
        workload: Arc::new(Workload {
            kind: consul_semaphore::KindName::default(),
            name: name.into(),
            uid: name.into(),
            version: "10".into(),
            seen: Moment::default(),
            requests: vec![SlotRequest::one("db", None)],
            on_contention: OnContention::Wait,
            cron_job: None,
            priority: 0,
            hold: false,
            since: 0,
            phase: Phase::Idle,
            grace: Duration::from_secs(30),
            was_suspended: true,
            traits: consul_semaphore::Traits::default(),
            granted: None,
            reported: Vec::new(),
            wait: consul_semaphore::Wait::default(),
        }),
        barred_from: Vec::new(),
        obstacle: None,
        bad_key: None,
        named_with_key: Vec::new(),
        is_hook: false,
        shape: consul_semaphore_workload::Shape::Plain,
    };
    change(&mut tracked);
    tracked
}

fn put(index: &Index, tracked: TrackedWorkload) {
    index.put(&tracked.workload.uid.clone(), Some(tracked));
}

/// An index with the semaphore `db`, whose queue has had its first pass.
fn with_db() -> Index {
    let index = empty();
    add(&index, "db", "db", false);
    index.take_marked();
    index
}

/// The workload, for changes.
fn workload(tracked: &mut TrackedWorkload) -> &mut Workload {
    Arc::make_mut(&mut tracked.workload)
}

fn names(workloads: &[Arc<Workload>]) -> Vec<&str> {
    workloads
        .iter()
        .map(|workload| workload.name.as_ref())
        .collect()
}

/// The workloads that no semaphore claims, in namespaces whose semaphores are all known.
fn unclaimed(index: &Index) -> Vec<TrackedWorkload> {
    let all: BTreeSet<Uid> = index.state().unclaimed.iter().cloned().collect();
    let unclaimed = all.iter().filter_map(|uid| index.unclaimed(uid));
    unclaimed.map(|(tracked, _)| tracked).collect()
}

/// The workloads that run without a grant, in namespaces whose semaphores are all known.
fn ungranted(index: &Index) -> Vec<TrackedWorkload> {
    let all: BTreeSet<Uid> = index.state().ungranted.iter().cloned().collect();
    all.iter().filter_map(|uid| index.ungranted(uid)).collect()
}

/// The workloads of which pods may be left, and whose pods are asked for now.
fn unproved(index: &Index) -> Vec<TrackedWorkload> {
    let state = index.state();
    let all: BTreeSet<Uid> = state.remnants.iter().map(|(uid, _)| uid.clone()).collect();
    drop(state);
    all.iter().filter_map(|uid| index.unproved(uid)).collect()
}

fn names_of(tracked: &[TrackedWorkload]) -> Vec<&str> {
    tracked
        .iter()
        .map(|tracked| tracked.workload.name.as_ref())
        .collect()
}

/// Whether the queue of `db` is due a pass, and no other.
fn marked(index: &Index) -> bool {
    let marked = index.take_marked();
    assert!(marked.iter().all(|marked| *marked == queue("db")));
    !marked.is_empty()
}

#[test]
fn an_irrelevant_change_marks_no_queue_and_updates_the_version() {
    let index = with_db();
    put(&index, tracked("a", |_| {}));
    assert!(marked(&index));
    put(
        &index,
        tracked("a", |tracked| workload(tracked).version = "11".into()),
    );
    assert!(!marked(&index));
    let waiting = index.slice(&queue("db"), 9).waiting;
    assert_eq!(&*waiting[0].version, "11");
    let urgent = |tracked: &mut TrackedWorkload| {
        workload(tracked).version = "12".into();
        workload(tracked).priority = 1;
    };
    put(&index, tracked("a", urgent));
    assert!(marked(&index));
}

#[test]
fn each_change_is_returned_once_and_the_first_time_everything() {
    let index = with_db();
    let take_changes = || {
        let changes = index.changes(&queue("db"))?;
        let workloads: Vec<_> = changes.workloads.iter().map(ToString::to_string).collect();
        Some((workloads, changes.sessions))
    };
    let nothing = Some((Vec::new(), false));
    let changed = Some((vec!["a".to_owned()], false));
    let runs = |version: &str| {
        tracked("a", |tracked| {
            workload(tracked).version = version.into();
            workload(tracked).phase = Phase::Running;
            workload(tracked).granted = Some(Granted::by("db/s", "s"));
        })
    };
    assert_eq!(take_changes(), None);
    assert_eq!(take_changes(), nothing);
    put(&index, runs("10"));
    assert!(marked(&index));
    assert_eq!(take_changes(), changed);
    put(&index, runs("11"));
    assert!(!marked(&index), "it says the same");
    assert_eq!(
        take_changes(),
        changed,
        "whoever writes to it names this version"
    );
    assert_eq!(take_changes(), nothing);
    index.on_session_change(queue("db"))();
    assert!(marked(&index));
    assert_eq!(take_changes(), Some((Vec::new(), true)));
    index.remove(&"a".into());
    assert_eq!(take_changes(), changed);
    add(&index, "db", "db", false);
    assert_eq!(take_changes(), None, "its Jobs have other places");
}

#[test]
fn a_workload_that_must_not_wait_is_in_the_slice_wherever_it_is_queued() {
    let index = with_db();
    for (name, since) in [("a", 1), ("b", 2), ("hasty", 3), ("c", 4), ("hastier", 5)] {
        let hasty = name.starts_with("hast");
        put(
            &index,
            tracked(name, |tracked| {
                workload(tracked).since = since;
                workload(tracked).on_contention = if hasty {
                    OnContention::Skip
                } else {
                    OnContention::Wait
                };
            }),
        );
    }
    let waiting = |most| index.slice(&queue("db"), most).waiting;
    assert_eq!(names(&waiting(1)), ["a", "hasty", "hastier"]);
    assert_eq!(names(&waiting(2)), ["a", "b", "hasty", "hastier"]);
    assert_eq!(names(&waiting(9)), ["a", "b", "hasty", "c", "hastier"]);
    put(
        &index,
        tracked("hasty", |tracked| workload(tracked).hold = true),
    );
    assert_eq!(names(&waiting(1)), ["a", "hastier"]);
}

#[test]
fn the_queue_is_by_loss_priority_age_and_name() {
    let index = with_db();
    put(
        &index,
        tracked("younger", |tracked| workload(tracked).since = 5),
    );
    put(&index, tracked("b", |_| {}));
    put(&index, tracked("a", |_| {}));
    put(
        &index,
        tracked("urgent", |tracked| workload(tracked).priority = 10),
    );
    put(
        &index,
        tracked("lost", |tracked| {
            workload(tracked).since = 9;
            workload(tracked).granted = Some(Granted::by("db/s", "s"));
        }),
    );
    // It is queued once no pod of it is left.
    let slice = index.slice(&queue("db"), 4);
    assert_eq!(names(&slice.waiting), ["urgent", "a", "b", "younger"]);
    index.proved(&unproved(&index)[0]);
    let slice = index.slice(&queue("db"), 3);
    assert_eq!(names(&slice.waiting), ["lost", "urgent", "a", "b"]);
    assert_eq!(index.all_waiting(&queue("db")).len(), 5);
}

#[test]
fn a_change_moves_a_workload_and_marks_the_queue() {
    let index = with_db();
    put(&index, tracked("a", |_| {}));
    assert!(marked(&index));
    assert!(!marked(&index));
    put(
        &index,
        tracked("a", |tracked| {
            workload(tracked).version = "11".into();
            workload(tracked).phase = Phase::Running;
            workload(tracked).granted = Some(Granted::by("db/s", "s"));
        }),
    );
    assert!(marked(&index));
    let slice = index.slice(&queue("db"), 9);
    assert_eq!(
        (names(&slice.waiting), names(&slice.bound)),
        (vec![], vec!["a"])
    );
    index.remove(&"a".into());
    assert!(marked(&index));
    assert!(index.slice(&queue("db"), 9).bound.is_empty());
}

#[test]
fn one_that_holds_a_slot_does_not_wait() {
    let index = with_db();
    put(&index, tracked("a", |_| {}));
    put(&index, tracked("b", |_| {}));
    // Nothing is known of the last one.
    let held = ["a", "gone"].map(Uid::from);
    let queued = || {
        let queued = index.queued(&queue("db"), held.iter());
        (queued.waiting, queued.starting)
    };
    assert_eq!(queued(), (1, vec!["a".into()]));
    put(
        &index,
        tracked("a", |tracked| {
            workload(tracked).version = "11".into();
            workload(tracked).phase = Phase::Running;
        }),
    );
    assert_eq!(queued(), (1, Vec::new()));
}

#[test]
fn an_older_version_changes_nothing() {
    let index = with_db();
    put(
        &index,
        tracked("a", |tracked| workload(tracked).hold = true),
    );
    put(
        &index,
        tracked("a", |tracked| workload(tracked).version = "9".into()),
    );
    assert_eq!(index.all_waiting(&queue("db")).len(), 0);
}

/// A version goes back, for example, after etcd was restored from a backup.
#[test]
fn a_version_that_went_back_counts_if_it_was_asked_for_later() {
    let held = |version: &str, seen: u64| {
        tracked("a", |tracked| {
            let workload = workload(tracked);
            (workload.version, workload.hold) = (version.into(), seen > 1);
            workload.seen = Moment::from_boot(Duration::from_secs(seen));
        })
    };
    let uid = "a".into();
    let index = with_db();
    let version = || index.workload(&uid).unwrap().version.to_string();
    put(&index, held("100", 1));
    // What the watch and the answer to a write deliver may be late.
    put(&index, held("50", 2));
    index.written(&uid, Some(held("50", 2)));
    assert_eq!(version(), "100");
    index.reread(&uid, Some(held("50", 1)));
    assert_eq!(version(), "100", "it was asked for before");
    index.reread(&uid, Some(held("50", 2)));
    assert_eq!(version(), "50");
    // So may an item of a list that began later.
    index.list_begins(&KindName::default(), &WatchScope::Cluster);
    put(&index, held("40", 3));
    index.list_ends(&KindName::default(), &WatchScope::Cluster);
    assert_eq!(version(), "40");
}

#[test]
fn an_answer_does_not_bring_back_a_workload_that_is_gone() {
    let index = with_db();
    put(&index, tracked("a", |_| {}));
    index.remove(&"a".into());
    index.written(
        &"a".into(),
        Some(tracked("a", |tracked| {
            workload(tracked).version = "12".into();
        })),
    );
    assert_eq!(index.workload(&"a".into()), None);
}

#[test]
fn what_a_new_list_does_not_have_is_gone() {
    let index = with_db();
    put(&index, tracked("a", |_| {}));
    put(&index, tracked("b", |_| {}));
    index.list_begins(&KindName::default(), &WatchScope::Cluster);
    put(&index, tracked("b", |_| {}));
    // An answer that arrives meanwhile is not part of the list.
    index.written(
        &"a".into(),
        Some(tracked("a", |tracked| {
            workload(tracked).version = "12".into();
        })),
    );
    // What is not listed yet may still come: refused writes to it stay known meanwhile.
    assert!(index.workload(&"a".into()).is_some());
    index.list_ends(&KindName::default(), &WatchScope::Cluster);
    assert_eq!(names(&index.all_waiting(&queue("db"))), ["b"]);
}

#[test]
fn newcomers_are_returned_once_and_not_after_a_list() {
    let index = with_db();
    index.list_begins(&KindName::default(), &WatchScope::Cluster);
    put(&index, tracked("old", |_| {}));
    index.list_ends(&KindName::default(), &WatchScope::Cluster);
    put(&index, tracked("new", |_| {}));
    put(&index, tracked("gone", |_| {}));
    index.remove(&"gone".into());
    assert!(
        index.newcomers(&queue("db")).is_empty(),
        "it may fail instead of waiting"
    );
    index.admit(&queue("db"), &"new".into());
    assert_eq!(names_of(&index.newcomers(&queue("db"))), ["new"]);
    put(
        &index,
        tracked("new", |tracked| workload(tracked).version = "11".into()),
    );
    assert!(index.newcomers(&queue("db")).is_empty());
}

#[test]
fn who_is_made_while_all_are_listed_is_announced() {
    let index = Index::default();
    index.list_begins(&KindName::default(), &WatchScope::Cluster);
    put(&index, tracked("old", |_| {}));
    let now = clock::time().as_second();
    let new = |name| tracked(name, |tracked| workload(tracked).since = now);
    put(&index, new("in the list"));
    index.list_ends(&KindName::default(), &WatchScope::Cluster);
    put(&index, new("before the semaphore"));
    add(&index, "db", "db", false);
    index.semaphores_are_known(&WatchScope::Cluster);
    index.admit(&queue("db"), &"before the semaphore".into());
    assert_eq!(
        names_of(&index.newcomers(&queue("db"))),
        ["before the semaphore", "in the list"]
    );
}

#[test]
fn a_hold_is_announced_once() {
    let index = with_db();
    let mut version = 10;
    let mut put = |change: fn(&mut Workload)| {
        version += 1;
        let later = tracked("a", |tracked| {
            workload(tracked).version = version.to_string().as_str().into();
            change(workload(tracked));
        });
        put(&index, later);
        index.take_held_back().len()
    };
    let hold: fn(&mut Workload) = |workload| workload.hold = true;
    assert_eq!(put(hold), 1, "from the start");
    let later = |workload: &mut Workload| {
        workload.hold = true;
        workload.priority = 1;
    };
    assert_eq!(put(later), 0, "another change");
    assert_eq!(put(|_| {}), 0, "off hold");
    assert_eq!(put(hold), 1, "while it waits");

    let granted = |workload: &mut Workload| {
        workload.phase = Phase::Running;
        workload.granted = Some(Granted::by("db/s", "s"));
        workload.reported = vec!["s".into()];
    };
    assert_eq!(put(granted), 0);
    let stopping = |workload: &mut Workload| {
        workload.hold = true;
        workload.phase = Phase::Stopping;
    };
    assert_eq!(put(stopping), 0, "the operator put it on hold");
    assert_eq!(put(hold), 0, "its pods are gone");

    let ran = |workload: &mut Workload| {
        workload.hold = true;
        workload.phase = Phase::Running;
    };
    assert_eq!(put(ran), 0);
    assert_eq!(put(stopping), 1, "it ran without a slot");
}

/// A policy may have put it on hold, and its user may not know.
#[test]
fn it_is_known_who_was_on_hold_from_the_start() {
    let index = with_db();
    let mut version = 10;
    let mut put = |name, hold| {
        version += 1;
        let later = tracked(name, |tracked| {
            workload(tracked).version = version.to_string().as_str().into();
            workload(tracked).hold = hold;
        });
        put(&index, later);
        index.is_held_from_the_start(&name.into())
    };
    assert!(put("a", true));
    assert!(put("a", true));
    assert!(!put("a", false));
    assert!(!put("a", true), "its user put it on hold later");
    assert!(!put("b", false));
    assert!(!put("b", true));
    assert!(put("c", true));
    index.remove(&"c".into());
    assert!(!index.is_held_from_the_start(&"c".into()));
}

#[test]
fn a_hold_is_announced_when_there_is_a_queue_and_not_after_a_list() {
    let on_hold = |name| tracked(name, |tracked| workload(tracked).hold = true);
    let index = with_db();
    index.list_begins(&KindName::default(), &WatchScope::Cluster);
    put(&index, on_hold("old"));
    index.list_ends(&KindName::default(), &WatchScope::Cluster);
    put(&index, on_hold("gone"));
    index.remove(&"gone".into());
    assert!(index.take_held_back().is_empty());

    let index = empty();
    put(&index, on_hold("a"));
    assert!(index.take_held_back().is_empty());
    assert_eq!(names_of(&unclaimed(&index)), ["a"]);
    add(&index, "db", "db", true);
    assert!(index.take_held_back().is_empty(), "it names no key");
    block_on(index.remove_semaphore(&reference("db")));
    add(&index, "db", "db", false);
    assert_eq!(names_of(&index.take_held_back()), ["a"]);
}

#[test]
fn a_workload_stays_with_the_semaphore_that_started_it() {
    let index = with_db();
    add(&index, "other", "other", false);
    let started = |tracked: &mut TrackedWorkload| {
        workload(tracked).requests[0].semaphore = "other".into();
        workload(tracked).phase = Phase::Running;
        workload(tracked).granted = Some(Granted::by("db/s", "s"));
    };
    put(&index, tracked("a", started));
    assert_eq!(names(&index.slice(&queue("db"), 9).bound), ["a"]);
    // Its annotation was removed.
    put(
        &index,
        tracked("a", |tracked| {
            started(tracked);
            workload(tracked).requests.clear();
        }),
    );
    assert_eq!(names(&index.slice(&queue("db"), 9).bound), ["a"]);
    // Its grant is cleared.
    put(
        &index,
        tracked("a", |tracked| {
            workload(tracked).requests[0].semaphore = "other".into();
        }),
    );
    assert!(index.slice(&queue("db"), 9).bound.is_empty());
    assert_eq!(names(&index.all_waiting(&queue("other"))), ["a"]);
}

#[test]
fn a_workload_belongs_to_the_semaphore_it_names_when_two_share_a_key() {
    let index = with_db();
    add(&index, "twin", "db", false);
    put(
        &index,
        tracked("a", |tracked| {
            workload(tracked).requests[0].semaphore = "twin".into();
            workload(tracked).phase = Phase::Running;
            workload(tracked).granted = Some(Granted::by("db/s", "s"));
        }),
    );
    assert_eq!(names(&index.slice(&queue("twin"), 9).bound), ["a"]);
    assert!(index.slice(&queue("db"), 9).bound.is_empty());
}

#[test]
fn a_workload_whose_semaphore_is_not_there_is_unclaimed_until_it_is() {
    let index = empty();
    put(&index, tracked("waits", |_| {}));
    put(
        &index,
        tracked("runs", |tracked| workload(tracked).phase = Phase::Running),
    );
    let all = unclaimed(&index);
    assert_eq!(names_of(&all), ["runs", "waits"]);
    assert_eq!(names_of(&ungranted(&index)), ["runs"]);
    add(&index, "db", "db", false);
    assert!(unclaimed(&index).is_empty());
    assert_eq!(names(&index.all_waiting(&queue("db"))), ["waits"]);
    block_on(index.remove_semaphore(&reference("db")));
    assert_eq!(unclaimed(&index).len(), 2);
}

#[test]
fn a_workload_that_cannot_be_queued_is_unclaimed() {
    let index = with_db();
    put(
        &index,
        tracked("malformed", |tracked| {
            workload(tracked).requests.clear();
            workload(tracked).phase = Phase::Running;
            tracked.obstacle = Some(Obstacle::Malformed(AnnotationError::Empty));
        }),
    );
    put(
        &index,
        tracked("managed", |tracked| {
            workload(tracked).requests.clear();
            workload(tracked).phase = Phase::Running;
            tracked.obstacle = Some(Obstacle::Managed("Kueue".into()));
        }),
    );
    let all = unclaimed(&index);
    assert_eq!(names_of(&all), ["malformed", "managed"]);
    assert_eq!(names_of(&ungranted(&index)), ["malformed"]);
}

#[test]
fn the_end_of_a_pod_reaches_the_semaphores_of_its_lock_key() {
    let index = with_db();
    index.pod_ended("elsewhere", "db/.lock", &"a".into());
    assert!(!marked(&index));
    index.pod_ended("batch", "db/.lock", &"a".into());
    assert!(marked(&index));
    assert_eq!(index.touched(&queue("db")), ["a".into()].into());
    assert!(index.touched(&queue("db")).is_empty());
}

#[test]
fn finished_workloads_cost_nothing() {
    for at_rest in [false, true] {
        let index = with_db();
        put(
            &index,
            tracked("a", |tracked| {
                workload(tracked).phase = Phase::Finished { at_rest };
                workload(tracked).granted = Some(Granted::by("db/s", "s"));
            }),
        );
        let slice = index.slice(&queue("db"), 9);
        assert!(slice.bound.is_empty() && slice.waiting.is_empty());
        assert!(index.workload(&"a".into()).is_some());
    }
}

#[test]
fn one_that_runs_without_a_grant_is_to_be_suspended_whether_its_semaphore_is_there_or_not() {
    let index = with_db();
    put(
        &index,
        tracked("a", |tracked| workload(tracked).phase = Phase::Running),
    );
    assert!(index.ungranted_changed().now_or_never().is_some());
    assert_eq!(names_of(&ungranted(&index)), ["a"]);
    assert!(index.slice(&queue("db"), 9).bound.is_empty());
    put(
        &index,
        tracked("a", |tracked| workload(tracked).version = "11".into()),
    );
    assert!(ungranted(&index).is_empty());
    assert_eq!(names(&index.all_waiting(&queue("db"))), ["a"]);
}

#[test]
fn a_pod_that_ends_while_its_workload_runs_marks_nothing() {
    let index = with_db();
    let started = |phase| {
        move |tracked: &mut TrackedWorkload| {
            workload(tracked).phase = phase;
            workload(tracked).granted = Some(Granted::by("db/s", "s"));
        }
    };
    put(&index, tracked("a", started(Phase::Running)));
    assert!(marked(&index));
    index.pod_ended("batch", "db/.lock", &"a".into());
    assert!(!marked(&index));
    put(&index, tracked("a", started(Phase::Stopping)));
    assert!(marked(&index));
    index.pod_ended("batch", "db/.lock", &"a".into());
    assert!(marked(&index));
    assert_eq!(index.touched(&queue("db")), ["a".into()].into());
}

#[test]
fn neighbours_are_those_that_have_the_same_lock_key() {
    let index = empty();
    let lock_key = "semaphores/batch/db/.lock";
    let of_db = || index.neighbours(&queue("db"), lock_key);
    add(&index, "db", "semaphores/batch/db", false);
    assert!(of_db().is_empty());
    add_others(&index, "same", "semaphores/batch/db", false);
    add(&index, "other", "semaphores/batch/other", false);
    add(&index, "keyed", "semaphores/batch/db", true);
    assert_eq!(of_db(), [queue("same")]);
    let of_key = index.neighbours(&queue_of("keyed", "k"), "semaphores/batch/db/k/.lock");
    assert!(of_key.is_empty());
    block_on(index.remove_semaphore(&reference("same")));
    assert!(of_db().is_empty());
    add(&index, "above", "semaphores/batch", true);
    assert_eq!(of_db(), [queue_of("above", "db")]);
}

#[test]
fn a_callback_of_a_session_does_not_keep_the_index() {
    let index = empty();
    let due = index.on_session_change(queue("db"));
    due();
    assert_eq!(index.take_marked(), [queue("db")].into());
    let shared = Arc::downgrade(&index.0);
    drop(index);
    assert!(shared.upgrade().is_none());
    due();
}
