//! The world around the algorithm, and everything that can happen in it.

use std::{collections::BTreeSet, num::NonZeroU32, time::Duration};

use super::{
    flaws::Flaw,
    foreign::{Client, Style},
    operator::{Lost, Operator, Step},
    outside::Outside,
    requests::{Deletion, Patch},
    rest::{check_at_rest, check_beside_hung},
    workloads::{Object, Refusal, Workloads},
};
use crate::{Agreement, LimitPolicy, Mode, Plan, Uid, samples};
use consul_client::SessionId;

/// How long some workloads may wait.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The workloads' names. A workload that is gone can be made again under its name.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// How many passes may be needed until nothing is left to do, once nothing happens any more, plus two for each
/// workload.
const PASSES: usize = 20;

/// What a script starts from.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) mode: Mode,
    /// The period of a rate, in seconds.
    pub(super) period: Option<u64>,
    pub(super) limit: u32,
    pub(super) policy: LimitPolicy,
    pub(super) operations: usize,
    pub(super) lock_delay: u64,
    pub(super) cooldown: u64,
    /// Other programs, each with its limit.
    pub(super) clients: Vec<(Style, usize)>,
    /// How many slots every second workload asks for.
    pub(super) slots: NonZeroU32,
}

/// Something that happens.
#[derive(Clone, Debug)]
pub(super) enum Event {
    // Users and the Job controller. A number picks one of the things that exist.
    Create {
        workload: usize,
        priority: i32,
    },
    /// A workload is made that does not wait.
    CreateSkippable(usize),
    Control,
    EndPod(usize),
    Fail(usize),
    CleanUp,
    Delete(usize, Deletion),
    Hold(usize, bool),
    Suspend(usize),
    Unsuspend(usize),
    AskFor(usize, Option<&'static str>),
    Touch(usize),
    Forbid(usize, Refusal),
    /// The API server is restored from a backup.
    Restore,

    // The ConsulSemaphore.
    SetLimit(u32),
    SetCooldown(u64),
    Pause(bool),
    Terminate,

    // Other programs.
    Arrive(usize),
    Look(usize),
    Claim(usize),
    LookAndClaim(usize),
    Leave(usize),
    Die(usize),

    // Consul, and people who change it by hand.
    Expire(usize),
    DeleteContender(usize),
    TakeOut(usize),
    WriteLimit(u32),
    DeleteLock,
    Corrupt {
        value: Vec<u8>,
        flags: u64,
        locked: bool,
    },
    /// Other servers replace Consul's, with this many operations in a transaction.
    Capacity(usize),

    // The operator: what it sees, its next step, a whole pass, its failures.
    SeeJobs,
    SeeConsul,
    Step(Option<Lost>),
    /// The operator takes one of the pending steps, whatever their order.
    StepOf(usize, Option<Lost>),
    /// The operator decides while calls are under way.
    Decide,
    /// An answer or a listing arrives once more, or late.
    Echo(usize),
    /// The watch fails.
    LoseTheWatch,
    /// The calls that hang are given up.
    GiveUp,
    Pass,
    Crash,
    /// Another replica takes over. This one has not noticed yet, and continues its plan.
    Depose,
    Straggle,
    /// A transaction that was not answered reaches Consul after all.
    Land,

    Wait(u64),
}

/// The whole world.
pub(super) struct World {
    pub(super) outside: Outside,
    /// How many seconds a call of a plan takes.
    pub(super) call_seconds: u64,
    operator: Operator,
    stragglers: Vec<Operator>,
    clients: Vec<Client>,
}

impl World {
    pub(super) fn new(setup: &Setup) -> Self {
        Self::with(setup, None)
    }

