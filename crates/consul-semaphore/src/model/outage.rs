//! Outages of Consul, and sessions that expire: worlds in which time counts.
//!
//! A call takes no time here, and the running operator passes when something happens, when its plan asks for it, and
//! every few seconds. The tests check these sentences of the design: no workload has pods without its session in
//! `Holders`, except from the loss of its slot to the end of its pods' grace period; and however often the operator is
//! restarted while Consul is away, a workload is suspended within one TTL of the last proof plus the time in which no
//! operator ran. While Consul can't be asked, the earliest possible loss counts: Consul never ends a session before its
//! TTL is over, and may end it from then on.

use std::{collections::BTreeSet, time::Duration};

use proptest::{collection::vec, prelude::*};

use super::{
    config,
    foreign::{Client, Style},
    operator::Operator,
    outside::{Outside, Reach},
    requests::Deletion,
    rest::check_at_rest,
    world::{Event, by_others},
};
use crate::{LastProof, LastProofs, OnSlotLost, Plan, Uid, evidence::LATE, samples};
use consul_client::{SessionId, clock::Moment};

/// Seconds. The pods' grace period is less than half of it.
const TTL: u64 = 48;

/// How often the operator writes down what it proved, in seconds.
const WRITTEN: u64 = 2;

/// How often the operator passes when nothing else triggers a pass.
const ROUND: u64 = 6;

/// Something that happens.
#[derive(Clone, Debug)]
enum Happening {
    /// Consul becomes unreachable for the operator, or reachable again. Where calls hang, the watch does, too.
    Reach(Reach),
    /// Consul ends a session that was not renewed for a TTL.
    Expire(usize),
    /// The operator's process ends, and another one starts after so many seconds.
    Restart {
        after: u64,
        /// Whether the wall clock of its machine shows how long that was.
        clock: bool,
    },
    /// The operator's process is frozen for so many seconds.
    Freeze(u64),
    /// This happens again and again for two TTLs, and the operator runs for so many seconds before each.
    Repeat(u64, Box<Self>),
    Wait(u64),
    Other(Event),
}

struct Days {
    outside: Outside,
    operator: Operator,
    clients: Vec<Client>,
    plan: Plan,
    /// When an operator last reached Consul.
    reached: Moment,
    /// The seconds in which no operator ran, as far as the next one can know.
    absent: BTreeSet<u64>,
    /// What the running process knows of the proofs.
    proofs: LastProofs<()>,
    /// What the running process wrote down of the proofs for the next process.
    record: LastProofs<()>,
}

impl Days {
    fn new(limit: u32, policy: OnSlotLost, ttl: Option<u64>) -> Self {
        let mut settings = samples::settings(limit);
        settings.on_slot_lost = policy;
        settings.ttl = ttl.map(Duration::from_secs);
        settings.lock_delay = Duration::from_secs(3);
        let mut outside = Outside::new(settings, 64);
        outside.timed = true;
        let theirs = usize::try_from(limit).expect("it fits");
        Self {
            outside,
            operator: Operator::default(),
            clients: vec![Client::new(Style::Go, theirs); 2],
            plan: Plan::default(),
            reached: Moment::default(),
            absent: BTreeSet::new(),
            proofs: LastProofs::default(),
            record: LastProofs::default(),
        }
    }

    fn happen(&mut self, happening: &Happening) {
        match happening {
            Happening::Reach(reach) => self.set_access(*reach),
            Happening::Expire(choice) => {
                let overdue = self.overdue(1);
                if let Some(session) = overdue.get(choice % overdue.len().max(1)) {
                    self.expire(session);
                }
            }
            Happening::Restart { after, clock } => self.restart(*after, *clock),
            Happening::Freeze(seconds) => {
                (0..*seconds).for_each(|_| self.second_without_operator());
            }
            Happening::Repeat(every, happening) => {
                for _ in 0..=2 * TTL / every {
                    (0..*every).for_each(|_| self.second());
                    self.happen(happening);
                }
            }
            Happening::Wait(seconds) => (0..*seconds).for_each(|_| self.second()),
            Happening::Other(event) => {
                let clients = &mut self.clients;
                self.outside
                    .by_others(|outside| by_others(outside, clients, event));
            }
        }
        self.pass();
        self.second();
    }

    fn restart(&mut self, after: u64, clock: bool) {
        (0..after).for_each(|_| self.second_without_operator());
        let entries = self.record.entries();
        let recorded = entries.map(|(complete, groups)| {
            // By a clock that lags behind, the record was written just now, and nobody knows that the last process ran
            // on for a moment after that.
            let now = self.outside.now();
            let unseen = if clock {
                0
            } else {
                now.since(complete).as_secs()
            };
            self.absent
                .extend(self.outside.seconds - unseen..self.outside.seconds);
            let later = |moment: Moment| moment + Duration::from_secs(unseen);
            let groups = groups.iter().map(|(group, proof)| {
                let sent = later(proof.sent);
                (*group, LastProof { sent, ..*proof })
            });
            LastProofs::recorded(later(complete), groups)
        });
        self.proofs = LastProofs::default();
        if let Some(recorded) = recorded {
            self.proofs.take_over(self.outside.now(), recorded);
        }
        self.operator = Operator::after(self.proofs.of(&()));
        self.outside.observer.forget_enforcements();
    }

