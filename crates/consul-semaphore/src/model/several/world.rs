//! Several semaphores, what can happen there, and how everything comes to rest.

use std::{num::NonZeroU32, time::Duration};

use super::{
    super::{operator::Lost, requests::Deletion, workloads::Object, workloads::Refusal},
    flaws::Flaw,
    operator::{Operator, PROMPT, Step},
    outside::{NAMES, Opens, Outside},
    rest,
};
use crate::{
    OnContention, SlotRequest, Uid,
    settings::Reserved,
    windows::{WindowSpec, Windows},
};
use consul_client::{Op, SessionId};

/// How long some workloads may wait.
const TIMEOUT: Duration = Duration::from_secs(90);

/// How many workloads there are at most.
const MOST: usize = 8;

/// The time between two looks at everything, once nothing happens any more.
pub(super) const ROUND: u64 = 15;

/// How many steps take no time.
const SOON: usize = 40;

/// In how many rounds everything must come to rest.
const ROUNDS: usize = 100;

/// What a script starts from.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// One for each semaphore.
    pub(super) limits: Vec<u32>,
    pub(super) operations: usize,
    pub(super) lock_delay: u64,
    pub(super) cooldown: u64,
    /// In seconds: the first semaphore is a rate.
    pub(super) period: Option<u64>,
    /// How many operators act at the same time.
    pub(super) operators: usize,
    /// The semaphores at which other programs take part.
    pub(super) clients: Vec<usize>,
}

/// What becomes of a workload that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Waits,
    Skips,
    Fails,
    TimesOut,
    ReplacesWaiting,
    ReplacesRunning,
}

/// Something that happens. A number picks one of the things that exist.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Create([u32; 3], i32, Kind),
    /// A workload comes that asks for the same as another one, and replaces it or not.
    CreateAlike(usize, Kind),
    Control,
    EndPod(usize),
    Fail(usize),
    CleanUp,
    Delete(usize, Deletion),
    Hold(usize, bool),
    Suspend(usize),
    Forbid(usize, Refusal),

    SetLimit(usize, u32),
    Pause(usize, bool),
    /// Outside its windows, or in one with this limit.
    Window(usize, Option<u32>),
    NoWindow(usize),
    /// In a window with this limit, before one without.
    SmallWindow(usize, u32),
    /// Reserves so many slots for workloads of this priority and above.
    Reserve(usize, Option<(u32, i32)>),
    SetCooldown(usize, u64),
    /// So many may wait in a queue.
    Bound(usize, Option<u32>),

    Arrive(usize),
    LookAndClaim(usize),
    Leave(usize),
    Die(usize),

    Expire(usize),
    TakeOut(usize),
    /// A snapshot of Consul is taken.
    Snapshot,
    /// Consul is restored from the last snapshot, at first one without anything.
    Restore,

    See(usize),
    SeeConsul(usize, usize),
    LoseTheWatch(usize, usize),
    Step(usize, usize, Option<Lost>),
    Decide(usize),
    Pass(usize),
    Echo(usize, usize),
    GiveUp(usize),
    Crash(usize),
    /// A transaction that was not answered reaches Consul after all.
    Land,

    Wait(u64),
    /// Calls are answered again, and all that can be done is done.
    Rest,
}

/// The whole world.
#[derive(Clone)]
pub(super) struct World {
    pub(super) outside: Outside,
    pub(super) operators: Vec<Operator>,
    limits: Vec<u32>,
    created: usize,
}

impl World {
    pub(super) fn new(setup: &Setup, flaw: Option<Flaw>) -> Self {
        let mut outside = Outside::new(&setup.limits, |settings| {
            settings.lock_delay = Duration::from_secs(setup.lock_delay);
            settings.period = setup.period.map(Duration::from_secs);
            settings.period = settings.period.filter(|_| settings.name == NAMES[0]);
            if !settings.is_rate() {
                settings.cooldown = Duration::from_secs(setup.cooldown);
            }
        });
        outside.operations = setup.operations;
        outside.contested = setup.operators > 1;
        for place in &setup.clients {
            outside.add_client(*place);
        }
        let operator = |_| Operator::new(flaw, false, &outside);
        Self {
            operators: (0..setup.operators).map(operator).collect(),
            outside,
            limits: setup.limits.clone(),
            created: 0,
        }
    }