    /// Makes a world with this flaw in the operator.
    pub(super) fn with(setup: &Setup, flaw: Option<Flaw>) -> Self {
        let mut settings = samples::settings(setup.limit);
        settings.mode = setup.mode;
        settings.period = setup.period.map(Duration::from_secs);
        settings.policy = setup.policy;
        settings.lock_delay = Duration::from_secs(setup.lock_delay);
        settings.cooldown = Duration::from_secs(setup.cooldown);
        // A step takes a second here, so the TTL is long.
        settings.ttl = Some(Duration::from_hours(24));
        let clients = setup.clients.iter();
        let lock_delay = settings.session_lock_delay().as_secs();
        let mut outside = Outside::new(settings, setup.operations);
        outside.workloads.slots = setup.slots;
        outside.consul.lock_delay = lock_delay;
        Self {
            outside,
            call_seconds: 1,
            operator: Operator::new(flaw),
            stragglers: Vec::new(),
            clients: clients
                .map(|(style, limit)| Client::new(*style, *limit))
                .collect(),
        }
    }

    /// Whether this other program has the mutex.
    pub(super) fn is_held_by(&self, client: usize) -> bool {
        let session = self.clients[client].session();
        session.is_some_and(|session| self.outside.sight().contenders.contains_key(session))
    }

    /// Whether the replica that was overtaken last is about to start a workload.
    pub(super) fn straggler_starts(&self) -> bool {
        self.stragglers.last().is_some_and(is_about_to_start)
    }

    /// Whether the operator is about to start a workload.
    pub(super) fn is_about_to_start(&self) -> bool {
        is_about_to_start(&self.operator)
    }

    /// Runs a script, checking every rule at every step.
    pub(super) fn run(setup: &Setup, script: &[Event]) -> Self {
        Self::run_with(setup, None, script)
    }

    /// Runs a script with this flaw in the operator, checking every rule at every step.
    pub(super) fn run_with(setup: &Setup, flaw: Option<Flaw>, script: &[Event]) -> Self {
        let mut world = Self::with(setup, flaw);
        for event in script {
            world.happen(event);
        }
        world
    }

    /// Something happens, a second after the last thing. If what it is about does not exist, nothing does.
    pub(super) fn happen(&mut self, event: &Event) {
        self.tick(1);
        self.happen_at_once(event);
    }

    /// Something happens, in the same second.
    pub(super) fn happen_at_once(&mut self, event: &Event) {
        match event {
            Event::SeeJobs => self.operator.see_workloads(&self.outside),
            Event::SeeConsul => self.operator.see_consul(&self.outside),
            Event::Step(lost) if self.operator.is_busy() => {
                self.operator.act(&mut self.outside, *lost);
            }
            Event::Step(_) => {
                self.operator.decide(&self.outside);
            }
            Event::StepOf(position, lost) => {
                self.operator.act_on(*position, &mut self.outside, *lost);
            }
            Event::Decide => self.operator.decide_at_once(&self.outside),
            Event::Echo(choice) => self.operator.echo(&self.outside, *choice),
            Event::LoseTheWatch => self.operator.lose_the_watch(&self.outside),
            Event::GiveUp => self.operator.give_up(&self.outside, true),
            Event::Pass => {
                self.pass();
            }
            Event::Crash => {
                self.operator = Operator::new(self.operator.flaw());
                self.operator.see_workloads(&self.outside);
                self.outside.observer.forget_enforcements();
            }
            Event::Depose => {
                let next = Operator::new(self.operator.flaw());
                let mut deposed = std::mem::replace(&mut self.operator, next);
                deposed.deposed = true;
                self.stragglers.push(deposed);
                self.operator.see_workloads(&self.outside);
                self.outside.observer.forget_enforcements();
            }
            // The lease of a replica ends long before the next one can have deleted everything.
            Event::Straggle if self.outside.is_gone() || self.operator.lets_go() => {
                self.stragglers.clear();
            }
            Event::Straggle => {
                if let Some(straggler) = self.stragglers.last_mut() {
                    let before = self.outside.sight().workloads();
                    straggler.act(&mut self.outside, None);
                    let (after, now) = (self.outside.sight().workloads(), self.outside.now());
                    let observer = &mut self.outside.observer;
                    observer.granted_by_overtaken(after.difference(&before), now);
                    if !straggler.is_busy() {
                        self.stragglers.pop();
                    }
                }
            }
            Event::Land => self.outside.land(),
            Event::Wait(seconds) => self.tick(*seconds),
            event => {
                let clients = &mut self.clients;
                self.outside
                    .by_others(|outside| by_others(outside, clients, event));
            }
        }
    }