    fn set_access(&mut self, reach: Reach) {
        self.outside.reach = reach;
        if reach != Reach::Silent {
            self.operator.give_up(&self.outside, true);
        }
    }

    /// A second passes.
    fn second(&mut self) {
        self.second_of_others();
        self.operator.renew(&mut self.outside);
        let now = self.outside.now();
        let round = self.outside.seconds.is_multiple_of(ROUND);
        if round || self.operator.next_timeout() <= now {
            self.pass();
        }
        self.note_proofs();
        self.check();
    }

    /// A second passes in which no operator runs.
    fn second_without_operator(&mut self) {
        self.absent.insert(self.outside.seconds);
        self.second_of_others();
    }

    fn second_of_others(&mut self) {
        self.outside.seconds += 1;
        self.outside.workloads.clock += 1;
        self.outside.by_others(|outside| {
            outside.workloads.end_in_time();
            outside.workloads.control();
        });
        for session in self.overdue(2) {
            self.expire(&session);
        }
    }

    /// Updates the record each second, and writes it down as often as a Lease is renewed.
    fn note_proofs(&mut self) {
        let oldest = self.operator.oldest_proof(&self.outside);
        let proved = oldest.map(|proved| ((), proved));
        self.proofs.note(self.outside.now(), proved);
        if self.outside.seconds.is_multiple_of(WRITTEN) {
            self.record = self.proofs.clone();
        }
    }

    /// For how long operators have run since then.
    fn ran_since(&self, moment: Moment) -> Duration {
        let from = moment.since(Moment::default()).as_secs();
        let absent = self.absent.range(from..).count();
        let all = self.outside.now().since(moment);
        all.saturating_sub(Duration::from_secs(u64::try_from(absent).expect("it fits")))
    }

    /// Passes, until there is nothing left to do.
    fn pass(&mut self) {
        for _ in 0..20 {
            self.operator.see_workloads(&self.outside);
            if self.outside.reach != Reach::Silent {
                self.operator.see_consul(&self.outside);
            }
            self.plan = self.operator.decide(&self.outside);
            self.check_policy();
            let busy = self.operator.is_busy();
            while self.operator.is_busy() {
                self.operator.act(&mut self.outside, None);
            }
            self.outside
                .by_others(|outside| outside.workloads.control());
            self.operator.renew(&mut self.outside);
            if !self.outside.is_away() {
                self.reached = self.outside.now();
            }
            if !busy || self.outside.is_away() {
                return;
            }
        }
        panic!("it goes on and on: {:?}", self.plan);
    }

    /// Our sessions that were last renewed this many TTLs ago.
    fn overdue(&self, ttls: u32) -> Vec<SessionId> {
        let Some(ttl) = self.outside.settings.ttl else {
            return Vec::new();
        };
        let now = self.outside.now();
        let renewed = self.outside.renewed.iter();
        let overdue = renewed.filter(|(session, renewed)| {
            now.since(**renewed) >= ttl * ttls && self.outside.consul.is_alive(session)
        });
        overdue.map(|(session, _)| session.clone()).collect()
    }

    /// Consul ends a session, as it may: by then the pods of its workload are gone.
    fn expire(&mut self, session: &SessionId) {
        let renewed = self.outside.renewed.get(session).copied();
        let ttl = self
            .outside
            .settings
            .ttl
            .unwrap_or(Duration::from_secs(u64::MAX / 2));
        let ran_on = renewed.is_some_and(|renewed| self.ran_since(renewed) >= ttl + LATE);
        let holder = self.holder(session);
        if ran_on
            && self.outside.settings.on_slot_lost != OnSlotLost::Continue
            && let Some(uid) = holder
        {
            let pods = self.pods(&uid);
            assert!(
                !pods,
                "{uid} has pods when its session may end: {renewed:?}"
            );
        }
        self.outside
            .by_others(|outside| outside.consul.destroy(session));
    }

    /// The workload that holds a slot with this session.
    fn holder(&self, session: &SessionId) -> Option<Uid> {
        let sight = self.outside.sight();
        let mut holding = sight.holding();
        let holder = holding.find(|(holder, _)| *holder == session);
        holder.and_then(|(_, uid)| uid.cloned())
    }

    /// Whether this workload has pods from a grant.
    fn pods(&self, uid: &Uid) -> bool {
        let mut pods = self.outside.workloads.pods().iter();
        pods.any(|pod| pod.workload == *uid && !pod.rogue)
    }

