//! Every order of events in the smallest worlds that show a grant at several lock keys: two semaphores of limit 1, and
//! two workloads that ask for both, in either order.
//!
//! Between two writes anything may happen: another write, a pass, the end of a pod, a fault. Questions are answered at
//! once, and time passes only by [`Action::Wait`], for longer than anything waits. Every rule of
//! [`outside`](super::outside) is checked in every state; and from every state in which no write is under way, all
//! must come to rest, with everybody served.

mod digest;

use std::collections::{HashMap, VecDeque};

use super::{
    super::{flaws::rule_broken, of_today, operator::Lost},
    flaws::Flaw,
    operator::{Operator, PROMPT},
    outside::Outside,
    world::{Event, Kind, Setup, World, by_others},
};
/// Longer than anything waits.
const LONG: u64 = 10_000;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Crash,
    Expiry,
    LostAnswer,
    LateCall,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// An operator sees everything, and decides.
    Decide(usize),
    /// The operator carries out its next write.
    Step(usize),
    /// The operator carries out its next write, and the answer is lost.
    Unanswered(usize),
    /// The operator sends its next write, which arrives later or never.
    Late(usize),
    Crash(usize),
    Land,
    Expire(usize),
    EndPod(usize),
    Control,
    Wait,
}

/// What a search starts from.
#[derive(Clone, Copy, Debug)]
struct Space {
    operators: usize,
    limit: u32,
    /// What the workloads ask for.
    asks: &'static [[u32; 3]],
    fault: Option<Fault>,
    /// In seconds: the first semaphore is a rate.
    period: Option<u64>,
    /// How often time passes.
    waits: u8,
    flaw: Option<Flaw>,
}

const BOTH: &[[u32; 3]] = &[[1, 1, 0], [1, 1, 0]];

const BASE: Space = Space {
    operators: 1,
    limit: 1,
    asks: BOTH,
    fault: None,
    period: None,
    waits: 1,
    flaw: None,
};

/// A state of the world.
#[derive(Clone)]
struct State {
    world: World,
    faults: u8,
    waits: u8,
}

impl State {
    fn new(space: &Space) -> Self {
        let mut world = World::new(
            &Setup {
                limits: vec![space.limit; 2],
                operations: 64,
                lock_delay: 0,
                cooldown: 0,
                period: space.period,
                operators: space.operators,
                clients: Vec::new(),
            },
            space.flaw,
        );
        world.outside.consul.begin_at(1000);
        for place in 0..2 {
            world.outside.respec(place, |settings| settings.ttl = None);
        }
        for asks in space.asks {
            world.create(*asks, 0, Kind::Waits);
        }
        for operator in &mut world.operators {
            *operator = Operator::new(space.flaw, true, &world.outside);
        }
        Self {
            world,
            faults: u8::from(space.fault.is_some()),
            waits: space.waits,
        }
    }

    fn actions(&self, space: &Space) -> Vec<Action> {
        let may = |fault| self.faults > 0 && space.fault == Some(fault);
        let (outside, mut actions) = (&self.world.outside, Vec::new());
        for (number, operator) in self.world.operators.iter().enumerate() {
            if operator.pending.is_empty() {
                actions.push(Action::Decide(number));
            } else {
                actions.push(Action::Step(number));
                if may(Fault::LostAnswer) {
                    actions.push(Action::Unanswered(number));
                }
                if may(Fault::LateCall) {
                    actions.push(Action::Late(number));
                }
            }
            if may(Fault::Crash) {
                actions.push(Action::Crash(number));
            }
        }
        if !outside.late.is_empty() {
            actions.push(Action::Land);
        }
        if may(Fault::Expiry) {
            let sights = outside.sights().into_iter();
            let contenders = sights.map(|sight| sight.contenders.len()).sum();
            actions.extend((0..contenders).map(Action::Expire));
        }
        actions.extend((0..outside.workloads.pods().len()).map(Action::EndPod));
        let mut objects = outside.workloads.objects();
        if objects.any(|object| outside.workloads.awaits_control(object)) {
            actions.push(Action::Control);
        }
        if self.waits > 0 {
            actions.push(Action::Wait);
        }
        actions
    }