    /// Something happens, a second after the last thing.
    pub(super) fn happen(&mut self, event: &Event) {
        self.outside.tick(1);
        let number = self.operators.len();
        let outside = &mut self.outside;
        match event {
            Event::Create(asks, priority, kind) => {
                if outside.workloads.objects().count() < MOST {
                    self.create(*asks, *priority, *kind);
                }
            }
            Event::CreateAlike(choice, kind) => self.create_alike(*choice, *kind),
            Event::See(of) => self.operators[of % number].see_workloads(outside),
            Event::SeeConsul(of, place) => {
                self.operators[of % number].see_consul(outside, *place, false);
            }
            Event::LoseTheWatch(of, place) => {
                self.operators[of % number].see_consul(outside, *place, true);
            }
            Event::Step(of, position, lost) => {
                self.operators[of % number].act(*position, outside, *lost);
            }
            Event::Decide(of) => self.operators[of % number].decide(outside),
            Event::Pass(of) => drop(self.pass(of % number)),
            Event::Echo(of, choice) => self.operators[of % number].echo(outside, *choice),
            Event::GiveUp(of) => self.operators[of % number].give_up(outside),
            Event::Crash(of) => {
                let operator = &mut self.operators[of % number];
                *operator = Operator::new(operator.flaw, false, outside);
            }
            Event::Land => outside.land(),
            Event::Wait(seconds) => outside.tick(*seconds),
            Event::Rest => self.rest(),
            event => outside.by_others(|outside| by_others(outside, event)),
        }
        for operator in &self.operators {
            match operator.keeps_for() {
                0 => {}
                1 => self.outside.note("slots kept for one"),
                _ => self.outside.note("slots kept for two"),
            }
        }
    }

    /// A workload comes that asks for so many slots of each semaphore, if that can ever be granted.
    pub(super) fn create(&mut self, asks: [u32; 3], priority: i32, kind: Kind) {
        let asks = asks
            .iter()
            .zip(&self.limits)
            .map(|(asks, limit)| *asks.min(limit));
        let wanted = NAMES.iter().zip(asks).filter_map(|(name, slots)| {
            Some(SlotRequest {
                slots: NonZeroU32::new(slots)?,
                ..SlotRequest::one(*name, None)
            })
        });
        let requests: Vec<SlotRequest> = wanted.collect();
        if requests.is_empty() {
            return;
        }
        self.created += 1;
        let name = format!("w{:03}", self.created);
        let first = requests[0].semaphore.to_string();
        self.outside.by_others(|outside| {
            let uid = outside.workloads.create(&name, &first, priority);
            outside.workloads.edit(&uid, |object| {
                object.requests = requests;
                object.skippable = matches!(kind, Kind::Skips | Kind::Fails);
                object.fails = kind == Kind::Fails;
                object.timeout = (kind == Kind::TimesOut).then_some(TIMEOUT);
                object.replaces = match kind {
                    Kind::ReplacesWaiting => Some(OnContention::ReplaceWaiting),
                    Kind::ReplacesRunning => Some(OnContention::ReplaceRunning),
                    _ => None,
                };
            });
        });
    }

    fn create_alike(&mut self, choice: usize, kind: Kind) {
        let objects = self.outside.workloads.objects();
        let number = objects.count();
        let objects = self.outside.workloads.objects();
        let (same, others): (Vec<&Object>, Vec<_>) =
            objects.partition(|object| object.replaces.is_some());
        let of = if same.is_empty() { others } else { same };
        let Some(requests) = pick(&of, choice).filter(|_| number < MOST) else {
            return;
        };
        let requests = requests.asks();
        let mut asks = [0; 3];
        for request in &requests {
            let place = self.outside.place_of(&request.semaphore);
            asks[place.expect("a semaphore")] = request.slots.get();
        }
        self.create(asks, 1, kind);
    }

    /// An operator sees everything, and does all that follows. Returns the last write, if any.
    pub(super) fn pass(&mut self, of: usize) -> Option<Step> {
        let (operator, outside) = (&mut self.operators[of], &mut self.outside);
        operator.see_workloads(outside);
        for place in 0..outside.places.len() {
            operator.see_consul(outside, place, false);
        }
        let (mut last, mut next) = (None, None);
        for step in 0..PROMPT {
            // A reading from the moment in which a write was given up tells nothing.
            outside.tick(u64::from(step > SOON));
            operator.decide(outside);
            let left = operator.pending.iter();
            if left.clone().next().is_none() || step > SOON && left.clone().all(Step::asks_for_pods)
            {
                return last;
            }
            next = operator.pending.first().cloned();
            if operator.pending[0].moves() {
                last = operator.pending.first().cloned();
            }
            operator.act(0, outside, None);
            operator.see_workloads(outside);
        }
        panic!("no end after {PROMPT} steps: {next:?} after {last:?}");
    }