    /// What must be true at every moment.
    fn check(&self) {
        let Outside {
            settings,
            workloads,
            ..
        } = &self.outside;
        if settings.on_slot_lost == OnSlotLost::Continue {
            return;
        }
        let held = self.outside.sight().workloads();
        let lock_key = settings.prefix.lock_key();
        let lost = workloads.in_need_of_a_slot(&lock_key);
        for uid in lost.filter(|uid| !held.contains(uid)) {
            let runs = workloads
                .get(uid)
                .is_some_and(super::workloads::Object::runs);
            if !self.outside.is_away() {
                assert!(!runs, "{uid} runs, and Consul says that it must not");
            }
            let Some(ttl) = settings.ttl else {
                continue;
            };
            let orphaned = workloads.get(uid).is_none();
            let out_of_sight = self.ran_since(self.reached);
            assert!(
                orphaned || out_of_sight <= ttl + LATE,
                "{uid} has pods, {out_of_sight:?} of work after Consul was last reached"
            );
        }
    }

    /// `Suspend` never grants another slot, and `Continue` never suspends.
    fn check_policy(&self) {
        let policy = self.outside.settings.on_slot_lost;
        let mut grants = self.plan.transaction.iter().flat_map(|t| &t.grants);
        let again = grants.any(|grant| !grant.starts);
        assert!(!(again && policy == OnSlotLost::Suspend), "{:?}", self.plan);
        let lost = !self.plan.suspends.is_empty() || !self.plan.ends.is_empty();
        assert!(!(lost && policy == OnSlotLost::Continue), "{:?}", self.plan);
    }

    /// Consul stays reachable: everything recovers without help, and comes to rest.
    fn settle(&mut self) {
        self.set_access(Reach::There);
        self.outside.workloads.allow_all();
        self.pass();
        for _ in 0..4 * TTL {
            self.outside.by_others(|outside| outside.workloads.settle());
            self.second();
        }
        self.pass();
        check_at_rest(&self.outside, &self.plan);
    }
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let any_one = || 0..6_usize;
    let workloads = prop_oneof![
        4 => any_one().prop_map(|workload| Event::Create { workload, priority: 0 }),
        2 => any_one().prop_map(Event::EndPod),
        1 => any_one().prop_map(|workload| Event::Delete(workload, Deletion::Background)),
        1 => any_one().prop_map(Event::Suspend),
        1 => any_one().prop_map(|workload| Event::Hold(workload, false)),
    ];
    let clients = prop_oneof![
        2 => any_one().prop_map(Event::Arrive),
        4 => any_one().prop_map(Event::LookAndClaim),
        1 => any_one().prop_map(Event::Leave),
    ];
    let mischief = prop_oneof![
        2 => any_one().prop_map(Event::Expire),
        1 => any_one().prop_map(Event::DeleteContender),
        1 => any_one().prop_map(Event::TakeOut),
        1 => Just(Event::DeleteLock),
    ];
    let reach = prop_oneof![
        5 => Just(Reach::Away),
        3 => Just(Reach::Silent),
        4 => Just(Reach::There),
    ];
    let restart = |longest| {
        let restart = (0..longest, any::<bool>());
        restart.prop_map(|(after, clock)| Happening::Restart { after, clock })
    };
    let interruption = prop_oneof![
        2 => restart(3),
        1 => (1..6_u64).prop_map(Happening::Freeze),
    ];
    let repeated = (WRITTEN..TTL / 2, interruption);
    let happening = prop_oneof![
        6 => workloads.prop_map(Happening::Other),
        3 => clients.prop_map(Happening::Other),
        2 => mischief.prop_map(Happening::Other),
        4 => reach.prop_map(Happening::Reach),
        4 => any_one().prop_map(Happening::Expire),
        2 => restart(TTL),
        1 => (1..TTL).prop_map(Happening::Freeze),
        1 => repeated.prop_map(|(every, it)| Happening::Repeat(every, Box::new(it))),
        6 => (1..TTL).prop_map(Happening::Wait),
    ];
    vec(happening, 0..60)
}

proptest! {
    #![proptest_config(config(100))]

    /// Whatever happens to Consul, every policy does what it says, no workload has pods when Consul may have given
    /// its slot to somebody else, and in the end nothing is lost.
    #[test]
    fn no_pods_outlive_the_evidence_for_their_slot(
        limit in 1..3_u32,
        policy in prop_oneof![
            Just(OnSlotLost::Reacquire), Just(OnSlotLost::Suspend), Just(OnSlotLost::Continue)
        ],
        ttl in prop_oneof![3 => Just(Some(TTL)), 1 => Just(None)],
        happenings in happenings(),
    ) {
        let mut days = Days::new(limit, policy, ttl);
        for happening in &happenings {
            days.happen(happening);
        }
        days.settle();
    }
}
