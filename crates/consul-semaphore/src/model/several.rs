//! Several semaphores at once: workloads that ask for slots of two or three of them, for two slots of one, and for
//! both, with single ones beside them.
//!
//! The parts of the world are those of the worlds with one semaphore. Here the engine has several, the operators are
//! one or two, and every call of theirs may be lost, late or repeated:
//!
//! - [`outside`]: Consul, workloads and semaphores, and what must be true at every moment and of every write
//! - [`operator`]: a process with an engine
//! - [`world`]: everything that can happen, and how it comes to rest
//! - [`rest`]: what must be true then
//! - [`script`]: random scripts, and crowds of small workloads around large ones
//! - [`exhaustive`]: every order of events in the smallest worlds
//! - [`flaws`]: flawed algorithms, and the rules that they break

mod exhaustive;
mod flaws;
mod operator;
mod outside;
mod rest;
mod script;
mod world;

use proptest::prelude::*;

use self::{
    script::{Script, bounded, crowd, hidden, rate, restored, script, two_keep},
    world::{Event, Kind, Setup},
};
use super::config;

/// The session is no longer in the slot's way once an operator grants the slot to the contender of another operator.
#[test]
fn a_session_made_ahead_that_another_operator_forestalls_is_ended() {
    let setup = Setup {
        limits: vec![3, 2],
        operations: 64,
        lock_delay: 1,
        cooldown: 0,
        period: None,
        operators: 2,
        clients: vec![2],
    };
    let events = vec![
        Event::Create([1, 1, 0], 0, Kind::Waits),
        Event::Create([1, 0, 0], 0, Kind::Waits),
        Event::SetLimit(0, 1),
        Event::Decide(0),
        Event::Pass(1),
        Event::Arrive(0),
        Event::Pass(0),
    ];
    Script { setup, events }.run(None);
}

/// Both see the same stamp.
#[test]
fn two_operators_release_the_slot_of_a_rate() {
    let setup = Setup {
        limits: vec![1, 1],
        operations: 64,
        lock_delay: 0,
        cooldown: 0,
        period: Some(2),
        operators: 2,
        clients: Vec::new(),
    };
    let events = vec![Event::Create([1, 0, 0], 0, Kind::Waits)];
    Script { setup, events }.run(None);
}

proptest! {
    #![proptest_config(config(300))]

    /// Whatever happens: no semaphore has more holders than its limit, a request is granted and started whole or not
    /// at all, nobody waits for slots that it could have, everybody is served in the end, and then all slots are free.
    #[test]
    fn all_or_nothing_whatever_happens(script in script()) {
        drop(script.run(None));
    }

    /// All or nothing is granted also where one semaphore is a rate, and no period has more starts than the rate's
    /// limit.
    #[test]
    fn all_or_nothing_with_a_rate(script in rate()) {
        drop(script.run(None));
    }

    /// All or nothing is granted while two requests keep slots at the same time.
    #[test]
    fn all_or_nothing_while_two_keep(script in two_keep()) {
        let seen = script.run(None);
        prop_assert!(seen.contains_key("slots kept for two"), "{:?}", seen);
    }

    /// However many workloads come, no more wait in a queue than may.
    #[test]
    fn no_queue_grows_beyond_its_bound(script in bounded()) {
        script.run_bounded();
    }

    /// However many small workloads keep coming, a large one is served within a bounded number of hand-overs.
    #[test]
    fn no_large_request_starves(crowd in crowd()) {
        crowd.run(None);
    }
}

proptest! {
    #![proptest_config(config(60))]

    /// All or nothing is granted while Consul's data goes back to a snapshot: a slot that somebody had since is lost,
    /// and one that was given back since is given back again.
    #[test]
    fn all_or_nothing_when_consul_is_restored(script in restored()) {
        drop(script.run(None));
    }
}

proptest! {
    // The worlds are bigger, so there are fewer of them.
    #![proptest_config(config(30))]

    /// However many can't be granted what they ask for, and however they differ, they hide nobody behind them who can.
    #[test]
    fn nobody_is_hidden_behind_others(hidden in hidden()) {
        hidden.run();
    }
}
