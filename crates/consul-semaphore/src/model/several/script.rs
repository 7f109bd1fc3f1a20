//! Random scripts, and crowds.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*, strategy::Union};

use super::{
    super::{operator::Lost, requests::Deletion, workloads::Refusal},
    flaws::Flaw,
    rest,
    world::{Event, Kind, Setup, World},
};
use crate::Uid;

/// What happens, after which everything is healed and everybody is served.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) setup: Setup,
    pub(super) events: Vec<Event>,
}

impl Script {
    /// Returns how often things were seen to happen.
    pub(super) fn run(&self, flaw: Option<Flaw>) -> BTreeMap<&'static str, usize> {
        let mut world = World::new(&self.setup, flaw);
        for event in &self.events {
            world.happen(event);
        }
        world.drain();
        world.outside.seen
    }

    /// Whenever nothing is left to do, no more workloads wait than may.
    pub(super) fn run_bounded(&self) {
        let mut world = World::new(&self.setup, None);
        for event in self.events.iter().chain([&Event::Rest]) {
            world.happen(event);
            if matches!(event, Event::Rest) {
                rest::check_bounds(&world.outside);
            }
        }
        world.drain();
    }
}

fn any_one() -> impl Strategy<Value = usize> {
    0..12_usize
}

fn asks() -> impl Strategy<Value = [u32; 3]> {
    let slots = || prop_oneof![3 => Just(0_u32), 4 => Just(1), 1 => Just(2)];
    (slots(), slots(), slots()).prop_map(|(x, y, z)| [x, y, z])
}

/// How many operations the largest request needs: two slots of each of three semaphores.
const LEAST: usize = 9;

fn setup() -> impl Strategy<Value = Setup> {
    let limits = prop_oneof![vec(1..4_u32, 2), vec(1..4_u32, 3)];
    let operations = prop_oneof![1 => Just(LEAST), 3 => Just(64)];
    let cooldown = prop_oneof![3 => Just(0), 1 => 1..20_u64];
    let operators = prop_oneof![2 => Just(1_usize), 1 => Just(2)];
    let clients = vec(0..3_usize, 0..3);
    (limits, operations, (0..4_u64, cooldown), operators, clients).prop_map(
        |(limits, operations, (lock_delay, cooldown), operators, clients)| Setup {
            limits,
            operations,
            lock_delay,
            cooldown,
            period: None,
            operators,
            clients,
        },
    )
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        8 => Just(Kind::Waits),
        1 => Just(Kind::Skips),
        1 => Just(Kind::Fails),
        1 => Just(Kind::TimesOut),
        1 => Just(Kind::ReplacesWaiting),
        1 => Just(Kind::ReplacesRunning),
    ]
}

fn replaces() -> impl Strategy<Value = Kind> {
    prop_oneof![1 => Just(Kind::ReplacesWaiting), 2 => Just(Kind::ReplacesRunning)]
}

fn workloads() -> BoxedStrategy<Event> {
    let deletion = prop_oneof![
        Just(Deletion::Background),
        Just(Deletion::Foreground),
        Just(Deletion::Orphan)
    ];
    let refusal = prop_oneof![Just(Refusal::Forbidden), Just(Refusal::Conflict)];
    prop_oneof![
        8 => (asks(), -1..2_i32, kind()).prop_map(|(asks, priority, kind)| Event::Create(asks, priority, kind)),
        2 => (any_one(), replaces()).prop_map(|(workload, kind)| Event::CreateAlike(workload, kind)),
        6 => Just(Event::Control),
        5 => any_one().prop_map(Event::EndPod),
        1 => any_one().prop_map(Event::Fail),
        1 => (any_one(), deletion).prop_map(|(workload, how)| Event::Delete(workload, how)),
        1 => Just(Event::CleanUp),
        1 => (any_one(), prop::bool::weighted(0.3)).prop_map(|(workload, hold)| Event::Hold(workload, hold)),
        1 => any_one().prop_map(Event::Suspend),
        1 => (any_one(), refusal).prop_map(|(workload, refusal)| Event::Forbid(workload, refusal)),
    ]
    .boxed()
}

fn others() -> BoxedStrategy<Event> {
    prop_oneof![
        2 => any_one().prop_map(Event::Arrive),
        4 => any_one().prop_map(Event::LookAndClaim),
        1 => any_one().prop_map(Event::Leave),
        1 => any_one().prop_map(Event::Die),
        2 => any_one().prop_map(Event::Expire),
        1 => any_one().prop_map(Event::TakeOut),
    ]
    .boxed()
}