    fn tick(&mut self, seconds: u64) {
        self.outside.seconds += seconds;
        self.outside.consul.seconds += seconds;
        self.outside.workloads.clock += i64::try_from(seconds).unwrap_or(0);
    }

    /// A whole pass that sees everything and in which nothing goes wrong. Returns what was decided, and whether there
    /// was anything to do.
    fn pass(&mut self) -> (Plan, bool) {
        self.finish_plan();
        self.operator.see_workloads(&self.outside);
        self.operator.see_consul(&self.outside);
        let plan = self.operator.decide(&self.outside);
        let busy = self.operator.is_busy();
        self.finish_plan();
        if plan.is_at_rest() && !busy && plan.agreement == Some(Agreement::Agreed) {
            let limit = self.outside.settings.limit;
            self.outside.observer.agreed(limit);
        }
        (plan, busy)
    }

    fn finish_plan(&mut self) {
        while self.operator.is_busy() {
            self.tick(self.call_seconds);
            self.operator.act(&mut self.outside, None);
        }
    }

    /// Nothing happens any more, except what the Job controller and the operator have left to do. Within a bounded
    /// number of passes nothing is left: first while no time passes, then while some calls hang.
    pub(super) fn settle(&mut self) -> Plan {
        self.stragglers.clear();
        self.finish_plan();
        self.operator.give_up(&self.outside, false);
        self.fall_quiet();
        self.outside.workloads.allow_all();
        self.outside.pods_hidden = true;
        self.come_to_rest();
        check_beside_hung(&self.outside, &self.operator);
        self.outside.pods_hidden = false;
        self.operator.give_up(&self.outside, true);
        let plan = self.come_to_rest();
        check_at_rest(&self.outside, &plan);
        plan
    }

    /// While no time passes, refusals stay refusals, and every retry waits for a pause: within a bounded number of
    /// passes nothing is left to do.
    fn fall_quiet(&mut self) {
        let call_seconds = std::mem::take(&mut self.call_seconds);
        let passes = PASSES + 4 * self.outside.workloads.objects().count();
        let mut plan = Plan::default();
        let quiet = (0..passes).any(|_| {
            self.outside.by_others(|outside| outside.workloads.settle());
            let busy;
            (plan, busy) = self.pass();
            !busy
        });
        assert!(quiet, "no pause within {passes} passes: {plan:?}");
        self.call_seconds = call_seconds;
    }

    fn come_to_rest(&mut self) -> Plan {
        self.finish_plan();
        let mut plan = Plan::default();
        let passes = PASSES + 2 * self.outside.workloads.objects().count();
        for _ in 0..passes {
            self.tick(1);
            self.outside.by_others(|outside| outside.workloads.settle());
            self.finish_plan();
            self.operator.see_workloads(&self.outside);
            let stops = self.operator.stops(&self.outside).next().is_some();
            let busy;
            (plan, busy) = self.pass();
            let gone = self.outside.is_gone();
            let undisturbed = gone || self.operator.is_undisturbed(&self.outside);
            let mut left = plan.clone();
            if self.operator.asks_for_people() {
                left.skips.clear();
                left.fails.clear();
            }
            if left.is_at_rest() && !stops && !busy && undisturbed {
                return plan;
            }
            // After a write there is a pass at once.
            if !busy && (plan.wake.is_some() || !undisturbed) {
                let left = self.operator.next_timeout().since(self.outside.now());
                self.tick(left.as_secs());
            }
        }
        panic!("no rest after {passes} passes: {plan:?}");
    }