    fn happen(&mut self, action: Action) {
        let World {
            outside, operators, ..
        } = &mut self.world;
        match action {
            Action::Decide(of) => decide(&mut operators[of], outside),
            Action::Step(of) => act(&mut operators[of], outside, None),
            Action::Unanswered(of) => {
                self.faults -= 1;
                act(&mut operators[of], outside, Some(Lost::answer()));
            }
            Action::Late(of) => {
                self.faults -= 1;
                act(&mut operators[of], outside, Some(Lost::call()));
            }
            Action::Crash(of) => {
                self.faults -= 1;
                operators[of] = Operator::new(operators[of].flaw, true, outside);
            }
            Action::Land => outside.land(),
            Action::Expire(choice) => {
                self.faults -= 1;
                outside.by_others(|outside| by_others(outside, &Event::Expire(choice)));
            }
            Action::EndPod(choice) => {
                outside.by_others(|outside| by_others(outside, &Event::EndPod(choice)));
            }
            Action::Control => outside.by_others(|outside| outside.workloads.control()),
            Action::Wait => {
                self.waits -= 1;
                outside.tick(LONG);
            }
        }
    }

    /// Whether no write is under way.
    fn is_quiet(&self) -> bool {
        let mut operators = self.world.operators.iter();
        self.world.outside.late.is_empty() && operators.all(|operator| operator.pending.is_empty())
    }
}

/// An operator sees everything and decides, until only writes are left to do, or nothing.
fn decide(operator: &mut Operator, outside: &mut Outside) {
    operator.see_workloads(outside);
    for place in 0..outside.places.len() {
        operator.see_consul(outside, place, false);
    }
    for _ in 0..PROMPT {
        operator.decide(outside);
        if !answer(operator, outside) {
            return;
        }
    }
    panic!("no end of questions: {:?}", operator.pending);
}

/// Takes the steps that concern nobody else. Returns whether there were any.
fn answer(operator: &mut Operator, outside: &mut Outside) -> bool {
    let mut any = false;
    while let Some(position) = operator.pending.iter().position(|step| !step.counts()) {
        operator.act(position, outside, None);
        any = true;
    }
    any
}

fn act(operator: &mut Operator, outside: &mut Outside, lost: Option<Lost>) {
    operator.act(0, outside, lost);
    answer(operator, outside);
}

/// What a search has found.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    steps: usize,
    /// From how many states it was checked that all come to rest.
    rests: usize,
    /// How often a workload was seen to run.
    running: usize,
    /// The rule that is broken, and what leads to that.
    broken: Option<(String, Vec<Action>)>,
}

/// Looks at every state.
fn search(space: &Space) -> Found {
    let mut known: HashMap<u64, (u64, Option<Action>)> = HashMap::new();
    let (mut next, mut found) = (VecDeque::new(), Found::default());
    let first = State::new(space);
    let digest = digest::of(&first);
    known.insert(digest, (digest, None));
    next.push_back((digest, first));
    while let Some((from, state)) = next.pop_front() {
        found.running += usize::from(!super::rest::running(&state.world.outside).is_empty());
        if state.is_quiet() {
            found.rests += 1;
            let mut end = state.world.clone();
            found.broken = rule_broken(|| end.drain()).map(|rule| (rule, way(&known, from)));
        }
        for action in state.actions(space) {
            found.steps += 1;
            let mut after = state.clone();
            let broken = rule_broken(|| after.happen(action));
            if let Some(rule) = broken {
                let mut way = way(&known, from);
                way.push(action);
                found.broken = Some((rule, way));
                break;
            }
            let digest = digest::of(&after);
            known.entry(digest).or_insert_with(|| {
                next.push_back((digest, after));
                (from, Some(action))
            });
        }
        if found.broken.is_some() {
            break;
        }
    }
    found.states = known.len();
    found
}

