//! Calls of one kind that fail while those of another kind work.

use super::*;

/// How long Consul does not say whose the sessions of contenders are. That is longer than a semaphore without a TTL
/// waits before it is left behind.
const LONG: u64 = 10 * 60;

impl World {
    /// A world in which a contender waits whose session nothing is known of, and Consul does not say what it is.
    fn without_owners(spec: Spec) -> Self {
        let mut world = Self {
            resolves_fail: true,
            ..Self::default()
        };
        let session = world
            .consul
            .make_session("consul-semaphore-operator/other/batch/db/x/u");
        let (key, flags) = (format!("p/{session}"), crate::lock::SEMAPHORE_FLAGS);
        world.consul.put(&key, b"", flags, Some(session));
        world.put(spec, true, GRANTED);
        world.list();
        world.settle();
        world
    }

    /// Lets so many seconds pass. In each second the watch brings what is in Consul.
    fn seconds_pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.list();
            self.settle();
        }
    }
}

#[test]
fn who_owns_a_contender_is_asked_ever_less_often_though_the_prefix_can_be_read() {
    let mut world = World::without_owners(spec(1, false));
    world.workload("a", &queue("db", None));
    world.seconds_pass(LONG);
    // Without jitter the pauses grow to 15 seconds.
    let (reads, asked) = (world.reads, world.resolves);
    let most = usize::try_from(world.seconds / 10).unwrap();
    assert!((15..most).contains(&asked), "asked {asked} times");
    assert!(reads < 5, "read {reads} times");
    assert!(world.started.is_empty(), "the contender may be its own");
    world.resolves_fail = false;
    world.seconds_pass(60);
    world.record();
    assert_eq!(world.started, ["a"]);
    assert!(world.state().obstacle().is_none());
}

#[test]
fn one_that_is_deleted_and_never_learns_who_owns_a_contender_is_left_behind() {
    let mut world = World::without_owners(terminating(spec(1, false)));
    let began = world.now().moment;
    world.seconds_pass(LONG);
    assert_eq!(world.duties.last(), Some(&Duty::LeaveBehind));
    let since = world.state().obstacle().unwrap().since;
    assert!(since <= began, "it has lasted since {since:?}");
}

#[test]
fn a_prefix_that_can_be_read_again_says_nothing_of_what_else_fails() {
    let mut world = World::without_owners(spec(1, false));
    world.seconds_pass(60);
    let since = |world: &World| world.state().obstacle().map(|obstacle| obstacle.since);
    let before = since(&world);
    let (now, db) = (world.now(), semaphore("db"));
    let gone = Err(consul::Error::Gone);
    world.engine.listed(&db, gone, now, &world.store);
    world.settle();
    world.seconds_pass(60);
    assert!(before.is_some() && since(&world) == before);
}
