//! The end of a semaphore that is deleted.

use super::*;

impl World {
    /// A semaphore whose only workload has ended is deleted, and everything of it was cleaned up but for sessions.
    fn cleaned_up(keyed: bool, queue: &QueueRef) -> Self {
        let mut world = Self::default();
        world.put(spec(1, keyed), true, GRANTED);
        world.list();
        world.workload("a", queue);
        world.settle();
        world.record();
        world.list();
        world.put(terminating(spec(1, keyed)), true, GRANTED);
        // The searches from time to time say nothing of the last one.
        world.settle();
        world.sessions();
        let workload = Arc::make_mut(&mut world.store.workloads.values_mut().next().unwrap()[0]);
        workload.phase = Phase::Finished { at_rest: true };
        let now = world.now();
        world.engine.touched(queue, now, &world.store);
        world.settle();
        world.store.workloads.clear();
        world.list();
        world.settle();
        assert_eq!(world.duties.pop(), Some(Duty::ListSessions));
        world.duties.clear();
        world
    }

    /// A transaction without an answer is applied at last, which grants a slot to a session that ends at once.
    fn is_late(&mut self, lock_key: &str) {
        let body = br#"{"Limit":1,"Holders":{"late":true}}"#;
        let flags = crate::lock::SEMAPHORE_FLAGS;
        self.consul.put(lock_key, body, flags, None);
    }

    /// Nothing is left in Consul when the finalizer is removed.
    fn leaves_nothing(&mut self, lock_key: &str) {
        assert_eq!(self.duties, [Duty::ListPrefix]);
        self.list();
        self.run(30);
        self.list();
        self.run(30);
        assert_eq!(self.duties, [Duty::ListPrefix, Duty::RemoveFinalizer]);
        assert!(self.consul.get(lock_key).is_none());
    }
}

#[test]
fn what_was_written_late_at_a_key_is_found_after_the_last_session_has_ended() {
    for key in ["k", "unknown"] {
        let mut world = World::cleaned_up(true, &queue("db", Some("k")));
        let lock_key = format!("p/{key}/.lock");
        world.is_late(&lock_key);
        world.sessions();
        world.leaves_nothing(&lock_key);
    }
}

#[test]
fn a_listing_from_before_the_last_session_had_ended_does_not_count() {
    let mut world = World::cleaned_up(false, &queue("db", None));
    let prefix = spec(1, false).settings.prefix;
    let old = world.consul.list(&prefix, world.now().moment);
    world.seconds += 1;
    world.is_late("p/.lock");
    let (now, db) = (world.now(), semaphore("db"));
    world
        .engine
        .listed_sessions(&db, Ok(Vec::new()), now, &world.store);
    world.engine.listed(&db, Ok(old), now, &world.store);
    world.settle();
    world.leaves_nothing("p/.lock");
}
