//! Rates in the model: at most `limit` starts lie in any period, whatever the operator goes through.

use proptest::{collection::vec, prelude::*};

use super::{
    alone, config,
    script::{disorder, operator, replicas, rest, script, workloads},
    world::{Event, Setup, World},
};

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
