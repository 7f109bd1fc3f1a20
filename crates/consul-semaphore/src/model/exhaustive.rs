//! Every order of events, in a world that is small enough: [`decide`](crate::decide) itself under stateright's model
//! checker.
//!
//! Three contenders compete for one or two slots: two workloads, of two clusters or of one with two operators that
//! both act as the leader, and another program with the algorithm of Consul's Go client. In every state anything
//! possible may happen next: a step of a plan, a pass, the end of a pod, a run of the Job controller, and as many
//! faults and changes of mind as the setup allows.
//!
//! The parts are those of the random worlds, and so are the rules for every write and every moment. Time differs:
//! only its order counts, and waiting means waiting for long enough.

mod action;
mod fair;
mod happen;
mod state;
mod verdict;
mod worlds;

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    num::NonZeroU32,
};

use parking_lot::Mutex;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path, Property};

use self::{
    action::{Action, Fault},
    state::State,
    verdict::Showing,
};
use super::flaws::Flaw;
use crate::OnSlotLost;

/// How many steps a fair schedule may take to come to rest.
const STEPS: usize = 150;

/// Which operators and workloads there are, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sites {
    /// One operator, with two workloads.
    One,
    /// Two operators that work on the same two workloads.
    TwoReplicas,
    /// Two clusters, each with an operator and a workload.
    TwoClusters,
}

/// What a check starts from.
#[derive(Clone, Copy, Debug)]
struct Setup {
    sites: Sites,
    limit: u32,
    policy: OnSlotLost,
    /// How many faults happen,
    faults: u8,
    /// of these kinds,
    kinds: &'static [Fault],
    /// how often users suspend or delete a workload, or it fails,
    user_changes: u8,
    /// and how often another program comes.
    arrivals: u8,
    /// What another program does when it comes.
    manner: WaitStyle,
    /// Whether slots are granted in fair order across all clusters.
    fair: bool,
    /// Whether Consul is empty at first.
    from_nothing: bool,
    /// Whether slots cool.
    cooldown: bool,
    /// How many slots one of two workloads asks for.
    slots: NonZeroU32,
    flaw: Option<Flaw>,
}

const BASE: Setup = Setup {
    sites: Sites::TwoClusters,
    limit: 1,
    policy: OnSlotLost::Reacquire,
    faults: 1,
    kinds: Fault::ALL,
    user_changes: 0,
    arrivals: 1,
    manner: WaitStyle::Prompt,
    fair: false,
    from_nothing: false,
    cooldown: false,
    slots: NonZeroU32::MIN,
    flaw: None,
};

/// How another program waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitStyle {
    /// The program reads, and claims by that reading.
    Prompt,
    /// The program reads some time before it claims.
    Slow,
    /// The program never claims.
    Silent,
}

impl Setup {
    /// Whether slots may be lost.
    fn takes_slots(&self) -> bool {
        let mut kinds = self.kinds.iter();
        self.faults > 0 && kinds.any(|kind| matches!(kind, Fault::Expiry | Fault::ForcedRelease))
    }
}

/// A setup, with what is known about how far each state is from rest.
struct Space {
    setup: Setup,
    steps_to_rest: Mutex<HashMap<u64, usize>>,
}

impl Space {
    fn new(setup: Setup) -> Self {
        Self {
            setup,
            steps_to_rest: Mutex::default(),
        }
    }

    /// Whether a fair schedule comes to rest from here without breaking a rule. Every state on the way is checked
    /// once.
    fn comes_to_rest(&self, state: &State) -> bool {
        let known = |digest: u64| {
            let known = self.steps_to_rest.lock();
            known.get(&digest).copied()
        };
        let mut way = Vec::new();
        let mut at = state.clone();
        let rest = loop {
            if let Some(left) = known(at.digest()) {
                break left;
            }
            way.push(at.digest());
            if way.len() > STEPS || at.broken.is_some() {
                return false;
            }
            match at.next() {
                None => break 0,
                Some(next) => at = next,
            }
        };
        let mut all = self.steps_to_rest.lock();
        for (left, digest) in way.iter().rev().enumerate() {
            all.insert(*digest, rest + left);
        }
        rest + way.len() <= STEPS
    }
}

