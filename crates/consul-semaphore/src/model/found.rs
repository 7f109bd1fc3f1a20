//! Flawed algorithms in the random worlds: each breaks a rule, which is named. The correct algorithm keeps all rules
//! in the same worlds: see [`super`].

use std::collections::BTreeSet;

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngSeed, TestRunner},
};

use super::{
    config,
    flaws::{Flaw, rule_broken},
    overtake,
    script::{any_order, crowd},
    world::World,
};

/// How many worlds are tried at most.
const WORLDS: u32 = 1000;

/// Tries one world after another until this rule is broken.
fn find_flaw<W>(rule: &str, worlds: impl Strategy<Value = W>, run: impl Fn(W)) {
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

/// Finds a rule that the flaw breaks in worlds in which anything may happen.
fn find_out_in_disorder(flaw: Flaw, rule: &str) {
    find_flaw(rule, any_order(), |(setup, script)| {
        World::run_with(&setup, Some(flaw), &script).settle();
    });
}

#[test]
fn a_limit_that_was_ours_once_and_is_so_for_ever_is_found_out() {
    find_out_in_disorder(Flaw::ClaimsOldLimits, "a limit of others is ours");
    find_out_in_disorder(Flaw::ClaimsOldLimits, "overwrote a foreign limit");
}

#[test]
fn a_grant_that_outlives_its_slot_on_hold_is_found_out() {
    find_out_in_disorder(Flaw::KeepsGrantOnHold, "a stale grant");
}

#[test]
fn a_conflict_that_is_tried_again_at_once_is_found_out() {
    find_out_in_disorder(Flaw::NeverPauses, "no pause within");
}

#[test]
fn a_version_that_went_back_and_is_never_believed_is_found_out() {
    find_out_in_disorder(Flaw::BelievesNoSmallerVersion, "no rest after");
}

#[test]
fn a_proof_that_others_wait_for_is_found_out() {
    find_out_in_disorder(Flaw::WaitsForProofs, "a slot is idle while a call hangs");
}

#[test]
fn contenders_that_are_never_taken_back_are_found_out() {
    find_flaw("are shown", crowd(), |(limit, priorities)| {
        overtake(limit, &priorities, Some(Flaw::ShowsTheOvertaken));
    });
}
