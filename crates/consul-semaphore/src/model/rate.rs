//! Rates in the model: at most `limit` starts lie in any period, whatever the operator goes through.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};

use super::{
    alone, config,
    operator::Lost,
    requests::Deletion,
    script::{disorder, operator, replicas, rest, script, workloads},
    workloads::Refusal,
    world::{Event, Setup, World},
};
use crate::rate::START_WITHIN;
use consul_client::clock::Moment;

fn rate() -> impl Strategy<Value = Setup> {
    (1..4_u32, 1..90_u64, 0..4_u64).prop_map(|(limit, period, lock_delay)| Setup {
        period: Some(period),
        lock_delay,
        ..alone(limit, 64)
    })
}

/// No session ends early while its operator is replaced: then nobody knows the stamp.
fn without_crash(event: Event) -> Event {
    match event {
        Event::Crash => Event::Pass,
        event => event,
    }
}

proptest! {
    #![proptest_config(config(300))]

    /// While it crashes, is overtaken by another replica, and its calls are lost, late, or answered twice.
    #[test]
    fn any_script_keeps_the_rate(
        setup in rate(),
        script in script([
            (6, workloads()), (8, operator()), (4, disorder()), (1, replicas()), (2, rest()),
        ], 250),
    ) {
        World::run(&setup, &script).settle();
    }

    /// While sessions end early: each is replaced, with the same stamp.
    #[test]
    fn sessions_that_end_early_keep_the_rate(
        setup in rate(),
        script in script([
            (6, workloads()), (8, operator()), (4, disorder()), (2, rest()),
            (1, (0..12_usize).prop_map(Event::Expire).boxed()),
        ], 250),
    ) {
        let script: Vec<Event> = script.into_iter().map(without_crash).collect();
        World::run(&setup, &script).settle();
    }

    /// Undisturbed workloads start as early as the rate allows.
    #[test]
    fn no_start_waits_longer_than_the_rate_asks_for(
        limit in 1..4_u32,
        period in 40..90_u64,
        workloads in vec(-1..2, 1..9),
    ) {
        let mut world = World::new(&Setup { period: Some(period), ..alone(limit, 64) });
        for (position, priority) in workloads.iter().enumerate() {
            world.outside.workloads.create(&format!("w{position}"), "db", *priority);
        }
        world.settle();
        let starts = world.outside.observer.starts.clone();
        prop_assert_eq!(starts.len(), workloads.len());
        let limit = usize::try_from(limit).unwrap();
        for (earlier, later) in starts.iter().zip(starts.iter().skip(limit)) {
            // Every step takes a second here: those of the stamp, the release and the grant.
            let waited = later.since(*earlier).as_secs();
            prop_assert!(waited <= period + 20, "{waited} s of {period} s");
        }
    }
}

const PERIOD: u64 = 60;

/// A rate of one start in [`PERIOD`], and two workloads that wait; the first one's start is the operator's next step.
fn about_to_start() -> World {
    let mut world = World::new(&Setup {
        period: Some(PERIOD),
        ..alone(1, 64)
    });
    for name in ["a", "b"] {
        world.outside.workloads.create(name, "db", 0);
    }
    world.happen(&Event::SeeJobs);
    for _ in 0..40 {
        if world.is_about_to_start() {
            return world;
        }
        world.happen(&Event::Step(None));
        world.happen(&Event::SeeConsul);
    }
    panic!("nothing is to be started");
}

/// How many seconds lie between the first two starts, once nothing happens any more.
fn between(mut world: World) -> u64 {
    world.settle();
    let starts = &world.outside.observer.starts;
    starts[1].since(starts[0]).as_secs()
}

/// When the workload that is left was started, once nothing happens any more.
fn only_start(mut world: World) -> u64 {
    world.settle();
    let &[start] = world.outside.observer.starts.as_slice() else {
        panic!("{:?}", world.outside.observer.starts);
    };
    start.since(Moment::default()).as_secs()
}