fn specs() -> BoxedStrategy<Event> {
    let place = || 0..3_usize;
    prop_oneof![
        2 => (place(), 1..4_u32).prop_map(|(place, limit)| Event::SetLimit(place, limit)),
        3 => (place(), any::<bool>()).prop_map(|(place, paused)| Event::Pause(place, paused)),
        2 => (place(), prop::option::of(1..3_u32)).prop_map(|(place, limit)| Event::Window(place, limit)),
        2 => (place(), 1..3_u32).prop_map(|(place, limit)| Event::SmallWindow(place, limit)),
        1 => place().prop_map(Event::NoWindow),
        2 => (place(), prop::option::weighted(0.7, (1..3_u32, 0..2_i32)))
            .prop_map(|(place, reserved)| Event::Reserve(place, reserved)),
        1 => (place(), 0..20_u64).prop_map(|(place, seconds)| Event::SetCooldown(place, seconds)),
        2 => (place(), prop::option::weighted(0.8, 1..3_u32)).prop_map(|(place, most)| Event::Bound(place, most)),
    ]
    .boxed()
}

fn operators() -> BoxedStrategy<Event> {
    let lost = (any::<bool>(), any::<bool>()).prop_map(|(done, hangs)| Lost { done, hangs });
    let lost = prop_oneof![12 => Just(None), 1 => lost.prop_map(Some)];
    let one = || 0..2_usize;
    prop_oneof![
        5 => one().prop_map(Event::See),
        5 => (one(), 0..3_usize).prop_map(|(of, place)| Event::SeeConsul(of, place)),
        1 => (one(), 0..3_usize).prop_map(|(of, place)| Event::LoseTheWatch(of, place)),
        20 => (one(), any_one(), lost).prop_map(|(of, position, lost)| Event::Step(of, position, lost)),
        8 => one().prop_map(Event::Decide),
        6 => one().prop_map(Event::Pass),
        2 => (one(), 0..4_usize).prop_map(|(of, choice)| Event::Echo(of, choice)),
        1 => one().prop_map(Event::GiveUp),
        1 => one().prop_map(Event::Crash),
        1 => Just(Event::Land),
    ]
    .boxed()
}

fn time() -> BoxedStrategy<Event> {
    prop_oneof![
        3 => (1..9_u64).prop_map(Event::Wait),
        1 => (20..90_u64).prop_map(Event::Wait),
        1 => Just(Event::Rest),
    ]
    .boxed()
}

/// Anything may happen.
pub(super) fn script() -> impl Strategy<Value = Script> {
    (setup(), events()).prop_map(|(setup, events)| Script { setup, events })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let kinds = [
        (6, workloads()),
        (2, others()),
        (1, specs()),
        (10, operators()),
        (1, time()),
    ];
    vec(Union::new_weighted(kinds.into()), 0..200)
}

/// Anything happens while Consul is restored from a snapshot. Nobody changes limits: after a restore an earlier limit
/// is another program's, and somebody has to decide.
pub(super) fn restored() -> impl Strategy<Value = Script> {
    let events = vec(
        Union::new_weighted(vec![
            (6, workloads()),
            (1, others()),
            (1, specs()),
            (10, operators()),
            (1, time()),
            (1, restores()),
        ]),
        0..200,
    );
    (setup(), events).prop_map(|(setup, mut events)| {
        events.retain(|event| !matches!(event, Event::SetLimit(..)));
        Script { setup, events }
    })
}

fn restores() -> BoxedStrategy<Event> {
    prop_oneof![2 => Just(Event::Snapshot), 1 => Just(Event::Restore)].boxed()
}

/// Workloads that ask for one slot each wait in the order in which they came, stay in their queue or leave it for good, and
/// nothing keeps a slot from one that is about to get it. So all that waits was admitted while there was room.
pub(super) fn bounded() -> impl Strategy<Value = Script> {
    (setup(), vec(1..3_u32, 3), events()).prop_map(|(mut setup, most, mut events)| {
        setup.operators = 1;
        setup.clients.clear();
        events.retain(|event| !may_exceed_a_bound(event));
        for event in &mut events {
            if let Event::Create(asks, priority, _) = event {
                let place = asks.iter().position(|slots| *slots > 0).unwrap_or(0);
                (*asks, *priority) = ([0; 3], 0);
                asks[place] = 1;
            }
        }
        let bounds = (0..3).zip(most);
        let first = bounds.map(|(place, most)| Event::Bound(place, Some(most)));
        Script {
            setup,
            events: first.chain(events).collect(),
        }
    })
}

/// Whether more workloads than may can wait in a queue because this happens.
fn may_exceed_a_bound(event: &Event) -> bool {
    let restarts = matches!(event, Event::Crash(_) | Event::Bound(..));
    let loses = matches!(event, Event::Expire(_) | Event::TakeOut(_));
    let overtakes = matches!(event, Event::CreateAlike(..));
    let comes_back = matches!(
        event,
        Event::Hold(..) | Event::Suspend(_) | Event::Forbid(..)
    );
    let closes = matches!(
        event,
        Event::Pause(..)
            | Event::SetLimit(..)
            | Event::Window(..)
            | Event::SmallWindow(..)
            | Event::Reserve(..)
    );
    restarts || loses || overtakes || comes_back || closes
}

