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
    script::{Script, alone, bounded, crowd, hidden, rate, restored, script, two_keep},
    world::{Event, Kind, Setup},
};
use super::{config, requests::Deletion};

/// The session is no longer in the slot's way once an operator grants the slot to the contender of another operator.
#[test]
fn a_session_made_ahead_that_another_operator_forestalls_is_ended() {
    let setup = Setup {
        lock_delay: 1,
        operators: 2,
        clients: vec![2],
        ..alone(vec![3, 2])
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

/// One operator asks for the limit 1 to be recorded. Before the status says so, the limit becomes 2, and another
/// operator records that and writes it to Consul. It stays ours when the first operator writes the status again.
#[test]
fn a_limit_that_another_operator_recorded_stays_ours_when_an_earlier_one_is_recorded_late() {
    let events = vec![
        Event::Decide(1),
        Event::Step(1, 0, None),
        Event::Decide(1),
        Event::SetLimit(0, 2),
        Event::Rest,
        Event::Crash(1),
        Event::Crash(0),
        Event::Create([1, 0, 0], 0, Kind::Waits),
    ];
    let setup = Setup {
        operators: 2,
        ..alone(vec![1, 1])
    };
    Script { setup, events }.run(None);
}

/// The session of a running workload expires, and the transaction that grants the slot again arrives after the
/// operator has stopped waiting for its answer and ends the new session.
#[test]
fn a_slot_that_is_granted_again_too_late_is_given_back() {
    let events = vec![
        Event::Create([0, 1, 0], 0, Kind::Waits),
        Event::Pass(0),
        Event::Expire(0),
        Event::Decide(0),
        Event::Step(0, 0, None),
        Event::Decide(0),
        Event::Step(0, 1, None),
        Event::Wait(6),
        Event::Decide(0),
        Event::Wait(3),
        Event::Decide(0),
    ];
    let setup = alone(vec![1, 1]);
    Script { setup, events }.run(None);
}

/// A workload that does not wait for slots came while a window was closed, so that free slots are kept for it. Once
/// the window is open they are not kept any more, because the workload is skipped.
#[test]
fn nothing_is_kept_for_a_workload_that_does_not_wait() {
    let events = vec![
        Event::Window(1, None),
        Event::Create([2, 1, 0], 0, Kind::Skips),
        Event::Rest,
        Event::Create([2, 0, 0], 1, Kind::Waits),
        Event::Window(1, Some(1)),
        Event::Create([1, 0, 0], 0, Kind::Waits),
        Event::Decide(0),
        Event::CreateAlike(9, Kind::ReplacesWaiting),
    ];
    let setup = alone(vec![3, 1]);
    Script { setup, events }.run(None);
}

/// A slot is given back, and Consul is restored from a snapshot in which the slot is held, before and after the
/// session is destroyed.
#[test]
fn a_slot_that_a_restored_consul_has_again_is_given_back_again() {
    let events = vec![
        Event::Create([0, 1, 0], 0, Kind::Waits),
        Event::Rest,
        Event::EndPod(0),
        Event::Pass(0),
        Event::Snapshot,
        Event::Wait(1),
        Event::Decide(0),
        Event::Step(0, 0, None),
        Event::Restore,
        Event::Step(0, 0, None),
        Event::Restore,
    ];
    let setup = Setup {
        cooldown: 2,
        ..alone(vec![1, 1])
    };
    Script { setup, events }.run(None);
}

/// Consul is restored while a workload finishes, and the listing that shows so comes while a transaction is pending. What
/// that grants is not lost, although the listing does not have it.
#[test]
fn a_slot_that_is_granted_after_consul_was_restored_is_not_taken_for_lost() {
    let events = vec![
        Event::Create([0, 2, 0], 0, Kind::Waits),
        Event::Create([1, 0, 0], 0, Kind::Waits),
        Event::Create([1, 0, 0], 0, Kind::Waits),
        Event::CreateAlike(1, Kind::ReplacesWaiting),
        Event::Create([0, 1, 0], 0, Kind::Waits),
        Event::Rest,
        Event::Create([1, 0, 0], 0, Kind::Waits),
        Event::Delete(7, Deletion::Background),
        Event::Snapshot,
        Event::Pass(0),
        Event::Pass(0),
        Event::EndPod(0),
        Event::Wait(0),
        Event::See(0),
        Event::Restore,
        Event::Decide(0),
        Event::Wait(0),
    ];
    Script {
        setup: alone(vec![1, 2]),
        events,
    }
    .run(None);
}

/// Both see the same stamp.
#[test]
fn two_operators_release_the_slot_of_a_rate() {
    let setup = Setup {
        period: Some(2),
        operators: 2,
        ..alone(vec![1, 1])
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
