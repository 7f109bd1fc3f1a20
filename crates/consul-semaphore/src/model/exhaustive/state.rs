//! A state of the whole world, and when two states are the same.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use super::{
    super::{
        canon::Canon,
        flaws::rule_broken,
        foreign::{Client, Style},
        operator::{Operator, Step},
        outside::Outside,
    },
    Setup, Sites, WaitStyle,
    action::{Action, Delivery, Fault},
};
use crate::{Cluster, Uid, lock::SEMAPHORE_FLAGS, samples};
use consul_client::clock::Moment;

/// Longer than any wait in these worlds. Everything else takes a second, and that many never pass.
pub(super) const LONG: u64 = 10_000_000;

/// An operator's process.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) site: usize,
    pub(super) operator: Operator,
    /// About the plan that it is carrying out: when it took the reading that the plan is based on,
    pub(super) read: Moment,
    /// whether nothing has happened in between so far,
    pub(super) clean: bool,
    /// and the workloads that had lost their slot, each with whether it had a session made.
    pub(super) lost: BTreeMap<Uid, bool>,
}

/// An order of the processes, with the clusters and their workloads in the same order. Where two are interchangeable,
/// a state is the same in either order.
struct Order {
    processes: Vec<usize>,
    sites: Vec<usize>,
    workloads: Vec<Uid>,
}

impl Process {
    /// What counts of the plan that it is carrying out. The result is checked only of a plan with nothing in between.
    fn trace(&self, outside: &Outside, canon: &mut Canon<'_>) {
        let asked = self.operator.is_busy() && self.clean && !self.lost.is_empty();
        canon.word(&asked);
        for uid in canon.workloads().iter().filter(|_| asked) {
            let robbed = outside.observer.robbed_since(uid, self.read);
            canon.word(&(self.lost.get(uid), robbed));
        }
    }
}

/// A state. Two that differ in nothing that counts are the same.
#[derive(Clone)]
pub(super) struct State {
    pub(super) setup: Setup,
    orders: Arc<[Order]>,
    /// The clusters. Each has Consul as it is: they are the same.
    pub(super) sites: Vec<Arc<Outside>>,
    pub(super) processes: Vec<Arc<Process>>,
    pub(super) client: Client,
    /// How many arrivals of another program, faults and changes of mind by users are left.
    pub(super) arrivals: u8,
    pub(super) faults: u8,
    pub(super) user_changes: u8,
    /// The calls that nobody waits for any more, each with its cluster.
    pub(super) landing: Vec<(usize, Step)>,
    pub(super) seconds: u64,
    /// The rule that was broken on the way to this state.
    pub(super) broken: Option<String>,
    digest: u64,
}