    /// Nothing goes wrong any more, and what is running keeps running: everything comes to rest.
    pub(super) fn rest(&mut self) {
        let (mut quiet, mut last) = (0, Vec::new());
        for operator in &mut self.operators {
            operator.give_up(&self.outside);
        }
        // What is refused is tried again and again.
        self.outside.workloads.allow_all();
        for _ in 0..ROUNDS {
            self.outside.tick(ROUND);
            self.outside.by_others(|outside| outside.workloads.settle());
            let mut done = Vec::new();
            for of in 0..self.operators.len() {
                done.extend(self.pass(of));
            }
            quiet = if done.is_empty() { quiet + 1 } else { 0 };
            if !done.is_empty() {
                last = done;
            }
            if quiet == self.outside.quiet() {
                return rest::check_at_rest(&self.outside);
            }
        }
        panic!("no rest after {ROUNDS} rounds: {last:?}");
    }

    /// All obstacles are removed.
    pub(super) fn heal(&mut self) {
        self.outside.late.clear();
        for (place, limit) in self.limits.clone().into_iter().enumerate() {
            set_windows(&mut self.outside, place, Opens::Always);
            reserve(&mut self.outside, place, None);
            self.outside.respec(place, |settings| {
                settings.paused = false;
                settings.limit = limit;
            });
        }
        self.outside.by_others(|outside| {
            outside.workloads.allow_all();
            for number in 0..outside.clients.len() {
                by_others(outside, &Event::Leave(number));
            }
            let uids: Vec<Uid> = outside
                .workloads
                .objects()
                .filter(|object| object.hold)
                .map(|object| object.uid.clone())
                .collect();
            for uid in uids {
                outside.workloads.edit(&uid, |object| {
                    object.hold = false;
                    object.stopped_by_user &= object.granted.is_some();
                });
            }
        });
        self.rest();
    }

    /// Whatever runs ends, one after another: everybody is served with one hand-over each, and then all is free.
    pub(super) fn drain(&mut self) {
        self.heal();
        while let Some(uid) = rest::running(&self.outside).first() {
            self.outside.by_others(|outside| {
                outside.workloads.control();
                outside.workloads.end_pod(uid);
            });
            self.rest();
        }
        let waiting = rest::waiting(&self.outside);
        assert!(waiting.is_empty(), "nobody runs, and {waiting:?} wait");
        self.outside
            .by_others(|outside| outside.workloads.clean_up());
        for _ in 0..2 {
            self.outside.tick(300);
            self.rest();
        }
        self.expire();
        rest::check_all_free(&self.outside);
    }

    /// The sessions that nobody renews end.
    fn expire(&mut self) {
        let sessions = self.outside.consul.sessions();
        let left: Vec<SessionId> = sessions
            .filter(|(session, _)| {
                !self
                    .operators
                    .iter()
                    .any(|operator| operator.keeps(session))
            })
            .map(|(session, _)| session.clone())
            .collect();
        self.outside.by_others(|outside| {
            for session in left {
                outside.consul.destroy(&session);
            }
        });
    }
}

/// Everything that the operators have no part in.
pub(super) fn by_others(outside: &mut Outside, event: &Event) {
    match event {
        Event::Arrive(client) => with(outside, *client, |client, outside, place| {
            let prefix = outside.places[place].settings.prefix.clone();
            client.arrive(&mut outside.consul, &prefix);
        }),
        Event::LookAndClaim(client) => with(outside, *client, |client, outside, place| {
            let prefix = outside.places[place].settings.prefix.clone();
            client.look(&outside.consul, &prefix);
            client.claim(&mut outside.consul, &prefix);
        }),
        Event::Leave(client) => with(outside, *client, |client, outside, place| {
            let prefix = outside.places[place].settings.prefix.clone();
            client.leave(&mut outside.consul, &prefix);
        }),
        Event::Die(client) => with(outside, *client, |client, outside, _| {
            client.die(&mut outside.consul);
        }),
        Event::Expire(choice) => {
            let ours = ours(outside);
            if let Some((_, session)) = pick(&ours, *choice) {
                outside.consul.destroy(session);
            }
        }
        Event::TakeOut(choice) => {
            let ours = ours(outside);
            if let Some((place, session)) = pick(&ours, *choice) {
                take_out(outside, *place, session);
            }
        }
        Event::SetLimit(place, limit) => outside.respec(*place, |settings| settings.limit = *limit),
        Event::Pause(place, paused) => outside.respec(*place, |settings| settings.paused = *paused),
        Event::SetCooldown(place, seconds) => outside.respec(*place, |settings| {
            settings.cooldown = Duration::from_secs(*seconds);
        }),
        Event::Bound(place, most) => outside.respec(*place, |settings| {
            settings.wait.max_waiting = *most;
        }),
        Event::Window(place, limit) => {
            set_windows(outside, *place, limit.map_or(Opens::Later, Opens::UpTo));
        }
        Event::SmallWindow(place, limit) => {
            set_windows(outside, *place, Opens::UpToForNow(*limit));
        }
        Event::NoWindow(place) => set_windows(outside, *place, Opens::Always),
        Event::Reserve(place, reserved) => reserve(outside, *place, *reserved),
        Event::Snapshot => outside.snapshot = outside.consul.snapshot(),
        Event::Restore => outside.restore(),
        event => by_users(outside, event),
    }
}