/// Anything happens with a rate as the first semaphore, which nobody changes and nobody else uses.
pub(super) fn rate() -> impl Strategy<Value = Script> {
    (1..50_u64, setup(), events()).prop_map(|(period, mut setup, mut events)| {
        setup.period = Some(period);
        let places = setup.limits.len();
        setup.clients.retain(|place| place % places > 0);
        for event in &mut events {
            if let Event::SetLimit(place, _) | Event::SetCooldown(place, _) = event
                && *place % places == 0
            {
                *event = Event::Wait(period);
            }
        }
        Script { setup, events }
    })
}

/// Anything happens after slots came to be kept for two workloads, in different semaphores.
pub(super) fn two_keep() -> impl Strategy<Value = Script> {
    (setup(), events()).prop_map(|(mut setup, events)| {
        setup.limits = vec![2, 2, 1];
        // A small one is in each, and two large ones come.
        let small_asks = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
        let small = small_asks.map(|asks| Event::Create(asks, 0, Kind::Waits));
        let large_asks = [[2, 0, 0], [0, 2, 1]];
        let large = large_asks.map(|asks| Event::Create(asks, 0, Kind::Waits));
        let later = [
            Event::Pass(0),
            Event::Wait(70),
            Event::Pass(0),
            Event::Pass(0),
        ];
        let first = small.into_iter().chain([Event::Pass(0), Event::Control]);
        let begin = first.chain(large).chain(later);
        Script {
            setup,
            events: begin.chain(events).collect(),
        }
    })
}

/// Workloads that ask for much, while small ones keep coming: whenever one ends, the next one comes.
#[derive(Clone, Debug)]
pub(super) struct Crowd {
    pub(super) limits: Vec<u32>,
    /// The workload that comes before all others.
    pub(super) head: Option<HopelessHead>,
    /// The large requests that are there first, in this order.
    pub(super) large: Vec<[u32; 3]>,
    /// Which semaphore each of the others asks for.
    pub(super) small: Vec<usize>,
}

/// A workload that is the first in its queues for as long as the world lasts, because it can't be granted what it asks
/// for. It keeps no slots, and is in nobody's way.
#[derive(Clone, Copy, Debug)]
pub(super) enum HopelessHead {
    /// The workload asks for more than the open window allows.
    TooLarge,
    /// The workload asks also for a slot of a semaphore that is paused.
    Paused,
    /// The workload asks also for a slot that cools down.
    Cooling,
}

/// For longer than a crowd lasts.
const VERY_LONG: u64 = 100_000;

pub(super) fn crowd() -> impl Strategy<Value = Crowd> {
    let large = (1..3_u32, 1..3_u32, 0..2_u32).prop_map(|(x, y, z)| [x, y, z]);
    let limits = prop_oneof![vec(1..4_u32, 2), vec(1..4_u32, 3)];
    let head = prop_oneof![
        3 => Just(None),
        1 => Just(Some(HopelessHead::TooLarge)),
        1 => Just(Some(HopelessHead::Paused)),
        1 => Just(Some(HopelessHead::Cooling)),
    ];
    (limits, head, vec(large, 1..4), vec(0..3_usize, 40)).prop_map(
        |(mut limits, head, large, small)| {
            if head.is_some() {
                limits.truncate(2);
            }
            let most = |place: usize| limits.get(place).copied().unwrap_or(0);
            let large = large.into_iter().map(|asks: [u32; 3]| {
                let mut places = 0..3;
                asks.map(|slots| slots.min(places.next().map_or(0, most)))
            });
            Crowd {
                large: large.collect(),
                limits,
                head,
                small,
            }
        },
    )
}

impl HopelessHead {
    /// Lets the workload come to a world whose first two semaphores have these limits.
    fn comes(self, world: &mut World, limits: &[u32]) {
        match self {
            Self::TooLarge => {
                world.happen(&Event::SmallWindow(0, limits[0]));
                return world.create([limits[0] + 1, 0, 0], 0, Kind::Waits);
            }
            Self::Paused => world.happen(&Event::Pause(2, true)),
            Self::Cooling => {
                world.happen(&Event::SetCooldown(2, VERY_LONG));
                world.create([0, 0, 1], 0, Kind::Waits);
                world.hand_over(None);
                world.end_the_first();
                world.hand_over(None);
            }
        }
        world.create([1, 1, 1], 0, Kind::Waits);
    }
}