impl State {
    pub(super) fn new(setup: &Setup) -> Self {
        let site = |cluster: &str, workloads: &[&str]| {
            let mut settings = samples::settings(setup.limit);
            settings.cluster = Cluster {
                name: cluster.into(),
                id: cluster.into(),
            };
            settings.fair = setup.fair.then_some(Duration::from_secs(LONG / 100));
            settings.on_slot_lost = setup.policy;
            settings.ttl = Some(Duration::from_secs(LONG / 10));
            settings.lock_delay = Duration::from_secs(LONG / 10);
            if setup.cooldown {
                settings.cooldown = Duration::from_hours(20);
            }
            let mut outside = Outside::new(settings, 64);
            outside.finalizer = true;
            outside.workloads.slots = setup.slots;
            if !setup.from_nothing {
                let body = format!(r#"{{"Limit":{},"Holders":{{}}}}"#, setup.limit);
                let lock_key = outside.settings.prefix.lock_key();
                let consul = &mut outside.consul;
                consul.put(&lock_key, body.as_bytes(), SEMAPHORE_FLAGS, None);
                outside.record(vec![setup.limit]);
            }
            for workload in workloads {
                outside.workloads.create(workload, "db", 0);
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
                operator: Operator::timeless(setup.flaw),
                read: Moment::default(),
                clean: true,
                lost: BTreeMap::new(),
            })
        };
        let limit = usize::try_from(setup.limit).expect("it fits");
        let order = |processes: &[usize]| {
            let mut of_sites: Vec<usize> = processes.iter().map(|number| homes[*number]).collect();
            of_sites.dedup();
            let workloads = |site: &usize| {
                sites[*site]
                    .workloads
                    .objects()
                    .map(|workload| workload.uid.clone())
            };
            Order {
                workloads: of_sites.iter().flat_map(workloads).collect(),
                processes: processes.to_vec(),
                sites: of_sites,
            }
        };
        let orders: Arc<[Order]> = match setup.sites {
            Sites::One => [order(&[0])].into(),
            // In fair order the first of them comes first everywhere.
            Sites::TwoClusters if setup.fair => [order(&[0, 1])].into(),
            Sites::TwoReplicas | Sites::TwoClusters => [order(&[0, 1]), order(&[1, 0])].into(),
        };
        let mut state = Self {
            setup: *setup,
            orders,
            sites,
            processes: homes.iter().map(process).collect(),
            client: Client::new(Style::Go, limit),
            arrivals: setup.arrivals,
            faults: setup.faults,
            user_changes: setup.user_changes,
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

    /// Whether this fault may happen now.
    pub(super) fn may(&self, fault: Fault) -> bool {
        self.faults > 0 && self.setup.kinds.contains(&fault)
    }

    fn seal(&mut self) {
        let sites = &self.sites;
        self.landing
            .retain(|(site, step)| !step.comes_too_late(&sites[*site]));
        let digests = self.orders.iter().map(|order| self.digest_in(order));
        self.digest = digests.min().unwrap_or_default();
    }

    fn digest_in(&self, order: &Order) -> u64 {
        let Self {
            setup: _,
            orders: _,
            sites,
            processes,
            client,
            arrivals,
            faults,
            user_changes,
            landing,
            seconds,
            broken,
            digest: _,
        } = self;
        let now = Moment::from_boot(Duration::from_secs(*seconds));
        let consul = &sites[0].consul;
        let prefix = &sites[0].settings.prefix;
        let mut all = Canon::new(consul, &order.workloads, now);
        let canon = &mut all;
        canon.word(&(arrivals, faults, user_changes, broken));
        consul.trace(prefix, self.setup.fair, canon);
        client.trace(canon);
        for site in &order.sites {
            sites[*site].trace(canon);
        }
        if let Some(lock) = consul.get(&prefix.lock_key()) {
            canon.entry(lock);
        }
        for number in &order.processes {
            let process = &processes[*number];
            process.trace(&sites[process.site], canon);
            let looks_again = self.may(Fault::StaleRead);
            process
                .operator
                .trace(&sites[process.site], looks_again, canon);
        }
        canon.word(&landing.len());
        for (site, step) in landing {
            canon.word(&order.sites.iter().position(|of| of == site));
            step.trace(&sites[*site], canon);
        }
        for site in &order.sites {
            sites[*site].observer.trace(&sites[*site], canon);
        }
        all.digest()
    }

    /// A cluster, with its clock at the present.
    pub(super) fn now(&self, site: usize) -> Outside {
        let mut outside = (*self.sites[site]).clone();
        self.set_clock(&mut outside);
        outside
    }

    fn set_clock(&self, outside: &mut Outside) {
        outside.seconds = self.seconds;
        outside.workloads.clock = i64::try_from(self.seconds).unwrap_or(0);
    }

    /// Something happens in a cluster. The others share its Consul.
    pub(super) fn at<T>(&mut self, site: usize, happens: impl FnOnce(&mut Outside) -> T) -> T {
        let mut outside = self.now(site);
        let result = happens(&mut outside);
        let consul = outside.consul.clone();
        self.sites[site] = Arc::new(outside);
        for other in (0..self.sites.len()).filter(|other| *other != site) {
            let mut outside = self.now(other);
            let consul = consul.clone();
            if outside.consul.index() == consul.index() {
                // Nothing changed there but a new session at most.
                outside.consul = consul;
            } else {
                outside.by_others(|outside| outside.consul = consul);
            }
            self.sites[other] = Arc::new(outside);
        }
        result
    }

    /// Anything but an operator acts in a cluster.
    pub(super) fn by_others(&mut self, site: usize, happens: impl FnOnce(&mut Outside)) {
        self.at(site, |outside| outside.by_others(happens));
    }

    pub(super) fn by_client(&mut self, happens: impl FnOnce(&mut Client, &mut Outside)) {
        let mut client = self.client.clone();
        self.by_others(0, |outside| happens(&mut client, outside));
        self.client = client;
        if self.setup.manner != WaitStyle::Slow {
            self.client.forget();
        }
    }

    /// The next state; `None` if nothing changes.
    pub(super) fn after(&self, action: Action) -> Option<Self> {
        let mut next = self.clone();
        next.seconds += 1;
        next.carry_out(|state| state.happen(action));
        (next.digest != self.digest).then_some(next)
    }

    /// Lets something happen, and records the rule that it breaks, if any.
    pub(super) fn carry_out(&mut self, happens: impl FnOnce(&mut Self)) {
        let broken = rule_broken(|| {
            happens(self);
            self.go_on_alone();
        });
        self.broken = broken.or(self.broken.take());
        self.seal();
    }

    /// Every operator takes at once the steps that affect nobody else, and that nobody else can affect: taking them
    /// later leads to nothing new.
    fn go_on_alone(&mut self) {
        for number in 0..self.processes.len() {
            while self.is_alone(number) {
                self.step(number, Delivery::Good);
            }
        }
    }

    /// Whether the next step of this operator is such a step.
    fn is_alone(&self, number: usize) -> bool {
        let process = &self.processes[number];
        let outside = &self.sites[process.site];
        let Some(step) = process.operator.next_step() else {
            return false;
        };
        match step {
            Step::MakeSession { .. } => true,
            Step::Destroy(session) => {
                let key = outside.settings.prefix.contender_key(session);
                self.landing.is_empty() && outside.consul.get(&key).is_none()
            }
            // Nothing can come before it any more: no other change of the workload, no fault.
            Step::Patch { patch, .. } if self.is_undisturbed() => {
                let uid = &patch.target().uid;
                let object = outside.workloads.get(uid);
                let moves = object.is_none_or(|object| outside.workloads.awaits_control(object));
                !moves && !outside.workloads.has_pods(uid)
            }
            Step::Record { .. } => false,
            step => step.comes_too_late(outside),
        }
    }

    fn is_undisturbed(&self) -> bool {
        let only_stale = self.setup.kinds == [Fault::StaleRead];
        let replicas = self.setup.sites == Sites::TwoReplicas;
        (self.faults == 0 || only_stale)
            && self.user_changes == 0
            && self.landing.is_empty()
            && !replicas
    }
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
            for object in site.workloads.objects() {
                writeln!(f, "{object:?}")?;
            }
            writeln!(f, "{:?}", site.workloads.pods())?;
        }
        for process in &self.processes {
            writeln!(f, "next {:?}", process.operator.next_step())?;
        }
        writeln!(f, "broken: {:?}", self.broken)
    }
}