fn set_windows(outside: &mut Outside, place: usize, opens: Opens) {
    let window = |schedule: &str, limit| WindowSpec {
        schedule: schedule.into(),
        duration: Duration::from_hours(1),
        time_zone: None,
        limit,
    };
    let (open, later) = ("* * * * *", "0 0 29 2 *");
    let windows = match opens {
        Opens::Always => Vec::new(),
        Opens::Later => vec![window(later, None)],
        Opens::UpTo(limit) => vec![window(open, Some(limit))],
        Opens::UpToForNow(limit) => vec![window(open, Some(limit)), window(later, None)],
    };
    let now = jiff::Timestamp::from_second(outside.workloads.clock).unwrap();
    outside.place(place).opens = opens;
    outside.respec(place, |settings| {
        settings.restrictions.windows = Windows::new(windows, now);
    });
}

fn reserve(outside: &mut Outside, place: usize, reserved: Option<(u32, i32)>) {
    outside.place(place).reserved = reserved;
    outside.respec(place, |settings| {
        settings.restrictions.reserved = reserved.map(|(slots, min_priority)| Reserved {
            slots,
            min_priority,
        });
    });
}

fn by_users(outside: &mut Outside, event: &Event) {
    let workloads = &mut outside.workloads;
    let uids: Vec<Uid> = workloads
        .objects()
        .map(|object| object.uid.clone())
        .collect();
    let chosen = |choice: &usize| pick(&uids, *choice).cloned();
    match event {
        Event::Control => workloads.control(),
        Event::CleanUp => workloads.clean_up(),
        Event::EndPod(choice) => {
            let all = workloads.pods().iter().map(|pod| pod.workload.clone());
            let pods: Vec<Uid> = all.collect();
            if let Some(uid) = pick(&pods, *choice) {
                workloads.end_pod(uid);
            }
        }
        Event::Fail(choice) => {
            if let Some(uid) = chosen(choice) {
                workloads.fail(&uid);
            }
        }
        Event::Delete(choice, how) => {
            if let Some(uid) = chosen(choice) {
                workloads.delete(&uid, *how);
            }
        }
        Event::Hold(choice, hold) => {
            if let Some(uid) = chosen(choice) {
                workloads.edit(&uid, |object| {
                    object.hold = *hold;
                    object.stopped_by_user &= object.granted.is_some();
                });
            }
        }
        Event::Suspend(choice) => {
            if let Some(uid) = chosen(choice) {
                workloads.edit(&uid, suspend);
            }
        }
        Event::Forbid(choice, refusal) => {
            if let Some(uid) = chosen(choice) {
                workloads.forbid(&uid, *refusal);
            }
        }
        _ => {}
    }
}

fn suspend(object: &mut Object) {
    let had_slot = object.granted.is_some() && !object.reported.is_empty();
    object.stopped_by_user |= object.runs() && had_slot;
    object.suspend = true;
}

/// The sessions of ours that have a contender, each with its semaphore. A rate's are left alone: when its operator ends
/// at the same time, nobody knows the start any more.
fn ours(outside: &Outside) -> Vec<(usize, SessionId)> {
    let all = outside.sights().into_iter().enumerate();
    let sights = all.filter(|(place, _)| !outside.places[*place].settings.is_rate());
    let ours = sights.flat_map(|(place, sight)| {
        let contenders = sight.contenders.into_iter();
        let ours = contenders.filter(|(_, uid)| uid.is_some());
        ours.map(move |(session, _)| (place, session))
    });
    ours.collect()
}

/// A holder is taken out of `.lock` by hand.
fn take_out(outside: &mut Outside, place: usize, session: &SessionId) {
    let Some(lock) = outside.sight(place).lock else {
        return;
    };
    let mut value: serde_json::Value = serde_json::from_slice(&lock.value).unwrap();
    if let serde_json::Value::Object(holders) = &mut value["Holders"] {
        holders.remove(session.as_str());
    }
    let cas = Op::Cas {
        key: lock.key,
        value: value.to_string().into_bytes(),
        flags: lock.flags,
        index: lock.modify_index,
    };
    let _always_fits = outside.consul.transact(&[cas]);
}

fn with(
    outside: &mut Outside,
    choice: usize,
    happens: impl FnOnce(&mut super::super::foreign::Client, &mut Outside, usize),
) {
    let number = choice % outside.clients.len().max(1);
    if let Some((place, mut client)) = outside.clients.get(number).cloned() {
        happens(&mut client, outside, place);
        outside.clients[number].1 = client;
    }
}

fn pick<T>(list: &[T], choice: usize) -> Option<&T> {
    list.get(choice % list.len().max(1))
}
