//! Flawed algorithms for several semaphores: each breaks a rule in the random worlds, which is named. The correct
//! algorithm keeps all rules in the same worlds.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngSeed, TestRunner},
};

use super::{
    super::{config, flaws::rule_broken},
    outside::Outside,
    script::{Crowd, Script, crowd, script},
};
use crate::{Workload, plan::Stance};
use consul_client::Op;

/// What is wrong with an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// Of a grant at several lock keys, the parts of the last one are not sent.
    GrantsAPart,
    /// What is left of a grant of which a part was lost is completed.
    StartsInAPart,
    /// Free slots are kept while another semaphore of the request grants nothing.
    KeepsForTheStopped,
    /// Free slots are kept for a workload that is not the first in all its queues.
    KeepsForAnyone,
    /// Nothing is ever kept, however long a workload was passed over.
    PassesOverForEver,
    /// The readings of all prefixes but one are those before the last, and count as new.
    JudgesOnAStaleReading,
}

impl Flaw {
    /// What it does to a transaction.
    pub(super) fn spoil(self, operations: &mut Vec<Op>) {
        let prefix = |op: &Op| op.key().split('/').next().map(ToOwned::to_owned);
        let of: BTreeSet<_> = operations.iter().filter_map(prefix).collect();
        if self == Self::GrantsAPart && of.len() > 1 {
            let last = of.last().cloned();
            operations.retain(|operation| prefix(operation) != last);
        }
    }

    /// What it does to the stances of its queues.
    pub(super) fn stance(self) -> Option<fn(Stance) -> Stance> {
        match self {
            Self::KeepsForTheStopped => Some(|stance| match stance {
                Stance::Stopped => Stance::Keeps,
                other => other,
            }),
            Self::KeepsForAnyone => Some(|stance| match stance {
                Stance::PassedOver => Stance::Keeps,
                other => other,
            }),
            _ => None,
        }
    }

    /// A waiting workload that holds some of its slots, as if it asked for those alone.
    pub(super) fn forget_what_is_lost(
        workload: &Arc<Workload>,
        outside: &Outside,
    ) -> Arc<Workload> {
        let held = Outside::held(&outside.sights(), &workload.uid);
        if held == [0; 3] || workload.phase != crate::Phase::Idle {
            return workload.clone();
        }
        let mut changed = (**workload).clone();
        changed.requests.retain(|request| {
            let place = outside.place_of(&request.semaphore);
            place.is_some_and(|place| held[place] > 0)
        });
        Arc::new(changed)
    }
}

/// The scripts lead to all that they are for.
#[test]
fn the_worlds_show_all_that_can_happen() {
    let mut runner = TestRunner::new(ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        ..config(1)
    });
    let mut seen = BTreeMap::new();
    for _ in 0..SHOWN {
        let script = script().new_tree(&mut runner).unwrap().current();
        for (what, times) in script.run(None) {
            *seen.entry(what).or_insert(0) += times;
        }
    }
    println!("in {SHOWN} worlds: {seen:#?}");
    for what in [
        "a start in one slot",
        "a start in several slots",
        "a suspension",
        "a slot given back",
        "a slot had again",
        "a skip",
        "Contended",
        "WaitTimedOut",
        "Superseded",
        "an end",
        "slots kept for one",
        "slots kept for two",
    ] {
        assert!(seen.contains_key(what), "never: {what}");
    }
}

/// In how many worlds all that can happen is seen.
const SHOWN: usize = 150;

/// How many worlds are tried at most.
const WORLDS: u32 = 2000;

/// Tries one world after another until this rule is broken.
fn find<W>(rule: &str, worlds: impl Strategy<Value = W>, run: impl Fn(W)) {
    let mut runner = TestRunner::new(ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        ..config(WORLDS)
    });
    let mut others = BTreeSet::new();
    for number in 1..=WORLDS {
        let world = worlds.new_tree(&mut runner).unwrap().current();
        match rule_broken(|| run(world)) {
            Some(broken) if broken.contains(rule) => {
                return println!("world {number}: {broken}");
            }
            broken => others.extend(broken),
        }
    }
    panic!("not broken: {rule}. Others are: {others:#?}");
}

fn find_in_scripts(flaw: Flaw, rule: &str) {
    find(rule, script(), |script: Script| {
        drop(script.run(Some(flaw)))
    });
}

#[test]
fn a_grant_of_a_part_is_found_out() {
    find_in_scripts(Flaw::GrantsAPart, "a part of a request was granted");
}

#[test]
fn a_start_in_what_is_left_of_a_grant_is_found_out() {
    find_in_scripts(Flaw::StartsInAPart, "was started with a part");
}

#[test]
fn slots_kept_while_another_semaphore_is_paused_are_found_out() {
    find_in_scripts(Flaw::KeepsForTheStopped, "could start and waits");
}

#[test]
fn slots_kept_for_one_that_is_not_the_first_are_found_out() {
    find_in_scripts(Flaw::KeepsForAnyone, "could start and waits");
}

#[test]
fn a_reading_of_one_prefix_that_is_old_is_found_out() {
    find_in_scripts(Flaw::JudgesOnAStaleReading, "was started without a slot");
}

#[test]
fn a_large_request_that_is_passed_over_for_ever_is_found_out() {
    find("was not served", crowd(), |crowd: Crowd| {
        crowd.run(Some(Flaw::PassesOverForEver));
    });
}
