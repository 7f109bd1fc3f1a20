//! The protocol, tried out in a small world: property tests of whole passes.
//!
//! A world has a Consul, Jobs with their controller, users, other programs on the same prefix, and
//! the operator, which sees late, is interrupted at every point, crashes, and is overtaken by
//! another replica. Each script of random events is run against it:
//!
//! - [`consul`], [`jobs`], [`foreign`]: the parts of the world, as their documentation has them
//! - [`outside`]: all of these together, with an observer that checks every write and every moment
//! - [`rules`]: what must be true of every plan
//! - [`operator`]: the controller in small, which is also a description of the real one
//! - [`world`]: everything that can happen, and what must be true when nothing happens any more
//! - [`script`]: the random scripts
//!
//! The seeds are fixed: a run is the same everywhere. To look further, raise the number of cases or
//! change the seed.

mod consul;
mod foreign;
mod jobs;
mod operator;
mod outside;
mod rules;
mod script;
mod world;

use proptest::{prelude::*, test_runner::RngSeed};

use self::{
    script::{
        clients, corruption, jobs, limits, mischief, operator, replicas, rest, script, setup,
    },
    world::{Event, Setup, World},
};
use super::LimitPolicy;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// A setup without other programs.
fn alone(limit: u32, operations: usize) -> Setup {
    Setup {
        limit,
        policy: LimitPolicy::Refuse,
        operations,
        lock_delay: 2,
        clients: Vec::new(),
    }
}

proptest! {
    #![proptest_config(config(300))]

    /// Whatever happens, every write keeps the rules, no Job runs without a slot of its own unless
    /// somebody took it, and in the end nothing is left to do, no slot is idle and none is lost.
    #[test]
    fn any_script_comes_to_rest(
        setup in setup(),
        script in script([(6, jobs()), (3, clients()), (1, mischief()), (8, operator()), (1, rest())], 120),
    ) {
        World::run(&setup, &script).settle();
    }

    /// The same while the limit is changed, in the spec and in Consul.
    #[test]
    fn a_limit_is_moved_by_the_three_way_rule(
        setup in setup(),
        script in script([(3, jobs()), (1, clients()), (3, limits()), (8, operator())], 80),
    ) {
        World::run(&setup, &script).settle();
    }

    /// The same while two replicas take themselves for the active one.
    #[test]
    fn two_replicas_at_once_keep_the_limit(
        setup in setup(),
        script in script([(6, jobs()), (2, clients()), (8, operator()), (2, replicas())], 120),
    ) {
        World::run(&setup, &script).settle();
    }

    /// The same with anything at all in `.lock`: what is not understood is left as it is, and all
    /// goes on when it is gone.
    #[test]
    fn what_is_not_understood_is_left_alone(
        setup in setup(),
        before in script([(6, jobs()), (2, clients()), (8, operator())], 40),
        corruption in corruption(),
        after in script([(6, jobs()), (2, clients()), (8, operator())], 40),
    ) {
        let mut world = World::run(&setup, &before);
        world.happen(&corruption);
        for event in &after {
            world.happen(event);
        }
        world.settle();
        world.happen(&Event::DeleteLock);
        world.settle();
    }

    /// A semaphore that is deleted lets its Jobs run to their end and leaves nothing behind.
    #[test]
    fn a_deleted_semaphore_leaves_nothing_behind(
        setup in setup(),
        script in script([(6, jobs()), (3, clients()), (8, operator())], 80),
    ) {
        let mut world = World::run(&setup, &script);
        world.settle();
        prop_assert!(world.end().finished);
        let others = !world.outside.contenders().is_empty();
        prop_assert_eq!(world.outside.lock().is_some(), others && world.outside.lock().is_some());
        prop_assert!(others || world.outside.lock().is_none());
    }
}