impl Model for Space {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.setup)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.actions(actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        state.after(action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every rule is kept", |_, state: &State| {
                state.broken.is_none()
            }),
            Property::always("no more hold than the limit", |_, state: &State| {
                !state.is_above_the_limit()
            }),
            // stateright's own `eventually` is blind to paths that join or cycle.
            Property::always("all comes to rest", Space::comes_to_rest),
            Property::sometimes("all workloads are done", |_, state: &State| {
                state.shows(Showing::AllDone)
            }),
            Property::sometimes("another program holds", |space, state: &State| {
                space.setup.arrivals == 0
                    || space.setup.manner == WaitStyle::Silent
                    || state.shows(Showing::OtherHolds)
            }),
            Property::sometimes("a lost slot is had again", |space, state: &State| {
                !space.setup.takes_slots() || state.shows(Showing::SlotHadAgain)
            }),
            Property::sometimes("a workload is suspended", |space, state: &State| {
                !space.setup.takes_slots() || state.shows(Showing::Suspended)
            }),
        ]
    }
}

/// Threads that check states.
const THREADS: usize = 2;

/// Checks every state, and prints how many there are. Stops at the first wrong one.
fn check(name: &str, setup: Setup) {
    let checker = run(setup);
    let figures = format!(
        "{name}: {} states, {} steps, depth {}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth()
    );
    println!("{figures}");
    let mut discoveries = checker.discoveries();
    for property in checker.model().properties() {
        let found = discoveries.remove(property.name);
        match property.expectation {
            Expectation::Sometimes => assert!(found.is_some(), "never: {}", property.name),
            _ => assert!(found.is_none(), "not so: {}", tell(property.name, found)),
        }
    }
}

/// How a wrong state was reached.
fn tell(property: &str, path: Option<Path<State, Action>>) -> String {
    let Some(path) = path else {
        return property.into();
    };
    let mut last = path.last_state().clone();
    let taken: Vec<_> = path.into_actions();
    let lines = taken.iter().map(|action| format!("  {action:?}\n"));
    let actions: Vec<String> = lines.collect();
    // How a fair schedule continues from it.
    for _ in 0..STEPS {
        let Some(next) = last.next() else {
            break;
        };
        last = next;
    }
    format!(
        "{property}, after\n{}which ends in {last:?}",
        actions.concat()
    )
}

fn run(setup: Setup) -> impl Checker<Space> {
    let builder = Space::new(setup).checker().threads(THREADS);
    let checker = builder.finish_when(HasDiscoveries::AnyFailures);
    checker.spawn_bfs().join()
}

/// Checks states until the flaw shows, and returns how.
fn find_flaw(flaw: Flaw, setup: Setup) -> String {
    let setup = Setup {
        flaw: Some(flaw),
        ..setup
    };
    let checker = run(setup);
    let mut discoveries = checker.discoveries();
    let violation = discoveries.remove("every rule is kept");
    let broken = violation.and_then(|path| path.last_state().broken.clone());
    let found = broken.or_else(|| {
        let rest = discoveries.remove("all comes to rest");
        rest.map(|path| tell("it never comes to rest", Some(path)))
    });
    found.unwrap_or_else(|| panic!("{flaw:?} does not show"))
}

/// Tests that the trace holds all that counts: two states that are taken for the same lead to the same states,
/// however each was reached.
fn check_canon(setup: Setup) {
    let mut known: HashMap<u64, (State, BTreeSet<u64>)> = HashMap::new();
    let mut states = vec![State::new(&setup)];
    while let Some(state) = states.pop() {
        let next: Vec<State> = steps(&state).map(|(_, next)| next).collect();
        let found: BTreeSet<u64> = next.iter().map(State::digest).collect();
        match known.entry(state.digest()) {
            Entry::Occupied(before) => {
                let (like, before) = before.get();
                let shows = |state: &State| Showing::ALL.map(|what| state.shows(what));
                assert_eq!(shows(like), shows(&state), "{state:?}");
                assert_eq!(*before, found, "{}", differences(like, &state));
            }
            Entry::Vacant(unknown) => {
                unknown.insert((state, found));
                states.extend(next);
            }
        }
    }
    println!("{} states are all different", known.len());
}

/// All that can happen, and the states that it leads to.
fn steps(state: &State) -> impl Iterator<Item = (Action, State)> {
    let mut actions = Vec::new();
    state.actions(&mut actions);
    let next = actions
        .into_iter()
        .map(|action| (action, state.after(action)));
    next.filter_map(|(action, next)| Some((action, next?)))
}

/// The states that only one of two states leads to.
fn differences(one: &State, other: &State) -> String {
    let only = |one: &State, other: &State| {
        let other: BTreeSet<u64> = steps(other).map(|(_, next)| next.digest()).collect();
        let next = steps(one).filter(|(_, next)| !other.contains(&next.digest()));
        let only: Vec<_> = next.collect();
        format!("{one:#?} alone leads by {only:#?}")
    };
    format!("{}\n{}", only(one, other), only(other, one))
}
