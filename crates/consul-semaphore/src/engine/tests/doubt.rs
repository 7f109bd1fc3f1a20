//! Requests for several slots where transactions are full, refused or lost, prefixes can't be read, and slots are
//! lost.

use super::{several::asks, *};
use crate::{CronJob, Mode, OnContention, OnSlotLost};

/// Another program takes a slot that is free.
fn takes(world: &mut World, name: &str) {
    let session = world.consul.make_session("other");
    let mut lock = world.lock(name);
    lock["Holders"][session.as_str()] = true.into();
    let flags = crate::lock::SEMAPHORE_FLAGS;
    let body = lock.to_string();
    let key = format!("{name}/.lock");
    world.consul.put(&key, body.as_bytes(), flags, None);
    let key = format!("{name}/{session}");
    world.consul.put(&key, b"", flags, Some(session));
}

#[test]
fn a_first_grant_that_finds_no_room_in_a_transaction_follows_whole() {
    let mut world = World::default();
    for name in ["db", "licenses"] {
        let settings = Settings {
            name: name.to_owned(),
            prefix: name.parse().unwrap(),
            ..spec(6, false).settings
        };
        let now = world.now();
        world
            .engine
            .add_standalone(&semaphore(name), settings, 6, now, &world.store);
    }
    for name in ["a", "b"] {
        world.comes(name, &[asks("db", 3)]);
    }
    world.comes("c", &[asks("licenses", 3)]);
    for name in ["a", "b", "c"] {
        let at = if name == "c" { "licenses" } else { "db" };
        let holders = world.holders(at).into_iter();
        let granted: BTreeSet<u64> = holders
            .filter(|(of, ..)| of == name)
            .map(|(.., index)| index)
            .collect();
        assert_eq!(granted.len(), 1, "{name}");
    }
    assert_eq!(world.started, ["a", "b", "c"]);
    // Two and two fit into one transaction.
    world.ends("a");
    world.ends("c");
    world.comes("d", &[asks("db", 2), asks("licenses", 2)]);
    assert_eq!(world.started[3..], ["d"]);
}

#[test]
fn a_busy_prefix_fails_nobody_elses_release() {
    let mut world = World::with(&[("db", 1), ("licenses", 1)]);
    world.comes("two", &[asks("db", 1)]);
    world.comes("one", &[asks("licenses", 1)]);
    world.comes("both", &[asks("db", 1), asks("licenses", 1)]);
    world.ends("two");
    world.busy = Some("db");
    world.change(&Uid::from("one"), |workload| {
        workload.phase = Phase::Finished { at_rest: true };
    });
    world.runs_for(30, 1);
    assert_eq!(world.holders("licenses"), []);
    assert_eq!(world.started, ["two", "one"]);
    world.busy = None;
    world.list_all();
    world.settle();
    assert_eq!(world.started[2..], ["both"]);
}

#[test]
fn a_mutex_in_its_lock_delay_refuses_the_whole_request() {
    let mut world = World::with(&[("db", 1)]);
    let settings = Settings {
        name: "mutex".to_owned(),
        prefix: "mutex".parse().unwrap(),
        mode: Mode::Mutex,
        ..spec(1, false).settings
    };
    let now = world.now();
    let mutex = semaphore("mutex");
    world
        .engine
        .add_standalone(&mutex, settings, 64, now, &world.store);
    world.comes("before", &[asks("mutex", 1), asks("db", 1)]);
    world.ends("before");
    assert_eq!(world.started, ["before"]);
    // Another program dies as its holder.
    world.consul.lock_delay = 15;
    let session = world.consul.make_session("other");
    let flags = crate::lock::MUTEX_FLAGS;
    world
        .consul
        .put("mutex/.lock", b"", flags, Some(session.clone()));
    world.consul.destroy(&session);
    world.list_all();
    let both = Workload {
        requests: vec![asks("mutex", 1), asks("db", 1)],
        ..samples::workload("both", Phase::Idle, None, None)
    };
    world.joins(&Arc::new(both));
    assert!(!world.runs_for(30, 1), "it is tried again and again");
    assert_eq!((world.started.len(), world.holders("db")), (1, vec![]));
    world.consul.seconds = 15;
    world.settle();
    assert_eq!(world.started, ["before", "both"]);
}

#[test]
fn a_grant_that_was_cut_short_is_judged_once_all_prefixes_are_read() {
    let semaphores = [("db", 1), ("licenses", 1)];
    for unread in ["db", "licenses"] {
        let mut world = World::with(&semaphores);
        world.starts_are_lost = true;
        world.comes("a", &[asks("db", 1), asks("licenses", 1)]);
        world.starts_are_lost = false;
        world.unread = Some(unread);
        world.restarts(&semaphores);
        for _ in 0..20 {
            world.seconds += 60;
            world.settle();
        }
        assert!(world.started.is_empty() && world.given_back().is_empty());
        world.unread = None;
        world.seconds += 600;
        world.settle();
        assert_eq!(
            (&world.started[..], world.given_back().len()),
            (&["a".to_owned()][..], 0)
        );
    }
}

#[test]
fn a_slot_that_can_not_be_had_again_is_treated_by_its_own_semaphore() {
    for (policy, runs) in [
        (OnSlotLost::Reacquire, false),
        (OnSlotLost::Suspend, false),
        (OnSlotLost::Continue, true),
    ] {
        let mut world = World::with(&[("db", 1), ("licenses", 1)]);
        world.settings("licenses", |settings| settings.on_slot_lost = policy);
        world.comes("a", &[asks("db", 1), asks("licenses", 1)]);
        world.loses("licenses", "a");
        takes(&mut world, "licenses");
        for _ in 0..5 {
            world.seconds += 10;
            world.list_all();
            world.settle();
        }
        let phase = &world.workload_in("db", "a").phase;
        assert_eq!(*phase == Phase::Running, runs, "{policy:?}");
        let held = world.holders("db").len();
        assert_eq!(
            held,
            usize::from(runs),
            "{policy:?}: the others are given back"
        );
    }
}

#[test]
fn of_several_cooldowns_the_longest_says_what_is_too_late() {
    for semaphores in [["long", "short"], ["short", "long"]] {
        for (late, starts) in [(60, true), (6000, false)] {
            let mut world = World::with(&[("long", 1), ("short", 1)]);
            for (name, cooldown) in [("long", 600), ("short", 10)] {
                let cooldown = Duration::from_secs(cooldown);
                world.settings(name, |settings| settings.cooldown = cooldown);
            }
            let scheduled = world.now().time - jiff::SignedDuration::from_secs(late);
            world.waits("a", &semaphores, |workload| {
                workload.on_contention = OnContention::Fail;
                workload.cron_job = Some(Arc::new(CronJob {
                    api_version: "batch/v1".into(),
                    kind: "CronJob".into(),
                    name: "cron".into(),
                    uid: "uid".into(),
                    scheduled: Some(scheduled),
                }));
            });
            let expected = if starts { (1, 0) } else { (0, 1) };
            let found = (world.started.len(), world.failed.len());
            assert_eq!(found, expected, "{semaphores:?}, {late} s late");
        }
    }
}
