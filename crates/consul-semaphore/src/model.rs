//! Property tests of the protocol: whole passes against a small simulated world.
//!
//! A world has a Consul, workloads with their controller, users, other programs on the same prefix, and the operator,
//! which sees changes late, is interrupted at every point, crashes, and is overtaken by another replica. Each script
//! of random events is run against it:
//!
//! - [`consul`], [`workloads`], [`requests`], [`foreign`]: the parts of the world, as their documentation describes
//!   them
//! - [`operator`]: a small controller, which also describes the real one
//! - [`observer`], [`indices`], [`sight`]: what must be true at every moment, and of every write
//! - [`rules`]: what must be true of every plan
//! - [`outside`], [`world`]: all of these together, everything that can happen, and what must be
//!   true when nothing happens any more
//! - [`script`]: the random scripts
//! - [`several`]: the same for several semaphores at once
//! - [`rate`]: the same for rates
//! - [`library`], [`served`]: programs with the library, at this Consul as a server
//! - [`regressions`]: scripts that long random runs have found
//! - [`flaws`], [`found`]: flawed algorithms, and the rules that they break in these worlds
//!
//! The seeds are fixed, so a run is the same everywhere. With `PROPTEST_CASES` set, that many scripts
//! are tried from random seeds. Of the exhaustive worlds that take long, each run searches one, another one each day,
//! and `make model` all.

mod canon;
pub(crate) mod consul;
mod exhaustive;
mod flaws;
mod foreign;
mod found;
mod indices;
mod library;
mod observer;
mod operator;
mod outage;
mod outside;
mod rate;
mod regressions;
mod requests;
mod rest;
mod rules;
mod script;
mod served;
mod several;
mod sight;
mod workloads;
mod world;

pub(crate) use self::rules::check_plan;

use std::num::NonZeroU32;

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{RngAlgorithm, RngSeed},
};

use self::{
    flaws::Flaw,
    foreign::Style,
    operator::Lost,
    script::{
        any_order, clients, corruption, crowd, disorder, limits, mischief, mutex, operations,
        operator, replicas, rest, script, setup, workloads,
    },
    workloads::Refusal,
    world::{Event, Setup, World},
};
use super::{Agreement, LimitPolicy, Mode, Uid, mutex::MOST_TURNS_IN_A_ROW};
use consul_client::clock;

fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let fixed = ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        // Without optimization, the default algorithm takes longer than the passes.
        rng_algorithm: RngAlgorithm::XorShift,
        ..default.clone()
    };
    // The default config reads PROPTEST_CASES.
    let asked = default.cases != 256;
    if asked {
        ProptestConfig {
            cases: default.cases,
            rng_seed: default.rng_seed,
            ..fixed
        }
    } else {
        fixed
    }
}

/// The one of these worlds that is searched today. Each takes long, so a run of the tests searches one of them, and
/// prints which.
fn of_today<T>(worlds: &[T]) -> &T {
    let day = clock::time().as_second() / (24 * 60 * 60);
    &worlds[usize::try_from(day).expect("a day") % worlds.len()]
}

/// A setup without other programs.
fn alone(limit: u32, operations: usize) -> Setup {
    Setup {
        mode: Mode::Semaphore,
        period: None,
        limit,
        policy: LimitPolicy::Refuse,
        operations,
        lock_delay: 2,
        cooldown: 0,
        clients: Vec::new(),
        slots: NonZeroU32::MIN,
    }
}