    /// The semaphore is deleted, and the workloads in its slots end.
    pub(super) fn end(&mut self) -> Plan {
        self.happen(&Event::Terminate);
        let running: Vec<Uid> = self.running();
        self.settle();
        assert_eq!(
            self.running(),
            running,
            "running workloads keep their slots"
        );
        self.outside
            .by_others(|outside| outside.workloads.complete_all());
        self.settle()
    }

    /// The workloads that run in a slot.
    pub(super) fn running(&self) -> Vec<Uid> {
        let holding = self.outside.sight().workloads();
        let objects = self.outside.workloads.objects();
        let running = objects.filter(|object| object.runs() && holding.contains(&object.uid));
        running.map(|object| object.uid.clone()).collect()
    }
}

fn is_about_to_start(operator: &Operator) -> bool {
    matches!(
        operator.next_step(),
        Some(Step::Patch {
            patch: Patch::Start(_),
            ..
        })
    )
}

/// Everything that the operator has no part in.
pub(super) fn by_others(outside: &mut Outside, clients: &mut [Client], event: &Event) {
    let prefix = outside.settings.prefix.clone();
    let consul = &mut outside.consul;
    match event {
        Event::SetLimit(limit) => {
            outside.generation += u64::from(outside.settings.limit != *limit);
            outside.spec().limit = *limit;
        }
        Event::SetCooldown(seconds) => outside.spec().cooldown = Duration::from_secs(*seconds),
        Event::Pause(paused) => outside.spec().paused = *paused,
        Event::Terminate => outside.spec().terminating = true,

        Event::Arrive(client) => with(clients, *client, |c| c.arrive(consul, &prefix)),
        Event::Look(client) => with(clients, *client, |c| c.look(consul, &prefix)),
        Event::Claim(client) => with(clients, *client, |c| c.claim(consul, &prefix)),
        Event::LookAndClaim(client) => with(clients, *client, |c| {
            c.look(consul, &prefix);
            c.claim(consul, &prefix);
        }),
        Event::Leave(client) => with(clients, *client, |c| c.leave(consul, &prefix)),
        Event::Die(client) => with(clients, *client, |c| c.die(consul)),

        Event::Expire(choice) => {
            let contenders = outside.sight().contenders.into_iter();
            let owned = contenders.filter(|(_, uid)| uid.is_some());
            let ours: Vec<SessionId> = owned.map(|(session, _)| session).collect();
            if let Some(session) = pick(&ours, *choice) {
                outside.consul.destroy(session);
            }
        }
        Event::DeleteContender(choice) => {
            let contenders: Vec<_> = outside.sight().contenders.into_keys().collect();
            if let Some(session) = pick(&contenders, *choice) {
                let key = match outside.settings.mode {
                    Mode::Semaphore => prefix.contender_key(session),
                    Mode::Mutex => prefix.lock_key(),
                };
                outside.consul.delete(&key);
            }
        }
        Event::TakeOut(choice) => {
            let body = outside.sight().body;
            let holders = body.map_or_else(Vec::new, |body| body.holders.clone());
            if let Some(holder) = pick(&holders, *choice) {
                if outside.settings.mode == Mode::Mutex {
                    return outside.consul.free(&prefix.lock_key(), holder);
                }
                outside.edit_lock(|lock| match &mut lock["Holders"] {
                    serde_json::Value::Object(map) => drop(map.remove(holder.as_str())),
                    serde_json::Value::Array(list) => list.retain(|name| name != holder.as_str()),
                    _ => {}
                });
            }
        }
        Event::WriteLimit(limit) => outside.edit_lock(|lock| lock["Limit"] = (*limit).into()),
        Event::DeleteLock => outside.consul.delete(&prefix.lock_key()),
        Event::Capacity(operations) => outside.operations = *operations,
        Event::Corrupt {
            value,
            flags,
            locked,
        } => {
            let session = locked.then(|| consul.make_session("mutex"));
            consul.put(&prefix.lock_key(), value, *flags, session);
        }
        event => by_users(outside, event),
    }
}

fn by_users(outside: &mut Outside, event: &Event) {
    let asked_for = outside.settings.name.clone();
    let sight = outside.sight();
    let holding: BTreeSet<&SessionId> = sight.holding().map(|(session, _)| session).collect();
    let workloads = &mut outside.workloads;
    let mut edit = |workload: &usize, change: &dyn Fn(&mut Object)| {
        with_workload(workloads, *workload, |workloads, uid| {
            workloads.edit(uid, change);
        });
    };
    match event {
        Event::Hold(workload, hold) => edit(workload, &|object| {
            object.hold = *hold;
            // While it still has its grant, the operator has yet to carry out the user's stop.
            object.stopped_by_user &= object.granted.is_some();
        }),
        Event::Touch(workload) => edit(workload, &|_| {}),
        Event::AskFor(workload, name) => {
            edit(workload, &|object| object.wants = name.map(Into::into));
        }
        // The API server refuses to suspend what can't be once it runs.
        Event::Suspend(workload) => edit(workload, &|object| {
            if object.stubborn {
                return;
            }
            let had_slot = object.granted.is_some() && !object.reported.is_empty();
            object.stopped_by_user |= object.runs() && had_slot;
            object.suspend = true;
        }),
        Event::Unsuspend(workload) => edit(workload, &|object| {
            if object.stubborn {
                return;
            }
            // Its template may also name a slot of an earlier grant.
            let held = object.granted.as_ref().is_some_and(|granted| {
                let mut slots = granted.slots.iter();
                slots.all(|slot| holding.contains(&slot.session))
            });
            object.rogue |= object.suspend && !held;
            object.stopped_by_user = false;
            object.suspend = false;
        }),
        Event::Create { workload, priority } => {
            let free: Vec<_> = NAMES.iter().filter(|name| !workloads.has(name)).collect();
            if let Some(name) = pick(&free, *workload) {
                let uid = workloads.create(name, &asked_for, *priority);
                let timeout = (*priority < 0).then_some(TIMEOUT);
                workloads.edit(&uid, |object| {
                    object.timeout = timeout;
                    object.stubborn = workload % 3 == 0;
                });
            }
        }
        Event::CreateSkippable(workload) => {
            let free: Vec<_> = NAMES.iter().filter(|name| !workloads.has(name)).collect();
            if let Some(name) = pick(&free, *workload) {
                let uid = workloads.create(name, &asked_for, 0);
                workloads.edit(&uid, |object| {
                    object.skippable = true;
                    object.fails = workload % 2 == 1;
                });
            }
        }
        Event::Forbid(workload, refusal) => {
            with_workload(workloads, *workload, |workloads, uid| {
                workloads.forbid(uid, *refusal);
            });
        }
        Event::Restore => workloads.restore(),
        Event::Control => workloads.control(),
        Event::EndPod(choice) => {
            let pods: Vec<Uid> = workloads
                .pods()
                .iter()
                .map(|pod| pod.workload.clone())
                .collect();
            if let Some(uid) = pick(&pods, *choice) {
                workloads.end_pod(uid);
            }
        }
        Event::CleanUp => workloads.clean_up(),
        Event::Fail(workload) => with_workload(workloads, *workload, Workloads::fail),
        Event::Delete(workload, how) => with_workload(workloads, *workload, |workloads, uid| {
            workloads.delete(uid, *how);
        }),
        _ => {}
    }
}

fn with_workload(
    workloads: &mut Workloads,
    choice: usize,
    happens: impl FnOnce(&mut Workloads, &Uid),
) {
    let uids: Vec<Uid> = workloads
        .objects()
        .map(|object| object.uid.clone())
        .collect();
    if let Some(uid) = pick(&uids, choice) {
        happens(workloads, uid);
    }
}

fn with(clients: &mut [Client], client: usize, happens: impl FnOnce(&mut Client)) {
    if !clients.is_empty() {
        let client = client % clients.len();
        happens(&mut clients[client]);
    }
}

fn pick<T>(list: &[T], choice: usize) -> Option<&T> {
    list.get(choice % list.len().max(1))
}
