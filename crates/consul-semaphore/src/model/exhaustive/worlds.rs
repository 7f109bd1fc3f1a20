//! The worlds that are checked, and what each must show.

use std::{num::NonZeroU32, slice};

use super::{BASE, Setup, Sites, WaitStyle, action::Fault, check, check_canon, find_flaw};
use crate::{
    OnSlotLost,
    model::{flaws::Flaw, of_today},
};

/// Checks a world of two operators and another program for each kind of fault, with one such fault.
fn check_faults(sites: Sites, limit: u32, kinds: &'static [Fault]) {
    for kind in kinds {
        check_kinds(sites, limit, slice::from_ref(kind));
    }
}

/// Checks a world of two operators and another program with as many faults as there are kinds.
fn check_kinds(sites: Sites, limit: u32, kinds: &'static [Fault]) {
    let setup = Setup {
        sites,
        limit,
        faults: u8::try_from(kinds.len()).expect("a few"),
        kinds,
        ..BASE
    };
    check(&format!("{sites:?}, limit {limit}, {kinds:?}"), setup);
}

#[test]
fn two_operators_and_another_program() {
    for sites in [Sites::TwoClusters, Sites::TwoReplicas] {
        for limit in [1, 2] {
            check_kinds(sites, limit, &[]);
        }
    }
}

#[test]
fn two_clusters_and_a_fault() {
    check_faults(Sites::TwoClusters, 1, Fault::ALL);
}

#[test]
fn two_replicas_and_a_fault() {
    let kind = of_today(Fault::ALL);
    check_kinds(Sites::TwoReplicas, 1, slice::from_ref(kind));
}

#[test]
#[ignore = "takes minutes: make model"]
fn two_replicas_and_any_fault() {
    check_faults(Sites::TwoReplicas, 1, Fault::ALL);
}

/// The kinds of faults whose worlds are still small.
const SMALL: &[Fault] = &[
    Fault::Crash,
    Fault::LostAnswer,
    Fault::LateCall,
    Fault::CallTwice,
];

/// The kinds of faults whose worlds are large.
const LARGE: &[Fault] = &[Fault::StaleRead, Fault::Expiry, Fault::ForcedRelease];

#[test]
fn two_slots_and_a_fault() {
    let sites = [Sites::TwoClusters, Sites::TwoReplicas];
    let by_sites = sites.map(|sites| SMALL.iter().map(move |kind| (sites, kind)));
    let worlds: Vec<_> = by_sites.into_iter().flatten().collect();
    let (sites, kind) = of_today(&worlds);
    check_kinds(*sites, 2, slice::from_ref(*kind));
}

#[test]
#[ignore = "takes minutes: make model"]
fn two_slots_and_any_small_fault() {
    for sites in [Sites::TwoClusters, Sites::TwoReplicas] {
        check_faults(sites, 2, SMALL);
    }
}

#[test]
#[ignore = "takes minutes: make model"]
fn two_slots_and_a_fault_at_length() {
    for sites in [Sites::TwoClusters, Sites::TwoReplicas] {
        check_faults(sites, 2, LARGE);
    }
}

#[test]
#[ignore = "takes minutes: make model"]
fn two_faults_at_once() {
    for sites in [Sites::TwoClusters, Sites::TwoReplicas] {
        for (position, one) in SMALL.iter().enumerate() {
            for other in &SMALL[position..] {
                check_kinds(sites, 1, vec![*one, *other].leak());
            }
        }
    }
}

/// A slot is released only when its cooldown is over, and then it is released, even if an operator dies before or
/// after it writes the end of the cooldown.
#[test]
fn slots_that_cool() {
    for (sites, kinds) in [
        (Sites::TwoClusters, &[][..]),
        (Sites::TwoReplicas, &[]),
        (Sites::One, &[Fault::Crash]),
        (Sites::One, &[Fault::LostAnswer]),
        (Sites::One, &[Fault::LateCall]),
    ] {
        let setup = Setup {
            sites,
            faults: u8::try_from(kinds.len()).expect("a few"),
            kinds,
            cooldown: true,
            ..BASE
        };
        check(&format!("cooling, {sites:?}, {kinds:?}"), setup);
    }
}

/// One of two workloads asks for two slots: it has both or none.
#[test]
fn two_slots_for_one() {
    for (sites, kinds) in [
        (Sites::TwoReplicas, &[][..]),
        (Sites::TwoReplicas, &[Fault::Crash]),
        (Sites::One, &[Fault::LostAnswer]),
        (Sites::One, &[Fault::LateCall]),
        (Sites::One, &[Fault::CallTwice]),
        (Sites::One, &[Fault::Expiry]),
        (Sites::One, &[Fault::ForcedRelease]),
    ] {
        let setup = Setup {
            sites,
            limit: 2,
            slots: NonZeroU32::MIN.saturating_add(1),
            faults: u8::try_from(kinds.len()).expect("a few"),
            kinds,
            ..BASE
        };
        check(&format!("two slots for one, {sites:?}, {kinds:?}"), setup);
    }
}

