//! A state of the whole, and everything that can happen in it.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use super::{
    super::{
        canon::{Canon, digest},
        foreign::{Client, Style},
        jobs::Deletion,
        operator::{Lost, Operator, Step},
        outside::Outside,
        rest::check_at_rest,
    },
    Setup, Sites,
};
use crate::{
    clock::Moment,
    consul::SessionId,
    semaphore::{Cluster, Plan, Uid, lock::SEMAPHORE_FLAGS, samples},
};

/// Longer than everything that anybody waits for here. Everything else takes a second, and there are
/// never that many of them.
const LONG: u64 = 10_000_000;

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// An operator reads, decides, and starts on its plan. What comes between its reading and its
    /// steps makes the reading stale.
    Decide(usize, Seen),
    /// An operator takes the next step of its plan.
    Step(usize, Delivery),
    Crash(usize),
    /// A call that nobody waits for any more arrives.
    Land(usize),
    /// The Job controller comes round to a Job.
    Control(usize, usize),
    /// A pod completes, or its stop comes to its end.
    EndPod(usize, usize),
    /// All that waits for a time has waited for it.
    Wait,

    /// A user suspends a running Job.
    Suspend(usize, usize),
    /// A user deletes a Job; its pods are left behind.
    Delete(usize, usize),
    /// A Job fails; a pod of it is not gone yet.
    Fail(usize, usize),

    Arrive,
    Look,
    Claim,
    Leave,
    Die,

    /// A session of an operator's expires, or is destroyed by hand.
    Expire(usize),
    /// A contender key is deleted by hand.
    DeleteContender(usize),
    /// A holder is taken out of `.lock` by hand.
    TakeOut(usize),
}

/// What an operator decides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Seen {
    /// Both Jobs and Consul as they are now.
    All,
    /// The Jobs as it saw them the time before.
    OldJobs,
    /// Consul as it saw it the time before, or knows it from its own transaction.
    OldReading,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Delivery {
    Good,
    /// It is carried out; the answer is lost.
    Unanswered,
    /// It is given up, and arrives later or never.
    Late,
    /// It is carried out and answered, and arrives once more.
    Twice,
}

/// An operator's process.
#[derive(Clone)]
struct Process {
    site: usize,
    operator: Operator,
    /// Of the plan that it is carrying out: when it read what it decided by,
    read: Moment,
    /// whether nothing came in between so far,
    clean: bool,
    /// and the Jobs that were without their slot, each with whether a session was there for it.
    lost: BTreeMap<Uid, bool>,
}

/// A state. Two that differ in nothing that counts are the same.
#[derive(Clone)]
pub(super) struct State {
    /// The clusters. Each has Consul as it is: they are the same.
    sites: Vec<Arc<Outside>>,
    processes: Vec<Arc<Process>>,
    client: Client,
    /// How often another program comes yet, faults happen yet, and users change their mind.
    arrivals: u8,
    faults: u8,
    whims: u8,
    /// Whether the other program looks some time before it claims.
    slow_client: bool,
    /// Whether an operator may decide by an older view than its last.
    old_views: bool,
    landing: Vec<(usize, Step)>,
    seconds: u64,
    /// The rule that was broken on the way here.
    pub(super) broken: Option<String>,
    digest: u64,
}

/// What a fair schedule does next.
pub(super) enum Next {
    State(State),
    /// There is nothing left to do.
    Rest,
}