proptest! {
    #![proptest_config(config(300))]

    /// Whatever happens, every write keeps the rules, no workload runs without its own slot unless somebody took that
    /// slot, and in the end nothing is left to do, no slot is idle and none is lost.
    #[test]
    fn any_script_comes_to_rest(
        setup in setup(),
        script in script([(6, workloads()), (3, clients()), (1, mischief()), (8, operator()), (1, rest())], 250),
    ) {
        World::run(&setup, &script).settle();
    }

    /// Scripts with workloads that ask for several slots at once come to rest, too.
    #[test]
    fn several_slots_for_one_come_to_rest(
        setup in setup(),
        slots in 2..4_u32,
        script in script([(6, workloads()), (2, clients()), (1, mischief()), (8, operator()), (1, rest())], 250),
    ) {
        // A request for more than the limit is never granted.
        let slots = slots.min(setup.limit);
        let setup = Setup { slots: NonZeroU32::new(slots).unwrap(), ..setup };
        World::run(&setup, &script).settle();
    }

    /// Scripts with concurrent calls, answered out of order, twice, late or not at all, come to rest, too.
    #[test]
    fn any_order_of_answers_comes_to_rest((setup, script) in any_order()) {
        World::run(&setup, &script).settle();
    }

    /// The limit is changed in the spec and in Consul while the script runs.
    #[test]
    fn a_limit_is_moved_by_the_three_way_rule(
        setup in setup(),
        script in script([(5, workloads()), (1, clients()), (1, mischief()), (2, limits()), (8, operator())], 200),
    ) {
        World::run(&setup, &script).settle();
    }

    /// Two replicas both act as the leader, and may disagree on whether the semaphore is being deleted.
    #[test]
    fn two_replicas_at_once_keep_the_limit(
        setup in setup(),
        before in script([(6, workloads()), (2, clients()), (8, operator()), (4, disorder()), (2, replicas())], 200),
        after in script([(6, workloads()), (8, operator()), (2, disorder()), (2, replicas())], 40),
    ) {
        let mut world = World::run(&setup, &before);
        world.happen(&Event::Terminate);
        for event in &after {
            world.happen(event);
        }
        world.settle();
    }

    /// Arbitrary data is written to `.lock`. Data that can't be parsed is left alone, and work resumes once it is
    /// removed.
    #[test]
    fn what_is_not_understood_is_left_alone(
        setup in setup(),
        before in script([(6, workloads()), (2, clients()), (8, operator())], 80),
        corruption in corruption(),
        after in script([(6, workloads()), (2, clients()), (8, operator())], 80),
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

    /// All of these with a mutex, the lock-delay of dead holders, and other programs that lock it.
    #[test]
    fn any_script_comes_to_rest_with_a_mutex(
        setup in mutex(),
        before in script([
            (6, workloads()), (3, clients()), (1, mischief()), (8, operator()), (4, disorder()), (1, replicas()), (1, rest()),
        ], 200),
        corruption in prop::option::weighted(0.3, corruption()),
        after in script([(6, workloads()), (2, clients()), (8, operator())], 60),
    ) {
        let mut world = World::run(&setup, &before);
        if let Some(corruption) = &corruption {
            world.happen(corruption);
        }
        for event in &after {
            world.happen(event);
        }
        world.settle();
        if corruption.is_some() {
            world.happen(&Event::DeleteLock);
            world.settle();
        }
        world.end();
        prop_assert!(world.outside.is_gone());
        let left = world.outside.sight();
        prop_assert!(left.lock.is_none() || !left.contenders.is_empty());
    }

    /// A semaphore that is deleted lets its workloads run to their end and leaves nothing behind.
    #[test]
    fn a_deleted_semaphore_leaves_nothing_behind(
        setup in setup(),
        script in script([(6, workloads()), (3, clients()), (8, operator())], 200),
    ) {
        let mut world = World::run(&setup, &script);
        world.settle();
        world.end();
        prop_assert!(world.outside.is_gone());
        let left = world.outside.sight();
        prop_assert!(left.lock.is_none() || !left.contenders.is_empty());
    }

    /// Undisturbed workloads start in the order of the queue: the higher priority first, then the older, and by name
    /// within the same second.
    #[test]
    fn workloads_are_started_in_order(
        limit in 1..4_u32,
        workloads in vec((-2..3, 0..3_u64), 1..12),
        ends in vec(0..12_usize, 40),
    ) {
        let mut world = World::new(&alone(limit, 64));
        let mut queue = Vec::new();
        for (position, (priority, later)) in workloads.into_iter().enumerate() {
            world.happen_at_once(&Event::Wait(later));
            // Younger workloads get smaller names, so that the name decides only within a second.
            let name = format!("workload-{:02}", 99 - position);
            let workloads = &mut world.outside.workloads;
            let uid = workloads.create(&name, "db", priority);
            queue.push((-priority, workloads.clock, name, uid));
        }
        queue.sort();
        for end in ends {
            world.happen(&Event::Pass);
            world.happen(&Event::Control);
            world.happen(&Event::EndPod(end));
        }
        let expected: Vec<Uid> = queue.into_iter().map(|(.., uid)| uid).collect();
        prop_assert_eq!(&world.outside.started, &expected);
    }

    /// A limit that is changed twice around a crash ends as the spec's limit, wherever the crash comes.
    #[test]
    fn a_limit_changed_around_a_crash_ends_as_the_specs(
        limits in vec(1..9_u32, 3),
        steps in vec((0..6_usize, prop::option::of(prop_oneof![Just(Lost::answer()), Just(Lost::call())])), 2),
    ) {
        let mut world = World::new(&alone(limits[0], 64));
        world.settle();
        for (limit, (steps, lost)) in limits[1..].iter().zip(steps) {
            world.happen(&Event::SetLimit(*limit));
            world.happen(&Event::SeeConsul);
            for _ in 0..steps {
                world.happen(&Event::Step(None));
            }
            world.happen(&Event::Step(lost));
            world.happen(&Event::Crash);
        }
        let plan = world.settle();
        prop_assert_eq!(plan.agreement, Some(Agreement::Agreed));
        prop_assert_eq!(world.outside.sight().body.unwrap().limit, limits[2]);
        prop_assert_eq!(&world.outside.applied, &limits[2..]);
    }
}

/// Workloads that arrive while others hold all slots, and overtake each other.
fn overtake(limit: u32, priorities: &[i32], flaw: Option<Flaw>) {
    let theirs = usize::try_from(limit).unwrap();
    let setup = Setup {
        clients: vec![(Style::Go, theirs); theirs],
        ..alone(limit, 128)
    };
    let mut world = World::with(&setup, flaw);
    world.happen(&Event::Pass);
    for client in 0..theirs {
        world.happen(&Event::Arrive(client));
        world.happen(&Event::LookAndClaim(client));
    }
    for (position, priority) in priorities.iter().enumerate() {
        let workloads = &mut world.outside.workloads;
        workloads.create(&format!("workload-{position:02}"), "db", *priority);
        world.happen(&Event::Pass);
    }
    world.settle();
    assert_eq!(world.outside.started, []);
}

/// A prune fails if the holder came back to life after it was seen dead.
#[test]
fn a_holder_that_comes_back_is_not_pruned() {
    let mut world = World::new(&Setup {
        clients: vec![(Style::Go, 1)],
        ..alone(1, 64)
    });
    let script = [
        Event::Pass,
        Event::Pass,
        Event::Arrive(0),
        Event::LookAndClaim(0),
        Event::DeleteContender(0),
        Event::Pass,
        Event::Wait(9),
        // The operator decides to prune, the holder comes back, and the transaction is refused.
        Event::Step(None),
        Event::Arrive(0),
        Event::Step(None),
    ];
    for event in &script {
        world.happen(event);
    }
    world.settle();
    assert_eq!(world.outside.sight().holding().count(), 1);
}

/// A transaction that makes the key is lost on its way. Others make the key with the same limit, and delete it. After
/// that nothing keeps the transaction from arriving.
#[test]
fn a_limit_that_arrives_late_in_an_empty_prefix_is_somebody_elses() {
    let setup = Setup {
        lock_delay: 0,
        ..alone(1, 4)
    };
    let create = Event::Create {
        workload: 0,
        priority: 0,
    };
    let lost = Lost {
        done: false,
        hangs: false,
    };
    let script = [
        Event::Step(None),
        Event::Step(None),
        Event::Step(None),
        Event::SetLimit(3),
        Event::Step(None),
        Event::Step(None),
        Event::Step(None),
        create.clone(),
        Event::Step(None),
        create.clone(),
        Event::Step(Some(lost)),
        create.clone(),
        Event::Step(None),
        create.clone(),
        Event::Pass,
        Event::WriteLimit(1),
        Event::SetLimit(1),
        Event::Pass,
        Event::DeleteLock,
        create,
        Event::Land,
    ];
    let mut world = World::run(&setup, &script);
    assert_eq!(world.outside.sight().body.unwrap().limit, 3);
    let plan = world.settle();
    assert_eq!(plan.agreement, Some(Agreement::Conflict { theirs: 3 }));
}

/// A foreign client that waits for a mutex is invisible, and still gets it before our queue is empty.
#[test]
fn nobody_starves_who_waits_for_a_mutex() {
    let mut world = World::new(&Setup {
        mode: Mode::Mutex,
        clients: vec![(Style::Mutex, 1)],
        ..alone(1, 64)
    });
    for workload in 0..40 {
        let workloads = &mut world.outside.workloads;
        workloads.create(&format!("workload-{workload:02}"), "db", 0);
    }
    world.happen(&Event::Pass);
    world.happen(&Event::Arrive(0));
    while !world.is_held_by(0) {
        for event in [
            Event::Pass,
            Event::Control,
            Event::EndPod(0),
            Event::Control,
            Event::Pass,
        ] {
            world.happen_at_once(&event);
            world.happen_at_once(&Event::LookAndClaim(0));
        }
        let started = world.outside.started.len();
        assert!(
            started <= MOST_TURNS_IN_A_ROW as usize,
            "{started} came before it"
        );
    }
    world.settle();
}

/// A late write does not apply a limit that the spec no longer asks for.
#[test]
fn a_late_write_of_a_limit_that_was_taken_back_is_refused() {
    let mut world = World::new(&alone(3, 64));
    world.settle();
    let script = [
        Event::SetLimit(5),
        Event::SeeConsul,
        // The operator decides to record the limit, does so, decides to write it, and gets no answer.
        Event::Step(None),
        Event::Step(None),
        Event::Step(None),
        Event::Step(Some(Lost::call())),
        Event::SetLimit(3),
    ];
    for event in &script {
        world.happen(event);
    }
    assert_eq!(world.outside.late.len(), 1);
    world.settle();
    world.happen(&Event::Land);
    let plan = world.settle();
    assert_eq!(plan.agreement, Some(Agreement::Agreed));
    assert_eq!(world.outside.sight().body.unwrap().limit, 3);
}

/// Another write was in flight while the limit was recorded.
#[test]
fn a_late_write_of_a_limit_is_refused_whatever_was_written_before_it() {
    let mut world = World::new(&alone(3, 64));
    let script = [
        Event::Create {
            workload: 0,
            priority: 0,
        },
        Event::Pass,
        Event::Pass,
        Event::Control,
        Event::EndPod(0),
        Event::Control,
        Event::SetLimit(5),
        Event::SeeJobs,
        Event::SeeConsul,
    ];
    for event in &script {
        world.happen(event);
    }
    // The operator decides to record the limit and to release the slot, does so, and gets no answer to what it does
    // next.
    for _ in 0..20 {
        let released = world.outside.sight().holding().next().is_none();
        let done = released && world.outside.applied.contains(&5);
        if world.outside.late.is_empty() {
            world.happen(&Event::Step(done.then(Lost::call)));
        }
    }
    let [(late, _)] = &world.outside.late[..] else {
        panic!("{:?}", world.outside.late)
    };
    assert_eq!(late.limit, Some(5));
    world.happen(&Event::SetLimit(3));
    world.settle();
    world.happen(&Event::Land);
    world.settle();
    assert_eq!(world.outside.sight().body.unwrap().limit, 3);
}

/// The PATCH before a release stops an older start that is still in flight.
#[test]
fn a_replica_that_was_overtaken_starts_nothing_without_a_slot() {
    let workload = Event::Create {
        workload: 0,
        priority: 0,
    };
    // The operator decides and grants. Before it starts the workload, another replica takes over, and gives the slot
    // back because the semaphore is being deleted.
    let mut world = World::run(
        &alone(1, 64),
        &[
            workload,
            Event::Pass,
            Event::Pass,
            Event::Step(None),
            Event::Step(None),
            Event::Depose,
        ],
    );
    assert!(world.straggler_starts());
    for event in [Event::Terminate, Event::Pass, Event::Pass, Event::Straggle] {
        world.happen(&event);
    }
    assert_eq!(world.outside.started, []);
    world.settle();
    assert!(world.outside.is_gone());
}

/// The slot is given back because the API server refuses the start. The start of the overtaken replica is not refused.
#[test]
fn a_start_that_is_refused_one_replica_comes_too_late_by_another() {
    let workload = || Event::Create {
        workload: 0,
        priority: 0,
    };
    let script = [
        workload(),
        workload(),
        Event::Pass,
        Event::Pass,
        // The operator decides, grants, and makes a session for the next workload.
        Event::Step(None),
        Event::Step(None),
        Event::Step(None),
        Event::Depose,
        Event::Forbid(0, Refusal::Forbidden),
    ];
    let mut world = World::run(&alone(1, 64), &script);
    assert!(world.straggler_starts());
    // A refused call is retried after a pause, so all of this happens in one second.
    world.call_seconds = 0;
    while world.outside.started.is_empty() {
        world.happen_at_once(&Event::Pass);
    }
    world.happen_at_once(&Event::Straggle);
    let [started] = &world.outside.started[..] else {
        panic!("{:?}", world.outside.started)
    };
    assert!(started.as_ref().starts_with('b'), "{started}");
    world.settle();
}

proptest! {
    // The worlds are bigger, so there are fewer of them.
    #![proptest_config(config(12))]

    /// However few operations Consul takes in one transaction, all work gets done: as many workloads as fit are
    /// started, then all of them run to their end.
    #[test]
    fn what_does_not_fit_in_follows(
        (operations, workloads) in prop_oneof![
            (Just(4), 0..20_usize),
            (Just(64), 50..100_usize),
            (Just(128), 100..200_usize),
        ],
        limit in 1..200_u32,
        lost in 0..200_usize,
        later in operations(),
    ) {
        let mut world = World::new(&alone(limit, operations));
        // There are hundreds of calls, and a workload that lost its slot has only half a minute.
        world.call_seconds = 0;
        for position in 0..workloads {
            world.outside.workloads.create(&format!("workload-{position:03}"), "db", 0);
        }
        world.settle();
        let running = world.running();
        prop_assert_eq!(running.len(), workloads.min(usize::try_from(limit).unwrap()));

        // Many lose their slot at once: each gets one again, and nobody is suspended. Meanwhile Consul's servers are
        // replaced.
        world.happen(&Event::Capacity(later));
        for _ in 0..lost {
            world.happen_at_once(&Event::Expire(0));
        }
        world.settle();
        prop_assert_eq!(world.outside.started.len(), running.len());
        prop_assert_eq!(&world.running(), &running);

        // All of them lose it, and nothing of theirs is left in Consul but their contenders.
        world.happen(&Event::DeleteLock);
        world.settle();
        prop_assert_eq!(world.outside.started.len(), running.len());
        prop_assert_eq!(world.running(), running);

        world.outside.by_others(|outside| outside.workloads.complete_all());
        world.settle();
        world.end();
        prop_assert!(world.outside.is_gone());
    }

    /// However many workloads overtake each other, no more contenders are shown than allowed.
    #[test]
    fn few_of_those_who_wait_are_shown((limit, priorities) in crowd()) {
        overtake(limit, &priorities, None);
    }
}