#[test]
fn a_start_counts_from_when_it_is_known() {
    let mut world = about_to_start();
    world.happen(&Event::Step(None));
    let between = between(world);
    assert!((PERIOD..PERIOD + 20).contains(&between), "{between}");
}

#[test]
fn a_start_without_an_answer_counts_although_its_workload_is_gone() {
    for crashes in [false, true] {
        let mut world = about_to_start();
        world.happen(&Event::Step(Some(Lost::answer())));
        world.happen(&Event::Delete(0, Deletion::Background));
        world
            .outside
            .by_others(|outside| outside.workloads.complete_all());
        if crashes {
            world.happen(&Event::Crash);
        }
        assert!(between(world) >= PERIOD);
    }
}

#[test]
fn a_workload_that_is_gone_before_its_start_gives_its_slot_back_at_once() {
    let mut world = about_to_start();
    world.happen(&Event::Delete(0, Deletion::Background));
    world.happen(&Event::Step(None));
    assert!(only_start(world) < PERIOD);
}

#[test]
fn a_start_that_is_refused_gives_its_slot_back_at_once() {
    let mut world = about_to_start();
    world.happen(&Event::Forbid(0, Refusal::Forbidden));
    world.happen(&Event::Step(None));
    for _ in 0..9 {
        world.happen(&Event::Pass);
    }
    assert_eq!(world.outside.observer.starts.len(), 1, "the second one");
    assert!(world.outside.seconds < PERIOD);
    world.settle();
}

#[test]
fn a_start_that_meets_a_changed_workload_is_made_again_in_its_slot() {
    let mut world = about_to_start();
    world.happen(&Event::Touch(0));
    world.happen(&Event::Step(None));
    for _ in 0..3 {
        world.happen(&Event::Pass);
    }
    assert_eq!(world.outside.observer.starts.len(), 1);
    let between = between(world);
    assert!((PERIOD..PERIOD + 20).contains(&between), "{between}");
}

#[test]
fn a_start_that_is_late_is_not_sent_and_its_slot_is_free() {
    let mut world = about_to_start();
    world.happen(&Event::Wait(START_WITHIN.as_secs()));
    world.happen(&Event::Step(None));
    world.settle();
    assert_eq!(world.outside.observer.starts.len(), 2);
}

#[test]
fn a_start_that_lands_late_counts_for_an_operator_that_did_not_send_it() {
    let mut world = about_to_start();
    world.happen(&Event::Depose);
    for _ in 0..3 {
        world.happen(&Event::SeeConsul);
    }
    world.happen(&Event::Wait(12));
    assert!(world.straggler_starts());
    world.happen(&Event::Straggle);
    assert_eq!(world.outside.observer.starts.len(), 1);
    assert!(between(world) >= PERIOD);
}

#[test]
fn a_changed_period_or_limit_leaves_slots_held_until_their_stamps() {
    let mut world = about_to_start();
    world.happen(&Event::Step(None));
    world.outside.spec().period = Some(Duration::from_secs(5));
    world.outside.generation += 1;
    for _ in 0..3 {
        world.happen(&Event::Pass);
    }
    assert_eq!(world.outside.observer.starts.len(), 1, "the slot is held");
    world.happen(&Event::SetLimit(2));
    for _ in 0..6 {
        world.happen(&Event::Pass);
    }
    assert_eq!(world.outside.observer.starts.len(), 2, "another one is not");
    world.happen(&Event::SetLimit(1));
    world.settle();
}

#[test]
fn a_workload_that_its_user_suspends_is_on_hold_at_once() {
    let mut world = about_to_start();
    world.happen(&Event::Step(None));
    world.happen(&Event::Control);
    world.happen(&Event::Suspend(0));
    world
        .outside
        .by_others(|outside| outside.workloads.settle());
    for _ in 0..6 {
        world.happen(&Event::Pass);
    }
    assert!(world.outside.seconds < PERIOD, "its slot is still held");
    let object = world.outside.workloads.objects().next();
    assert!(object.is_some_and(|object| object.hold), "{object:?}");
    world.settle();
}
