//! Two namespaces with one lock key, and what a workload of one of them does to those of the other.

use super::*;
use crate::{OnContention, Wait};

/// What keeps a semaphore of the other namespace from its slots.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    /// The operator refuses its prefix.
    Refused,
    /// The token of the semaphore is not known yet.
    Unread,
    /// The token of the semaphore may read and not write.
    ReadOnly,
}

fn theirs() -> QueueRef {
    let db = SemaphoreRef {
        namespace: "other".into(),
        name: "db".into(),
    };
    QueueRef::new(&db, None)
}

impl World {
    /// The namespaces `batch` and `other` have a semaphore `db` with one slot at the same lock key.
    fn with_neighbour(access: ConsulAccess) -> Self {
        let mut world = Self::with(&[("db", 1)]);
        let settings = Settings {
            name: "db".to_owned(),
            prefix: "db".parse().unwrap(),
            ..spec(1, false).settings
        };
        let spec = Spec {
            settings,
            generation: Some(1),
            keyed: false,
        };
        let known = || {
            let known = Known {
                recorded: vec![1],
                ..Known::default()
            };
            (known, access)
        };
        let (now, db) = (world.now(), theirs().semaphore);
        world.engine.put(&db, spec, true, known, now, &world.store);
        world.engine.touched(&theirs(), now, &world.store);
        world.sessions_of(&db);
        world
    }

    /// Consul answers that the node of this semaphore has no sessions.
    fn sessions_of(&mut self, semaphore: &SemaphoreRef) {
        let now = self.now();
        self.engine
            .listed_sessions(semaphore, Ok(Vec::new()), now, &self.store);
        self.settle();
    }

    /// A workload comes in a queue of `db`, made then, with this policy.
    fn comes_to(&mut self, queue: &QueueRef, name: &str, made: i64, policy: OnContention) {
        let workload = Arc::new(Workload {
            requests: vec![SlotRequest::one("db", None)],
            since: made,
            on_contention: policy,
            wait: Wait {
                created: made,
                ..Wait::default()
            },
            ..samples::workload(name, Phase::Idle, None, None)
        });
        let there = self.store.workloads.entry(queue.clone()).or_default();
        there.push(workload);
        there.sort_by_key(|workload| workload.place());
        let now = self.now();
        self.engine.touched(queue, now, &self.store);
        self.settle();
    }
}

/// A world in which `theirs` of the other namespace is newer than the waiting `ours`, and something keeps it from its
/// slots.
fn world_with(obstacle: Obstacle, policy: OnContention) -> World {
    let since = Moment::default();
    let mut world = World::with_neighbour(match obstacle {
        Obstacle::Refused => ConsulAccess::Refused { since },
        Obstacle::Unread => ConsulAccess::Pending { since },
        Obstacle::ReadOnly => GRANTED,
    });
    if matches!(obstacle, Obstacle::ReadOnly) {
        world.read_only.insert(theirs().semaphore);
    }
    world.comes_to(&theirs(), "theirs", 90, policy);
    world.comes_to(&queue("db", None), "runs", 10, OnContention::ReplaceWaiting);
    world.comes_to(&queue("db", None), "ours", 20, OnContention::ReplaceWaiting);
    world.later(Duration::from_mins(10));
    assert_eq!(world.started, ["runs"], "{obstacle:?}");
    world
}

#[test]
fn a_newer_workload_that_can_use_consul_supersedes_one_of_another_namespace() {
    let mut world = World::with_neighbour(GRANTED);
    let ours = queue("db", None);
    world.comes_to(&ours, "runs", 10, OnContention::ReplaceWaiting);
    world.comes_to(&ours, "ours", 20, OnContention::ReplaceWaiting);
    world.comes_to(&theirs(), "theirs", 90, OnContention::ReplaceWaiting);
    world.later(Duration::from_mins(1));
    assert_eq!(world.failed(), [("ours", "Superseded")]);
}

#[test]
fn a_semaphore_that_is_refused_unread_or_read_only_replaces_nothing() {
    for obstacle in [Obstacle::Refused, Obstacle::Unread, Obstacle::ReadOnly] {
        for policy in [OnContention::ReplaceWaiting, OnContention::ReplaceRunning] {
            let world = world_with(obstacle, policy);
            assert_eq!(world.failed(), [], "{obstacle:?}");
            assert!(world.ended.is_empty(), "{obstacle:?}");
        }
    }
}

#[test]
fn a_newest_one_that_cannot_use_consul_hides_no_newer_one_that_can() {
    for obstacle in [Obstacle::Refused, Obstacle::Unread, Obstacle::ReadOnly] {
        let mut world = world_with(obstacle, OnContention::ReplaceWaiting);
        let ours = queue("db", None);
        world.comes_to(&ours, "newer", 30, OnContention::ReplaceWaiting);
        world.later(Duration::from_mins(1));
        assert_eq!(world.failed(), [("ours", "Superseded")], "{obstacle:?}");
        let Failed::Superseded { by } = &world.failed[0].1 else {
            panic!("{:?}", world.failed)
        };
        assert_eq!(by, "Job batch/newer");
    }
}