fn way(known: &HashMap<u64, (u64, Option<Action>)>, mut at: u64) -> Vec<Action> {
    let mut way = Vec::new();
    while let Some((from, Some(action))) = known.get(&at) {
        way.push(*action);
        at = *from;
    }
    way.reverse();
    way
}

fn check(space: Space) {
    let found = search(&space);
    let Found {
        states,
        steps,
        rests,
        ..
    } = found;
    println!("{space:?}: {states} states, {steps} steps, {rests} come to rest");
    assert!(found.broken.is_none(), "{:#?}", found.broken);
    assert!(found.running > 0, "nobody ever runs");
}

const FAULTS: [Option<Fault>; 5] = [
    None,
    Some(Fault::LostAnswer),
    Some(Fault::LateCall),
    Some(Fault::Crash),
    Some(Fault::Expiry),
];

/// Otherwise there would be no end of states.
#[test]
fn a_pass_that_finds_nothing_to_do_changes_nothing() {
    let mut state = State::new(&BASE);
    for _ in 0..5 {
        state.happen(Action::Decide(0));
        while !state.is_quiet() {
            state.happen(Action::Step(0));
        }
        state.happen(Action::Control);
    }
    let mut after = state.clone();
    after.happen(Action::Decide(0));
    assert_eq!(digest::differences(&state, &after), [""; 0]);
}

#[test]
fn two_that_ask_for_both_and_a_fault() {
    let fault = *of_today(&FAULTS);
    check(Space { fault, ..BASE });
}

#[test]
#[ignore = "takes minutes: make model"]
fn two_that_ask_for_both_and_any_fault() {
    for fault in FAULTS {
        check(Space { fault, ..BASE });
    }
}

/// The first of two semaphores is a rate of one start.
const RATE: Space = Space {
    period: Some(60),
    ..BASE
};

#[test]
fn two_that_ask_for_a_rate_and_a_fault() {
    let fault = *of_today(&FAULTS);
    check(Space { fault, ..RATE });
}

#[test]
#[ignore = "takes minutes: make model"]
fn two_that_ask_for_a_rate_and_any_fault() {
    for fault in FAULTS {
        check(Space { fault, ..RATE });
    }
}

#[test]
#[ignore = "takes minutes: make model"]
fn two_that_ask_for_a_rate_and_more_time() {
    for fault in FAULTS {
        check(Space {
            fault,
            waits: 2,
            ..RATE
        });
    }
}

#[test]
#[ignore = "takes minutes: make model"]
fn two_operators_and_two_that_ask_for_a_rate() {
    for fault in FAULTS {
        check(Space {
            operators: 2,
            fault,
            ..RATE
        });
    }
}

#[test]
#[ignore = "takes minutes: make model"]
fn two_operators_and_one_that_asks_for_both() {
    check(Space {
        operators: 2,
        asks: &[[1, 1, 0]],
        waits: 0,
        ..BASE
    });
}

#[test]
#[ignore = "takes minutes: make model"]
fn two_that_ask_for_both_and_more_time() {
    for fault in FAULTS {
        check(Space {
            fault,
            waits: 2,
            ..BASE
        });
    }
}

#[test]
#[ignore = "takes minutes: make model"]
fn two_operators_and_two_that_ask_for_both() {
    for fault in FAULTS {
        check(Space {
            operators: 2,
            fault,
            ..BASE
        });
    }
}

#[test]
#[ignore = "takes minutes: make model"]
fn one_that_asks_for_both_and_one_for_each() {
    for fault in FAULTS {
        check(Space {
            asks: &[[1, 0, 0], [1, 1, 0], [0, 1, 0]],
            fault,
            ..BASE
        });
    }
}

#[test]
fn a_grant_of_a_part_is_found_out() {
    let found = search(&Space {
        flaw: Some(Flaw::GrantsAPart),
        ..BASE
    });
    let (rule, way) = found.broken.expect("it shows");
    assert!(rule.contains("a part of a request was granted"), "{rule}");
    println!("after {way:?}: {rule}");
}