impl Crowd {
    /// Each of them is served within as many hand-overs as there are slots, after those before it, and after the time
    /// for which it is passed over.
    pub(super) fn run(&self, flaw: Option<Flaw>) {
        let mut limits = self.limits.clone();
        match self.head {
            None => {}
            Some(HopelessHead::TooLarge) => limits[0] += 1,
            Some(HopelessHead::Paused | HopelessHead::Cooling) => limits.push(1),
        }
        let mut world = World::new(&alone(limits), flaw);
        if let Some(head) = self.head {
            head.comes(&mut world, &self.limits);
            world.hand_over(None);
        }
        let mut small = self.small.iter().cycle().map(|place| {
            let mut asks = [0; 3];
            asks[place % self.limits.len()] = 1;
            asks
        });
        let slots = usize::try_from(self.limits.iter().sum::<u32>()).unwrap();
        for asks in small.by_ref().take(slots) {
            world.create(asks, 0, Kind::Waits);
            world.hand_over(None);
        }
        let before = world.uids();
        for asks in &self.large {
            world.outside.tick(1);
            world.create(*asks, 0, Kind::Waits);
        }
        let mut left = world.uids();
        left.retain(|uid| !before.contains(uid));
        // It takes less than this many to be passed over for long enough.
        let passed_over = usize::try_from(60 / HAND_OVER).unwrap() + 1;
        // Of the small ones, as many came before it.
        let most = slots + (slots + passed_over) * left.len();
        for _ in 0..most {
            world.hand_over(small.next());
            let started = &world.outside.started;
            left.retain(|uid| !started.contains(uid));
        }
        assert!(left.is_empty(), "{left:?} was not served within {most}");
    }
}

/// One operator, and nobody else.
pub(super) fn alone(limits: Vec<u32>) -> Setup {
    Setup {
        limits,
        operations: 64,
        lock_delay: 0,
        cooldown: 0,
        period: None,
        operators: 1,
        clients: Vec::new(),
    }
}

/// Small workloads behind more than a pass reads of those that can't be granted what they ask for.
#[derive(Clone, Debug)]
pub(super) struct Hidden {
    /// How many slots the first semaphore has, of which its window allows all but one.
    limit: u32,
    /// Whether the second one is paused; otherwise another workload holds its slot.
    paused: bool,
    /// Whether each of those in front asks for all slots of the first semaphore, or for one of both.
    front: Vec<bool>,
    small: u32,
}

pub(super) fn hidden() -> impl Strategy<Value = Hidden> {
    let front = vec(any::<bool>(), 20..40);
    (2..5_u32, any::<bool>(), front, 1..3_u32).prop_map(|(limit, paused, front, small)| Hidden {
        limit,
        paused,
        front,
        small: small.min(limit - 1),
    })
}

impl Hidden {
    /// All the small ones are started at once, and in the end no slot is free that one of them could have.
    pub(super) fn run(&self) {
        let mut world = World::new(&alone(vec![self.limit, 1]), None);
        world.happen(&Event::SmallWindow(0, self.limit - 1));
        if self.paused {
            world.happen(&Event::Pause(1, true));
        } else {
            world.create([0, 1, 0], 0, Kind::Waits);
            world.hand_over(None);
        }
        for all in &self.front {
            let asks = if *all { [self.limit, 0, 0] } else { [1, 1, 0] };
            world.create(asks, 0, Kind::Waits);
        }
        let before = world.uids();
        for _ in 0..self.small {
            world.create([1, 0, 0], 0, Kind::Waits);
        }
        let mut small = world.uids();
        small.retain(|uid| !before.contains(uid));
        world.hand_over(None);
        small.retain(|uid| !world.outside.started.contains(uid));
        assert!(small.is_empty(), "{small:?} wait beside free slots");
        world.rest();
    }
}

/// How many seconds a hand-over takes.
const HAND_OVER: u64 = 10;

impl World {
    /// What has been running for the longest time ends, and another workload comes.
    fn hand_over(&mut self, next: Option<[u32; 3]>) {
        self.outside.tick(HAND_OVER);
        if let Some(asks) = next {
            self.end_the_first();
            self.create(asks, 0, Kind::Waits);
        }
        for _ in 0..3 {
            self.pass(0);
            self.outside.tick(1);
            self.outside
                .by_others(|outside| outside.workloads.control());
        }
    }

    /// What has been running for the longest time ends.
    fn end_the_first(&mut self) {
        if let Some(uid) = rest::running(&self.outside).first() {
            self.outside.by_others(|outside| {
                outside.workloads.control();
                outside.workloads.end_pod(uid);
                outside.workloads.clean_up();
            });
        }
    }

    fn uids(&self) -> BTreeSet<Uid> {
        let objects = self.outside.workloads.objects();
        objects.map(|object| object.uid.clone()).collect()
    }
}