impl State {
    pub(super) fn new(setup: &Setup) -> Self {
        let site = |cluster: &str, jobs: &[&str]| {
            let mut settings = samples::settings(setup.limit);
            settings.cluster = Cluster {
                name: cluster.into(),
                id: cluster.into(),
            };
            settings.on_slot_lost = setup.policy;
            settings.ttl = Some(Duration::from_secs(LONG / 10));
            settings.lock_delay = Duration::from_secs(LONG / 10);
            let mut outside = Outside::new(settings, 64);
            if !setup.from_nothing {
                let body = format!(r#"{{"Limit":{},"Holders":{{}}}}"#, setup.limit);
                let lock_key = outside.settings.prefix.lock_key();
                let consul = &mut outside.consul;
                consul.put(&lock_key, body.as_bytes(), SEMAPHORE_FLAGS, None);
                outside.applied = vec![setup.limit];
            }
            for job in jobs {
                outside.jobs.create(job, "db", 0);
            }
            Arc::new(outside)
        };
        let (sites, homes): (_, &[usize]) = match setup.sites {
            Sites::One => (vec![site("c", &["a", "b"])], &[0]),
            Sites::TwoReplicas => (vec![site("c", &["a", "b"])], &[0, 0]),
            Sites::TwoClusters => (vec![site("c", &["a"]), site("d", &["b"])], &[0, 1]),
        };
        let process = |site: &usize| {
            Arc::new(Process {
                site: *site,
                operator: Operator::new(setup.flaw),
                read: Moment::default(),
                clean: true,
                lost: BTreeMap::new(),
            })
        };
        let limit = usize::try_from(setup.limit).expect("it fits");
        let mut state = Self {
            sites,
            processes: homes.iter().map(process).collect(),
            client: Client::new(Style::Go, limit),
            arrivals: setup.arrivals,
            faults: setup.faults,
            whims: setup.whims,
            slow_client: setup.slow_client,
            old_views: setup.old_views,
            landing: Vec::new(),
            seconds: 0,
            broken: None,
            digest: 0,
        };
        state.seal();
        state
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    fn seal(&mut self) {
        self.digest = digest(|canon| self.trace(canon));
    }

    fn trace(&self, canon: &mut Canon) {
        let Self {
            sites,
            processes,
            client,
            arrivals,
            faults,
            whims,
            slow_client: _,
            old_views,
            landing,
            seconds,
            broken,
            digest: _,
        } = self;
        let now = Moment::from_boot(Duration::from_secs(*seconds));
        canon.word(&(arrivals, faults, whims, broken));
        for site in sites {
            site.trace(canon);
        }
        client.trace(canon);
        canon.word(&landing.len());
        for (site, step) in landing {
            canon.word(site);
            step.trace(canon);
        }
        let consul = &sites[0].consul;
        consul.trace(&sites[0].settings.prefix, canon);
        for process in processes {
            let Process {
                site,
                operator,
                read,
                clean,
                lost,
            } = &**process;
            if operator.is_busy() {
                canon.moment(*read);
                canon.word(&(clean, lost));
            }
            operator.trace(&sites[*site], now, *old_views && *faults > 0, canon);
        }
        for site in sites {
            site.observer.trace(&site.settings, now, canon);
        }
    }

    /// A cluster, with its clock as it is.
    fn now(&self, site: usize) -> Outside {
        let mut outside = (*self.sites[site]).clone();
        self.set_clock(&mut outside);
        outside
    }

    fn set_clock(&self, outside: &mut Outside) {
        outside.seconds = self.seconds;
        outside.jobs.clock = i64::try_from(self.seconds).unwrap_or(0);
    }

    /// Something happens in a cluster; the others have the same Consul.
    fn at<T>(&mut self, site: usize, happens: impl FnOnce(&mut Outside) -> T) -> T {
        let mut outside = self.now(site);
        let result = happens(&mut outside);
        let consul = outside.consul.clone();
        self.sites[site] = Arc::new(outside);
        for other in (0..self.sites.len()).filter(|other| *other != site) {
            let mut outside = self.now(other);
            let consul = consul.clone();
            if outside.consul.index() == consul.index() {
                // Nothing but a new session, if anything.
                outside.consul = consul;
            } else {
                outside.by_others(|outside| outside.consul = consul);
            }
            self.sites[other] = Arc::new(outside);
        }
        result
    }

    /// Anything but an operator acts in a cluster.
    fn by_others(&mut self, site: usize, happens: impl FnOnce(&mut Outside)) {
        self.at(site, |outside| outside.by_others(happens));
    }

    fn by_client(&mut self, happens: impl FnOnce(&mut Client, &mut Outside)) {
        let mut client = self.client.clone();
        self.by_others(0, |outside| happens(&mut client, outside));
        self.client = client;
        if !self.slow_client {
            self.client.forget();
        }
    }

    /// Everything that can happen now. Some of it changes nothing.
    pub(super) fn actions(&self, actions: &mut Vec<Action>) {
        if self.broken.is_some() {
            return;
        }
        let faulty = self.faults > 0;
        for (number, process) in self.processes.iter().enumerate() {
            if let Some(step) = process.operator.next_step() {
                actions.push(Action::Step(number, Delivery::Good));
                let call = matches!(step, Step::Transact(_) | Step::Patch { .. });
                if faulty && (call || matches!(step, Step::MakeSession(_))) {
                    actions.push(Action::Step(number, Delivery::Unanswered));
                }
                if faulty && call {
                    actions.push(Action::Step(number, Delivery::Late));
                    actions.push(Action::Step(number, Delivery::Twice));
                }
            } else {
                actions.push(Action::Decide(number, Seen::All));
                if faulty && self.old_views {
                    actions.push(Action::Decide(number, Seen::OldJobs));
                    actions.push(Action::Decide(number, Seen::OldReading));
                }
            }
            if faulty {
                actions.push(Action::Crash(number));
            }
        }
        actions.extend((0..self.landing.len()).map(Action::Land));
        actions.push(Action::Wait);
        for (number, site) in self.sites.iter().enumerate() {
            actions.extend((0..site.jobs.pods().len()).map(|pod| Action::EndPod(number, pod)));
            for (job, object) in site.jobs.objects().enumerate() {
                if site.jobs.awaits_control(object) {
                    actions.push(Action::Control(number, job));
                }
                if self.whims > 0 {
                    actions.push(Action::Delete(number, job));
                    if object.runs() {
                        actions.push(Action::Suspend(number, job));
                        actions.push(Action::Fail(number, job));
                    }
                }
            }
        }
        self.client_actions(actions);
        if faulty {
            let sight = self.sites[0].sight();
            let held = sight.body.map_or(0, |body| body.holders.len());
            actions.extend((0..sight.contenders.len()).map(Action::Expire));
            actions.extend((0..sight.contenders.len()).map(Action::DeleteContender));
            actions.extend((0..held).map(Action::TakeOut));
        }
    }

    fn client_actions(&self, actions: &mut Vec<Action>) {
        if self.client.session().is_some() {
            if self.slow_client {
                actions.push(Action::Look);
            }
            actions.extend([Action::Claim, Action::Leave]);
        }
        if self.arrivals > 0 || self.client.session().is_some() {
            actions.push(Action::Arrive);
        }
    }

    /// What follows; `None` if nothing changes.
    pub(super) fn after(&self, action: Action) -> Option<Self> {
        let mut next = self.clone();
        next.seconds += 1;
        next.carry_out(|state| state.happen(action));
        (next.digest != self.digest).then_some(next)
    }

    /// Lets something happen, and takes down the rule that it breaks, if it does.
    fn carry_out(&mut self, happens: impl FnOnce(&mut Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| happens(self))) {
            let said = panic.downcast::<String>().map(|said| *said);
            let said = said.or_else(|panic| panic.downcast::<&str>().map(|said| said.to_string()));
            self.broken = Some(said.unwrap_or_else(|_| "a panic".into()));
        }
        self.seal();
    }

    fn happen(&mut self, action: Action) {
        match action {
            Action::Decide(number, seen) => {
                self.faults -= u8::from(seen != Seen::All);
                self.decide(number, seen);
            }
            Action::Step(number, delivery) => {
                self.faults -= u8::from(delivery != Delivery::Good);
                self.step(number, delivery);
            }
            Action::Crash(number) => {
                self.faults -= 1;
                let flaw = self.processes[number].operator.flaw();
                let process = Arc::make_mut(&mut self.processes[number]);
                process.operator = Operator::new(flaw);
                process.operator.see_jobs(&self.sites[process.site]);
            }
            Action::Land(position) => {
                let (site, step) = self.landing.remove(position);
                self.at(site, |outside| step.land(outside));
            }
            Action::Wait => self.seconds += LONG,
            Action::Control(..)
            | Action::EndPod(..)
            | Action::Suspend(..)
            | Action::Delete(..)
            | Action::Fail(..) => self.happen_to_job(action),
            _ => self.happen_in_consul(action),
        }
    }

    fn happen_to_job(&mut self, action: Action) {
        let (Action::Control(site, job)
        | Action::EndPod(site, job)
        | Action::Suspend(site, job)
        | Action::Delete(site, job)
        | Action::Fail(site, job)) = action
        else {
            return;
        };
        let whim = !matches!(action, Action::Control(..) | Action::EndPod(..));
        self.whims -= u8::from(whim);
        self.by_others(site, |outside| {
            let jobs = &mut outside.jobs;
            let uid = match action {
                Action::EndPod(..) => jobs.pods()[job].job.clone(),
                _ => jobs.objects().nth(job).expect("it is there").uid.clone(),
            };
            match action {
                Action::Control(..) => jobs.control_one(&uid),
                Action::EndPod(..) => jobs.end_pod(&uid),
                Action::Suspend(..) => jobs.edit(&uid, |object| {
                    let had_slot = object.granted.is_some() && object.reported.is_some();
                    object.stopped_by_user |= had_slot;
                    object.suspend = true;
                }),
                Action::Delete(..) => jobs.delete(&uid, Deletion::Orphan),
                _ => jobs.fail(&uid),
            }
        });
    }

    fn happen_in_consul(&mut self, action: Action) {
        let prefix = self.sites[0].settings.prefix.clone();
        let sight = self.sites[0].sight();
        let contenders: Vec<SessionId> = sight.contenders.into_keys().collect();
        match action {
            Action::Arrive => {
                self.arrivals -= u8::from(self.client.session().is_none());
                self.by_client(|client, outside| client.arrive(&mut outside.consul, &prefix));
            }
            Action::Look => {
                self.by_client(|client, outside| client.look(&outside.consul, &prefix));
            }
            Action::Claim => {
                let looks = !self.slow_client;
                self.by_client(|client, outside| {
                    if looks {
                        client.look(&outside.consul, &prefix);
                    }
                    client.claim(&mut outside.consul, &prefix);
                });
            }
            Action::Leave => {
                self.by_client(|client, outside| client.leave(&mut outside.consul, &prefix));
            }
            Action::Die => {
                self.by_client(|client, outside| client.die(&mut outside.consul));
            }
            Action::Expire(contender) => {
                self.faults -= 1;
                let session = contenders[contender].clone();
                if self.client.session() == Some(&session) {
                    return self.happen_in_consul(Action::Die);
                }
                self.by_others(0, |outside| outside.consul.destroy(&session));
            }
            Action::DeleteContender(contender) => {
                self.faults -= 1;
                let key = prefix.contender_key(&contenders[contender]);
                self.by_others(0, |outside| outside.consul.delete(&key));
            }
            Action::TakeOut(holder) => {
                self.faults -= 1;
                self.by_others(0, |outside| {
                    let body = outside.sight().body.expect("it has holders");
                    let holder = &body.holders[holder];
                    outside.edit_lock(|lock| {
                        let holders = lock["Holders"].as_object_mut();
                        holders.expect("a map").remove(holder);
                    });
                });
            }
            _ => {}
        }
    }

    /// An operator begins a pass.
    fn decide(&mut self, number: usize, seen: Seen) -> Plan {
        let mut process = (*self.processes[number]).clone();
        let site = process.site;
        let operator = &mut process.operator;
        let outside = self.now(site);
        if seen != Seen::OldJobs {
            operator.see_jobs(&outside);
        }
        if seen != Seen::OldReading {
            operator.see_consul(&outside);
        }
        let held = outside.sight().jobs();
        let objects = outside.jobs.objects();
        let lost = objects.filter(|object| {
            object.runs() && object.granted.is_some() && !held.contains(&object.uid)
        });
        let had_session = |uid: &Uid| operator.has_session(uid);
        let lost = lost.map(|object| (object.uid.clone(), had_session(&object.uid)));
        let lost = lost.collect();
        let plan = operator.decide(&outside);
        process.lost = lost;
        process.clean = seen == Seen::All;
        process.read = outside.now();
        self.processes[number] = Arc::new(process);
        self.check_gap(number);
        plan
    }

    fn step(&mut self, number: usize, delivery: Delivery) {
        let mut process = (*self.processes[number]).clone();
        let site = process.site;
        if matches!(delivery, Delivery::Late | Delivery::Twice) {
            let step = process.operator.next_step().cloned();
            self.landing.extend(step.map(|step| (site, step)));
        }
        let lost = match delivery {
            Delivery::Good | Delivery::Twice => None,
            Delivery::Unanswered => Some(Lost { done: true }),
            Delivery::Late => Some(Lost { done: false }),
        };
        process.clean &= self.at(site, |outside| process.operator.act(outside, lost));
        self.processes[number] = Arc::new(process);
        self.check_gap(number);
    }

    /// How long a Job may run without a slot: once its operator has read that the slot is gone, and
    /// has done what it then decided, the Job has one again, or is suspended, or has a session with
    /// which the next pass gives it one. With nothing in the way that is two passes.
    fn check_gap(&self, number: usize) {
        let process = &self.processes[number];
        let operator = &process.operator;
        if operator.is_busy() || !process.clean {
            return;
        }
        let outside = &self.sites[process.site];
        let held = outside.sight().jobs();
        for (uid, had_session) in &process.lost {
            let object = outside.jobs.get(uid);
            let runs = object.is_some_and(|object| object.runs() && !object.rogue);
            let again = outside.observer.robbed_since(uid, process.read);
            let soon = !had_session && operator.has_session(uid);
            let excused = held.contains(uid) || again || soon;
            assert!(!runs || excused, "{uid} runs on without a slot");
        }
    }

    /// Whether more hold than may: Jobs with pods or about to have some, and other programs. Those
    /// whose slot somebody took have until the end of the gap.
    pub(super) fn is_above_the_limit(&self) -> bool {
        let sight = self.sites[0].sight();
        let others = match self.client.session() {
            Some(session) => usize::from(sight.holding().any(|(holder, _)| holder == session)),
            None => 0,
        };
        let in_need = self.sites.iter().flat_map(|site| {
            let lock_key = site.settings.prefix.lock_key();
            let in_need = site.jobs.in_need_of_a_slot(&lock_key);
            let counted = in_need.filter(|uid| !site.observer.is_robbed(uid));
            counted.collect::<std::collections::BTreeSet<_>>()
        });
        let limit = self.sites[0].settings.limit;
        in_need.count() + others > usize::try_from(limit).expect("it fits")
    }

    /// One more step of a fair schedule, in which nothing goes wrong any more: pods that are
    /// stopping end, calls are answered, every operator passes, and waits when there is nothing to
    /// do before. What runs goes on.
    pub(super) fn next(&self) -> Next {
        let mut moved = self.clone();
        moved.seconds += 1;
        if let Some(next) = moved.next_of_jobs() {
            return Next::State(next);
        }
        let busy = |process: &Arc<Process>| process.operator.is_busy();
        if let Some(number) = self.processes.iter().position(busy) {
            moved.carry_out(|state| state.step(number, Delivery::Good));
            return Next::State(moved);
        }
        let (mut waits, mut plans) = (false, Vec::new());
        for number in 0..self.processes.len() {
            let mut decided = None;
            moved.carry_out(|state| decided = Some(state.decide(number, Seen::All)));
            let Some(plan) = decided else {
                return Next::State(moved);
            };
            if moved.processes[number].operator.is_busy() || plan.again || plan.reread {
                return Next::State(moved);
            }
            waits |= plan.wake.is_some() || plan.deadline.is_some();
            plans.push(plan);
        }
        if moved.digest != self.digest {
            // There was nothing to do, but something to remember.
            return Next::State(moved);
        }
        if self.client.session().is_some()
            && let Some(next) = self.after(Action::Claim)
        {
            return Next::State(next);
        }
        match self.after(Action::Wait) {
            Some(next) if waits => return Next::State(next),
            _ => moved.carry_out(|state| state.check_rest(&plans)),
        }
        match moved.broken {
            Some(_) => Next::State(moved),
            None => Next::Rest,
        }
    }

    fn next_of_jobs(&self) -> Option<Self> {
        for (number, site) in self.sites.iter().enumerate() {
            let there = |uid| site.jobs.get(uid).is_some();
            let mut pods = site.jobs.pods().iter();
            if let Some(pod) = pods.position(|pod| pod.terminating || !there(&pod.job)) {
                return self.after(Action::EndPod(number, pod));
            }
            let mut objects = site.jobs.objects();
            if let Some(job) = objects.position(|object| site.jobs.awaits_control(object)) {
                return self.after(Action::Control(number, job));
            }
        }
        None
    }

    /// Nothing is left to do: then no slot is lost, and none is free while somebody waits.
    fn check_rest(&self, plans: &[Plan]) {
        for (process, plan) in self.processes.iter().zip(plans) {
            check_at_rest(&self.now(process.site), plan);
        }
        let sight = self.sites[0].sight();
        let Some(session) = self.client.session() else {
            return;
        };
        let body = sight.body.as_ref();
        let free = body.is_none_or(|body| body.holders.len() < body.limit());
        let waits =
            sight.contenders.contains_key(session) && !body.is_some_and(|body| body.holds(session));
        assert!(
            !(free && waits),
            "a slot is idle while another program waits"
        );
    }

    /// What has happened at some time, to show that it can.
    pub(super) fn shows(&self, what: Showing) -> bool {
        let sight = self.sites[0].sight();
        let mut objects = self.sites.iter().flat_map(|site| site.jobs.objects());
        match what {
            Showing::AllDone => objects.all(|object| !object.may_run()),
            Showing::OtherHolds => self
                .client
                .session()
                .is_some_and(|session| sight.holding().any(|(holder, _)| holder == session)),
            Showing::SlotHadAgain => objects.any(|object| {
                let granted = object.granted.as_ref().map(|granted| &granted.session);
                object.runs() && object.reported.is_some() && object.reported.as_ref() != granted
            }),
            Showing::Suspended => objects.any(|object| {
                object.suspend && object.granted.is_some() && object.reported.is_none()
            }),
        }
    }
}

/// What must be seen to happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Showing {
    AllDone,
    OtherHolds,
    SlotHadAgain,
    Suspended,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for State {}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sight = self.sites[0].sight();
        let holders = sight.body.as_ref().map(|body| &body.holders);
        writeln!(f, "holders {holders:?}, contenders {:?}", sight.contenders)?;
        for site in &self.sites {
            for object in site.jobs.objects() {
                writeln!(f, "{object:?}")?;
            }
            writeln!(f, "{:?}", site.jobs.pods())?;
        }
        for process in &self.processes {
            writeln!(f, "next {:?}", process.operator.next_step())?;
        }
        writeln!(f, "broken: {:?}", self.broken)
    }
}