/// In fair order, where everybody lets earlier contenders go first.
#[test]
fn fair_order() {
    for kinds in [&[][..], &[Fault::Crash]] {
        let setup = Setup {
            faults: u8::try_from(kinds.len()).expect("a few"),
            kinds,
            fair: true,
            ..BASE
        };
        check(&format!("fair, TwoClusters, {kinds:?}"), setup);
    }
}

#[test]
#[ignore = "takes minutes: make model"]
fn fair_order_and_a_fault() {
    for sites in [Sites::TwoClusters, Sites::TwoReplicas] {
        for kind in Fault::ALL {
            let setup = Setup {
                sites,
                kinds: slice::from_ref(kind),
                fair: true,
                ..BASE
            };
            check(&format!("fair, {sites:?}, [{kind:?}]"), setup);
        }
    }
}

/// A contender that waits and never takes a slot delays the others, and does not stop them.
const SILENT: Setup = Setup {
    faults: 0,
    fair: true,
    manner: WaitStyle::Silent,
    ..BASE
};

#[test]
fn whoever_never_takes_its_turn_stops_nobody() {
    check("fair, a silent contender", SILENT);
}

#[test]
fn whoever_stands_back_for_ever_is_found_out() {
    find_flaw(
        Flaw::NeverTakesTurn,
        Setup {
            sites: Sites::One,
            ..SILENT
        },
    );
}

#[test]
fn nothing_is_in_consul_yet() {
    for (sites, faults) in [(Sites::TwoReplicas, 0), (Sites::One, 1)] {
        let setup = Setup {
            sites,
            faults,
            arrivals: 0,
            from_nothing: true,
            ..BASE
        };
        check(
            &format!("{sites:?}, from nothing, faults of any kind: {faults}"),
            setup,
        );
    }
}

#[test]
fn what_is_taken_for_the_same_leads_to_the_same() {
    for (sites, kinds) in [
        (Sites::TwoReplicas, &[][..]),
        (Sites::TwoReplicas, &[Fault::Crash]),
        (Sites::TwoClusters, &[Fault::LostAnswer]),
        (Sites::TwoClusters, &[Fault::LateCall]),
        (Sites::TwoClusters, &[Fault::CallTwice]),
        (Sites::One, &[Fault::Expiry]),
        (Sites::One, &[Fault::ForcedRelease]),
        (Sites::One, &[Fault::StaleRead]),
    ] {
        let faults = u8::try_from(kinds.len()).expect("a few");
        println!("{sites:?}, {kinds:?}");
        check_canon(Setup {
            sites,
            faults,
            kinds,
            ..BASE
        });
    }
    check_canon(SILENT);
}

#[test]
fn a_prune_without_a_check_is_found_out() {
    find_flaw(
        Flaw::SkipsChecks,
        Setup {
            sites: Sites::One,
            ..BASE
        },
    );
}

#[test]
fn a_write_without_an_index_is_found_out() {
    find_flaw(
        Flaw::DropsIndex,
        Setup {
            faults: 0,
            arrivals: 0,
            ..BASE
        },
    );
}

#[test]
fn a_release_before_the_pods_are_gone_is_found_out() {
    find_flaw(
        Flaw::ReleasesEarly,
        Setup {
            sites: Sites::One,
            faults: 0,
            user_changes: 1,
            arrivals: 0,
            ..BASE
        },
    );
}

/// A custom setup from the environment: `MODEL="TwoReplicas limit=2 faults=1 Crash"`.
#[test]
#[ignore = "as large as one asks for"]
fn as_asked() {
    let asked = option_env!("MODEL").unwrap_or_default();
    let mut setup = BASE;
    let mut kinds = Vec::new();
    let mut same = false;
    for word in asked.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, "1"));
        let number: u8 = value.parse().unwrap_or(0);
        match name {
            "One" => setup.sites = Sites::One,
            "TwoReplicas" => setup.sites = Sites::TwoReplicas,
            "TwoClusters" => setup.sites = Sites::TwoClusters,
            "limit" => setup.limit = number.into(),
            "faults" => setup.faults = number,
            "user_changes" => setup.user_changes = number,
            "arrivals" => setup.arrivals = number,
            "slow" => setup.manner = WaitStyle::Slow,
            "same" => same = true,
            "fair" => setup.fair = true,
            "silent" => setup.manner = WaitStyle::Silent,
            "nothing" => setup.from_nothing = true,
            "cooldown" => setup.cooldown = true,
            "Suspend" => setup.policy = OnSlotLost::Suspend,
            "Continue" => setup.policy = OnSlotLost::Continue,
            "flaw" => {
                let flaw = Flaw::ALL
                    .into_iter()
                    .find(|flaw| format!("{flaw:?}") == value);
                println!("{}", find_flaw(flaw.expect("a flaw"), setup));
                return;
            }
            other => {
                let named = |fault: &&Fault| format!("{fault:?}") == other;
                let known = Fault::ALL.iter().find(named);
                kinds.push(*known.unwrap_or_else(|| panic!("{other}?")));
            }
        }
    }
    if !kinds.is_empty() {
        setup.kinds = kinds.leak();
    }
    if same {
        return check_canon(setup);
    }
    check(asked, setup);
}
